"""A model with all its answers, and what the test of one answer needs of the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.choices import Choice, find_choice
from mmprobe.diagnosis.images import OtherImages
from mmprobe.diagnosis.schedule import AnswerReading
from mmprobe.models import Model
from mmprobe.settings import DIAGNOSED_TOKENS

T = TypeVar("T")

LONG = 40  # words; a question with more has no alike ones
MOST_LOOKS = 24  # answers whose attention is read
MOST_ALIKE = 8  # questions that differ in one word from another, at one place, and answers to each of them


class Study:
    """A model with all its answers, and what the test of one answer needs of the others.

    Attributes:
        samples: those that were asked, also where nothing was answered.
        answers: those that hold a token.
        images: the images that each answer is read with in place of its own.
        max_new_tokens: the longest answer.
        given: whether the answers were given, and are not the model's own.
        looked: ids of the answers whose attention to the images is read, spread over all; none where no visual token is in the prompt.
    """

    def __init__(
        self,
        model: Model,
        answers: Sequence[ParsedAnswer],
        max_new_tokens: int = DIAGNOSED_TOKENS,
        given: bool = False,
    ):
        self.model = model
        self.max_new_tokens, self.given = max_new_tokens, given
        self.samples = [answer.sample for answer in answers]
        self.answers = [answer for answer in answers if answer.ids]
        self.by_id = {answer.sample.id: answer for answer in self.answers}
        self.images = OtherImages(self.answers)
        step = max(1, len(self.answers) // MOST_LOOKS)
        chosen = [] if model.has_cross_attention else self.answers[::step][:MOST_LOOKS]
        self.looked = {answer.sample.id for answer in chosen}
        self._made: dict[Any, Any] = {}
        self.by_question: dict[tuple[str, int], list[ParsedAnswer]] = defaultdict(list)
        for answer in self.answers:
            self.by_question[answer.sample.question, len(answer.sample.images)].append(answer)
        # Questions that differ in a word share a gap.
        self.by_gap: dict[tuple[str, ...], dict[str, None]] = defaultdict(dict)
        for question in dict.fromkeys(answer.sample.question for answer in self.answers):
            for gap in _gaps(question):
                self.by_gap[gap][question] = None
        by_question = (answer for same in self.by_question.values() for answer in same)
        self.numbers = {  # which wordings an answer gets: all have their turn, in each question and in all
            answer.sample.id: number for number, answer in enumerate(by_question)
        }

    def once(self, make: Callable[[Study], T]) -> T:
        """Return what a function makes of the study, made at the first call."""
        if make not in self._made:
            self._made[make] = make(self)
        made: T = self._made[make]
        return made

    def choice(self, answer: ParsedAnswer) -> Choice | None:
        """Return the model's answer and another one to a closed question; None if the question is open."""
        key = answer.sample.id
        if key not in self._made:
            same, alike = self.same_question(answer), self.alike(answer)
            self._made[key] = find_choice(self.model, answer, same, alike)
        choice: Choice | None = self._made[key]
        return choice

    def same_question(self, answer: ParsedAnswer) -> list[ParsedAnswer]:
        """Return the other answers to the same question, those after this one first."""
        same = self.by_question[answer.sample.question, len(answer.sample.images)]
        place = next((number for number, each in enumerate(same) if each is answer), -1)
        return same[place + 1 :] + same[: max(place, 0)]

    def example(self, answer: ParsedAnswer) -> ParsedAnswer | None:
        """Return an answer to the same question about other images; else to one in other words, few if possible.

        The images are the first as many of the data that are none of its own, so nearly all answers share them.
        """
        own = answer.sample.images
        sets = (other.sample.images for other in self.answers if len(other.sample.images) == len(own))
        shown = next((images for images in sets if not set(own) & set(images)), None)
        others = [*self.same_question(answer), *self.alike(answer), *self.answers]
        return next((other for other in others if other.sample.images == shown), None)

    def alike(self, answer: ParsedAnswer) -> list[ParsedAnswer]:
        """Return answers to questions that differ in one word, about as many images."""
        question, n_images = answer.sample.question, len(answer.sample.images)
        alike = [other for gap in _gaps(question) for other in islice(self.by_gap[gap], MOST_ALIKE)]
        return [
            each
            for other in alike
            if other != question
            for each in self.by_question.get((other, n_images), ())[:MOST_ALIKE]
        ]


class Case(NamedTuple):
    """What the test of one answer begins with.

    Attributes:
        readings: of the answer with its own images (`own`), and, but for an example, by kind with others (`diagnosis/images.py`).
    """

    study: Study
    answer: ParsedAnswer
    readings: Mapping[str, AnswerReading]

    @property
    def number(self) -> int:
        """The number of the answer, by which wordings take turns."""
        return self.study.numbers[self.answer.sample.id]

    @property
    def choice(self) -> Choice | None:
        """The two answers to a closed question; None if the question is open."""
        return self.study.choice(self.answer)


def _gaps(question: str) -> list[tuple[str, ...]]:
    """Return the words of a question with each of them left out in turn; none for a long one, to which none is alike."""
    words = re.findall(r"\w+", question)
    return (
        [(*words[:place], "", *words[place + 1 :]) for place in range(len(words))]
        if len(words) <= LONG
        else []
    )
