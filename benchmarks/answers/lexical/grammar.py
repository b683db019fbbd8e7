"""Read the differences that one sentence claims.

Each claim has a verb (`wording.TRIGGERS`). The sentence is cut into one clause for each verb. In its clause,
the changed object stands before the verb (or after it, as in `is missing a dog`), and colours or places give
the values before and after.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mmprobe.benchmarks.answers.lexical.things import Thing, find_subjects
from mmprobe.benchmarks.answers.lexical.values import (
    Value,
    assign_before_after,
    find_colour_change,
    find_place_change,
)
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
    parse_number_word,
)
from mmprobe.benchmarks.synthetic.scene import EditType


@dataclass(frozen=True)
class Claim:
    """One difference that an answer claims or, if negated, denies.

    Attributes:
        type: color, remove or position. None for another or no type (`a dog was added`, `the dog is
            different`).
        category: a COCO category or a shape of the synthetic world. None for another object.
        before, after: colours or places (cells in capitals), if the claim names them.
        quantity: number of objects, if the claim gives it.
        negated: whether the claim is a denial.
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
class _Clause:
    """A verb and its part of the sentence, from `low` to `high`."""

    kind: str
    verb: re.Match[str]
    low: int
    high: int


def _split_by_verb(text: str, things: Sequence[Thing]) -> list[_Clause]:
    """Cut a sentence into clauses, each before the subject of the next verb."""
    verbs = list(TRIGGER.finditer(text))
    clauses: list[_Clause] = []
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
        clauses.append(_Clause(kind, verb, low, high))
        low = high
    return clauses


def _find_clause_subjects(
    clause: _Clause, text: str, things: Sequence[Thing], earlier: tuple[Thing, ...]
) -> tuple[Thing, ...]:
    """Return the subjects of a verb: before it, or else right after it, or else those of the verb before."""
    left = [thing for thing in things if clause.low <= thing.start < clause.verb.end()]
    right = [thing for thing in things if clause.verb.end() <= thing.start < clause.high]
    gap = text[clause.verb.end() : right[0].start] if right else ""
    lost = clause.kind == "gone" and _ITS_OBJECT.match(gap) is not None  # `the man is missing his tie`
    coloured = [thing for thing in left if thing.colour] if _is_instead(clause) else []
    if coloured:  # `the man wears a blue tie instead of a red one`
        return (coloured[-1],)
    if left and not lost:
        buts = _BUT.finditer(text, clause.low, clause.verb.start())
        last = max((match.end() for match in buts), default=clause.low)
        return find_subjects([thing for thing in left if thing.start >= last] or left, text)
    takes = clause.kind in _TAKES_OBJECT or clause.verb.group().startswith("no ")
    takes |= clause.kind == "position" and bool(right) and not right[0].oblique
    if takes and _NEAR.match(gap):
        return find_subjects(right, text)
    if earlier and _refers_back(text[clause.low : clause.verb.start()]):
        return earlier
    return find_subjects(right, text) if clause.kind in (*_TAKES_OBJECT, "only") else ()


def _is_instead(clause: _Clause) -> bool:
    return clause.verb.group() in ("instead of", "rather than")


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


def find_claims(text: str, things: Sequence[Thing], sentence: str, context: tuple[Thing, ...]) -> list[Claim]:
    """Return the claims of the verbs in a masked sentence.

    Args:
        text: the masked sentence.
        things: the objects that it names.
        sentence: the original sentence, for the text of the claims.
        context: the objects that `it` means.
    """
    claims: list[Claim] = []
    subjects: tuple[Thing, ...] = ()
    for clause in _split_by_verb(text, things):
        subjects = _find_clause_subjects(clause, text, things, subjects)
        objects = subjects or (context if _refers_back(text[clause.low : clause.verb.start()]) else ())
        change = _read_verb(clause, text, things, objects)
        if change is None:
            continue
        kind, before, after, negated = change
        for category in dict.fromkeys(thing.category for thing in objects):
            alike = [thing for thing in objects if thing.category == category]
            quantity = alike[0].quantity if len(alike) == 1 else sum(thing.quantity or 1 for thing in alike)
            first = before or (alike[0].colour if kind == "color" and after and not negated else None)
            last = after or (alike[0].colour if kind == "color" and before and _is_instead(clause) else None)
            claims.append(Claim(kind, category, first, last, quantity, negated, sentence))
        if not objects and kind is not None and not negated and _names_something(clause, text):
            claims.append(Claim(kind, None, before, after, None, negated, sentence))
    return claims


