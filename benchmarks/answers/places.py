"""Words for places in a picture, in one spelling."""

from __future__ import annotations

import re

from mmprobe.benchmarks.answers.assertions import is_denied

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
