"""From what and to what: the colours and places of a stretch of a sentence, before and after."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmprobe.benchmarks.answers.lexical.things import Thing
from mmprobe.benchmarks.answers.lexical.wording import COLOUR, FIRST, PLACE, SECOND, colour_name, place_name

_COLOUR = re.compile(rf"\b{COLOUR}")
_PLACE = re.compile(
    r"\b(?P<link>from|to|into|onto|towards?|on|at|in|near)(?: (?:the|its|their|a|very|far|cell|position|side)){0,3} "
    rf"(?P<place>{PLACE})"
)
_DIRECTION = re.compile(
    rf"^(?: (?:slightly|a bit|further|farther|much|more|far|over|a little)){{0,3}} (?P<place>{PLACE})"
)


Value = tuple[str, int, str | None]  # a colour or place, where it stands, and whether it is before or after
_WAS = re.compile(
    r"\b(?:from|used to be|previously|originally|formerly|initially|was|were|no longer|not|unlike|compared to)"
    r"(?: (?:a|an|the|being|\w+ly|colou?red)){0,2} $"
)
_IS = re.compile(
    r"\b(?:to|into|now|turned|became|becomes|is|are|as|appears?)(?: (?:a|an|the|be|being|\w+ly|colou?red)){0,2} $"
)


def in_order(text: str, low: int, high: int, values: list[Value]) -> tuple[str | None, str | None]:
    """Which of the values was before and which is after: by the picture named with it, by its verb, by order."""
    pictures = [at for at in range(low, high) if text[at] in (FIRST, SECOND)]
    instead = re.search(r"\b(?:instead of|rather than)\b", text[low:high])
    before: str | None = None
    after: str | None = None
    open_values = []
    for value, at, role in values:
        if len(set(text[one] for one in pictures)) == 2:
            role = {FIRST: "before", SECOND: "after"}[text[_picture_of(text, at, pictures, values[0][1])]]
        elif instead is not None:
            role = "before" if at >= low + instead.end() else "after"
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


_IN_PICTURE = re.compile(
    rf"(?:(?!(?:and|but|while|whereas)\b)[a-z-]+ ){{1,5}}?(?:in|of|on) [{FIRST}{SECOND}]"
)
_CLAUSE = re.compile(r"\b(?:while|whereas|but|and|however|vs)\b|[,;.]")


def _picture_of(text: str, at: int, pictures: list[int], first_value: int) -> int:
    """Where the picture is named that a value is told of.

    That is the picture after it (`red in the first picture`), else the one in its clause, else the last before it,
    or the next where the first value comes before any picture.
    """
    told = _IN_PICTURE.match(text, at)
    if told:
        return told.end() - 1
    ends = [found.start() for found in _CLAUSE.finditer(text)]
    low = max((end for end in ends if end <= at), default=0)
    high = min((end for end in ends if end > at), default=len(text))
    near = [one for one in pictures if low <= one < high]
    earlier = [one for one in pictures if one < at] if pictures[0] < first_value else []
    later = [one for one in pictures if one > at]
    return (
        min(near, key=lambda one: abs(one - at)) if near else (earlier[-1:] or later[:1] or pictures[-1:])[0]
    )


def colour_change(
    text: str, low: int, high: int, things: Sequence[Thing], of: set[str], attributes: bool = False
) -> tuple[str | None, str | None]:
    """Colour before and after in a stretch of a sentence; colours of other things are passed over."""
    values: list[Value] = []
    for found in _COLOUR.finditer(text, low, high):
        at = found.start()
        if any(thing.start <= at < thing.end for thing in things):
            continue  # an orange, the fruit
        if any(thing.colour_start == at and (thing.category not in of) for thing in things):
            continue
        ahead = text[max(low, at - 40) : at]
        role = "before" if _WAS.search(ahead) else "after" if _IS.search(ahead) else None
        values.append((colour_name(found.group()), at, None if attributes else role))
    return in_order(text, low, high, values) if values else (None, None)


def place_change(text: str, low: int, high: int, verb_end: int) -> tuple[str | None, str | None]:
    """Place before and after in a stretch of a sentence."""
    values: list[Value] = []
    direct = _DIRECTION.match(text[verb_end:high])
    if direct:
        values.append((place_name(direct.group("place")), verb_end, "after"))
    found = list(_PLACE.finditer(text, low, high))
    goal = any(one.group("link") not in ("from", "on", "at", "in", "near") for one in found)
    for one in found:
        link = one.group("link")
        role = (
            None if goal and link in ("on", "at", "in", "near") else "before" if link == "from" else "after"
        )
        values.append((place_name(one.group("place")), one.start(), role))
    return in_order(text, low, high, values) if values else (None, None)
