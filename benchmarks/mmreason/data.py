"""The questions of MMReason: the fields of a line, how a file is read, and whether an answer is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mmprobe.benchmarks.answers.drawn import judge_statement
from mmprobe.benchmarks.answers.forms import VALUES
from mmprobe.benchmarks.answers.options import find_mark
from mmprobe.samples import Id, load_with_images


class ReasonQuestion(BaseModel):
    """One question with its solution. The fields are those of a line of a questions file.

    Attributes:
        discipline: math, business, science, engineering, social or health in the paper.
        source: the data set that the question comes from, for the table by source.
        level: grade or difficulty, in any words.
        choices: text of each option by its mark, for a multiple-choice question. `answer` is then a mark.
        solution: the true reasoning, step by step. Without it, steps cannot be scored.
        system: the system prompt. A question with its own system prompt is asked without our instruction.

    Example:
        >>> ReasonQuestion(id="1", question="2 + 2?", answer="4", discipline="math", source="own").solution
        []
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Id
    images: list[Path] = []
    question: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    discipline: str = Field(min_length=1)
    source: str = Field(min_length=1)
    level: str | None = None
    choices: dict[str, str] = {}
    solution: list[str] = []
    system: str | None = None
    metadata: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_answer(self) -> ReasonQuestion:
        if self.choices and find_mark(self.answer, self.choices) is None:
            raise ValueError(f"'answer' is {self.answer!r}, which is none of {', '.join(self.choices)}")
        return self


def load_questions(path: str | Path) -> list[ReasonQuestion]:
    """Read a file of questions, with image paths relative to it. Raises InputError with line and field."""
    return load_with_images(path, ReasonQuestion)


def is_correct(question: ReasonQuestion, response: str) -> bool | None:
    """Return whether a response gives the true answer, by rules; None if unread. A refusal is not right.

    The answer must have a declared form (docs/readers.md): the same words or number, or an equal
    expression.

    Example:
        >>> question = ReasonQuestion(id="1", question="?", answer="12", discipline="math", source="own")
        >>> is_correct(question, "3 x 4 = 12. The answer is 12."), is_correct(question, "11 or 12")
        (True, None)
    """
    return VALUES[judge_statement(response, question.answer, question=question.question)]
