"""From one sentence to the differences that it claims: what changed, how, from what and to what.

Verbs (`wording.TRIGGERS`) carry a claim. Each has its own stretch of the sentence, in which the thing that changed
stands before it (or after it, as in `is missing a dog`) and the colours or places say from what to what.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mmprobe.benchmarks.answers.lexical.things import Thing, subjects_of
from mmprobe.benchmarks.answers.lexical.values import Value, colour_change, in_order, place_change
from mmprobe.benchmarks.answers.lexical.wording import (
    BOTH,
    COLOUR,
    FIRST,
    HUE,
    NUMBER,
    PLACE,
    SECOND,
    SPOT,
    TRIGGER,
    number,
)
from mmprobe.benchmarks.synthetic.scene import EditType


@dataclass(frozen=True)
class Claim:
    """One difference that an answer claims or, if negated, denies.

    Attributes:
        type: None where it is none of the three, or is not said (`the dog is different`, `a dog was added`).
        category: a COCO category or a shape of the synthetic world; None for a thing that is neither.
        before, after: colours or places (cells in capitals), where they are said.
        quantity: how many things, where a number is said.
        text: the sentence.
    """

    type: EditType | None
    category: str | None
    before: str | None = None
    after: str | None = None
    quantity: int | None = None
    negated: bool = False
    text: str = ""


_BUT = re.compile(r"[;:]|\b(?:but|while|whereas|however|although|though)\b")
_LINKS = re.compile(r",\s*(?:and|but|while|whereas)\b|[,;:]|\b(?:and|but|while|whereas|however)\b")
_TAKES_OBJECT = ("gone", "removed", "color", "added")
_NUMBER = re.compile(rf"(?<![\w.-]){NUMBER}\b")
_ITS_OBJECT = re.compile(rf"^ (?:the|a|an|any|his|her|its|their|{NUMBER}) (?:[a-z-]+ ){{0,2}}$")
_NEAR = re.compile(r"^ (?:[a-z-]+ ){0,5}$")


@dataclass(frozen=True)
class _Stretch:
    """A verb and the part of the sentence that belongs to it."""

    kind: str
    verb: re.Match[str]
    low: int
    high: int


def _stretches(text: str, things: Sequence[Thing]) -> list[_Stretch]:
    """Cut a sentence between its verbs, before the thing that the next one speaks of."""
    verbs = list(TRIGGER.finditer(text))
    found: list[_Stretch] = []
    low = 0
    for verb, following in itertools.zip_longest(verbs, verbs[1:]):
        kind = str(verb.lastgroup)
        high = len(text)
        if following is not None:
            high = following.start()
            between = [thing for thing in things if verb.end() <= thing.start < following.end()]
            alone = not any(low <= thing.start < verb.end() for thing in things)
            own = kind in _TAKES_OBJECT and alone
            named = [thing for thing in between if not thing.oblique]
            if named and not (own and len(named) == 1):
                links = [
                    link.start()
                    for link in _LINKS.finditer(text, verb.end(), following.start())
                    if link.start() < named[-1 if own else 0].start
                ]
                high = links[-1] if links else verb.end() if alone and not own else high
        found.append(_Stretch(kind, verb, low, high))
        low = high
    return found


def _things_of(
    part: _Stretch, text: str, things: Sequence[Thing], earlier: tuple[Thing, ...]
) -> tuple[Thing, ...]:
    """What the verb speaks of: before it, else right after it, else what the verb before spoke of."""
    left = [thing for thing in things if part.low <= thing.start < part.verb.end()]
    right = [thing for thing in things if part.verb.end() <= thing.start < part.high]
    gap = text[part.verb.end() : right[0].start] if right else ""
    lost = part.kind == "gone" and _ITS_OBJECT.match(gap) is not None  # `the man is missing his tie`
    coloured = [thing for thing in left if thing.colour] if _instead(part) else []
    if coloured:  # `the man wears a blue tie instead of a red one`
        return (coloured[-1],)
    if left and not lost:
        buts = _BUT.finditer(text, part.low, part.verb.start())
        last = max((found.end() for found in buts), default=part.low)
        return subjects_of([thing for thing in left if thing.start >= last] or left, text)
    takes = part.kind in _TAKES_OBJECT or part.verb.group().startswith("no ")
    takes |= part.kind == "position" and bool(right) and not right[0].oblique
    if takes and _NEAR.match(gap):
        return subjects_of(right, text)
    if earlier and _points_back(text[part.low : part.verb.start()]):
        return earlier
    return subjects_of(right, text) if part.kind in (*_TAKES_OBJECT, "only") else ()


def _instead(part: _Stretch) -> bool:
    return part.verb.group() in ("instead of", "rather than")


_NOT = re.compile(r"\b(?:not|never|no|neither|nor|without|hardly|none)(?: (?!only\b)[a-z'-]+){0,3} ?$")
_NOT_INSIDE = re.compile(r".+\b(?:not|never)\b")
_STRICT = re.compile(r"turn|becom|became|went|goes|painted|now|instead of|rather than|used to be")
_TO_COLOUR = re.compile(
    r"(?: (?:a|an|the|in|to|into|from|of|more|very|being|colou?red|painted|appears?|looks?|solid|\w+ly)){0,4} "
    rf"{COLOUR}"
)
_NOW_PLACE = re.compile(
    rf" (?:\w+ ){{0,3}}?(?:on|at|in|to|towards?|near) (?:(?:the|its|their|far) ){{0,2}}{PLACE}"
)


def claims_of(text: str, things: Sequence[Thing], sentence: str, context: tuple[Thing, ...]) -> list[Claim]:
    """What the verbs of a masked sentence claim.

    Args:
        text: the masked sentence.
        things: those that it names.
        sentence: as it was, for the claims' text.
        context: what `it` means.
    """
    claims: list[Claim] = []
    subjects: tuple[Thing, ...] = ()
    for part in _stretches(text, things):
        subjects = _things_of(part, text, things, subjects)
        meant = subjects or (context if _points_back(text[part.low : part.verb.start()]) else ())
        told = _told(part, text, things, meant)
        if told is None:
            continue
        kind, before, after, negated = told
        for category in dict.fromkeys(thing.category for thing in meant):
            alike = [thing for thing in meant if thing.category == category]
            many = alike[0].quantity if len(alike) == 1 else sum(thing.quantity or 1 for thing in alike)
            first = before or (alike[0].colour if kind == "color" and after and not negated else None)
            last = after or (alike[0].colour if kind == "color" and before and _instead(part) else None)
            claims.append(Claim(kind, category, first, last, many, negated, sentence))
        if not meant and kind is not None and not negated and _names_something(part, text):
            claims.append(Claim(kind, None, before, after, None, negated, sentence))
    return claims


_PRONOUN = re.compile(r"\b(?:it|its|they|their|them|this|which|these|he|she|his|her)\b")
_EMPTY = frozenset(
    re.findall(r"\w+", "in on at the a an is was are were has have been and but also now then color colour")
)


def _points_back(left: str) -> bool:
    return bool(_PRONOUN.search(left)) or not set(re.findall(r"[a-z]+", left)) - _EMPTY


_SOMETHING = re.compile(r"\b(?:the|a|an|one|some|several|his|her|another|[a-z]+'s) [a-z]{3,}|\bsomething\b")


def _names_something(part: _Stretch, text: str) -> bool:
    left, right = text[part.low : part.verb.start()], text[part.verb.end() : part.high]
    if re.search(r"\b(?:i|we|let|you)\b", left):
        return False
    return bool(_SOMETHING.search(left)) or (
        part.kind in ("gone", "removed") and bool(_SOMETHING.match(right[1:]))
    )


def _told(
    part: _Stretch, text: str, things: Sequence[Thing], meant: tuple[Thing, ...]
) -> tuple[EditType | None, str | None, str | None, bool] | None:
    """Type, before, after and negation of what a verb says; None where it claims nothing."""
    kind, verb, words = part.kind, part.verb.start(), part.verb.group()
    negated = _NOT.search(text[part.low : verb]) is not None or _NOT_INSIDE.match(words) is not None
    if kind in ("gone", "only"):
        picture = _picture(part, text, things)
        taken = picture == (SECOND if kind == "gone" else FIRST) or negated
        return "remove" if taken else None, None, None, negated
    if kind == "removed":
        return "remove", None, None, negated
    if kind == "same":
        return _unchanged(part, text, negated)
    if kind == "added":
        adjective = words in ("new", "additional", "extra", "newly")
        next_to = any(verb < thing.start <= part.verb.end() + 20 for thing in things)
        return (None, None, None, negated) if not adjective or next_to else None
    places = place_change(text, verb, part.high, part.verb.end())
    if kind == "position":
        return "position", *places, negated
    inside = [thing.end for thing in meant if part.low <= thing.end <= part.high]
    start = min(inside, default=verb)
    colours = colour_change(text, start, part.high, things, {thing.category for thing in meant})
    if kind == "color":
        return "color", *colours, negated
    return _changed(part, text, colours, places, negated)


def _unchanged(
    part: _Stretch, text: str, negated: bool
) -> tuple[EditType | None, str | None, str | None, bool] | None:
    """`remains`, `is the same`: a denial of a change, of the aspect that is named or of any."""
    around, words = text[part.low : part.high], part.verb.group()
    if re.search(HUE, around):
        return "color", None, None, not negated
    if re.search(SPOT, around):
        return "position", None, None, not negated
    if not re.match(r"remain|stay", words) or re.search(r"same|unchanged|identical", words):
        return None, None, None, not negated
    if _TO_COLOUR.match(text[part.verb.end() : part.high]):  # `remains red`
        return "color", None, None, not negated
    return ("position", None, None, not negated) if re.search(r" (?:in|at|on)$", words) else None


def _changed(
    part: _Stretch,
    text: str,
    colours: tuple[str | None, str | None],
    places: tuple[str | None, str | None],
    negated: bool,
) -> tuple[EditType | None, str | None, str | None, bool] | None:
    """`changed`, `turned`, `is now`, `instead of`: what follows says what kind of change it is."""
    words, rest = part.verb.group(), text[part.verb.end() : part.high]
    if _STRICT.match(words):
        if _TO_COLOUR.match(rest):
            return "color", *colours, negated
        if words == "now" and _NOW_PLACE.match(rest):
            return "position", *places, negated
        return None
    if colours != (None, None):
        return "color", *colours, negated
    if places != (None, None) and (
        words.startswith("shift") or None not in places or re.match(r" to\b", rest)
    ):
        return "position", *places, negated
    return ("position" if words.startswith("shift") else None), None, None, negated


def _picture(part: _Stretch, text: str, things: Sequence[Thing]) -> str:
    """The picture in which something is said to be missing, or to be alone: the second where it is not said."""
    tokens = [at for at in range(part.verb.end(), part.high) if text[at] in (FIRST, SECOND)]
    stop = _BUT.search(text, part.verb.end(), part.high)
    if tokens and (stop is None or tokens[0] < stop.start()):
        return text[tokens[0]]
    low = max((found.end() for found in _BUT.finditer(text, part.low, part.verb.start())), default=part.low)
    earlier = [at for at in range(low, part.verb.end()) if text[at] in (FIRST, SECOND)]
    if earlier and (part.kind == "only" or not any(low <= thing.start < earlier[-1] for thing in things)):
        picture = text[earlier[-1]]
    else:
        picture = SECOND if part.kind == "gone" else FIRST
    return picture


_TWO_COLOURS = re.compile(rf"\b{COLOUR} ?(?:to|,? not|vs\.?) {COLOUR}")


def _fewer(text: str) -> int:
    """How many fewer things the second picture has, where each picture's number is told; else 0."""
    found = list(_NUMBER.finditer(text))
    if len(found) != 2:
        return 0
    values: list[Value] = [(str(number(one.group())), one.start(), None) for one in found]
    before, after = in_order(text, 0, len(text), values)
    return int(before) - int(after) if before and after else 0


