"""The words of the lexical judge: markup, sentences, colours, places and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from mmprobe.benchmarks.answers.forms import last_part

SENTENCE_CHARACTERS = 600  # longer sentences are cut, so that the time is linear in the length of the answer

_HUES = (
    "red|orange|yellow|green|cyan|blue|purple|black|white|gray|grey|brown|pink|violet|teal|turquoise"
    "|magenta|beige|tan|"
    "golden|gold|silver|navy|maroon|cream|lavender|lime|olive|crimson|scarlet|aqua|indigo"
)
_HUE_NAMES = {"grey": "gray", "golden": "gold", "violet": "purple", "aqua": "cyan"}
_MODIFIERS = "light|dark|bright|pale|deep|vivid"
COLOUR = rf"(?:(?:{_MODIFIERS})[ -])?(?:{_HUES})\b"
_SIDES = r"(?:left|right|top|bottom|cent(?:er|re)|middle|foreground|background|upper|lower)"
PLACE = rf"(?:[a-d][1-4]|{_SIDES}(?:[ -]{_SIDES})?)\b(?: (?:side|corner|edge))?"
_SIDE_NAMES = {"upper": "top", "lower": "bottom", "centre": "center", "middle": "center"}


def normalize_colour(words: str) -> str:
    """Return one spelling for each colour: `grey` becomes `gray`."""
    *modifiers, hue = words.replace("-", " ").split()
    return " ".join([*modifiers, _HUE_NAMES.get(hue, hue)])


# Hues that two people hardly call by each other's name, unless they are side by side here.
_DISTINCT = ["pink", "red", "orange", "yellow", "green", "blue", "purple", "pink"]
_TONES = {"black": ("dark", "deep"), "white": ("light", "pale", "bright")}


_OPPOSITES = ({"left", "right"}, {"top", "bottom"}, {"up", "down"}, {"true", "false"}, {"yes", "no"})


def exclude_each_other(first: str, second: str) -> bool:
    """Return whether two answers cannot both be right: opposites, or colours that nobody calls by the same name.

    Example:
        >>> [exclude_each_other(colour, "red") for colour in ("dark blue", "orange", "maroon", "a car")]
        [True, False, False, False]
    """
    if {text.strip(" .!").lower() for text in (first, second)} in _OPPOSITES:
        return True
    colours = [re.sub(r"^(?:an?|the) ", "", text.strip(" .!").lower()) for text in (first, second)]
    if not all(re.fullmatch(COLOUR, colour) for colour in colours):
        return False
    parts = [normalize_colour(colour).split() for colour in colours]
    hues = {part[-1] for part in parts}
    if len(hues) < 2 or not hues <= {*_DISTINCT, *_TONES}:
        return False
    if any(set(_TONES.get(one[-1], ())) & set(other[:-1]) for one, other in (parts, reversed(parts))):
        return False
    return not any(hues == {one, other} for one, other in pairwise(_DISTINCT))


def normalize_place(words: str) -> str:
    """Return one spelling for each place: cells in capitals, `upper-left` becomes `top left`."""
    if re.fullmatch(r"[a-d][1-4]", words):
        return words.upper()
    parts = re.sub(r" (?:side|corner|edge)$", "", words).replace("-", " ").split()
    return " ".join(_SIDE_NAMES.get(part, part) for part in parts)


_MARKUP = re.compile(r"</?[A-Za-z!][^<>]{0,200}>|[*`]+|(?m:^[ \t>]*#{1,6}[ \t]+)|(?<!\w)__?|__?(?!\w)|```\w*")
_CONCLUSION = re.compile(
    r"^[ \t]*(?:therefore|(?:final )?answer|conclusion)\s*:[ \t]*", re.IGNORECASE | re.MULTILINE
)
_ENDS = re.compile(r"(?<=[.!?;])\s+|(?<=[\u3002\uff01\uff1f])")
_BULLET = re.compile(r"\s*(?:(?:[-\u2022\u2013+*]+\s+|\(?\d{1,2}[.):](?!\d)\s*)+)")
_ORDINAL = re.compile(
    r"\A\s*(?:(?:difference|change)\s*\d{0,2}\s*[:.-]\s*|(?:yes|no)\s*[,:;.!-]+\s*)", re.IGNORECASE
)  # fmt: skip


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
        for part in _ENDS.split(line[bullet.end() :] if bullet else line):
            for start in range(0, len(part), SENTENCE_CHARACTERS):
                piece = _ORDINAL.sub("", part[start : start + SENTENCE_CHARACTERS], count=1).strip()
                if any(letter.isalnum() for letter in piece):
                    yield piece
