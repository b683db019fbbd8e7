"""What a diagnosis costs, before it is begun: forward passes and minutes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from mmprobe.diagnosis.diagnose import diagnose
from mmprobe.models import Model
from mmprobe.samples import Sample, image_sets

USUAL_PASSES = (14.0, 18.0)  # an answer, in the organisms and in the real model
LEAST_TRIED = 10  # answers


class DiagnosisPlan(NamedTuple):
    """The cost of a diagnosis.

    Attributes:
        answers: their number.
        passes: forward passes of all, the least and the most. To generate an answer counts as one.
        seconds: time; None if nothing was tried.
        tried: the number of answers that were diagnosed to tell it; 0 for none.
    """

    answers: int
    passes: tuple[int, int]
    seconds: float | None = None
    tried: int = 0

    def describe(self) -> str:
        """Return the cost in words.

        Example:
            >>> DiagnosisPlan(90, (1260, 1620)).describe()
            '1,260 to 1,620 forward passes for 90 answers; minutes are not known without --probe'
            >>> DiagnosisPlan(90, (1350, 1350), 210.0, 10).describe()
            '1,350 forward passes for 90 answers; 3.5 minutes, as 10 of them took'
        """
        passes = " to ".join(f"{each:,}" for each in dict.fromkeys(self.passes))
        minutes = (
            "minutes are not known without --probe"
            if self.seconds is None
            else f"{self.seconds / 60:.1f} minutes, as {self.tried} of them took"
        )
        return f"{passes} forward passes for {self.answers} answers; {minutes}"


def plan_diagnosis(
    model: Model | None, samples: Sequence[Sample], count: int, **settings: Any
) -> DiagnosisPlan:
    """Return the cost of a diagnosis.

    Args:
        model: diagnoses the first sets of images, in a folder that is not kept; None to predict passes alone.
        samples: with the images.
        count: answers that are to be diagnosed.
        settings: of `diagnose`.

    Example:
        >>> plan_diagnosis(None, [], 90).passes
        (1260, 1620)
    """
    if model is None:
        least, most = (round(each * count) for each in USUAL_PASSES)
        return DiagnosisPlan(count, (least, most))
    tried = choose_tried(samples)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        found = diagnose(model, tried, folder, **settings)
        seconds = time.perf_counter() - begun
    passes = round(found.passes * count)
    return DiagnosisPlan(count, (passes, passes), seconds / len(tried) * count, len(tried))


def choose_tried(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples about the first sets of images, whole sets, ten samples or more where there are so many."""
    shown = [sample for sample in samples if sample.images]
    sets = image_sets(shown).tolist()
    chosen: set[int] = set()
    for number in sets:
        if sum(each in chosen for each in sets) >= LEAST_TRIED:
            break
        chosen.add(number)
    return [sample for sample, number in zip(shown, sets, strict=True) if number in chosen]
