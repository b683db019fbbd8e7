"""Labels of MMReason's answers by rules: the final answer, and each sentence held against those of the true solution."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mmprobe.benchmarks.answers.final_answers import plain, same_text
from mmprobe.benchmarks.mmreason.data import ReasonQuestion, given_answer, is_correct
from mmprobe.benchmarks.mmreason.labels import TEXT, ReasonLabels
from mmprobe.benchmarks.mmreason.metrics import (
    Judgement,
)
from mmprobe.benchmarks.spd_faith.lexical.wording import COLOUR_WORD

_END = re.compile(r"(?<=[.!?])\s+")
_NUMBERING = re.compile(r"\s*(?:[*_#>-]+\s*)?\(?\d{1,2}[.)]\s+")
_MARKS = re.compile(r"\*\*|__|^[\s*_#>-]+")
_OPENING = re.compile(
    r"^\s*(?:(?:step\s+)?\(?\d+[.):]\s+)?"
    r"(?:(?:therefore|thus|hence|so|then|now|first|finally|next)\b[,:]?\s*)?",
    re.IGNORECASE,
)
_LABEL = re.compile(r"^\s*((?:\w+ ){0,2}\w+)\s*:\s+(.+)$", re.DOTALL)
_LIST = re.compile(r",\s+(?:and\s+)?")
_NUMBERS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
_WORTH = {word: str(number) for number, word in enumerate(_NUMBERS)} | {"zero": "0"}
_SAID = {"yes", "not", "never", "cannot"}
_FORMS = {"are": "is", "were": "was"}
_FEWEST_WORDS = 2  # beside the values, that two sentences must share to contradict each other


class Fact(NamedTuple):
    """What a sentence says: its words but for the values, and the values (numbers, colours, yes, not) in order."""

    frame: tuple[str, ...]
    values: tuple[str, ...]


def sentences(text: str) -> list[str]:
    """The sentences of a text, a line's end being a sentence's; without those that hold no word.

    Example:
        >>> sentences("1. AB is 3.5 cm. So the area is 7.\\n\\n***\\nAnswer: 7")
        ['1. AB is 3.5 cm.', 'So the area is 7.', 'Answer: 7']
    """
    found = []
    for line in text.split("\n"):
        number = _NUMBERING.match(line)
        start = number.end() if number else 0
        first, *others = _END.split(line[start:])
        found += [part.strip() for part in (line[:start] + first, *others)]
    return [part for part in found if any(letter.isalnum() for letter in part)]


def label_steps(response: str, solution: Sequence[str]) -> list[tuple[str, Judgement]]:
    """Each sentence of a response with its label against the true solution (section 4.3); rules are ours.

    A step is correct if the solution says the same but for case, articles, number and how a value is written. It is
    incorrect if the solution says it with other values, such as another number or colour, or a "not", and unverifiable
    otherwise. After a label (`Picture one: a red star, a blue ring`) each thing listed must be correct, and one
    that is incorrect is enough. Another valid way to say or to solve it is unverifiable to rules; a judge sees more.

    Args:
        response: what was answered.
        solution: the true steps; each may hold several sentences.

    Example:
        >>> label_steps("The area is 12. It looks nice. So the side is 3 cm.", ["The side is 4 cm.", "Area is 12.0"])
        [('The area is 12.', 'correct'), ('It looks nice.', 'unverifiable'), ('So the side is 3 cm.', 'incorrect')]
    """
    true = [fact for step in solution for sentence in sentences(step) for fact in facts(sentence)]
    return [(sentence, _label(facts(sentence), true)) for sentence in sentences(response)]


def _label(said: Sequence[Fact], true: Iterable[Fact]) -> Judgement:
    kinds = [_known(fact, true) for fact in said]
    if "incorrect" in kinds:
        return "incorrect"
    return "correct" if kinds and all(kind == "correct" for kind in kinds) else "unverifiable"


def _known(fact: Fact, true: Iterable[Fact]) -> Judgement:
    alike = [one for one in true if one.frame == fact.frame]
    if any(_same_values(fact, one) for one in alike):
        return "correct"
    words = sum(any(letter.isalpha() for letter in word) for word in fact.frame)
    return "incorrect" if alike and words >= _FEWEST_WORDS else "unverifiable"


def _same_values(one: Fact, two: Fact) -> bool:
    return one.values == two.values or same_text(" ".join(one.values), " ".join(two.values))


def facts(sentence: str) -> list[Fact]:
    """What a sentence says, one fact an item of a list that stands after a label.

    Example:
        >>> facts("Picture one: red star B2, blue ring C3.")[1]
        Fact(frame=('picture', 'one', 'ring'), values=('blue', 'c3'))
    """
    rest = _OPENING.sub("", _MARKS.sub("", sentence), count=1)
    labelled = _LABEL.match(rest)
    label = tuple(map(_form, plain(labelled[1]))) if labelled else ()
    items = _LIST.split(labelled[2]) if labelled else [rest]
    found = []
    for item in items:
        words = plain(item)
        values = tuple(value for word in words if (value := _value(word)) is not None)
        frame = tuple(_form(word) for word in words if _value(word) is None)
        if words:
            found.append(Fact(label + frame, values))
    return found


def _value(word: str) -> str | None:
    if any(letter.isdigit() for letter in word) or word in _SAID or COLOUR_WORD.fullmatch(word):
        return word
    return "not" if word.endswith("n't") else _WORTH.get(word)


def _form(word: str) -> str:
    """Singular and plural alike."""
    if word in _FORMS:
        return _FORMS[word]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def by_rules(question: ReasonQuestion, responses: Mapping[str, str]) -> ReasonLabels:
    """Labels without a model: sameness of the final answer but for its form, steps found in the solution.

    Args:
        responses: all of them, by id; the one without pictures under `ID--text`.

    Example:
        >>> question = ReasonQuestion(id="1", question="2 + 2?", answer="4", discipline="math", source="own")
        >>> by_rules(question, {"1": "2 + 2 makes 4."}).right
        True
    """
    alone = responses.get(question.id + TEXT)
    right_text = None if alone is None else is_correct(question, alone)
    response = responses.get(question.id)
    if response is None:
        return ReasonLabels(False, right_text=right_text)
    steps = tuple(label_steps(response, question.solution)) if question.solution else None
    return ReasonLabels(True, given_answer(response), is_correct(question, response), right_text, steps)
