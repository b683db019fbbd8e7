"""Split texts into sentences, and sentences into facts: words and the values in them."""

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
_NUMBER_WORDS = (
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
_WORD_VALUES = {word: str(number) for number, word in enumerate(_NUMBER_WORDS)} | {"zero": "0"}
_VALUE_WORDS = {"yes", "not", "never", "cannot"}
_SINGULAR_FORMS = {"are": "is", "were": "was"}


class Fact(NamedTuple):
    """A statement of a sentence.

    Attributes:
        frame: its words without the values.
        values: numbers, colours, yes and not, in order.
    """

    frame: tuple[str, ...]
    values: tuple[str, ...]


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text. A sentence ends with its line. Sentences without a word are left out.

    Example:
        >>> split_sentences("1. AB is 3.5 cm. So the area is 7.\\n\\n***\\nAnswer: 7")
        ['1. AB is 3.5 cm.', 'So the area is 7.', 'Answer: 7']
    """
    parts = []
    for line in text.split("\n"):
        number = _NUMBERING.match(line)
        start = number.end() if number else 0
        first, *others = _END.split(line[start:])
        parts += [part.strip() for part in (line[:start] + first, *others)]
    return [part for part in parts if any(letter.isalnum() for letter in part)]


def parse_facts(sentence: str) -> list[Fact]:
    """Return the facts of a sentence. A list after a label, such as `Picture one:`, gives one fact an item.

    Example:
        >>> parse_facts("Picture one: red star B2, blue ring C3.")[1]
        Fact(frame=('picture', 'one', 'ring'), values=('blue', 'c3'))
    """
    text = _OPENING.sub("", _MARKS.sub("", sentence), count=1)
    labelled = _LABEL.match(text)
    label = tuple(map(_to_singular, normalize_words(labelled[1]))) if labelled else ()
    items = _LIST.split(labelled[2]) if labelled else [text]
    facts = []
    for item in items:
        words = normalize_words(item)
        values = tuple(value for word in words if (value := _find_value(word)) is not None)
        frame = tuple(_to_singular(word) for word in words if _find_value(word) is None)
        if words:
            facts.append(Fact(label + frame, values))
    return facts


def _find_value(word: str) -> str | None:
    if any(letter.isdigit() for letter in word) or word in _VALUE_WORDS or COLOUR_WORD.fullmatch(word):
        return word
    return "not" if word.endswith("n't") else _WORD_VALUES.get(word)


def _to_singular(word: str) -> str:
    """Return one form for singular and plural."""
    if word in _SINGULAR_FORMS:
        return _SINGULAR_FORMS[word]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