def contrast_of(text: str, things: Sequence[Thing], sentence: str, context: tuple[Thing, ...]) -> list[Claim]:
    """A change that no verb tells: `red in the first picture and blue in the second`, `car: red to blue`."""
    named = [thing for thing in things if not thing.oblique] or list(things)
    if len({thing.category for thing in named}) > 1:
        return []
    meant = subjects_of(named, text)[:1] or context[:1]
    if not meant:
        return []
    categories = {thing.category for thing in things} | {meant[0].category}
    if FIRST in text and SECOND in text:
        if not re.search(r"\b(?:is|are|was|were|has|have|appears?|looks?|shows?|contains?)\b", text):
            return []
        colours = colour_change(text, 0, len(text), things, categories, attributes=True)
        places = place_change(text, 0, len(text), len(text))
    elif _TWO_COLOURS.search(text) and BOTH not in text:
        colours, places = colour_change(text, 0, len(text), things, categories), (None, None)
    else:
        return []
    fewer = _fewer(text) if FIRST in text and SECOND in text else 0
    if fewer:
        return [Claim("remove" if fewer > 0 else None, meant[0].category, quantity=abs(fewer), text=sentence)]
    told: tuple[tuple[EditType, tuple[str | None, str | None]], ...] = (
        ("color", colours),
        ("position", places),
    )
    for kind, (before, after) in told:
        if before is not None and after is not None and before != after:
            return [Claim(kind, meant[0].category, before, after, meant[0].quantity, False, sentence)]
    return []
