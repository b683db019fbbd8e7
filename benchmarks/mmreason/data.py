"""Questions of MMReason: what a line holds, how a file of them is read, and when an answer is right, by rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mmprobe.benchmarks.answers.final_answers import given_answer, number_of, same_text
from mmprobe.benchmarks.core.jsonl import load_with_images
from mmprobe.benchmarks.mmreason.choice_removal import can_stand_open, open_answer, remove_choices
from mmprobe.samples import Id

Discipline = Literal["math", "business", "science", "engineering", "social", "health"]


DISCIPLINES: tuple[Discipline, ...] = get_args(Discipline)


_STATES = re.compile(r"\b(?:is|are|was|were|equals?)\b|[=\u2248]|(?<!\d):|:(?!\d)", re.IGNORECASE)


class ReasonQuestion(BaseModel):
    """One question with its solution; the fields are those of a line of a questions file.

    Attributes:
        source: the data set that it comes from, for the table by source.
        level: grade or difficulty, in whatever words.
        choices: of a multiple-choice question that is yet to be opened; `answer` is then a letter.
        solution: the true reasoning, step by step; without it steps cannot be scored.
        system: system prompt; a question that has one is asked in its own words alone, without our instruction.

    Example:
        >>> ReasonQuestion(id="1", question="2 + 2?", answer="4", discipline="math", source="own").solution
        []
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Id
    images: list[Path] = []
    question: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    discipline: Discipline
    source: str = Field(min_length=1)
    level: str | None = None
    choices: dict[str, str] = {}
    solution: list[str] = []
    system: str | None = None
    metadata: dict[str, Any] = {}

    @model_validator(mode="after")
    def _answer_is_an_option(self) -> ReasonQuestion:
        if self.choices and self.answer not in self.choices:
            raise ValueError(f"'answer' is {self.answer!r}, which is none of {', '.join(self.choices)}")
        return self


def load_questions(path: str | Path) -> list[ReasonQuestion]:
    """Read a file of questions; paths of images are relative to it.

    Raises:
        InputError: naming line and field, for what is wrong with the first line that is wrong.

    Example:
        >>> load_questions("mmreason/questions.jsonl")[0].discipline           # doctest: +SKIP
        'math'
    """
    return load_with_images(path, ReasonQuestion)


def opened(question: ReasonQuestion) -> ReasonQuestion | None:
    """The open form of a multiple-choice question; an open one as it is, None if it cannot stand open.

    Example:
        >>> text = "How long is AB? (A) 2 cm (B) 3 cm"
        >>> closed = ReasonQuestion(id="1", question=text, answer="B", discipline="math", source="own")
        >>> found = opened(closed)
        >>> found.question, found.answer
        ('How long is AB?', '3 cm')
    """
    text, within = remove_choices(question.question)
    choices = question.choices or (within if question.answer in within else {})
    if not choices:
        return question
    if not can_stand_open(text, choices, question.answer):
        return None
    answer = open_answer(choices, question.answer)
    return question.model_copy(update={"question": text, "answer": answer, "choices": {}})


def is_correct(question: ReasonQuestion, response: str) -> bool:
    """Whether a response gives the true answer, by rules; what states no answer is not right.

    The final answer, or what follows its last "is", "=" or ":", must be the same but for how it is written; where
    the true one is a bare number, the last number of the final answer counts. A judge is the better reader of
    equivalence.

    Example:
        >>> question = ReasonQuestion(id="1", question="?", answer="12", discipline="math", source="own")
        >>> is_correct(question, "3 x 4 = 12. The answer is 12 cm."), is_correct(question, "")
        (True, False)
    """
    answer = given_answer(response)
    if answer is None:
        return False
    if same_text(answer, question.answer) or same_text(_STATES.split(answer)[-1], question.answer):
        return True
    bare = number_of(question.answer) if len(question.answer.split()) == 1 else None
    return bare is not None and same_text(str(bare), question.answer) and number_of(answer) == bare
