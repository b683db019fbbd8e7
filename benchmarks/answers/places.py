"""Words for places in a picture, in one spelling, and the places that an answer claims of things."""

from __future__ import annotations

import re
from collections.abc import Collection

from mmprobe.benchmarks.answers.assertions import is_denied
from mmprobe.benchmarks.answers.colours import find_things
from mmprobe.benchmarks.answers.texts import iter_sentences
from mmprobe.benchmarks.answers.words import NAMED_IMAGE, is_open

SIDES = {
    **{name: name for name in ("left", "right", "top", "bottom", "center", "foreground", "background")},
    **{"upper": "top", "uppermost": "top", "lower": "bottom", "centre": "center", "central": "center", "middle": "center"},
    **{"leftmost": "left", "rightmost": "right"},
}  # fmt: skip
"""Words for a side, and one spelling of each."""
SIDE = rf"(?:{'|'.join(SIDES)})"
_JOINED = re.compile(
    rf"\b{SIDE}(?:(?:[ -]|,? (?:and|in|of|on|at|to) (?:the )?|[ -]?(?:hand|part|side|corner|edge|half|area|third)(?: of)?(?: the)? ){SIDE})*\b",
    re.IGNORECASE,
)
_EXACTLY = re.compile(
    r"(?<!the )(?<!top )\bright (?=in the (?:middle|cent)|at the|next to|behind|above|below)", re.IGNORECASE
)


_OF_ANOTHER = re.compile(r"\bof (?:the |an? |its )?(?:\w+ )?$")  # left of the red shoe


def name_place(sides: Collection[str]) -> str:
    """Return one name for a place.

    Example:
        >>> name_place({"left", "bottom"})
        'bottom left'
    """
    order = ("top", "bottom", "foreground", "background", "center", "left", "right")
    return " ".join(side for side in order if side in sides)


def parse_place(text: str) -> frozenset[str] | None:
    """Return the sides that a place names; None for other words. A cell of a grid is in its middle without a side.

    Example:
        >>> sorted(parse_place("upper-left corner")), sorted(parse_place("middle right")), parse_place("the table")
        (['left', 'top'], ['center', 'right'], None)
    """
    words = re.sub(
        r"^(?:(?:in|on|at|to) )?(?:the )?| (?:(?:hand )?side|corner|edge|part|half)$",
        "",
        text.strip(" .").lower(),
    )
    parts = re.split(r"[ -]+", words)
    return (
        frozenset(SIDES[part] for part in parts) if parts and all(part in SIDES for part in parts) else None
    )


def find_places(text: str) -> list[frozenset[str]]:
    """Return the places that a text names and does not deny, in order.

    Example:
        >>> [sorted(place) for place in find_places("It is in the upper left-hand corner, not on the right.")]
        [['left', 'top']]
    """
    text = _EXACTLY.sub("", text)
    return [
        frozenset(SIDES[side.lower()] for side in re.findall(rf"\b{SIDE}\b", match.group(), re.IGNORECASE))
        for match in _JOINED.finditer(text)
        if not is_denied(text, *match.span())
    ]


def read_places(text: str, names: Collection[str] = ()) -> list[tuple[str, frozenset[str]]]:
    """Return the places that an answer claims of things, in order: `a shoe in the bottom left`, `the shoe is at the top`.

    A place is that of the thing before it in the sentence. What is left out: sentences that deny, doubt, ask or name an image, or begin
    with a place; places beside another thing (`left of the dog`); and things with two places.

    Args:
        names: in lower case, of things that are none of COCO's.

    Example:
        >>> [(name, sorted(place)) for name, place in read_places("A cat is in the top left, and a shoe left of the cat.", ["shoe"])]
        [('cat', ['left', 'top'])]
    """
    found = []
    for sentence in iter_sentences(text):
        words = " ".join(sentence.lower().split())
        things = find_things(words, names)
        if (
            not things
            or is_open(sentence)
            or NAMED_IMAGE.search(sentence)
            or find_places(words[: things[0][1][0]])
        ):
            continue
        ends = [start for _, (start, _) in things[1:]]
        for (name, (_, start)), end in zip(things, [*ends, len(words)], strict=True):
            places = [] if _OF_ANOTHER.search(words[start:end]) else find_places(words[start:end])
            if len(places) == 1:
                found.append((name, places[0]))
    return found
