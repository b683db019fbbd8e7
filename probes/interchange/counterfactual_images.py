"""Other images for the samples of a run: minimal pairs, unrelated images, the mean image, blank images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import numpy as np
from PIL import Image

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.prompt import build_chat
from mmprobe.samples import Sample, Video, check_image, check_no_videos, check_video, read_image

CounterfactualKind = Literal["unrelated", "minimal", "mean", "blank"]
KINDS: tuple[CounterfactualKind, ...] = get_args(CounterfactualKind)
GREY = 127  # of a blank image; our choice
SHADE, GRAIN = 0.96, 4.0  # of images with the same content: their brightness, and noise in levels of 255
ImageList = list[Image.Image]
_Files = tuple[Sequence[Path], Sequence[Video]]


class CounterfactualImages:
    """The counterfactual images of each sample among many, and frames of its videos.

    - `unrelated`: the first images and videos of the next sample (in the given order, around the end) that has as many
      or more of both, and none of the sample's own. Those of the same sizes come first; others are resized.
    - `minimal`: what differs in little. The files that `metadata["counterfactual"]` lists, one for each image and
      then for each video (a list of files for its frames), looked for beside the sample's first file and in the folders
      above it. Else, without videos, for two images, the first one twice: the pair's unedited original. Else, for one
      image, its partner in a sample of two images.
    - `mean`: the mean of all the samples' images and frames, pixel by pixel, at the size of the first one.
    - `blank`: grey.

    Of another video, as many frames are taken as the model is shown of the sample's own, at equal distances.

    Args:
        samples: samples with images or videos; their order decides what is unrelated.
        model: its processor chooses the frames of video files. Without it, samples have no videos.

    Raises:
        InputError: an image cannot be read, or a sample has a video and no model was given.

    Example:
        >>> CounterfactualImages(samples).find(samples[0], "unrelated")      # doctest: +SKIP
        [<PIL.Image.Image image mode=RGB size=112x112>, ...]
    """

    def __init__(self, samples: Iterable[Sample], model: Model | None = None):
        samples = list(samples)
        if model is None:
            check_no_videos(samples, "a counterfactual of a run")
        self._model = model
        self._samples = [sample for sample in samples if sample.files]
        self._places = {sample.id: place for place, sample in enumerate(self._samples)}
        self._sizes = {
            path: check_image(path, f"sample {sample.id}")
            for sample in self._samples
            for path in sample.images
        }
        self._video_sizes = {
            tuple(video.files): check_video(video, f"sample {sample.id}")
            for sample in self._samples
            for video in sample.videos
        }
        self._partners: dict[Path, Path] = {}
        pairs = (sample.images for sample in self._samples if len(sample.images) == 2 and not sample.videos)
        for first, second in pairs:
            self._partners.setdefault(first, second)
            self._partners.setdefault(second, first)
        self._mean: Image.Image | None = None

    def find(self, sample: Sample, kind: str) -> ImageList | None:
        """Return images of the sizes of the sample's, and frames after them; None if there are none of this kind, or only
        equal ones.

        Raises:
            InputError: the kind is unknown, or an image cannot be read.
        """
        if kind not in KINDS:
            raise InputError(f"counterfactual {kind!r}: choose {', '.join(KINDS)}")
        own, videos = self._show(sample)
        if kind == "blank":
            others: ImageList | None = [Image.new("RGB", image.size, (GREY,) * 3) for image in own]
        elif kind == "mean":
            others = [self._mean_image()] * len(own)
        else:
            other = self._find_other(sample, kind)
            others = None if other is None else self._take_pictures(other, videos)
        if others is None:
            return None
        others = [
            other if other.size == image.size else other.resize(image.size)
            for other, image in zip(others, own, strict=True)
        ]
        equal = all(image.tobytes() == other.tobytes() for image, other in zip(own, others, strict=True))
        return None if equal else others

    def find_further(self, sample: Sample, count: int) -> list[ImageList]:
        """Return at most so many further sets of unrelated images, other than those of `find`, at the sizes of the sample's own.

        Raises:
            InputError: an image cannot be read.
        """
        own, videos = self._show(sample)
        sets = islice(self._list_unrelated(sample), 1, 1 + count)
        return [
            [
                picture.resize(image.size)
                for picture, image in zip(self._take_pictures(other, videos), own, strict=True)
            ]
            for other in (self._show_files(sample, *files) for files in sets)
        ]

    def find_files(self, sample: Sample, kind: str) -> Sequence[Path] | None:
        """Return the files of the images of the kind `unrelated` or `minimal`, or None if there are none."""
        other = self._find_other(sample, kind)
        return None if other is None else other.images

    def _show(self, sample: Sample) -> tuple[ImageList, list[slice]]:
        """Return a sample's images and the frames that the model is shown, and the places of the frames of each video."""
        chat = build_chat(sample, self._model)
        return chat.images, [clip.pictures for clip in chat.clips]

    def _take_pictures(self, other: Sample, videos: Sequence[slice]) -> ImageList:
        """Return the images of a sample, and as many frames of each video as another one has."""
        pictures, own = self._show(other)
        taken = pictures[: len(other.images)]
        for clip, wanted in zip(own, videos, strict=True):
            frames = pictures[clip]
            places = np.linspace(0, len(frames) - 1, wanted.stop - wanted.start)
            taken += [frames[place] for place in places.round().astype(int)]
        return taken

    def _find_other(self, sample: Sample, kind: str) -> Sample | None:
        """Return the sample with the images and videos of the kind `unrelated` or `minimal`; None if there are none."""
        found = self._find_unrelated(sample) if kind == "unrelated" else self._find_minimal(sample)
        return None if found is None else self._show_files(sample, *found)

    def _show_files(self, sample: Sample, images: Sequence[Path], videos: Sequence[Video]) -> Sample:
        return sample.model_copy(update={"images": list(images), "videos": list(videos)})

    def _find_unrelated(self, sample: Sample) -> _Files | None:
        return next(self._list_unrelated(sample), None)

    def _list_unrelated(self, sample: Sample) -> Iterator[_Files]:
        """Yield the sets of unrelated images and videos, each once: those of the same sizes, then the others."""
        place = self._places[sample.id]
        sizes = self._list_sizes(sample.images, sample.videos)
        of_other_size: list[_Files] = []
        seen: set[tuple[Path, ...]] = set()
        for other in self._samples[place + 1 :] + self._samples[:place]:
            files = other.images[: len(sample.images)], other.videos[: len(sample.videos)]
            enough = len(files[0]) == len(sample.images) and len(files[1]) == len(sample.videos)
            key = (*files[0], *(path for video in files[1] for path in video.files))
            if not enough or key in seen or set(other.files) & set(sample.files):
                continue
            seen.add(key)
            if self._list_sizes(*files) == sizes:
                yield files
            else:
                of_other_size.append(files)
        yield from of_other_size

    def _list_sizes(self, images: Sequence[Path], videos: Sequence[Video]) -> list[tuple[int, int]]:
        return [
            *(self._sizes[path] for path in images),
            *(self._video_sizes[tuple(each.files)] for each in videos),
        ]

    def _find_minimal(self, sample: Sample) -> _Files | None:
        named = sample.metadata.get("counterfactual")
        if isinstance(named, list):
            count, first = len(sample.images), sample.files[0]
            if len(named) != count + len(sample.videos) or not all(named):
                raise InputError(
                    f"sample {sample.id}: metadata.counterfactual lists {len(named)} files; list one for each of its "
                    f"{count + len(sample.videos)} images and videos"
                )
            files = [
                [
                    _find_file(str(name), first, sample.id)
                    for name in (each if isinstance(each, list) else [each])
                ]
                for each in named
            ]
            videos = [
                Video(frames=paths, fps=own.fps)
                if isinstance(each, list)
                else Video(file=paths[0], fps=own.fps)
                for each, paths, own in zip(named[count:], files[count:], sample.videos, strict=True)
            ]
            return [paths[0] for paths in files[:count]], videos
        if sample.videos:
            return None
        if len(sample.images) == 2:
            return [sample.images[0]] * 2, []
        partner = self._partners.get(sample.images[0]) if len(sample.images) == 1 else None
        return None if partner is None else ([partner], [])

    def _mean_image(self) -> Image.Image:
        if self._mean is None:
            first = self._samples[0]
            height, width = self._list_sizes(first.images, first.videos)[0]
            total, count = np.zeros((height, width, 3)), 0
            for picture in self._list_pictures():
                total += np.asarray(picture.resize((width, height)), float)
                count += 1
            self._mean = Image.fromarray((total / count).round().astype(np.uint8))
        return self._mean

    def _list_pictures(self) -> Iterator[Image.Image]:
        """Yield all the samples' images and frames, each file once."""
        for path in sorted(self._sizes):
            yield read_image(path, "mean image")
        seen = set()
        for sample in self._samples:
            pictures, clips = self._show(sample) if sample.videos else ([], [])
            for video, clip in zip(sample.videos, clips, strict=True):
                if tuple(video.files) not in seen:
                    seen.add(tuple(video.files))
                    yield from pictures[clip]


