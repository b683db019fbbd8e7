"""Read the differences that an answer claims, and how many, by rules: the `lexical` judge.

The rules are exact on the language of the drawn world. Of plain English they read the sentence forms that
docs/readers.md lists; any other sentence is unread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from mmprobe.benchmarks.answers.chinese import read_statement
from mmprobe.benchmarks.answers.coco import FIRST_WORDS, PHRASES, find_phrases, make_plurals
from mmprobe.benchmarks.answers.drawn import is_drawn
from mmprobe.benchmarks.answers.forms import find_answer, is_open
from mmprobe.benchmarks.answers.numbers import WORDS
from mmprobe.benchmarks.answers.refusals import is_refusal
from mmprobe.benchmarks.answers.texts import COLOUR, conclusion, iter_sentences, normalize_colour
from mmprobe.benchmarks.synthetic.scene import SHAPES, EditType

_QUOTE_CHARACTERS = 200  # of the sentence that a claim quotes
_SIDES = r"(?:left|right|top|bottom|cent(?:er|re)|middle|foreground|background|upper|lower)"
PLACE = rf"(?:[a-d][1-4]|{_SIDES}(?:[ -]{_SIDES})?)\b(?: (?:side|corner|edge))?"
_SIDE_NAMES = {"upper": "top", "lower": "bottom", "centre": "center", "middle": "center"}


@dataclass(frozen=True)
class Claim:
    """One difference that an answer claims: its type (None if another) and category (None if not known).

    `before` and `after` are colours or places (cells in capitals), and `quantity` the number of objects,
    where the claim names them. Only judges give denials (`negated`), and only judges and data claims without a type. `text` is the
    sentence.
    """

    type: EditType | None
    category: str | None
    before: str | None = None
    after: str | None = None
    quantity: int | None = None
    negated: bool = False
    text: str = ""


class ReadClaims(NamedTuple):
    """What the lexical judge read: the claims, whether the answer says that nothing changed, and the rest."""

    claims: list[Claim]
    nothing: bool
    unread: list[str]


_THINGS: dict[str, str | None] = {
    **PHRASES,
    **{form: shape for shape in SHAPES for form in (shape, *make_plurals(shape))},
}
_NO_THING = re.compile(
    r"\b(?:images?|pictures?|photos?|scenes?|it|this|that|these|they|\w*thing|someone|nobody|no|not"
    r"|differences?|changes?|"
    r"colou?rs?|positions?|objects?|items?|neither|either|both|or|i|we|you|who|what|which|if|when|new|number|"
    r"removed|moved|missing|changed|added|other|same)\b"
)
_BE = r"(?:was|were|is|are|has been|have been)"
_IN_SECOND = (
    r"(?: (?:in|from) (?:the )?(?:second|modified|edited|2nd|right) (?:image|picture|photo)"
    r"| (?:in|from) (?:image|picture) (?:2|two))?"
)
_HUE = r"colou?r"
_IMAGE = r"(?:image|picture|photo)"
_SECOND = rf"(?:the )?(?:second|modified|edited|2nd|right)(?: (?:{_IMAGE}|one))?"
_FIRST = rf"(?:the )?(?:first|original|1st|left) {_IMAGE}"
_FIRST_ONE = rf"(?:the )?(?:first|original|1st|left)(?: {_IMAGE}| one)?"
_FROM_TO = rf"from (?P<before>{COLOUR}) to (?P<after>{COLOUR})"
_MOVE = rf"(?: from (?:the )?(?P<before>{PLACE}))?(?: (?:to (?:the )?)?(?P<after>{PLACE}))?"
# Type of a claim: the sentences that state it; `{thing}` is the object.
_SENTENCES: dict[EditType, tuple[str, ...]] = {
    "remove": (
        rf"{{thing}} {_BE} (?:removed|deleted|erased|missing|gone)",
        r"{thing} (?:has |have )?(?:disappeared|vanished)",
        rf"{{thing}} {_BE} (?:absent|no longer (?:present|visible|there|seen|in the scene))",
        rf"{{thing}} {_BE} not (?:present|visible|there|seen) in {_SECOND}",
        rf"there (?:is|was|are|were) {{thing}} in {_FIRST},? (?:but|and|while) (?:it is |they are |is |are )?"
        rf"(?:not|missing|gone|absent|no longer)(?: (?:present|visible|there|seen))?(?: (?:in|from) {_SECOND})?",
        rf"{_SECOND} (?:lacks|is missing|no longer (?:has|shows|contains)) {{thing}}"
        rf"(?: (?:that|which) (?:was|were|is|are) (?:visible |present |shown )?in (?:the )?(?:first|original)(?: {_IMAGE})?)?",
        rf"in {_FIRST},? there (?:is|was|are|were) {{thing}},? (?:but|and|while|whereas) (?:in {_SECOND},? )?"
        rf"(?:it|they|(?:the )?(?P<again>[a-z -]+?)) (?:is|are|was|were) (?:missing|gone|absent|not there|no longer there|removed)"
        rf"(?: (?:in|from) {_SECOND})?",
        rf"{{thing}} (?:is|was|are|were) (?:present|visible|shown|there) in {_FIRST_ONE},? (?:but|and|while) (?:it is |they are |is |are )?"
        rf"(?:not|missing|gone|absent|no longer)(?: (?:present|visible|there|seen))?(?: (?:in|from) {_SECOND})?",
        r"(?:removed?|missing|gone): {thing}",
        r"{thing}: (?:removed|missing|gone)",
    ),
    "position": (
        rf"{{thing}} (?:(?:{_BE} |has |have )?moved|{_BE} relocated|(?:has |have )?shifted){_MOVE}",
        r"(?:moved?|position): {thing}",
        rf"{{thing}}: moved{_MOVE}",
    ),
    "color": (
        rf"{{thing}} (?:(?:has |have )?(?:changed|turned|went)(?: {_HUE})?|{_BE} recolou?red) {_FROM_TO}",
        rf"(?:the )?{_HUE} of {{thing}} (?:has |was |is )?changed(?: {_FROM_TO})?",
        rf"{{thing}}'s? {_HUE} (?:has |was |is )?changed(?: {_FROM_TO})?",
        rf"{{thing}} (?:is|was|are|were) (?P<before>{COLOUR}) in {_FIRST},? (?:and|but|while|whereas)"
        rf"(?: (?:it )?(?:is|are))? (?P<after>{COLOUR}) in {_SECOND}",
        rf"in {_FIRST},? {{thing}} (?:is|was|are|were) (?P<before>{COLOUR}),? (?:and|but|while|whereas)? ?in {_SECOND},?"
        rf" (?:it|they|(?:the )?(?P<again>[a-z -]+?)) (?:is|was|are|were) (?P<after>{COLOUR})",
        rf"{{thing}} (?:(?:has |have )?changed {_HUE}|{_BE} recolou?red)",
        rf"(?:{_HUE}|recolou?red): {{thing}}",
        rf"{{thing}}: (?:changed )?{_FROM_TO}",
        rf"{{thing}} (?:(?:has |have )?turned|is now|are now) (?P<after>{COLOUR})",
    ),
}
_THING = r"(?P<thing>[a-z0-9][a-z0-9' ,-]*?)"
_FORMS = [
    (kind, re.compile(form.format(thing=_THING) + _IN_SECOND + r"\s*[.!;]?"))
    for kind, forms in _SENTENCES.items()
    for form in forms
]
_TYPE_WORDS: dict[str, EditType] = {
    **dict.fromkeys(("color", "colour", "recolor", "recolored", "color change", "colour change"), "color"),
    **dict.fromkeys(("remove", "removed", "removal", "missing", "object removal"), "remove"),
    **dict.fromkeys(("position", "position change", "move", "moved", "movement"), "position"),
}
_HEADING = re.compile(
    r"(?:here(?: are| is|'s)|these are|the|i (?:can )?(?:see|found|spotted)|comparing|differences?|changes?)\b[^.]*:",
    re.IGNORECASE,
)
# What may precede a sentence that states a difference, and accompany its object.
_LEAD_IN = re.compile(
    rf"(?:(?:(?:upon|after|when|by) )?comparing [^,.]{{1,60}}, )?(?:i (?:can )?(?:see|notice|noticed|observe|observed|found) that )?"
    rf"(?:the (?:main |only |key |one )?(?:difference|change)(?: between (?:the |these )?(?:two )?{_IMAGE}s)? is that )?"
    rf"(?:in {_SECOND}, )?"
)
_LABEL = re.compile(r"[a-z' ]{1,40}(?::| [-\u2013\u2014]) (?=(?:the|an?) )")
_IN_FIRST = re.compile(
    rf" (?:(?:that|which) (?:was|is|were|are) )?(?:visible |present |shown )?in {_FIRST}(?= (?:{_BE}|has|have|disappeared|vanished)\b)"
)
_KEYED = re.compile(
    r"type\s*:\s*([a-z ]+?)\s*[,;]\s*(?:object )?(?:category|object)\s*:\s*([a-z ]+)", re.IGNORECASE
)
_TUPLE = re.compile(r"[(\[]\s*['\"]?([A-Za-z ]{3,30})['\"]?\s*,\s*['\"]?([A-Za-z ]{3,30})['\"]?\s*[)\]]")


_NUMBER = rf"(?:\d{{1,4}}|{'|'.join(WORDS)})"
_NOUN = r"(?:differences?|changes?)"
_BETWEEN = r"(?: (?:in total|between (?:the |these )?(?:two |2 )?(?:images|pictures|photos)))?"
_COUNTED = re.compile(
    rf"(?:(?:after|upon|when|by) [^,.]{{1,60}}, )?(?:(?:there (?:is|are)|(?:i|we)(?: can)? (?:see|found|find|count|counted|spot|spotted)) "
    rf")?(?:exactly )?"
    rf"(?P<number>{_NUMBER}|no|one) {_NOUN}{_BETWEEN}\s*[.!:]?",
    re.IGNORECASE,
)
_ANY_COUNT = re.compile(rf"\b({_NUMBER}|no) (?:\w+ )?{_NOUN}\b", re.IGNORECASE)
_ALONE = re.compile(rf"(?P<number>{_NUMBER}|none)(?: {_NOUN})?[.!]?", re.IGNORECASE)
_MORE = re.compile(
    r"\b(?:another|also|more|additional\w*|however|but|wait|actually|except|besides|other)\b", re.IGNORECASE
)
_ITEM = re.compile(r"^\s*\(?(\d{1,2})[.)]\s", re.MULTILINE)
_NOTHING = re.compile(
    r"nothing (?:has )?changed\.?|(?:the |these )?(?:two )?(?:images|pictures|photos) (?:are|appear to be|look|seem to be) (?:exactly |completely )?(?:identical|the same)\.?"
    r"|(?:there are|i (?:do not|don't) (?:see|find|notice|spot)) (?:no|any) (?:visible |noticeable )?"
    r"(?:differences?|changes?)(?: between (?:the |these )?(?:two )?(?:images|pictures|photos))?\.?",
    re.IGNORECASE,
)


def parse_claims(text: str) -> list[Claim]:
    """Return the differences that an answer claims, in order and without repeats; empty where it is unread.

    Example:
        >>> claim, = parse_claims("The circle changed from red to blue.")
        >>> claim.type, claim.category, claim.before, claim.after
        ('color', 'circle', 'red', 'blue')
    """
    return read_claims(text).claims


def read_claims(text: str) -> ReadClaims:
    """Return the claims of an answer, and the sentences that the rules did not read.

    An answer is JSON, a list of `(type, category)`, or sentences; only what follows `Answer:` or
    `Therefore:` counts. One unread sentence leaves the answer without claims: half of an answer is another
    answer.

    Example:
        >>> read_claims("The dog was removed. The mood is calmer.").unread
        ['The mood is calmer.']
    """
    structured = _read_structured(text)
    if structured is not None:
        return ReadClaims(structured, not structured, [])
    if is_refusal(text):
        return ReadClaims([], False, [text])
    claims: list[Claim] = []
    unread: list[str] = []
    nothing = False
    for sentence in iter_sentences(conclusion(text)):
        stated = _read_sentence(sentence)
        count = _COUNTED.fullmatch(sentence)
        chinese = read_statement(sentence)
        if stated is not None:
            claims += stated
        elif chinese is not None:
            nothing |= chinese.kind == "nothing" or chinese.number == 0
        elif _NOTHING.fullmatch(sentence) or (count and count["number"].lower() in ("no", "zero", "0")):
            nothing = True
        elif not (count or is_drawn(sentence) or _HEADING.fullmatch(sentence)):
            unread.append(sentence)
    claims = list(dict.fromkeys(claims))
    if unread or not (claims or nothing):
        return ReadClaims([], False, unread or ([text] if text.strip() else []))
    return ReadClaims(claims, nothing and not claims, [])


def _read_sentence(sentence: str) -> list[Claim] | None:
    """Return the claims of a sentence in one of the forms; None for any other sentence."""
    chinese = read_statement(sentence)
    if chinese is not None and chinese.things:
        kind, quote = chinese.kind, sentence[:_QUOTE_CHARACTERS]
        values = (chinese.before, chinese.after)
        return [Claim(cast(EditType, kind), thing, *values, text=quote) for thing in chinese.things]
    text = " ".join(sentence.lower().split())
    text = _IN_FIRST.sub("", text[_LEAD_IN.match(text).end() :], count=1)  # type: ignore[union-attr]
    label = _LABEL.match(text)
    if label and not is_open(label.group()) and (claims := _read_claims_of(text[label.end() :], sentence)):
        return claims
    return _read_claims_of(text, sentence)


def _read_claims_of(text: str, sentence: str) -> list[Claim] | None:
    parts = re.split(r",? and (?=(?:the|an?) )", text)
    if len(parts) > 1 and all(stated := [_read_clause(part, sentence) for part in parts]):
        return [claim for claims in stated for claim in claims or ()]
    return _read_clause(text, sentence)


def _read_clause(text: str, sentence: str) -> list[Claim] | None:
    for kind, form in _FORMS:
        match = form.fullmatch(text)
        things = _find_things(match["thing"]) if match else None
        again = match.groupdict().get("again") if match else None
        if match and things and (not again or _find_things(again) == things):
            values = match.groupdict()
            normalize = normalize_colour if kind == "color" else normalize_place
            before, after = (
                normalize(value) if (value := values.get(name)) else None for name in ("before", "after")
            )
            quote = sentence[:_QUOTE_CHARACTERS]
            return [
                Claim(kind, category, before, after, quantity, text=quote) for category, quantity in things
            ]
    return None


def normalize_place(words: str) -> str:
    """Return one spelling for each place: cells in capitals, `upper-left` becomes `top left`."""
    if re.fullmatch(r"[a-d][1-4]", words):
        return words.upper()
    parts = re.sub(r" (?:side|corner|edge)$", "", words).replace("-", " ").split()
    return " ".join(_SIDE_NAMES.get(part, part) for part in parts)


def _find_things(words: str) -> list[tuple[str | None, int | None]] | None:
    """Return category and number of each object in `the dog and two red cars`; None for other words."""
    things: list[tuple[str | None, int | None]] = []
    for part in re.split(r",? and |, ", words):
        match = re.fullmatch(rf"(?:(?P<det>the|a|an|\d|{'|'.join(WORDS)}) )?(?P<noun>.+)", part.strip())
        noun = (
            re.sub(
                rf" (?:(?:on|in|at) the {PLACE}|(?:on|in|near|beside|under|above|behind|next to) (?:the|an?) [a-z]+)$",
                "",
                match["noun"],
            )
            if match
            else ""
        )
        noun = re.sub(rf"^(?:(?:small|large|big|little|{COLOUR}) )+(?=\w)", "", noun)
        named = find_phrases(noun, _THINGS, FIRST_WORDS)
        is_thing = bool(named) and named[-1][1][1] == len(noun) and noun[: named[-1][1][0]].count(" ") <= 1
        if (
            not match
            or not noun
            or is_open(noun)
            or _NO_THING.search(noun)
            or not (is_thing or noun.isalpha())
        ):
            return None
        number = match["det"] if match["det"] not in (None, "the", "a", "an") else None
        quantity = None if number is None else int(number) if number.isdigit() else WORDS[number]
        things.append((named[-1][0] if is_thing else None, quantity or None))
    return things


def _read_structured(text: str) -> list[Claim] | None:
    """Return the claims of JSON, `Type: …, Category: …` or `(type, category)`; else None."""
    fenced = re.findall(r"```\w*\s*(.*?)\s*```", text, re.DOTALL)
    body = fenced[0] if len(fenced) == 1 else text.strip()
    if body[:1] in ("[", "{"):
        try:
            data: Any = json.loads(body)
        except (ValueError, RecursionError):
            data = None
        items = (
            data
            if isinstance(data, list)
            else data.get("differences", [data])
            if isinstance(data, dict)
            else None
        )
        if isinstance(items, list):
            return _all_claims([_claim_of(item) for item in items])
    pairs = _KEYED.findall(body) or _TUPLE.findall(body)
    if not pairs or re.search(r"\w", _TUPLE.sub("", _KEYED.sub("", body))):
        return None
    return _all_claims([_make_claim(kind, category, body) for kind, category in pairs])


def _all_claims(claims: list[Claim | None]) -> list[Claim] | None:
    return [claim for claim in claims if claim] if all(claims) else None


def _claim_of(item: Any) -> Claim | None:
    if not isinstance(item, Mapping):
        return None
    fields = {str(key).lower(): value for key, value in item.items() if isinstance(value, str)}
    category = fields.get("category", fields.get("object", ""))
    before, after = fields.get("before", fields.get("from")), fields.get("after", fields.get("to"))
    return _make_claim(fields.get("type", ""), category, json.dumps(item), before, after)


def _make_claim(
    kind: str, category: str, quote: str, before: str | None = None, after: str | None = None
) -> Claim | None:
    """Return a claim of data. One of another type, or of no known object, is a claim, too: it is never true."""
    if not kind.strip() or not category.strip():
        return None
    edit_type, known = _TYPE_WORDS.get(kind.strip().lower()), _THINGS.get(category.strip().lower())
    return Claim(edit_type, known, before, after, text=quote[:_QUOTE_CHARACTERS])


def parse_count(text: str) -> int | None:
    """Return the number of differences that an answer states; None for a refusal and where it is unread.

    It is a declared number, or a first sentence such as "There are 3 differences between the two images."
    without another count after it. "Nothing changed." and "The images are identical." are 0.

    Example:
        >>> [parse_count(text) for text in ("There are **two** differences.", "No differences!", "2 or 3")]
        [2, 0, None]
    """
    answer = find_answer(text)
    if answer.text is None or answer.refused:
        return None
    alone = _ALONE.fullmatch(answer.text.strip())
    if alone:
        return _value(alone["number"])
    in_chinese = _count_in_chinese(answer.text)
    if in_chinese is not None:
        return in_chinese
    sentences = list(iter_sentences(conclusion(text) if not answer.marked else answer.text))
    if sentences and all(_NOTHING.fullmatch(sentence) for sentence in sentences):
        return 0
    first = _COUNTED.match(sentences[0]) if sentences else None
    if first is None or not (first.end() == len(sentences[0]) or sentences[0][first.end() - 1] == ":"):
        return None
    items = _ITEM.findall(text)
    if _MORE.search(" ".join(sentences[1:]) + sentences[0][first.end() :]) or len(items) not in (
        0,
        _value(first["number"]),
    ):
        return None
    stated = {_value(word) for word in _ANY_COUNT.findall(" ".join(sentences))}
    return _value(first["number"]) if len(stated) == 1 else None


def _count_in_chinese(text: str) -> int | None:
    """Return the number of differences that a first sentence in Chinese states, if no other says another."""
    sentences = list(iter_sentences(conclusion(text)))
    stated = [read_statement(sentence.rstrip(":\uff1a")) for sentence in sentences]
    if not stated or stated[0] is None or stated[0].kind not in ("count", "nothing"):
        return None
    numbers = {0 if each.kind == "nothing" else each.number for each in stated if each and not each.things}
    items = _ITEM.findall(text)
    (number,) = numbers if len(numbers) == 1 else (None,)
    return number if len(items) in (0, number) else None


def _value(word: str) -> int:
    word = word.lower()
    return 0 if word in ("no", "none") else int(word) if word.isdigit() else WORDS[word]
