"""The questions of the mirage effect: with images and known answers, and about missing images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from mmprobe.files import read_records
from mmprobe.samples import Id, load_with_images

YES_NO = {"A": "yes", "B": "no"}


class ImagelessQuestion(NamedTuple):
    """A question about an image that nobody attaches; `category` is `domain/kind`."""

    id: str
    category: str
    question: str


class ChoiceQuestion(BaseModel):
    """A question with options, for mirage scores and B-Clean. The fields are those of a line.

    A question whose answer is yes or no has these two options, so that chance is 0.5 and "No" can be wrong.

    Attributes:
        choices: text of each option by its letter; empty for an open question.
        answer: the right letter, or the short answer to an open question.
        prompt: the complete prompt, in place of the question with its options and our instruction.
        system: the system prompt.

    Example:
        >>> ChoiceQuestion(id="1", question="Which?", choices={"A": "cat", "B": "dog"}, answer="B").category
        ''
        >>> ChoiceQuestion(id="2", question="Is it a cat?", answer="no").choices
        {'A': 'yes', 'B': 'no'}
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Id
    images: list[Path] = []
    question: str = Field(min_length=1)
    choices: dict[str, str] = {}
    answer: str = Field(min_length=1)
    category: str = ""
    prompt: str | None = Field(default=None, min_length=1)
    system: str | None = None
    metadata: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _close(cls, line: Any) -> Any:
        if not isinstance(line, Mapping) or line.get("choices") or not isinstance(line.get("answer"), str):
            return line
        letter = {"yes": "A", "no": "B"}.get(line["answer"].strip(" .").lower())
        return line if letter is None else {**line, "choices": YES_NO, "answer": letter}

    @model_validator(mode="after")
    def _check_answer(self) -> ChoiceQuestion:
        if len(self.choices) == 1:
            raise ValueError("'choices' contains one option; give two or more, or none for an open question")
        if self.choices and self.answer not in self.choices:
            raise ValueError(f"'answer' is {self.answer!r}, which is none of {', '.join(self.choices)}")
        return self


class MirageEffectTruth(NamedTuple):
    """The questions about images that nobody attaches, and the questions with images and known answers.

    `examples` are other questions with known answers, which few-shot prompts show. `varied` is the number of questions about
    missing images that are asked in every variant; None for two of each category.
    """

    imageless: list[ImagelessQuestion]
    choices: list[ChoiceQuestion]
    examples: Sequence[ChoiceQuestion] = ()
    varied: int | None = None


def load_questions(path: str | Path) -> list[ChoiceQuestion]:
    """Read a file of questions, with image paths relative to it. Raises InputError with line and field."""
    return load_with_images(path, ChoiceQuestion)


class ImagelessLine(BaseModel):
    """A line of a file of questions about missing images."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Id
    category: str = Field(min_length=1)
    question: str = Field(min_length=1)


def load_imageless(path: str | Path) -> list[ImagelessQuestion]:
    """Read a file of questions about missing images, in place of mmprobe's. Raises InputError as `load_questions`."""
    return [
        ImagelessQuestion(line.id, line.category, line.question)
        for _, line in read_records(path, ImagelessLine)
    ]


@cache
def imageless_questions() -> tuple[ImagelessQuestion, ...]:
    """Return our 200 questions about missing images: 20 categories of 10, in the shape of Phantom-0.

    Example:
        >>> questions = imageless_questions()
        >>> len(questions), questions[0].category
        (200, 'medical/chest x-ray')
    """
    text = Path(__file__).with_name("questions.yaml").read_text(encoding="utf-8")
    return tuple(
        ImagelessQuestion(f"{category.replace('/', '-').replace(' ', '-')}-{number:02d}", category, question)
        for category, questions in yaml.safe_load(text).items()
        for number, question in enumerate(questions, 1)
    )
