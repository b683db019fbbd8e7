"""The questions of MIRAGE: the fields of a line, how a file is read, and whether an answer is right."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mmprobe.benchmarks.answers.claims import parse_count
from mmprobe.benchmarks.answers.drawn import is_drawn, judge_statement
from mmprobe.benchmarks.answers.forms import find_answer, is_right
from mmprobe.benchmarks.answers.numbers import (
    THRESHOLD,
    Quantity,
    convert,
    is_near,
    parse_quantity,
    read_quantity,
)
from mmprobe.benchmarks.answers.options import read_choice
from mmprobe.samples import Id, load_with_images

Topic = Literal["algebra", "arithmetic", "geometry", "logical", "scientific", "spatial", "statistical"]
TOPICS: tuple[Topic, ...] = get_args(Topic)
AnswerType = Literal["multiple_choice", "free_form", "approximate"]
MirageProfile = Literal["paper", "code"]
"""How answers and labels become numbers: as the paper says, or as its released code does."""
MAX_ITEMS = 10  # steps, and claims, of one reasoning chain


class MirageQuestion(BaseModel):
    """One question with its annotations. The fields are those of a line of a questions file.

    Attributes:
        choices: text of each option by its letter, for multiple choice. `answer` is then a letter.
        answer: the true answer. An approximate answer contains a number.
        steps, claims: the true reasoning, at most 10 each. F_step and F_claim need them.
        references: the true reasoning chain and its rewrites, for the LHS.
        topic_hint, question_hint: the hints of collaborative hint inference. A question with either is asked
            a second time with hints.
        named_topic: the topic that a classifier named, from `mmprobe data rewrite`. Without it, the model that is
            asked names the topic itself.
        system: the system prompt. A question with its own system prompt is asked without our instructions.

    Example:
        >>> MirageQuestion(id="1", question="2 + 2?", topic="arithmetic", type="free_form", answer="4").steps
        []
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Id
    images: list[Path] = []
    question: str = Field(min_length=1)
    topic: Topic
    type: AnswerType
    choices: dict[str, str] = {}
    answer: str = Field(min_length=1)
    steps: list[str] = Field(default=[], max_length=MAX_ITEMS)
    claims: list[str] = Field(default=[], max_length=MAX_ITEMS)
    references: list[str] = []
    topic_hint: str | None = None
    question_hint: str | None = None
    named_topic: Topic | None = None
    system: str | None = None
    metadata: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_answer(self) -> MirageQuestion:
        if self.type == "multiple_choice":
            if len(self.choices) < 2 or not set(self.choices) <= set(string.ascii_uppercase):
                raise ValueError("'choices' needs two or more options, each by one upper-case letter")
            if self.answer not in self.choices:
                raise ValueError(f"'answer' is {self.answer!r}, which is none of {', '.join(self.choices)}")
        elif self.choices:
            raise ValueError(f"'choices' are for multiple choice; 'type' is {self.type!r}")
        if self.type == "approximate" and parse_quantity(self.answer) is None:
            raise ValueError(f"'answer' is {self.answer!r}; an approximate answer must hold a number")
        return self


def load_questions(path: str | Path) -> list[MirageQuestion]:
    """Read a file of questions, with image paths relative to it. Raises InputError with line and field."""
    return load_with_images(path, MirageQuestion)


def true_chain(question: MirageQuestion) -> str | None:
    """Return the true reasoning: the first reference, or the steps; None without either.

    Example:
        >>> fields = {"question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
        >>> true_chain(MirageQuestion(id="1", steps=["Add 2 to 2.", "That is 4."], **fields))
        'Add 2 to 2.\\nThat is 4.'
    """
    return question.references[0] if question.references else "\n".join(question.steps) or None


def true_references(question: MirageQuestion) -> list[str]:
    """Return the true reasoning and its rewrites. A chain is scored against each of them."""
    chain = true_chain(question)
    return question.references or ([] if chain is None else [chain])


def _is_near_by_code(number: float, true: float) -> bool:
    """Return whether min(p / t, t / p) is 0.95 or more, as the released code compares approximate answers.

    Example:
        >>> _is_near_by_code(105, 100), _is_near_by_code(95, 100), _is_near_by_code(94.9, 100), _is_near_by_code(0, 0)
        (True, True, False, True)
    """
    return number == true or (number * true > 0 and min(number / true, true / number) >= 0.95)


def is_correct(
    question: MirageQuestion,
    response: str,
    threshold: float = THRESHOLD,
    profile: MirageProfile = "paper",
    judged: bool = False,
) -> bool | None:
    """Return whether a response gives the true answer, by rules; None if unread. A refusal is not right.

    The answer is an option by its letter or text, one number, or words (`verdicts.judge_text`); `judged` is as in
    `forms.is_right`. `threshold` is the largest relative error of an approximate answer, whose unit is converted; in
    profile `code`, `_is_near_by_code` compares.

    Example:
        >>> fields = {"id": "1", "question": "?", "topic": "statistical", "type": "approximate"}
        >>> question = MirageQuestion.model_validate(fields | {"answer": "200"})
        >>> is_correct(question, "The answer is 204."), is_correct(question, "200 of 300")
        (True, True)
    """
    if not response.strip():
        return None
    if question.type == "multiple_choice":
        letter, refused = read_choice(response, question.choices)
        return False if refused else None if letter is None else letter == question.answer
    if question.type == "approximate":
        count = parse_count(response) if is_drawn(response) else None
        given = read_quantity(response, question.question) if count is None else Quantity(count)
        true = parse_quantity(question.answer)
        if given is None or true is None:
            return False if find_answer(response).refused else None
        number = convert(given, true, question.question)
        if number is None:
            return False
        return (
            _is_near_by_code(number, true.value)
            if profile == "code"
            else is_near(number, true.value, threshold)
        )
    return is_right(judge_statement(response, question.answer, question=question.question), judged)
