"""Find the colours and places before and after a change in a part of a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmprobe.benchmarks.answers.lexical.things import Thing
from mmprobe.benchmarks.answers.lexical.wording import (
    COLOUR,
    FIRST,
    PLACE,
    SECOND,
    normalize_colour,
    normalize_place,
)

_COLOUR = re.compile(rf"\b{COLOUR}")
_PLACE = re.compile(
    r"\b(?P<link>from|to|into|onto|towards?|on|at|in|near)(?: (?:the|its|their|a|very|far|cell|position|side)){0,3} "
    rf"(?P<place>{PLACE})"
)
_DIRECTION = re.compile(
    rf"^(?: (?:slightly|a bit|further|farther|much|more|far|over|a little)){{0,3}} (?P<place>{PLACE})"
)


Value = tuple[str, int, str | None]  # a colour or place, its position, and its role (before or after)
_WAS = re.compile(
    r"\b(?:from|used to be|previously|originally|formerly|initially|was|were|no longer|not|unlike|compared to)"
    r"(?: (?:a|an|the|being|\w+ly|colou?red)){0,2} $"
)
_IS = re.compile(
    r"\b(?:to|into|now|turned|became|becomes|is|are|as|appears?)(?: (?:a|an|the|be|being|\w+ly|colou?red)){0,2} $"
)


def assign_before_after(text: str, low: int, high: int, values: list[Value]) -> tuple[str | None, str | None]:
    """Return the values before and after the change, from the image names, the verbs or the order."""
    names = [position for position in range(low, high) if text[position] in (FIRST, SECOND)]
    instead = re.search(r"\b(?:instead of|rather than)\b", text[low:high])
    before: str | None = None
    after: str | None = None
    open_values = []
    for value, position, role in values:
        if len(set(text[name] for name in names)) == 2:
            name = _find_image_name(text, position, names, values[0][1])
            role = {FIRST: "before", SECOND: "after"}[text[name]]
        elif instead is not None:
            role = "before" if position >= low + instead.end() else "after"
        if role == "before" and before is None:
            before = value
        elif role == "after" and after is None:
            after = value
        elif role is None:
            open_values.append(value)
    if open_values and before is None and (after is not None or len(open_values) > 1):
        before = open_values.pop(0)
    if open_values and after is None:
        after = open_values.pop(0)
    return before, after


_IN_IMAGE = re.compile(rf"(?:(?!(?:and|but|while|whereas)\b)[a-z-]+ ){{1,5}}?(?:in|of|on) [{FIRST}{SECOND}]")
_CLAUSE = re.compile(r"\b(?:while|whereas|but|and|however|vs)\b|[,;.]")


def _find_image_name(text: str, position: int, names: list[int], first_value: int) -> int:
    """Return the position of the image name that a value belongs to.

    This is the name right after the value (`red in the first image`), or else the nearest name in its clause,
    or else the last name before it. If the first value stands before all names, it is the next name.
    """
    after_value = _IN_IMAGE.match(text, position)
    if after_value:
        return after_value.end() - 1
    ends = [match.start() for match in _CLAUSE.finditer(text)]
    low = max((end for end in ends if end <= position), default=0)
    high = min((end for end in ends if end > position), default=len(text))
    in_clause = [name for name in names if low <= name < high]
    if in_clause:
        return min(in_clause, key=lambda name: abs(name - position))
    earlier = [name for name in names if name < position] if names[0] < first_value else []
    later = [name for name in names if name > position]
    return (earlier[-1:] or later[:1] or names[-1:])[0]


def find_colour_change(
    text: str, low: int, high: int, things: Sequence[Thing], categories: set[str], attributes: bool = False
) -> tuple[str | None, str | None]:
    """Return the colour before and after in a part of a sentence. Colours of other objects are ignored."""
    values: list[Value] = []
    for match in _COLOUR.finditer(text, low, high):
        position = match.start()
        if any(thing.start <= position < thing.end for thing in things):
            continue  # an orange, the fruit
        if any(thing.colour_start == position and (thing.category not in categories) for thing in things):
            continue
        words_before = text[max(low, position - 40) : position]
        role = "before" if _WAS.search(words_before) else "after" if _IS.search(words_before) else None
        values.append((normalize_colour(match.group()), position, None if attributes else role))
    return assign_before_after(text, low, high, values) if values else (None, None)


def find_place_change(text: str, low: int, high: int, verb_end: int) -> tuple[str | None, str | None]:
    """Return the place before and after in a part of a sentence."""
    values: list[Value] = []
    direct = _DIRECTION.match(text[verb_end:high])
    if direct:
        values.append((normalize_place(direct.group("place")), verb_end, "after"))
    matches = list(_PLACE.finditer(text, low, high))
    has_goal = any(match.group("link") not in ("from", "on", "at", "in", "near") for match in matches)
    for match in matches:
        link = match.group("link")
        role = (
            None
            if has_goal and link in ("on", "at", "in", "near")
            else "before"
            if link == "from"
            else "after"
        )
        values.append((normalize_place(match.group("place")), match.start(), role))
    return assign_before_after(text, low, high, values) if values else (None, None)
