"""The labels of MMReason's answers, by rules or by a judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

UNREAD = "unread"  # the reason in `unscored` where the rules could not read an answer
TEXT = "--text"  # suffix of the id of a question that is asked without its images
CHOICES = "--choices"  # suffix of the id of a question that is asked with its options

StepLabel = Literal["correct", "unverifiable", "incorrect"]
ErrorType = Literal[
    "lack_of_knowledge",
    "refusal",
    "answer_extraction",
    "misunderstood_question",
    "reasoning",
    "perception",
]
ERROR_TYPES: tuple[ErrorType, ...] = get_args(ErrorType)


@dataclass(frozen=True)
class ReasonLabels:
    """The labels of the answers to one question.

    Attributes:
        answered: whether there is a response; it may be empty.
        final_answer: the final answer in the response; None if it states none.
        correct: whether the final answer is right. None without a response or a verdict.
        correct_text: the same for the response without images. None also for a question without images.
        steps: the steps of the response, each with its label. None without a response, a verdict, or a true
            solution.
        error: the type of error of a wrong answer, if a judge named one.
        unscored: the reason for each request that a judge failed on: `answer`, `text`, `steps`, `error`.
    """

    answered: bool
    final_answer: str | None = None
    correct: bool | None = None
    correct_text: bool | None = None
    steps: tuple[tuple[str, StepLabel], ...] | None = None
    error: ErrorType | None = None
    unscored: dict[str, str] = field(default_factory=dict)
