"""Other images for the samples of a run: minimal pairs, unrelated images, the mean image, blank images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.prompt import build_chat, read_image
from mmprobe.samples import Sample, Video, check_image, check_no_videos, check_video

KINDS = ("unrelated", "minimal", "mean", "blank")
GREY = 127  # of a blank image; our choice
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
        if found is None:
            return None
        images, videos = found
        return sample.model_copy(update={"images": list(images), "videos": list(videos)})

    def _find_unrelated(self, sample: Sample) -> _Files | None:
        place = self._places[sample.id]
        sizes = self._list_sizes(sample.images, sample.videos)
        of_other_size = None
        for other in self._samples[place + 1 :] + self._samples[:place]:
            files = other.images[: len(sample.images)], other.videos[: len(sample.videos)]
            enough = len(files[0]) == len(sample.images) and len(files[1]) == len(sample.videos)
            if not enough or set(other.files) & set(sample.files):
                continue
            if self._list_sizes(*files) == sizes:
                return files
            of_other_size = of_other_size or files
        return of_other_size

    def _list_sizes(self, images: Sequence[Path], videos: Sequence[Video]) -> list[tuple[int, int]]:
        return [
            *(self._sizes[path] for path in images),
            *(self._video_sizes[tuple(each.files)] for each in videos),
        ]

    def _find_minimal(self, sample: Sample) -> _Files | None:
        named = sample.metadata.get("counterfactual")
        if isinstance(named, list) and len(named) == len(sample.images) + len(sample.videos):
            first = sample.files[0]
            found = [
                [_find_file(str(name), first) for name in (each if isinstance(each, list) else [each])]
                for each in named
            ]
            if not all(file for each in found for file in each) or not all(found):
                return None
            files = [[file for file in each if file is not None] for each in found]
            count = len(sample.images)
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


def _find_file(name: str, image: Path) -> Path | None:
    """Return the file of a relative name in the folder of an image, or in the nearest folder above it."""
    return next((folder / name for folder in image.parents if (folder / name).is_file()), None)
