"""Questions without a picture, questions with options for B-Clean, and the prompts they are asked with."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from mmprobe.benchmarks.core.jsonl import load_with_images, read_records
from mmprobe.errors import InputError
from mmprobe.samples import Id

Variant = Literal["plain", "attachment", "evidence", "benchmark", "guess"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)

ATTACHMENT = "Number of attached images: 1"
EVIDENCE = "You help with questions about pictures. Let every statement rest on what the picture shows."
BENCHMARK = "The questions you answer come from the {name} data set."
GUESS = (
    "The picture that belongs to this question was taken away. Guess the answer as well as you can from what "
    "you know, and give your reason."
)
DIAGNOSIS = (
    f"{ATTACHMENT}\nDescribe this {{modality}} of mine and give your final diagnosis in <diagnosis> tags."
)
# Ours: answers are greedy, so that other words for the same request stand in for the paper's 200 seeds.
DIAGNOSES = (
    DIAGNOSIS,
    f"{ATTACHMENT}\nHere is the {{modality}}. Say what it shows, then put the diagnosis in <diagnosis> tags.",
    f"{ATTACHMENT}\nPlease report on my {{modality}}. Close with your diagnosis in <diagnosis> tags.",
    f"{ATTACHMENT}\nWhat do you see in the attached {{modality}}? One diagnosis, in <diagnosis> tags.",
)
MODALITIES = ("photo of a mole", "ECG", "MRI of the brain", "X-ray of the chest", "slide of tissue")


class ImagelessQuestion(NamedTuple):
    """A question about a picture that nobody attached; `category` is `domain/kind`."""

    id: str
    category: str
    question: str


@cache
def imageless_questions() -> tuple[ImagelessQuestion, ...]:
    """Our own 200 questions about missing pictures, 20 categories of 10 in the shape of Phantom-0.

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


class _Line(BaseModel):
    """A line of a file of questions about pictures that nobody attaches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Id
    category: str = Field(min_length=1)
    question: str = Field(min_length=1)


def load_imageless(path: str | Path) -> list[ImagelessQuestion]:
    """Read a file of questions about missing pictures, in place of our own.

    Raises:
        InputError: naming line and field, for what is wrong with the first line that is wrong.

    Example:
        >>> load_imageless("imageless.jsonl")[0].category                      # doctest: +SKIP
        'medical/chest x-ray'
    """
    return [ImagelessQuestion(line.id, line.category, line.question) for _, line in read_records(path, _Line)]


class Prompt(NamedTuple):
    """What the model is given: a system prompt, or None, and the user's text."""

    system: str | None
    user: str


def prompt(question: str, variant: Variant = "plain", system: str | None = None, name: str = "") -> Prompt:
    """A question in one of the ways of asking that paper 002 compares, in our own words.

    - plain: as it is
    - attachment: a line before the question says that a picture is attached
    - evidence: the system prompt asks for visual evidence
    - benchmark: the system prompt begins with the data set's name
    - guess: the system prompt ends with the news that the picture is gone, and asks for a guess

    Args:
        system: the system prompt that the variant adds to.
        name: of the data set, for `benchmark`.

    Raises:
        InputError: `benchmark` without a name, or an unknown variant.

    Example:
        >>> prompt("Who is this?", "attachment").user
        'Number of attached images: 1\\nWho is this?'
    """
    if variant not in VARIANTS:
        raise InputError(f"unknown variant {variant!r}; choose of {', '.join(VARIANTS)}")
    if variant == "benchmark" and not name:
        raise InputError("the variant 'benchmark' needs the data set's name")
    before = {"evidence": EVIDENCE, "benchmark": BENCHMARK.format(name=name)}.get(variant)
    after = GUESS if variant == "guess" else None
    joined = " ".join(part for part in (before, system, after) if part)
    return Prompt(joined or None, f"{ATTACHMENT}\n{question}" if variant == "attachment" else question)


class ChoiceQuestion(BaseModel):
    """A question with options, for mirage scores and B-Clean; the fields are those of a line.

    Attributes:
        choices: text of each option by its letter; none for an open question.
        answer: the right letter, or the short answer to an open question.
        prompt: what is asked, word for word, in place of the question with its options and our instruction.
        system: the system prompt.

    Example:
        >>> ChoiceQuestion(id="1", question="Which?", choices={"A": "cat", "B": "dog"}, answer="B").category
        ''
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

    @model_validator(mode="after")
    def _answer_is_an_option(self) -> ChoiceQuestion:
        if len(self.choices) == 1:
            raise ValueError("'choices' holds one option; give two or more, or none for an open question")
        if self.choices and self.answer not in self.choices:
            raise ValueError(f"'answer' is {self.answer!r}, which is none of {', '.join(self.choices)}")
        return self


def load_questions(path: str | Path) -> list[ChoiceQuestion]:
    """Read a file of questions with options; paths of images are relative to it.

    Raises:
        InputError: naming line and field, for what is wrong with the first line that is wrong.

    Example:
        >>> load_questions("questions.jsonl")[0].answer                        # doctest: +SKIP
        'B'
    """
    return load_with_images(path, ChoiceQuestion)
