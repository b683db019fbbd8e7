"""Numbers that tests give for a model, with intervals; what was measured of an answer, and the limits that all tests share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from mmprobe.stats.estimate import Estimate, format_interval, format_number

NAN = float("nan")


class MeasuredPart(BaseModel):
    """What a test measures of one answer. Its fields are keys of the answer's line in `measures.jsonl`."""

    model_config = ConfigDict(extra="ignore", frozen=True)


P = TypeVar("P", bound=MeasuredPart)


class AnswerRecord:
    """What all tests measured of one answer: a line of `measures.jsonl`, with what was measured further.

    Attributes:
        line: the line.
        id: of the sample; answer: the text.
        passes: forward passes, with one for the answer itself.

    Example:
        >>> class Count(MeasuredPart):
        ...     count: int | None = None
        >>> AnswerRecord({"id": "a", "answer": "Two.", "count": 2}).of(Count).count
        2
    """

    def __init__(self, line: Mapping[str, Any]):
        self.line = line
        self.id: str = line["id"]
        self.answer: str = line["answer"]
        self.passes: int = line.get("passes", 0)
        self._parts: dict[type[MeasuredPart], MeasuredPart] = {}

    def of(self, kind: type[P]) -> P:
        """Return what the test with records of a kind measured."""
        if kind not in self._parts:
            self._parts[kind] = kind.model_validate(self.line)
        part: Any = self._parts[kind]
        return part  # type: ignore[no-any-return]


class Limits(BaseModel):
    """What counts as an effect, and what a cause needs beside its score to be named, in all tests.

    Chosen by us on development models ([which ones, and how far each could move](diagnosis-results.md#how-far-thresholds-could-move)).

    Attributes:
        unused_effect: of the usual margin, at the free tokens; an answer that loses less does not use its images.
        least_low: times the cause's threshold, which the low end of the interval must reach.
        least_answers: of a test, at least; with fewer the test names no cause.
        least_sets: of images, at least.
        wrong_share: of the answers; with more false ones and no cause the verdict is `unknown`.
        wrong_times: the share of the other answers that is false; a model of which more claims or numbers are false is not bad at
            everything.
        usual_share: of the false claims or numbers; if fewer are the usual ones for what is true, and other answers are false, too,
            the model is bad at everything.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    unused_effect: float = Field(default=0.05, gt=0)
    least_low: float = Field(default=0.5, ge=0, le=1)
    least_answers: int = Field(default=5, ge=1)
    least_sets: int = Field(default=4, ge=2)
    wrong_share: float = Field(default=0.2, gt=0, lt=1)
    wrong_times: float = Field(default=2.5, gt=1)
    usual_share: float = Field(default=0.7, gt=0, le=1)


LIMITS = Limits()


def describe_shortage(n: int, sets: int, limits: Limits) -> str:
    """Return in words that so many answers are too few, and how many it takes.

    Example:
        >>> describe_shortage(3, 1, LIMITS)
        '3 answers about 1 set of images are too few; it takes 5 answers and 4 sets or more'
        >>> describe_shortage(27, 3, LIMITS)
        '27 answers about 3 sets of images are too few; it takes 4 sets or more'
    """
    answers, images = "answer" if n == 1 else "answers", "set" if sets == 1 else "sets"
    needed = [f"{limits.least_answers} answers"] if n < limits.least_answers else []
    needed += [f"{limits.least_sets} sets"] if sets < limits.least_sets else []
    return (
        f"{n} {answers} about {sets} {images} of images are too few; it takes {' and '.join(needed)} or more"
    )


@dataclass(frozen=True, kw_only=True)
class Effect(Estimate[float]):
    """One number that a test gives for a model, with its interval; NaN if the test did not run.

    Attributes:
        name: what the number is.
        unit: share, nat, or "" for a plain number.
        needs: what the data would need for the test; "" if it ran.
    """

    value: float = NAN
    low: float = NAN
    high: float = NAN
    sets: int = 0
    name: str
    unit: str = "share"
    needs: str = ""

    def describe(self) -> str:
        """Return a line: what the number is, the number with its interval, and n; or what the test needs.

        Example:
            >>> Effect(name="answers that change", value=0.5, low=0.25, high=0.75, n=12).describe()
            'answers that change: 50 % [25, 75], n = 12'
        """
        if self.needs:
            return f"{self.name}: not run; it needs {self.needs}"
        share = self.unit == "share"
        scale, spec = (100, ".0f") if share else (1, ".2f")
        value = format_number(scale * self.value, spec)
        interval = format_interval(scale * self.low, scale * self.high, spec)
        unit = " %" if share else f" {self.unit}" if self.unit else ""
        return f"{self.name}: {value}{unit}{interval}, n = {self.n}"

    def bound(self, unread: int) -> tuple[float, float]:
        """Return the share of all answers if the effect is in none of those that could not be read, and if it is in all of them.

        Example:
            >>> Effect(name="answers that change", value=0.5, n=12).bound(4)
            (0.375, 0.625)
            >>> Effect(name="answers that change").bound(4)
            (0.0, 1.0)
        """
        found, n = self.value * self.n if self.n else 0.0, max(self.n + unread, 1)
        return found / n, (found + unread) / n

    def reaches(self, threshold: float, limits: Limits, beyond: float = 0.0) -> bool | None:
        """Return True if the effect surely reaches a threshold, False if its value does not or is one of controls, None if that is undecided.

        It is undecided if the interval's low end is below `least_low` of the threshold or not beyond the range of controls, if there
        are too few answers or sets, and if the effect was not measured.

        Args:
            beyond: the largest value in a control.

        Example:
            >>> Effect(name="x", value=0.5, low=0.2, high=0.8, n=12, sets=12).reaches(0.25, LIMITS)
            True
        """
        if self.needs:
            return None
        if self.value < threshold or self.value <= beyond:
            return False
        enough = self.n >= limits.least_answers and self.sets >= limits.least_sets
        sure = not np.isnan(self.low) and self.low >= limits.least_low * threshold and self.low > beyond
        if enough and sure:
            return True
        return None if not enough or self.low > 0 else False


def is_surer(effect: Effect, other: Effect) -> bool:
    """Return whether the low end of an effect's interval is larger: the largest of many values may rest on few answers."""
    return (np.nan_to_num(effect.low, nan=-2.0), effect.value) > (
        np.nan_to_num(other.low, nan=-2.0),
        other.value,
    )
