"""Samples as questions with known answers: yes or no, an option, a number or words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from mmprobe.benchmarks.answers.numbers import parse_quantity
from mmprobe.errors import InputError
from mmprobe.samples import Sample

AnswerKind = Literal["yes-no", "options", "number", "words"]
YES_NO = {"yes": "yes", "no": "no"}


class VqaQuestion(NamedTuple):
    """A question with the answers that count as right.

    Attributes:
        accepted: the right answers; for a question with options, the letter of the right one.
        options: the text of each option by its letter; empty for a question without options.
    """

    sample: Sample
    accepted: tuple[str, ...]
    options: Mapping[str, str]

    @property
    def kind(self) -> AnswerKind:
        """How an answer is read."""
        if self.options:
            return "options"
        if self.accepted and all(text.strip(" .!").casefold() in YES_NO for text in self.accepted):
            return "yes-no"
        return "number" if self.accepted and all(map(_is_number, self.accepted)) else "words"


def _is_number(text: str) -> bool:
    return parse_quantity(text) is not None and any(character.isdigit() for character in text)


def make_question(sample: Sample) -> VqaQuestion | None:
    """Return the question of a sample; None for a sample without an answer.

    `metadata.answers` lists further right answers, and `metadata.options` the options: a list of texts, or texts by
    letter. The answer to a question with options is the letter or the text of one.

    Raises:
        InputError: the options or the answers have another form, or the answer is none of the options.

    Example:
        >>> sample = Sample(id="1", question="What is it?", answer="a cat", metadata={"options": ["a dog", "a cat"]})
        >>> make_question(sample).accepted, make_question(sample).kind
        (('B',), 'options')
    """
    if sample.answer is None:
        return None
    further, given = sample.metadata.get("answers", []), sample.metadata.get("options", {})
    if not isinstance(further, list) or not all(isinstance(text, str) for text in further):
        raise InputError(f"sample {sample.id}: metadata.answers must be a list of texts")
    if isinstance(given, list):
        given = {chr(ord("A") + number): text for number, text in enumerate(given[:26])}
    if (
        not isinstance(given, Mapping)
        or len(given) == 1
        or not all(isinstance(text, str) for text in given.values())
    ):
        raise InputError(
            f"sample {sample.id}: metadata.options must be a list of two to 26 texts, or texts by letter"
        )
    accepted = tuple(dict.fromkeys([sample.answer, *further]))
    if given:
        by_text = {text.strip(" .").casefold(): letter for letter, text in given.items()}
        letters = [text if text in given else by_text.get(text.strip(" .").casefold()) for text in accepted]
        if None in letters:
            raise InputError(f"sample {sample.id}: its answer {sample.answer!r} is none of its options")
        accepted = tuple(dict.fromkeys(letter for letter in letters if letter))
    return VqaQuestion(sample, accepted, given)
