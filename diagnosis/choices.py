"""Closed questions: the model's answer and another one, which diverge at one token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from mmprobe.benchmarks.answers.yes_no import first_word
from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.models import Model

MOST_WORDS = 8  # of an answer that can be suggested as a whole
OPPOSITE = {"yes": "no", "no": "yes"}


class Choice(NamedTuple):
    """Two answers to a closed question that diverge at one token.

    Attributes:
        step: the token at which they diverge.
        tokens: id of this token in the model's own answer and in the other one.
        words: what the hints say for them.
    """

    step: int
    tokens: tuple[int, int]
    words: tuple[str, str]


def find_exchanged(other: str, question: str) -> tuple[str, str] | None:
    """Return the one word in which two questions differ, of each; empty ones for the same question, None for others."""
    if other == question:
        return "", ""
    pairs = [re.findall(r"\w+", text) for text in (other, question)]
    if len(pairs[0]) != len(pairs[1]):
        return None
    differing = [(a, b) for a, b in zip(*pairs, strict=True) if a != b]
    return differing[0] if len(differing) == 1 else None


def find_choice(
    model: Model, answer: ParsedAnswer, others: Sequence[ParsedAnswer], alike: Sequence[ParsedAnswer] = ()
) -> Choice | None:
    """Return the model's answer and another one to a closed question; None if the question is open.

    Closed are answers that begin with yes or no, and those of up to eight words if there is another such answer to
    the same question. Answers that differ in one word are told apart by it, others by their sentences. Where none is found, answers to
    alike questions are taken with the question's own word in place of theirs, if they then differ in one word: `The ring is blue.` for
    `The star is red.`

    Args:
        others: all answers to the same question.
        alike: answers to questions that differ in one word.
    """
    answer_word = first_word(answer.text)
    if answer_word in OPPOSITE:
        opposite = OPPOSITE[answer_word]
        word = opposite.capitalize() if answer.text.strip()[:1].isupper() else opposite
        token = model.tokenizer(word, add_special_tokens=False)["input_ids"][0]
        for other in others:
            if first_word(other.text) == opposite:
                token = other.ids[0]
        return None if token == answer.ids[0] else Choice(0, (answer.ids[0], token), (answer_word, opposite))
    words = answer.text.split()
    for other in others:
        other_words = other.text.split()
        if other_words == words or max(len(words), len(other_words)) > MOST_WORDS:
            continue
        pairs = list(zip(words, other_words, strict=False))
        differing = [pair for pair in pairs if pair[0] != pair[1]]
        alone = len(differing) == 1 and len(words) == len(other_words)
        parted = [step for step, (a, b) in enumerate(zip(answer.ids, other.ids, strict=False)) if a != b]
        if parted:
            step, both = parted[0], differing[0] if alone else (answer.text, other.text)
            own, another = (_lower(text.strip(" .,;:!?")) for text in both)
            return Choice(step, (answer.ids[step], other.ids[step]), (own, another))
    return next((found for other in alike if (found := _find_alike(model, answer, other)) is not None), None)


def _find_alike(model: Model, answer: ParsedAnswer, other: ParsedAnswer) -> Choice | None:
    """Return the choice between an answer and that to an alike question, if they differ in one word."""
    there, here = find_exchanged(other.sample.question, answer.sample.question) or ("", "")
    if not there:
        return None
    words, other_words = answer.text.split(), re.sub(rf"\b{re.escape(there)}\b", here, other.text).split()
    differing = [
        place for place, pair in enumerate(zip(words, other_words, strict=False)) if pair[0] != pair[1]
    ]
    if len(words) != len(other_words) or len(words) > MOST_WORDS or len(differing) != 1:
        return None
    own, another = (each[differing[0]].strip(" .,;:!?") for each in (words, other_words))
    if not own or not another or answer.text.count(own) != 1:
        return None
    both = [
        model.tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in (answer.text, answer.text.replace(own, another))
    ]
    step = next((step for step, (a, b) in enumerate(zip(*both, strict=False)) if a != b), None)
    if step is None or both[0][: step + 1] != list(answer.ids[: step + 1]):
        return None
    return Choice(step, (both[0][step], both[1][step]), (_lower(own), _lower(another)))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