_PRONOUN = re.compile(r"\b(?:it|its|they|their|them|this|which|these|he|she|his|her)\b")
_EMPTY = frozenset(
    re.findall(r"\w+", "in on at the a an is was are were has have been and but also now then color colour")
)


def _refers_back(left: str) -> bool:
    return bool(_PRONOUN.search(left)) or not set(re.findall(r"[a-z]+", left)) - _EMPTY


_SOMETHING = re.compile(r"\b(?:the|a|an|one|some|several|his|her|another|[a-z]+'s) [a-z]{3,}|\bsomething\b")


def _names_something(clause: _Clause, text: str) -> bool:
    left, right = text[clause.low : clause.verb.start()], text[clause.verb.end() : clause.high]
    if re.search(r"\b(?:i|we|let|you)\b", left):
        return False
    return bool(_SOMETHING.search(left)) or (
        clause.kind in ("gone", "removed") and bool(_SOMETHING.match(right[1:]))
    )


def _read_verb(
    clause: _Clause, text: str, things: Sequence[Thing], objects: tuple[Thing, ...]
) -> tuple[EditType | None, str | None, str | None, bool] | None:
    """Return the type, the values before and after, and the negation of a verb; None if it claims nothing."""
    kind, verb, words = clause.kind, clause.verb.start(), clause.verb.group()
    negated = _NOT.search(text[clause.low : verb]) is not None or _NOT_INSIDE.match(words) is not None
    if kind in ("gone", "only"):
        image = _find_image(clause, text, things)
        is_removal = image == (SECOND if kind == "gone" else FIRST) or negated
        return "remove" if is_removal else None, None, None, negated
    if kind == "removed":
        return "remove", None, None, negated
    if kind == "same":
        return _read_unchanged(clause, text, negated)
    if kind == "added":
        adjective = words in ("new", "additional", "extra", "newly")
        next_to = any(verb < thing.start <= clause.verb.end() + 20 for thing in things)
        return (None, None, None, negated) if not adjective or next_to else None
    places = find_place_change(text, verb, clause.high, clause.verb.end())
    if kind == "position":
        return "position", *places, negated
    inside = [thing.end for thing in objects if clause.low <= thing.end <= clause.high]
    start = min(inside, default=verb)
    colours = find_colour_change(text, start, clause.high, things, {thing.category for thing in objects})
    if kind == "color":
        return "color", *colours, negated
    return _read_changed(clause, text, colours, places, negated)


def _read_unchanged(
    clause: _Clause, text: str, negated: bool
) -> tuple[EditType | None, str | None, str | None, bool] | None:
    """Read `remains` or `is the same`, which deny a change of the named aspect, or of any."""
    around, words = text[clause.low : clause.high], clause.verb.group()
    if re.search(HUE, around):
        return "color", None, None, not negated
    if re.search(SPOT, around):
        return "position", None, None, not negated
    if not re.match(r"remain|stay", words) or re.search(r"same|unchanged|identical", words):
        return None, None, None, not negated
    if _TO_COLOUR.match(text[clause.verb.end() : clause.high]):  # `remains red`
        return "color", None, None, not negated
    return ("position", None, None, not negated) if re.search(r" (?:in|at|on)$", words) else None