def render_again(images: Sequence[Image.Image]) -> ImageList:
    """Return images a little darker and with noise, which leaves their content as it is: what changes with them is the floor.

    Example:
        >>> render_again([Image.new("RGB", (2, 2), "white")])[0].getpixel((0, 0)) < (255, 255, 255)
        True
    """
    rng = np.random.default_rng(len(images))
    again = []
    for image in images:
        pixels = SHADE * np.asarray(image.convert("RGB"), float)
        pixels += rng.normal(0, GRAIN, (image.height, image.width, 1))
        again.append(Image.fromarray(pixels.clip(0, 255).round().astype(np.uint8)))
    return again


@contextmanager
def show_others(sample: Sample, others: ImageList | None) -> Iterator[Sample | None]:
    """Within the block, there is a sample that shows other images and is otherwise the same. None for None.

    Example:
        >>> with show_others(samples[0], images.find(samples[0], "blank")) as other:  # doctest: +SKIP
        ...     ds = patch_components(model, samples[0], other)
    """
    if others is None:
        yield None
        return
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.png" for number in range(len(others))]
        for path, image in zip(paths, others, strict=True):
            image.convert("RGB").save(path)
        yield sample.model_copy(update={"id": f"{sample.id}-other", "images": paths})


def _find_file(name: str, image: Path, sample: str) -> Path:
    """Return the file of a relative name in the folder of an image, or in the nearest folder above it."""
    found = next((folder / name for folder in image.parents if (folder / name).is_file()), None)
    if found is None:
        raise InputError(
            f"sample {sample}: metadata.counterfactual: {name}: no such file in {image.parent} or a folder above it"
        )
    return found
