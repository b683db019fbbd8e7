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
    reason for each request that a judge failed on: `answer`, `text`, `steps`, `error`; `unread` for an answer that the rules
    could not read. `answered_text` is whether there is a response without images.
    """

    answered: bool
    final_answer: str | None = None
    correct: bool | None = None
    correct_text: bool | None = None
    steps: tuple[tuple[str, StepLabel], ...] | None = None
    error: ErrorType | None = None
    unscored: dict[str, str] = field(default_factory=dict)
    answered_text: bool = False

    def is_scored(self, request: Literal["answer", "text"]) -> bool:
        """Return whether there is a response, with or without images, that the judge did not fail on; it may be unread."""
        answered = (
            self.answered if request == "answer" else self.answered_text or self.correct_text is not None
        )
        return answered and self.unscored.get(request, UNREAD) == UNREAD
