"""What sentences say: their words, and the values in them."""

from __future__ import annotations

import re
from typing import NamedTuple

from mmprobe.benchmarks.answers.final_answers import normalize_words
from mmprobe.benchmarks.answers.lexical.wording import COLOUR_WORD

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


class Fact(NamedTuple):
    """What a sentence says: its words but for the values, and the values (numbers, colours, yes, not) in order."""

    frame: tuple[str, ...]
    values: tuple[str, ...]


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, a line's end being a sentence's; without those that hold no word.

    Example:
        >>> split_sentences("1. AB is 3.5 cm. So the area is 7.\\n\\n***\\nAnswer: 7")
        ['1. AB is 3.5 cm.', 'So the area is 7.', 'Answer: 7']
    """
    found = []
    for line in text.split("\n"):
        number = _NUMBERING.match(line)
        start = number.end() if number else 0
        first, *others = _END.split(line[start:])
        found += [part.strip() for part in (line[:start] + first, *others)]
    return [part for part in found if any(letter.isalnum() for letter in part)]


def parse_facts(sentence: str) -> list[Fact]:
    """What a sentence says, one fact an item of a list that stands after a label.

    Example:
        >>> parse_facts("Picture one: red star B2, blue ring C3.")[1]
        Fact(frame=('picture', 'one', 'ring'), values=('blue', 'c3'))
    """
    rest = _OPENING.sub("", _MARKS.sub("", sentence), count=1)
    labelled = _LABEL.match(rest)
    label = tuple(map(_form, normalize_words(labelled[1]))) if labelled else ()
    items = _LIST.split(labelled[2]) if labelled else [rest]
    found = []
    for item in items:
        words = normalize_words(item)
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
