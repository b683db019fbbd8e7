"""The labels of MagiC's answers, by rules or by a judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AnswerLabel = Literal["correct", "incorrect"]
MagicStepLabel = Literal["correct", "wrong", "unknown"]
HealLabel = Literal["healed", "not_healed"]

UNREAD = "unread"  # the reason in `unscored` where the rules could not read an answer


@dataclass(frozen=True)
class MagicLabels:
    """The labels of the answer to one question and of its continuations; None without a verdict.

    `correct` and `correct_full` compare with the short and the full true answer. `healed` is whether each
    continuation states a correction (section 4.3), `healed_explicit` whether it also says that the step was
    wrong (figure 17), `right` whether one that rules cannot read ends in the true answer. `unscored` contains
    kind of request and reason.
    """

    correct: bool | None = None
    correct_full: bool | None = None
    correct_steps: tuple[bool | None, ...] | None = None
    healed: tuple[bool | None, ...] = ()
    healed_explicit: tuple[bool | None, ...] = ()
    right: tuple[bool | None, ...] = ()
    unscored: tuple[tuple[str, str], ...] = ()
