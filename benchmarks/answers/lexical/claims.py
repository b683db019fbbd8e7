"""Read the differences that an answer claims, by rules: the `lexical` judge.

The rules are exact on the language of the synthetic world. In plain English they know common verbs, COCO
categories, colours, places, numbers and negation. They return nothing for a sentence that they do not
understand.
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
from mmprobe.benchmarks.answers.lexical.grammar import find_claims, find_contrast
from mmprobe.benchmarks.answers.lexical.things import Thing, find_things
from mmprobe.benchmarks.answers.lexical.wording import (
    FIRST,
    NUMBERS,
    SECOND,
    iter_sentences,
    mask_image_names,
    strip_markup,
)
from mmprobe.benchmarks.synthetic.scene import SHAPES, EditType

_QUOTE_CHARACTERS = 200  # of the sentence that a claim quotes
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
    """What the earlier sentences say about the next one.

    Attributes:
        subjects: the objects that `it` means.
        heading: the type that a heading announces.
        previous: the masked sentence before.
    """

    subjects: tuple[Thing, ...] = ()
    heading: EditType | None = None
    previous: str = ""


def parse_claims(text: str) -> list[Claim]:
    """Return the differences that an answer claims or denies, in order and without repeats.

    A denial of everything (`Nothing changed.`) is not a claim. In a structured answer (JSON, `Type: …
    Category: …`, `(type, category)`) only the structure is read, not the prose around it.

    Args:
        text: any answer, with or without markup.

    Example:
        >>> claim, = parse_claims("The circle changed from red to blue.")
        >>> claim.type, claim.category, claim.before, claim.after
        ('color', 'circle', 'red', 'blue')
    """
    structured = _parse_structured(text)
    if structured:
        return structured
    claims: list[Claim] = []
    context = _Context()
    for sentence, starts_item in iter_sentences(strip_markup(text)):
        sentence_claims, context = _read_sentence(sentence, starts_item, context)
        claims += sentence_claims
    return _merge_repeats(claims)


def _read_sentence(sentence: str, starts_item: bool, context: _Context) -> tuple[list[Claim], _Context]:
    """Return the claims of a sentence, and the context of the next one."""
    text = mask_image_names(sentence)
    if _SKIPPED.search(text):
        return [], context
    things = find_things(text)
    quote = sentence[:_QUOTE_CHARACTERS]
    claims = (
        _read_notes(text, things, quote, context.heading if starts_item else None)
        or find_claims(text, things, quote, context.subjects)
        or find_contrast(text, things, quote, context.subjects)
    )
    if not claims and SECOND in text and FIRST not in text and FIRST in context.previous:
        joined = f"{context.previous} {text}"
        if SECOND not in context.previous:
            claims = find_contrast(joined, find_things(joined), quote, context.subjects)
    heading = context.heading if starts_item else None
    if text.rstrip().endswith(":") and not things:
        heading = next((_TYPE_WORDS[word] for word in re.findall(r"\w+", text) if word in _TYPE_WORDS), None)
        claims = claims if _ABOUT_IT.search(text) else []  # a heading is about the items below it
    main = next((thing for thing in things if not thing.oblique and not thing.owner), None)
    subjects = (main,) if main else tuple(things[:1])
    return claims, _Context(subjects or context.subjects, heading, text)


def _read_notes(text: str, things: list[Thing], quote: str, heading: EditType | None) -> list[Claim]:
    """Read notes without grammar: `color, car`, `Dog: removed`, or an object below the heading `Removed:`."""
    if not things or FIRST in text or SECOND in text:
        return []
    parts = []
    start = 0
    for end in [match.start() for match in re.finditer(r"[,/]", text)] + [len(text)]:
        parts.append((start, end))
        start = end + 1
    for pieces in (parts, [(0, len(text))]):
        claims: list[Claim] = []
        for low, high in pieces:
            note_claims = _read_note(text, low, high, things, quote, heading)
            if not note_claims:
                break
            claims += note_claims
        else:
            return claims
    return []


def _read_note(
    text: str, low: int, high: int, things: list[Thing], quote: str, heading: EditType | None
) -> list[Claim]:
    inside = [thing for thing in things if low <= thing.start < high]
    other_text = ""
    position = low
    for thing in inside:
        other_text += f" {text[position : thing.start]}"
        position = thing.end
    words = [word for word in re.findall(r"\w+", other_text + text[position:high]) if word not in _FILLERS]
    words = [word for word in words if word not in NUMBERS and not word.isdecimal()]
    types = {_TYPE_WORDS.get(word) for word in words} or {heading}
    if not inside or len(types) != 1 or None in types:
        return []
    return [
        Claim(edit_type, thing.category, quantity=thing.quantity, text=quote)
        for edit_type in types
        for thing in inside
        if not thing.owner
    ]


_ALSO = re.compile(r"\b(?:another|also|too|as well)\b")
_WHERE = re.compile(r"\b(?:left|right|top|bottom|upper|lower|center|centre|middle|foreground|background)\b")


def _merge_repeats(claims: Iterable[Claim]) -> list[Claim]:
    """Merge claims that repeat an earlier claim with the same, fewer or more details.

    Two compatible claims stay apart if the later one says so (`another`, `also`) or if they name different
    sides.
    """
    kept: list[Claim] = []
    indices: dict[tuple[Any, ...], list[int]] = {}
    for claim in claims:
        key = (claim.type, claim.category, claim.negated)
        for index in indices.setdefault(key, []):
            earlier = kept[index]
            if _are_compatible(earlier, claim) and not _are_distinct(earlier, claim):
                kept[index] = replace(
                    earlier,
                    before=earlier.before or claim.before,
                    after=earlier.after or claim.after,
                    quantity=earlier.quantity or claim.quantity,
                )
                break
        else:
            indices[key].append(len(kept))
            kept.append(claim)
    return kept


def _are_compatible(first: Claim, second: Claim) -> bool:
    pairs = (
        (first.before, second.before),
        (first.after, second.after),
        (first.quantity, second.quantity),
    )
    return all(value is None or other is None or value == other for value, other in pairs)


def _are_distinct(first: Claim, second: Claim) -> bool:
    if first.text == second.text:
        return False
    if first.category is None or _ALSO.search(second.text.lower()):
        return True
    sides = [set(_WHERE.findall(claim.text.lower())) for claim in (first, second)]
    return first.type != "position" and bool(sides[0] and sides[1]) and not sides[0] & sides[1]


_OBJECT = re.compile(r"\{[^{}]{0,2000}\}")
_KEYED = re.compile(
    r"\btype\W{1,8}(?P<type>[a-z][a-z ]{2,20}?)\W{1,14}(?:(?:object )?category|object)\W{1,8}(?P<category>[a-z][a-z ]{1,30})"
    r"|\b(?:(?:object )?category|object)\W{1,8}(?P<category2>[a-z][a-z ]{1,30}?)\W{1,14}type\W{1,8}(?P<type2>[a-z]{4,12})",
    re.IGNORECASE,
)
_TUPLE = re.compile(r"[(\[]\s*['\"]?([A-Za-z ]{3,30})['\"]?\s*[,:/-]\s*['\"]?([A-Za-z ]{3,30})['\"]?\s*[)\]]")


def _parse_structured(text: str) -> list[Claim]:
    """Return the claims of an answer that lists types and categories as data."""
    claims: list[Claim | None] = []
    if "{" in text:
        claims = [_parse_object(match.group()) for match in _OBJECT.finditer(text)]
    if not any(claims):
        claims = [
            _make_claim(
                match["type"] or match["type2"], match["category"] or match["category2"], match.group()
            )
            for match in _KEYED.finditer(text)
        ]
    if not any(claims):
        pairs = [(match[1], match[2], match.group()) for match in _TUPLE.finditer(text)]
        claims = [
            _make_claim(first, second, quote) or _make_claim(second, first, quote)
            for first, second, quote in pairs
        ]
    return [claim for claim in claims if claim is not None]


def _parse_object(text: str) -> Claim | None:
    """Return the claim of a JSON object with a type and a category."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, Mapping):
        return None
    fields = {str(key).lower(): value for key, value in data.items() if isinstance(value, str)}
    category = fields.get("category", fields.get("object", ""))
    claim = _make_claim(fields.get("type", ""), category, text)
    if claim is None:
        return None
    described = [other for other in parse_claims(fields.get("description", "")) if other.type == claim.type]
    description = described[0] if len(described) == 1 else Claim(None, None)
    before = fields.get("before", fields.get("from")) or description.before
    after = fields.get("after", fields.get("to")) or description.after
    return replace(claim, before=before, after=after)


def _make_claim(type_words: str, category: str, quote: str) -> Claim | None:
    types = {_TYPE_WORDS[word] for word in re.findall(r"[a-z]+", type_words.lower()) if word in _TYPE_WORDS}
    bare = category.strip().lower()
    known = bare if bare in SHAPES else find_category(bare)
    if len(types) != 1 or known is None:
        return None
    return Claim(types.pop(), known, text=quote[:_QUOTE_CHARACTERS])
