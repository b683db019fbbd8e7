"""Questions and pictures disturbed before they are asked: hints and masks (paper 003, appendix C.2)."""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from mmprobe.benchmarks.core.runner import Answer
from mmprobe.errors import InputError
from mmprobe.samples import Sample

KINDS = ("explicit", "implicit", "mask-25", "mask-50", "mask-75", "mask-100")
EXPLICIT = " The answer is"  # the paper's own example
IMPLICIT = "<question>{}</question>\n<answer></answer>"  # tags that add no meaning; their names are ours
BLOCKS = 8  # blocks along each side of a picture, ours


def perturb(sample: Sample, kind: str, folder: Path, seed: int = 0) -> Sample:
    """A sample under the same id, disturbed.

    - explicit: the question with `The answer is` behind it
    - implicit: the question in tags that say nothing
    - mask-25 … mask-100: so many per cent of each picture's 8 x 8 blocks, drawn at random, in its mean colour

    Args:
        kind: one of `KINDS`.
        folder: for masked pictures.
        seed: of the masks, which are the same for the same picture.

    Raises:
        InputError: there is no such kind.

    Example:
        >>> perturb(Sample(id="1", question="Are they the same?"), "explicit", Path("out")).question
        'Are they the same? The answer is'
    """
    if kind not in KINDS:
        raise InputError(f"--perturb {kind}: choose {', '.join(KINDS)}")
    if kind == "explicit":
        return sample.model_copy(update={"question": sample.question + EXPLICIT})
    if kind == "implicit":
        return sample.model_copy(update={"question": IMPLICIT.format(sample.question)})
    share = int(kind.removeprefix("mask-")) / 100
    folder.mkdir(parents=True, exist_ok=True)
    return sample.model_copy(
        update={"images": [_masked(path, share, folder, seed) for path in sample.images]}
    )


def _masked(path: Path, share: float, folder: Path, seed: int) -> Path:
    out = folder / f"{path.stem}-{zlib.crc32(str(path).encode()):08x}-{round(100 * share)}.png"
    if not out.exists():
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"))
        rng = np.random.default_rng([seed, zlib.crc32(path.name.encode())])
        hidden = rng.permutation(BLOCKS * BLOCKS) < round(share * BLOCKS * BLOCKS)
        rows, columns = (np.arange(side) * BLOCKS // side for side in pixels.shape[:2])
        mean = pixels.mean((0, 1)).round().astype(np.uint8)
        pixels[hidden.reshape(BLOCKS, BLOCKS)[rows[:, None], columns]] = mean
        part = out.with_name(out.name + ".part")
        Image.fromarray(pixels).save(part, format="png")
        os.replace(part, out)
    return out


def perturbed(answer: Answer, kind: str, folder: Path, seed: int = 0) -> Answer:
    """Answers to disturbed questions, under the ids of the true ones.

    Example:
        >>> dict(perturbed(local(model, 32), "mask-50", Path("out"))(samples))     # doctest: +SKIP
    """
    if kind not in KINDS:
        raise InputError(f"--perturb {kind}: choose {', '.join(KINDS)}")

    def of(samples: Sequence[Sample]) -> Generator[tuple[str, str]]:
        return answer([perturb(sample, kind, folder, seed) for sample in samples])

    return of