def _read_changed(
    clause: _Clause,
    text: str,
    colours: tuple[str | None, str | None],
    places: tuple[str | None, str | None],
    negated: bool,
) -> tuple[EditType | None, str | None, str | None, bool] | None:
    """Read `changed`, `turned`, `is now` or `instead of`, where the words after the verb give the type."""
    words = clause.verb.group()
    words_after = text[clause.verb.end() : clause.high]
    if _STRICT.match(words):
        if _TO_COLOUR.match(words_after):
            return "color", *colours, negated
        if words == "now" and _NOW_PLACE.match(words_after):
            return "position", *places, negated
        return None
    if colours != (None, None):
        return "color", *colours, negated
    if places != (None, None) and (
        words.startswith("shift") or None not in places or re.match(r" to\b", words_after)
    ):
        return "position", *places, negated
    return ("position" if words.startswith("shift") else None), None, None, negated


def _find_image(clause: _Clause, text: str, things: Sequence[Thing]) -> str:
    """Return the image where an object is missing or stands alone.

    The default is the second image for a missing object, and the first image for an object that stands alone.
    """
    names = [index for index in range(clause.verb.end(), clause.high) if text[index] in (FIRST, SECOND)]
    stop = _BUT.search(text, clause.verb.end(), clause.high)
    if names and (stop is None or names[0] < stop.start()):
        return text[names[0]]
    low = max(
        (match.end() for match in _BUT.finditer(text, clause.low, clause.verb.start())), default=clause.low
    )
    earlier = [index for index in range(low, clause.verb.end()) if text[index] in (FIRST, SECOND)]
    if earlier and (clause.kind == "only" or not any(low <= thing.start < earlier[-1] for thing in things)):
        return text[earlier[-1]]
    return SECOND if clause.kind == "gone" else FIRST


_TWO_COLOURS = re.compile(rf"\b{COLOUR} ?(?:to|,? not|vs\.?) {COLOUR}")


def _count_missing(text: str) -> int:
    """Return how many objects fewer the second image has; 0 without a number for each image."""
    matches = list(_NUMBER.finditer(text))
    if len(matches) != 2:
        return 0
    values: list[Value] = [(str(parse_number_word(match.group())), match.start(), None) for match in matches]
    before, after = assign_before_after(text, 0, len(text), values)
    return int(before) - int(after) if before and after else 0


def find_contrast(
    text: str, things: Sequence[Thing], sentence: str, context: tuple[Thing, ...]
) -> list[Claim]:
    """Return a change without a verb: `red in the first image and blue in the second`, `car: red to blue`."""
    direct = [thing for thing in things if not thing.oblique] or list(things)
    if len({thing.category for thing in direct}) > 1:
        return []
    subjects = find_subjects(direct, text)[:1] or context[:1]
    if not subjects:
        return []
    subject = subjects[0]
    categories = {thing.category for thing in things} | {subject.category}
    if FIRST in text and SECOND in text:
        if not re.search(r"\b(?:is|are|was|were|has|have|appears?|looks?|shows?|contains?)\b", text):
            return []
        colours = find_colour_change(text, 0, len(text), things, categories, attributes=True)
        places = find_place_change(text, 0, len(text), len(text))
    elif _TWO_COLOURS.search(text) and BOTH not in text:
        colours, places = find_colour_change(text, 0, len(text), things, categories), (None, None)
    else:
        return []
    n_missing = _count_missing(text) if FIRST in text and SECOND in text else 0
    if n_missing:
        edit_type: EditType | None = "remove" if n_missing > 0 else None
        return [Claim(edit_type, subject.category, quantity=abs(n_missing), text=sentence)]
    changes: tuple[tuple[EditType, tuple[str | None, str | None]], ...] = (
        ("color", colours),
        ("position", places),
    )
    for kind, (before, after) in changes:
        if before is not None and after is not None and before != after:
            return [Claim(kind, subject.category, before, after, subject.quantity, False, sentence)]
    return []
