"""The things that a sentence names, and which of them it speaks of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mmprobe.benchmarks.answers.coco import FIRST_WORDS, PHRASES, find_phrases, plurals
from mmprobe.benchmarks.answers.lexical.wording import COLOUR_WORD, MODIFIERS, NUMBERS, colour_name, number
from mmprobe.benchmarks.synthetic.scene import SHAPES

_TABLE: dict[str, str | None] = {
    **PHRASES,
    **{form: shape for shape in SHAPES for form in (shape, *plurals(shape))},
}


@dataclass(frozen=True)
class Thing:
    """A thing that a sentence names: oblique if it only says where (`on the couch`), owner as in `the man's tie`."""

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
_REACH = 4  # words before a thing that can say something of it
_FAR = 6  # and of how many: `four out of the five red`


def _words_before(text: str, start: int) -> list[tuple[str, int]]:
    """The words right before a place and where they stand, the nearest first, up to a stop or punctuation."""
    words: list[tuple[str, int]] = []
    while len(words) < _FAR and start > 0 and text[start - 1] == " ":
        low = text.rfind(" ", 0, start - 1) + 1
        word = text[low : start - 1]
        if word in _STOPS or not word.replace("-", "").replace("'", "").isalnum():
            break
        words.append((word, low))
        start = low
    return words


def _quantity(words: list[str]) -> int | None:
    """The number in `two big`, `three of the`, `one of the two`; None where there is none, or it is 0."""
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
            return number(word) or None
        if word in _DETERMINERS:
            break
    return None


def _colour(words: list[tuple[str, int]]) -> tuple[str | None, int]:
    """The colour in `light blue` or `red parked`, and where it stands."""
    for at, (word, start) in enumerate(words[:2]):
        if COLOUR_WORD.fullmatch(word):
            if words[at + 1 : at + 2] and words[at + 1][0] in MODIFIERS:
                word, start = f"{words[at + 1][0]} {word}", words[at + 1][1]
            return colour_name(word), start
        if word in _PREPOSITIONS:
            break
    return None, -1


def find_things(text: str) -> list[Thing]:
    """The things that a masked sentence names, in order."""
    things = []
    for category, (start, end) in find_phrases(text, _TABLE, FIRST_WORDS):
        ahead = _words_before(text, start)
        words = [word for word, _ in ahead]
        colour, colour_start = _colour(ahead)
        oblique = not _PREPOSITIONS.isdisjoint(words[:_REACH])
        owner = text[end : end + 1] == "'"
        things.append(Thing(category, start, end, oblique, owner, _quantity(words), colour, colour_start))
    return things


_JOINED = re.compile(
    r"(?:\s*,\s*(?:and |or |nor )?|\s+(?:and|or|nor|&|as well as)\s+)"
    r"(?:(?:the|a|an|his|her|its|their|another|both) )?(?:[a-z]+ ){0,2}$"
)


def subjects_of(things: Sequence[Thing], text: str) -> tuple[Thing, ...]:
    """The first thing that is not in a prepositional phrase and owns nothing, and those that `and` joins to it.

    Where all stand in such phrases, as in `the color of the man's tie`, the first that owns nothing.
    """
    if not things:
        return ()
    plain = [at for at, thing in enumerate(things) if not thing.oblique and not thing.owner]
    at = plain[0] if plain else next((at for at, thing in enumerate(things) if not thing.owner), 0)
    found = [things[at]]
    for thing in things[at + 1 :]:
        gap = text[found[-1].end : thing.start]
        if thing.owner or not _JOINED.fullmatch(gap):
            break
        found.append(thing)
    return tuple(found)
