"""Questions and images disturbed by hints and masks: SPD-Faith Bench (arXiv:2602.07833), appendix C.2."""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from mmprobe.benchmarks.core.paired_bootstrap import paired_difference
from mmprobe.benchmarks.core.results import Metric
from mmprobe.errors import InputError
from mmprobe.samples import Sample, open_image

if TYPE_CHECKING:
    from mmprobe.benchmarks.core.runner import Answerer

KINDS = ("explicit", "implicit", "mask-25", "mask-50", "mask-75", "mask-100")
EXPLICIT = " The answer is"  # the paper's own example
IMPLICIT = "<question>{}</question>\n<answer></answer>"  # tags that add no meaning; their names are ours
BLOCKS = 8  # blocks along each side of an image, ours


def perturb(sample: Sample, kind: str, folder: Path, seed: int = 0) -> Sample:
    """Return a disturbed copy of a sample under the same id. Raises InputError for another kind than `KINDS`.

    - explicit: `The answer is` follows the question.
    - implicit: the question stands in tags that say nothing.
    - mask-25 … mask-100: this share of the 8 x 8 blocks, drawn at random, has the mean colour of the
      sample's images. The blocks are the same in all images of a sample, and for all questions about the same
      images, so that a mask adds no difference between them (ours).

    Example:
        >>> perturb(Sample(id="1", question="Are they the same?"), "explicit", Path("out")).question
        'Are they the same? The answer is'
    """
    check_kind(kind)
    if kind == "explicit":
        return sample.model_copy(update={"question": sample.question + EXPLICIT})
    if kind == "implicit":
        return sample.model_copy(update={"question": IMPLICIT.format(sample.question)})
    share = int(kind.removeprefix("mask-")) / 100
    folder.mkdir(parents=True, exist_ok=True)
    return sample.model_copy(update={"images": _mask_images(sample.images, share, folder, seed)})


def check_kind(kind: str) -> None:
    """Check the name of a perturbation: raise InputError if there is no such kind.

    Example:
        >>> check_kind("mask-25")
    """
    if kind not in KINDS:
        raise InputError(f"perturbation {kind!r}: choose {', '.join(KINDS)}")


def _mask_images(paths: Sequence[Path], share: float, folder: Path, seed: int) -> list[Path]:
    key = zlib.crc32("\0".join(map(str, paths)).encode())
    outs = [
        folder / f"{path.stem}-{key:08x}-{number}-{round(100 * share)}.png"
        for number, path in enumerate(paths)
    ]
    if all(out.exists() for out in outs):
        return outs
    images = []
    for path in paths:
        with open_image(path) as image:
            images.append(np.array(image.convert("RGB")))
    rng = np.random.default_rng([seed, zlib.crc32("\0".join(path.name for path in paths).encode())])
    hidden = (rng.permutation(BLOCKS * BLOCKS) < round(share * BLOCKS * BLOCKS)).reshape(BLOCKS, BLOCKS)
    sums, n_pixels = (
        sum(pixels.sum((0, 1)) for pixels in images),
        sum(pixels[..., 0].size for pixels in images),
    )
    mean = (sums / max(n_pixels, 1)).round().astype(np.uint8)
    for pixels, out in zip(images, outs, strict=True):
        rows, columns = (np.arange(side) * BLOCKS // side for side in pixels.shape[:2])
        pixels[hidden[rows[:, None], columns]] = mean
        part = out.with_name(out.name + ".part")
        Image.fromarray(pixels).save(part, format="png")
        os.replace(part, out)
    return outs


def paired_changes(metrics: Mapping[str, Metric], usual: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return `NAME_change` for each metric: its paired difference to that of the usual questions.

    Metrics of groups of samples, `NAME[…]`, have none.

    Example:
        >>> from mmprobe.benchmarks.core.results import mean_metric, with_ids
        >>> masked, usual = (
        ...     with_ids({"accuracy": mean_metric(values, "higher")}, "abc") for values in ([0, 1, None], [1, 1, 0])
        ... )
        >>> paired_changes(masked, usual)["accuracy_change"].value
        -0.5
    """
    changes = {}
    for name, metric in metrics.items():
        change = paired_difference(metric, usual.get(name))
        if "[" in name or not change.n:
            continue
        smallest, largest = metric.range
        width = None if smallest is None or largest is None else largest - smallest
        limits = (None if width is None else -width, width)
        coverage = change.n / len(metric.parts.index) if metric.parts is not None else None
        changes[f"{name}_change"] = Metric(
            **(change.to_json() | {"sets": metric.sets}),
            coverage=coverage,
            direction=metric.direction,
            range=limits,
        )
    return changes


def perturb_answerer(answerer: Answerer, kind: str, folder: Path, seed: int = 0) -> Answerer:
    """Return an answerer that is asked disturbed questions, under the ids of the true ones."""
    check_kind(kind)

    def answer(samples: Sequence[Sample]) -> Generator[tuple[str, str]]:
        return answerer([perturb(sample, kind, folder, seed) for sample in samples])

    return answer
