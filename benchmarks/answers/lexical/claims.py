"""The `lexical` judge's reader: the differences that an answer claims, without any model.

Exact on the synthetic world's language; on plain English it knows the usual verbs, the COCO categories, colours,
places, numbers and negation, and says nothing where it does not understand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mmprobe.benchmarks.answers.coco import find_category
from mmprobe.benchmarks.answers.lexical.counts import parse_count as parse_count
from mmprobe.benchmarks.answers.lexical.grammar import Claim as Claim
from mmprobe.benchmarks.answers.lexical.grammar import claims_of, contrast_of
from mmprobe.benchmarks.answers.lexical.things import Thing, find_things
from mmprobe.benchmarks.answers.lexical.wording import FIRST, NUMBERS, SECOND, masked, plain, sentences
from mmprobe.benchmarks.synthetic.scene import SHAPES, EditType

_TEXT_CHARACTERS = 200  # of a sentence that a claim carries along
_TYPE_WORDS: dict[str, EditType] = {
    **dict.fromkeys(
        (
            "color",
            "colour",
            "colors",
            "colours",
            "recolor",
            "recolour",
            "recolored",
            "recoloured",
            "recoloring",
        ),
        "color",
    ),
    **dict.fromkeys(
        ("remove", "removed", "removal", "missing", "gone", "absent", "deleted", "deletion", "disappeared"),
        "remove",
    ),
    **dict.fromkeys(
        (
            "position",
            "positions",
            "move",
            "moved",
            "movement",
            "location",
            "relocated",
            "relocation",
            "placement",
        ),
        "position",
    ),
}
_FILLERS = frozenset(
    re.findall(
        r"\w+",
        """the a an of object objects item items change changes changed type types category categories was were is are
        been has have in to and with its edit difference differences following""",
    )
)
_ABOUT_IT = re.compile(r"\b(?:it|its|they|their)\b")
_SKIPPED = re.compile(
    r"\?\s*$|\bwhether\b|\bcheck(?:ing)? (?:if|for|that)\b|\blook(?:ing)? for\b"
    r"|\bif (?:there|any|something|anything)\b|\b(?:examples?|kinds?|types?) of (?:changes|differences)\b"
)


@dataclass(frozen=True)
class _Context:
    """What the sentences before leave behind: what `it` means, and what a heading announces."""

    subjects: tuple[Thing, ...] = ()
    heading: EditType | None = None
    previous: str = ""


def parse_claims(text: str) -> list[Claim]:
    """The differences that an answer claims or denies, in the order told, each once.

    A denial of everything (`Nothing changed.`) is no claim. Structured answers (JSON, `Type: … Category: …`,
    `(type, category)`) are read as such, and then the prose around them is not.

    Args:
        text: any answer, with or without markup.

    Example:
        >>> claim, = parse_claims("The circle changed from red to blue.")
        >>> claim.type, claim.category, claim.before, claim.after
        ('color', 'circle', 'red', 'blue')
    """
    listed = _structured(text)
    if listed:
        return listed
    claims: list[Claim] = []
    context = _Context()
    for sentence, item in sentences(plain(text)):
        found, context = _read(sentence, item, context)
        claims += found
    return _without_repeats(claims)


def _read(sentence: str, item: bool, context: _Context) -> tuple[list[Claim], _Context]:
    text = masked(sentence)
    if _SKIPPED.search(text):
        return [], context
    things = find_things(text)
    told = sentence[:_TEXT_CHARACTERS]
    claims = (
        _terse(text, things, told, context.heading if item else None)
        or claims_of(text, things, told, context.subjects)
        or contrast_of(text, things, told, context.subjects)
    )
    if not claims and SECOND in text and FIRST not in text and FIRST in context.previous:
        joined = f"{context.previous} {text}"
        if SECOND not in context.previous:
            claims = contrast_of(joined, find_things(joined), told, context.subjects)
    heading = context.heading if item else None
    if text.rstrip().endswith(":") and not things:
        heading = next((_TYPE_WORDS[word] for word in re.findall(r"\w+", text) if word in _TYPE_WORDS), None)
        claims = claims if _ABOUT_IT.search(text) else []  # of what stands below, not of what stood above
    main = next((thing for thing in things if not thing.oblique and not thing.owner), None)
    spoken = (main,) if main else tuple(things[:1])
    return claims, _Context(spoken or context.subjects, heading, text)


def _terse(text: str, things: list[Thing], told: str, heading: EditType | None) -> list[Claim]:
    """Notes without grammar: `color, car`, `Dog: removed`, or a thing below the heading `Removed:`."""
    if not things or FIRST in text or SECOND in text:
        return []
    parts, start = [], 0
    for end in [found.start() for found in re.finditer(r"[,/]", text)] + [len(text)]:
        parts.append((start, end))
        start = end + 1
    for cut in (parts, [(0, len(text))]):
        claims: list[Claim] = []
        for low, high in cut:
            found = _note(text, low, high, things, told, heading)
            if not found:
                break
            claims += found
        else:
            return claims
    return []


def _note(
    text: str, low: int, high: int, things: list[Thing], told: str, heading: EditType | None
) -> list[Claim]:
    inside = [thing for thing in things if low <= thing.start < high]
    rest, at = "", low
    for thing in inside:
        rest, at = f"{rest} {text[at : thing.start]}", thing.end
    words = [word for word in re.findall(r"\w+", rest + text[at:high]) if word not in _FILLERS]
    words = [word for word in words if word not in NUMBERS and not word.isdecimal()]
    types = {_TYPE_WORDS.get(word) for word in words} or {heading}
    if not inside or len(types) != 1 or None in types:
        return []
    return [
        Claim(kind, thing.category, quantity=thing.quantity, text=told)
        for kind in types
        for thing in inside
        if not thing.owner
    ]


_ALSO = re.compile(r"\b(?:another|also|too|as well)\b")
_WHERE = re.compile(r"\b(?:left|right|top|bottom|upper|lower|center|centre|middle|foreground|background)\b")


def _without_repeats(claims: Iterable[Claim]) -> list[Claim]:
    """Each claim once: one that says the same again, or less, or more, of the same thing is that claim.

    Two claims that fit each other are two if the later says so (`another`, `also`) or they name different sides.
    """
    kept: list[Claim] = []
    seen: dict[tuple[Any, ...], list[int]] = {}
    for claim in claims:
        key = (claim.type, claim.category, claim.negated)
        for at in seen.setdefault(key, []):
            earlier = kept[at]
            if _fit(earlier, claim) and not _apart(earlier, claim):
                kept[at] = replace(
                    earlier,
                    before=earlier.before or claim.before,
                    after=earlier.after or claim.after,
                    quantity=earlier.quantity or claim.quantity,
                )
                break
        else:
            seen[key].append(len(kept))
            kept.append(claim)
    return kept


def _fit(one: Claim, other: Claim) -> bool:
    pairs = ((one.before, other.before), (one.after, other.after), (one.quantity, other.quantity))
    return all(first is None or second is None or first == second for first, second in pairs)


def _apart(one: Claim, other: Claim) -> bool:
    if one.text == other.text:
        return False
    if one.category is None or _ALSO.search(other.text.lower()):
        return True
    sides = [set(_WHERE.findall(claim.text.lower())) for claim in (one, other)]
    return one.type != "position" and bool(sides[0] and sides[1]) and not sides[0] & sides[1]


_OBJECT = re.compile(r"\{[^{}]{0,2000}\}")
_KEYED = re.compile(
    r"\btype\W{1,8}(?P<type>[a-z][a-z ]{2,20}?)\W{1,14}(?:(?:object )?category|object)\W{1,8}(?P<category>[a-z][a-z ]{1,30})"
    r"|\b(?:(?:object )?category|object)\W{1,8}(?P<category2>[a-z][a-z ]{1,30}?)\W{1,14}type\W{1,8}(?P<type2>[a-z]{4,12})",
    re.IGNORECASE,
)
_TUPLE = re.compile(r"[(\[]\s*['\"]?([A-Za-z ]{3,30})['\"]?\s*[,:/-]\s*['\"]?([A-Za-z ]{3,30})['\"]?\s*[)\]]")


def _structured(text: str) -> list[Claim]:
    """Claims of an answer that lists types and categories as data."""
    claims: list[Claim | None] = []
    if "{" in text:
        claims = [_of_object(found.group()) for found in _OBJECT.finditer(text)]
    if not any(claims):
        claims = [
            _of_words(found["type"] or found["type2"], found["category"] or found["category2"], found.group())
            for found in _KEYED.finditer(text)
        ]
    if not any(claims):
        pairs = [(found[1], found[2], found.group()) for found in _TUPLE.finditer(text)]
        claims = [_of_words(one, two, told) or _of_words(two, one, told) for one, two, told in pairs]
    return [claim for claim in claims if claim is not None]


def _of_object(text: str) -> Claim | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, Mapping):
        return None
    fields = {str(key).lower(): value for key, value in data.items() if isinstance(value, str)}
    category = fields.get("category", fields.get("object", ""))
    claim = _of_words(fields.get("type", ""), category, text)
    if claim is None:
        return None
    told = [one for one in parse_claims(fields.get("description", "")) if one.type == claim.type]
    before = fields.get("before", fields.get("from")) or (told[0].before if len(told) == 1 else None)
    after = fields.get("after", fields.get("to")) or (told[0].after if len(told) == 1 else None)
    return replace(claim, before=before, after=after)


def _of_words(kind: str, category: str, told: str) -> Claim | None:
    types = {_TYPE_WORDS[word] for word in re.findall(r"[a-z]+", kind.lower()) if word in _TYPE_WORDS}
    bare = category.strip().lower()
    named = bare if bare in SHAPES else find_category(bare)
    if len(types) != 1 or named is None:
        return None
    return Claim(types.pop(), named, text=told[:_TEXT_CHARACTERS])
