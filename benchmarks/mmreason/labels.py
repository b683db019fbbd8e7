"""What is labelled of each answer of MMReason, by rules or by a judge."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmprobe.benchmarks.mmreason.metrics import (
    ErrorType,
    Judgement,
)

TEXT = "--text"  # behind the id of a question that is asked without its pictures


@dataclass(frozen=True)
class ReasonLabels:
    """The labels of one question's answers.

    Attributes:
        answered: whether the question was answered at all, if only by nothing.
        given: the final answer that was found in the response; None if there is none.
        right: whether it is right; None if not answered, or without a verdict.
        right_text: the same of the answer without pictures; None as well if there are no pictures.
        steps: each step of the response and its label; None if not answered, without a verdict, or without a
            solution to hold them against.
        error: what went wrong, where somebody said so.
        unscored: why a judge labelled nothing, by what it was asked for: `answer`, `text`, `steps`, `error`.
    """

    answered: bool
    given: str | None = None
    right: bool | None = None
    right_text: bool | None = None
    steps: tuple[tuple[str, Judgement], ...] | None = None
    error: ErrorType | None = None
    unscored: dict[str, str] = field(default_factory=dict)
