"""Questions of MIRAGE: what a line holds, and how a file of them is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mmprobe.benchmarks.answers.final_answers import (
    THRESHOLD,
    choice_of,
    final_answer,
    given_answer,
    is_near,
    number_of,
    same_text,
)
from mmprobe.benchmarks.answers.yes_no import yes_no
from mmprobe.benchmarks.core.jsonl import load_with_images
from mmprobe.samples import Id

Topic = Literal["algebra", "arithmetic", "geometry", "logical", "scientific", "spatial", "statistical"]
TOPICS: tuple[Topic, ...] = get_args(Topic)
AnswerType = Literal["multiple_choice", "free_form", "approximate"]
MOST = 10  # steps, and claims, of one chain


class MirageQuestion(BaseModel):
    """One question with its annotations; the fields are those of a line of a questions file.

    Attributes:
        choices: text of each option by its letter, for multiple choice; `answer` is then a letter.
        answer: an approximate one holds a number.
        steps, claims: of the true reasoning, at most 10 each; without them there is no F_step or F_claim.
        references: the true reasoning chain and its rewrites, for the LHS.
        topic_hint, question_hint: for collaborative hint inference; a question with either is asked again with hints.
        system: the system prompt; a question that has one is asked word by word, without our instructions around it.

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
    steps: list[str] = Field(default=[], max_length=MOST)
    claims: list[str] = Field(default=[], max_length=MOST)
    references: list[str] = []
    topic_hint: str | None = None
    question_hint: str | None = None
    system: str | None = None
    metadata: dict[str, Any] = {}

    @model_validator(mode="after")
    def _answer_fits(self) -> MirageQuestion:
        if self.type == "multiple_choice":
            if len(self.choices) < 2 or any(not is_letter(letter) for letter in self.choices):
                raise ValueError("'choices' needs two or more options, each by one upper-case letter")
            if self.answer not in self.choices:
                raise ValueError(f"'answer' is {self.answer!r}, which is none of {', '.join(self.choices)}")
        elif self.choices:
            raise ValueError(f"'choices' are for multiple choice; 'type' is {self.type!r}")
        if self.type == "approximate" and number_of(self.answer) is None:
            raise ValueError(f"'answer' is {self.answer!r}; an approximate one holds a number")
        return self


def is_letter(text: str) -> bool:
    return len(text) == 1 and "A" <= text <= "Z"


def load_questions(path: str | Path) -> list[MirageQuestion]:
    """Read a file of questions; paths of images are relative to it.

    Raises:
        InputError: naming line and field, for what is wrong with the first line that is wrong.

    Example:
        >>> load_questions("mirage/questions.jsonl")[0].topic                  # doctest: +SKIP
        'geometry'
    """
    return load_with_images(path, MirageQuestion)


def is_correct(question: MirageQuestion, response: str, threshold: float = THRESHOLD) -> bool | None:
    """Whether a response gives the true answer, by rules; None if no answer can be found in it.

    Multiple choice by its letter, or by an option's text given as the final answer, a yes or no anywhere;
    approximate answers by their relative error; free form by the words of the final answer, of the whole response
    or of its last line, for which a judge is the better reader.

    Args:
        threshold: relative error that an approximate answer stays below; the paper gives none, ours is 0.05.

    Example:
        >>> fields = {"id": "1", "question": "?", "topic": "statistical", "type": "approximate"}
        >>> about = MirageQuestion.model_validate(fields | {"answer": "200"})
        >>> is_correct(about, "The answer is 204."), is_correct(about, "I cannot tell.")
        (True, None)
    """
    if question.type == "multiple_choice":
        letter = choice_of(response, question.choices) or _option_told(question, response)
        return None if letter is None else letter == question.answer
    if question.type == "approximate":
        found, true = number_of(response), number_of(question.answer)
        return None if found is None or true is None else is_near(found, true, threshold)
    told = given_answer(response)
    if told is None:
        return None
    whole = final_answer(response) is None and same_text(response, question.answer)
    return whole or same_text(told, question.answer)


def _option_told(question: MirageQuestion, response: str) -> str | None:
    """The letter of the one option whose text is the answer."""
    options = {letter: text.strip(" .").lower() for letter, text in question.choices.items()}
    if sorted(options.values()) == ["no", "yes"]:
        said = yes_no(response)
        return next((letter for letter, text in options.items() if text == said), None)
    answer = given_answer(response)
    letters = [letter for letter, text in options.items() if answer is not None and same_text(answer, text)]
    return letters[0] if len(letters) == 1 else None
