"""Other images for the samples of a run: minimal pairs, unrelated images, the mean image, blank images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from mmprobe.errors import InputError
from mmprobe.models.prompt import read_image
from mmprobe.samples import Sample, check_image

KINDS = ("unrelated", "minimal", "mean", "blank")
GREY = 127  # of a blank image; our choice
ImageList = list[Image.Image]


class CounterfactualImages:
    """The counterfactual images of each sample among many.

    - `unrelated`: the first images of the next sample (in the given order, around the end) that has as many or
      more, and none of the sample's own. Those of the same sizes come first; others are resized.
    - `minimal`: what differs in little. The files that `metadata["counterfactual"]` lists, one for each image,
      looked for beside the sample's first image and in the folders above it. Else, for two images, the first
      one twice: the pair's unedited original. Else, for one image, its partner in a sample of two images.
    - `mean`: the mean of all the samples' images, pixel by pixel, at the size of the first one.
    - `blank`: grey.

    Args:
        samples: samples with images; their order decides what is unrelated.

    Raises:
        InputError: an image cannot be read.

    Example:
        >>> CounterfactualImages(samples).find(samples[0], "unrelated")      # doctest: +SKIP
        [<PIL.Image.Image image mode=RGB size=112x112>, ...]
    """

    def __init__(self, samples: Iterable[Sample]):
        self._samples = [sample for sample in samples if sample.images]
        self._places = {sample.id: place for place, sample in enumerate(self._samples)}
        self._sizes = {
            path: check_image(path, f"sample {sample.id}")
            for sample in self._samples
            for path in sample.images
        }
        self._partners: dict[Path, Path] = {}
        for first, second in (sample.images for sample in self._samples if len(sample.images) == 2):
            self._partners.setdefault(first, second)
            self._partners.setdefault(second, first)
        self._mean: Image.Image | None = None

    def find(self, sample: Sample, kind: str) -> ImageList | None:
        """Return images of the sizes of the sample's; None if there are none of this kind, or only equal ones.

        Raises:
            InputError: the kind is unknown, or an image cannot be read.
        """
        if kind not in KINDS:
            raise InputError(f"counterfactual {kind!r}: choose {', '.join(KINDS)}")
        own = [read_image(path, f"sample {sample.id}") for path in sample.images]
        if kind == "blank":
            others: ImageList | None = [Image.new("RGB", image.size, (GREY,) * 3) for image in own]
        elif kind == "mean":
            others = [self._mean_image()] * len(own)
        else:
            paths = self.find_files(sample, kind)
            others = None if paths is None else [read_image(path, f"sample {sample.id}") for path in paths]
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
        return self._find_unrelated(sample) if kind == "unrelated" else self._find_minimal(sample)

    def _find_unrelated(self, sample: Sample) -> Sequence[Path] | None:
        place = self._places[sample.id]
        sizes = [self._sizes[path] for path in sample.images]
        of_other_size = None
        for other in self._samples[place + 1 :] + self._samples[:place]:
            paths = other.images[: len(sizes)]
            if len(paths) < len(sizes) or set(other.images) & set(sample.images):
                continue
            if [self._sizes[path] for path in paths] == sizes:
                return paths
            of_other_size = of_other_size or paths
        return of_other_size

    def _find_minimal(self, sample: Sample) -> Sequence[Path] | None:
        named = sample.metadata.get("counterfactual")
        if isinstance(named, list) and len(named) == len(sample.images):
            found = [_find_file(str(name), sample.images[0]) for name in named]
            return [path for path in found if path is not None] if all(found) else None
        if len(sample.images) == 2:
            return [sample.images[0]] * 2
        partner = self._partners.get(sample.images[0]) if len(sample.images) == 1 else None
        return None if partner is None else [partner]

    def _mean_image(self) -> Image.Image:
        if self._mean is None:
            paths = sorted(self._sizes)
            height, width = self._sizes[self._samples[0].images[0]]
            total = np.zeros((height, width, 3))
            for path in paths:
                total += np.asarray(read_image(path, "mean image").resize((width, height)), float)
            self._mean = Image.fromarray((total / len(paths)).round().astype(np.uint8))
        return self._mean


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
