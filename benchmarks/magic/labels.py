"""What is labelled of each answer of MagiC, by rules or by a judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AnswerLabel = Literal["correct", "incorrect"]


HealLabel = Literal["healed", "not_healed"]


StepLabel = Literal["correct", "wrong", "unknown"]


@dataclass(frozen=True)
class MagicLabels:
    """What is said of a question's answer and continuations; None where nothing could be said.

    Attributes:
        short, full: whether the answer agrees with the short true answer, and with the full one.
        steps: whether each step of the answer is correct.
        healed: whether each continuation says a correction.
        unscored: why a judge gave no label, by what it was asked for.
    """

    short: bool | None = None
    full: bool | None = None
    steps: tuple[bool | None, ...] | None = None
    healed: tuple[bool | None, ...] = ()
    unscored: tuple[tuple[str, str], ...] = ()
