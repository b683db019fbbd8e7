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

    `answered` is whether there is a response, which may be empty. `correct` and `correct_text`, for the
    response without images, are None without a verdict. `steps` are None without a response, a verdict, or a
    true solution. `error` is the type of error of a wrong answer, if a judge named one. `unscored` contains the
    reason for each request that a judge failed on: `answer`, `text`, `steps`, `error`.
    """

    answered: bool
    final_answer: str | None = None
    correct: bool | None = None
    correct_text: bool | None = None
    steps: tuple[tuple[str, StepLabel], ...] | None = None
    error: ErrorType | None = None
    unscored: dict[str, str] = field(default_factory=dict)
