"""Compare short answers by their words, and split texts into sentences."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator

from mmprobe.benchmarks.answers import numbers
from mmprobe.benchmarks.answers.forms import last_part

_ENDS = "\"'`*_,;:!?()[]{}\\\u2018\u2019\u201c\u201d\u00ab\u00bb\u3001\u3002"
_ARTICLES = {"a", "an", "the"}
_END = re.compile(r"(?<=[.!?])\s+")
_NUMBERING = re.compile(r"\s*(?:[*_#>-]+\s*)?\(?\d{1,2}[.)]\s+")
SENTENCE_CHARACTERS = 600  # longer sentences are cut, so that the time is linear in the length of the answer
_HUES = (
    "red|orange|yellow|green|cyan|blue|purple|black|white|gray|grey|brown|pink|violet|teal|turquoise"
    "|magenta|beige|tan|"
    "golden|gold|silver|navy|maroon|cream|lavender|lime|olive|crimson|scarlet|aqua|indigo"
)
_HUE_NAMES = {"grey": "gray", "golden": "gold", "violet": "purple", "aqua": "cyan"}
_MODIFIERS = "light|dark|bright|pale|deep|vivid|navy|sky|royal|lime|olive|forest|neon|hot|golden"
COLOUR = rf"(?:(?:{_MODIFIERS})[ -])*(?:{_HUES})\b"
_MARKUP = re.compile(r"</?[A-Za-z!][^<>]{0,200}>|[*`]+|(?m:^[ \t>]*#{1,6}[ \t]+)|(?<!\w)__?|__?(?!\w)|```\w*")
_CONCLUSION = re.compile(
    r"^[ \t]*(?:therefore|(?:final )?answer|conclusion)\s*:[ \t]*", re.IGNORECASE | re.MULTILINE
)
_SENTENCE_ENDS = re.compile(r"(?<=[.!?;])\s+|(?<=[\u3002\uff01\uff1f])")
_BULLET = re.compile(r"\s*(?:(?:[-\u2022\u2013+*]+\s+|\(?\d{1,2}[.):](?!\d)\s*)+)")
_ORDINAL = re.compile(
    r"\A\s*(?:(?:difference|change)\s*\d{0,2}\s*[:.-]\s*|(?:yes|no)\s*[,:;.!-]+\s*)", re.IGNORECASE
)  # fmt: skip


def fold(text: str) -> str:
    """Fold the case of a text, and join its words with single spaces."""
    return " ".join(text.split()).casefold()


def normalize_words(text: str) -> tuple[str, ...]:
    """Return the casefolded words of a short answer, without punctuation, articles and dollars."""
    text = unicodedata.normalize("NFKC", numbers.remove_tex(text)).replace("$", " ")
    stripped = (
        word.rstrip(_ENDS + ".").lstrip(_ENDS) for word in text.casefold().split()
    )  # .5 keeps its point
    words = tuple(word for word in stripped if word)
    return tuple(word for word in words if word not in _ARTICLES) or words  # an answer may be the letter A


def same_text(first: str, second: str) -> bool:
    """Return whether two short answers are equal up to case, punctuation, articles and number format.

    Example:
        >>> same_text("The Red Star.", "red star"), same_text("1,500", "1500.0"), same_text("3 cm", "3 m")
        (True, True, False)
    """
    words, other_words = normalize_words(first), normalize_words(second)
    if words == other_words:
        return bool(words)
    quantity, other = numbers.parse_quantity(first), numbers.parse_quantity(second)
    if quantity and other and quantity[1] and quantity[1] == other[1]:  # 12cm is 12 cm
        return math.isclose(quantity[0], other[0], rel_tol=1e-9)
    return len(words) == len(other_words) and all(map(_same_word, words, other_words))


def _same_word(first: str, second: str) -> bool:
    if first == second:
        return True
    one, other = numbers.parse_quantity(first), numbers.parse_quantity(second)
    if one is None or other is None or one[1] or other[1]:
        return False
    return math.isclose(one[0], other[0], rel_tol=1e-9)


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


def normalize_colour(words: str) -> str:
    """Return one spelling for each colour: `grey` becomes `gray`."""
    *modifiers, hue = words.replace("-", " ").split()
    return " ".join([*modifiers, _HUE_NAMES.get(hue, hue)])


def stands_in(quote: str, text: str) -> bool:
    """Return whether a text has the words of a quote, whatever its Markdown, case, spaces and the stop at its end.

    Example:
        >>> stands_in("Car: The car is red.", "1. **Car**: The car is **red** and large")
        True
    """
    own, whole = (" ".join(_MARKUP.sub("", each).split()).casefold() for each in (quote, text))
    return own.rstrip(" .!") in whole


def conclusion(text: str) -> str:
    """Return what follows the last line with `Therefore:` or `Answer:`, or the whole text."""
    text = _MARKUP.sub("", last_part(text).replace("\u2019", "'"))
    marks = list(_CONCLUSION.finditer(text))
    return text[marks[-1].end() :].strip() if marks else text.strip()


def iter_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text without list numbers, bullets and a leading yes or no.

    Example:
        >>> list(iter_sentences("1. The dog is gone. So is the cat.\\n- Yes, the car moved"))
        ['The dog is gone.', 'So is the cat.', 'the car moved']
    """
    for line in text.splitlines():
        bullet = _BULLET.match(line)
        for part in _SENTENCE_ENDS.split(line[bullet.end() :] if bullet else line):
            for start in range(0, len(part), SENTENCE_CHARACTERS):
                piece = _ORDINAL.sub("", part[start : start + SENTENCE_CHARACTERS], count=1).strip()
                if any(letter.isalnum() for letter in piece):
                    yield piece
