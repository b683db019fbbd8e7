"""Find the objects that a sentence names, and the subjects among them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mmprobe.benchmarks.answers.coco import FIRST_WORDS, PHRASES, find_phrases, make_plurals
from mmprobe.benchmarks.answers.lexical.wording import (
    COLOUR_WORD,
    MODIFIERS,
    NUMBERS,
    normalize_colour,
    parse_number_word,
)
from mmprobe.benchmarks.synthetic.scene import SHAPES

_TABLE: dict[str, str | None] = {
    **PHRASES,
    **{form: shape for shape in SHAPES for form in (shape, *make_plurals(shape))},
}


@dataclass(frozen=True)
class Thing:
    """An object that a sentence names.

    Attributes:
        category: a COCO category or a shape of the synthetic world.
        start, end: its span in the sentence.
        oblique: whether it only gives a place, as in `on the couch`.
        owner: whether it owns something, as in `the man's tie`.
        quantity: the number before it.
        colour: the colour before it.
        colour_start: where the colour stands, or -1.
    """

    category: str
    start: int
    end: int
    oblique: bool
    owner: bool
    quantity: int | None
    colour: str | None
    colour_start: int


_PREPOSITIONS = frozenset(
    re.findall(
        r"\w+",
        """of on in at near by beside besides behind under underneath beneath above below over to from with wearing
        holding carrying riding between against around inside outside into onto toward towards across through along
        like""",
    )
)
_STOPS = frozenset(re.findall(r"\w+", "and or but be is was are were has have that which there also nor"))
_DETERMINERS = frozenset(re.findall(r"\w+", "the a an of to difference differences change changes"))
_DESCRIBING_WORDS = 4  # words before an object that can describe it
_MAX_WORDS_BEFORE = 6  # with quantities such as `four out of the five red`


def _words_before(text: str, start: int) -> list[tuple[str, int]]:
    """Return the words before a position and their positions, nearest first, up to a stop word."""
    words: list[tuple[str, int]] = []
    while len(words) < _MAX_WORDS_BEFORE and start > 0 and text[start - 1] == " ":
        word_start = text.rfind(" ", 0, start - 1) + 1
        word = text[word_start : start - 1]
        if word in _STOPS or not word.replace("-", "").replace("'", "").isalnum():
            break
        words.append((word, word_start))
        start = word_start
    return words


def _find_quantity(words: list[str]) -> int | None:
    """Return the number in `two big`, `three of the` or `one of the two`; None for no number or 0."""
    whole = words.index("of") + 1 if "of" in words else 0
    part = words[whole + 1 :] if words[whole : whole + 1] == ["out"] else words[whole:]
    if part and (part[0] in NUMBERS or part[0].isdecimal()):
        words = part
    elif words[:1] in (["the"], ["these"], ["those"]) and words[1:2] == ["of"]:
        words = words[2:]
    elif words[:1] == ["of"]:
        words = words[1:]
    for word in words[:3]:
        if word in NUMBERS or (word.isdecimal() and len(word) < 7):
            return parse_number_word(word) or None
        if word in _DETERMINERS:
            break
    return None


def _find_colour(words: list[tuple[str, int]]) -> tuple[str | None, int]:
    """Return the colour in `light blue` or `red parked`, and its position; (None, -1) for no colour."""
    for index, (word, start) in enumerate(words[:2]):
        if COLOUR_WORD.fullmatch(word):
            if words[index + 1 : index + 2] and words[index + 1][0] in MODIFIERS:
                word, start = f"{words[index + 1][0]} {word}", words[index + 1][1]
            return normalize_colour(word), start
        if word in _PREPOSITIONS:
            break
    return None, -1


def find_things(text: str) -> list[Thing]:
    """Return the objects that a masked sentence names, in order."""
    things = []
    for category, (start, end) in find_phrases(text, _TABLE, FIRST_WORDS):
        words_before = _words_before(text, start)
        words = [word for word, _ in words_before]
        colour, colour_start = _find_colour(words_before)
        oblique = not _PREPOSITIONS.isdisjoint(words[:_DESCRIBING_WORDS])
        owner = text[end : end + 1] == "'"
        things.append(
            Thing(category, start, end, oblique, owner, _find_quantity(words), colour, colour_start)
        )
    return things


_JOINED = re.compile(
    r"(?:\s*,\s*(?:and |or |nor )?|\s+(?:and|or|nor|&|as well as)\s+)"
    r"(?:(?:the|a|an|his|her|its|their|another|both) )?(?:[a-z]+ ){0,2}$"
)


def find_subjects(things: Sequence[Thing], text: str) -> tuple[Thing, ...]:
    """Return the first object that is neither oblique nor an owner, with the objects that `and` joins to it.

    If all objects are oblique, as in `the color of the man's tie`, it is the first one that is no owner.
    """
    if not things:
        return ()
    direct = [index for index, thing in enumerate(things) if not thing.oblique and not thing.owner]
    no_owners = [index for index, thing in enumerate(things) if not thing.owner]
    first = (direct or no_owners or [0])[0]
    subjects = [things[first]]
    for thing in things[first + 1 :]:
        gap = text[subjects[-1].end : thing.start]
        if thing.owner or not _JOINED.fullmatch(gap):
            break
        subjects.append(thing)
    return tuple(subjects)
