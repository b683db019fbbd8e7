"""Questions and images disturbed by hints and masks: SPD-Faith Bench (arXiv:2602.07833), appendices C.2 and C.3."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from mmprobe.benchmarks.core.likelihood import find_closed
from mmprobe.benchmarks.core.results import Metric, paired_difference
from mmprobe.errors import InputError
from mmprobe.files import make_folders
from mmprobe.registry import Registry, check_made
from mmprobe.samples import Sample, hash_picture, read_picture, write_image

Perturbation = Callable[[Sample, Path, int], Sample]
"""Returns a disturbed copy of a sample under the same id, given a folder for its images and a seed."""

EXPLICIT = " The answer is"  # the paper's own example
IMPLICIT = "<question>{}</question>\n<answer></answer>"  # tags that add no meaning; we chose their names
BLOCKS = 8  # blocks along each side of an image, our choice


def _begin_answer(sample: Sample, folder: Path, seed: int) -> Sample:
    """Let `The answer is` follow the question."""
    return sample.model_copy(update={"question": sample.question + EXPLICIT})


def _suggest_target(sample: Sample, folder: Path, seed: int) -> Sample:
    """Suggest an answer that is wrong, after the question (figure 13): `metadata.target`, or else one of the other answers.

    Of yes and no, and of options, one of those that are wrong is drawn (our choice); a number is suggested one too high.

    Raises:
        InputError: the sample has no answer to suggest.

    Example:
        >>> _suggest_target(Sample(id="1", question="Is it red?", answer="yes"), Path("out"), 0).question
        'Is it red? The answer is no.'
    """
    target = sample.metadata.get("target")
    if target is None and (closed := find_closed(sample)) is not None and closed.right:
        wrong = sorted(set(closed.answers) - closed.right)
        drawn = int(np.random.default_rng([seed, zlib.crc32(sample.id.encode())]).integers(len(wrong) or 1))
        chosen = wrong[drawn] if wrong else None
        target = chosen if chosen is None or closed.lettered else closed.answers[chosen]
    elif target is None and sample.answer is not None and sample.answer.strip().isdecimal():
        target = str(int(sample.answer) + 1)
    if not isinstance(target, str):
        raise InputError(
            f"sample {sample.id}: perturbation target knows no wrong answer to it; give one as metadata.target"
        )
    return sample.model_copy(update={"question": f"{sample.question}{EXPLICIT} {target}."})


def _put_into_tags(sample: Sample, folder: Path, seed: int) -> Sample:
    """Put the question into tags that say nothing."""
    return sample.model_copy(update={"question": IMPLICIT.format(sample.question)})


def mask(share: float, sample: Sample, folder: Path, seed: int) -> Sample:
    """Give a share of the 8 x 8 blocks of the images, drawn at random, the mean colour of the images.

    The blocks are the same in all images of a sample, and for all questions about the same images, so that a
    mask adds no difference between them (our choice).
    """
    make_folders(folder)
    return sample.model_copy(update={"images": _mask_images(sample.images, share, folder, seed)})


PERTURBATIONS: Registry[Perturbation] = Registry(
    "perturbation",
    "perturbations",
    {
        "explicit": _begin_answer,
        "implicit": _put_into_tags,
        "mask-25": partial(mask, 0.25),
        "mask-50": partial(mask, 0.5),
        "mask-75": partial(mask, 0.75),
        "mask-100": partial(mask, 1.0),
        "target": _suggest_target,
    },
)
"""Every perturbation by its name."""


def perturb(sample: Sample, kind: str, folder: Path, seed: int = 0) -> Sample:
    """Return a disturbed copy of a sample under the same id. Raises InputError for a name not in `PERTURBATIONS`.

    Example:
        >>> perturb(Sample(id="1", question="Are they the same?"), "explicit", Path("out")).question
        'Are they the same? The answer is'
    """
    check_perturbation(kind)
    change = PERTURBATIONS[kind]
    return check_made(change, change(sample, folder, seed), Sample)


def check_perturbation(kind: str) -> None:
    """Check the name of a perturbation: raise InputError if there is no such kind.

    Example:
        >>> check_perturbation("mask-25")
    """
    if kind not in PERTURBATIONS:
        raise InputError(f"perturbation {kind!r}: choose {', '.join(PERTURBATIONS)}")


def _mask_images(paths: Sequence[Path], share: float, folder: Path, seed: int) -> list[Path]:
    key = zlib.crc32("\0".join(f"{path.name} {hash_picture(path)}" for path in paths).encode())
    outs = [
        folder / f"{path.stem}-{key:08x}-{number}-{round(100 * share)}-{seed}.png"
        for number, path in enumerate(paths)
    ]
    if all(out.exists() for out in outs):
        return outs
    images = [np.array(read_picture(path)) for path in paths]
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
        write_image(Image.fromarray(pixels), out)
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
