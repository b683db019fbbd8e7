"""Read the differences that an answer claims, and how many, by rules: the `lexical` judge.

The rules are exact on the language of the drawn world. Of plain English they read the sentence forms that
docs/readers.md lists; any other sentence is unread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mmprobe.benchmarks.answers.assertions import is_denied
from mmprobe.benchmarks.answers.coco import FIRST_WORDS, PHRASES, find_phrases, make_plurals
from mmprobe.benchmarks.answers.drawn import is_drawn
from mmprobe.benchmarks.answers.forms import clean, find_answer
from mmprobe.benchmarks.answers.numbers import WORDS, read_number
from mmprobe.benchmarks.answers.places import SIDE, SIDES
from mmprobe.benchmarks.answers.texts import COLOUR, conclusion, iter_sentences, normalize_colour
from mmprobe.benchmarks.answers.words import DOUBT, TAKES_BACK, is_open, name_images
from mmprobe.benchmarks.synthetic.scene import SHAPES, EditType

_QUOTE_CHARACTERS = 200  # of the sentence that a claim quotes
PLACE = rf"(?:[a-d][1-4]|{SIDE}(?:[ -]{SIDE})?)\b(?: (?:side|corner|edge))?"


@dataclass(frozen=True)
class Claim:
    """One difference that an answer claims: its type (None if another) and category (None if not known).

    `before` and `after` are colours or places (cells in capitals), and `quantity` the number of objects,
    where the claim names them. A claim without a type is never true: "A dog was added." Only judges give denials (`negated`).
    `text` is the sentence.
    """

    type: EditType | None
    category: str | None
    before: str | None = None
    after: str | None = None
    quantity: int | None = None
    negated: bool = False
    text: str = ""


class ReadClaims(NamedTuple):
    """What the lexical judge read: the claims, whether the answer says that nothing changed, and the unread sentences."""

    claims: list[Claim]
    nothing: bool
    unread: list[str]


_THINGS: dict[str, str | None] = {
    **PHRASES,
    **{form: shape for shape in SHAPES for form in (shape, *make_plurals(shape))},
}
_NO_THING = re.compile(
    r"\b(?:images?|scenes?|it|this|that|these|they|\w*thing|someone|nobody|no|not"
    r"|differences?|changes?|"
    r"colou?rs?|positions?|objects?|items?|neither|either|both|or|i|we|you|who|what|which|if|when|new|number|"
    r"removed|moved|missing|changed|added|other|same|also|moreover|\w+ally)\b"
)
_HUE = r"colou?r"
_TYPES: dict[str, EditType] = {"color": "color", "colour": "color", "remove": "remove", "move": "position"}
_SEE = r"(?:see|find|notice|spot|observe|identify|detect)"
# Sentences that state no difference of their own: headings, that the images differ, and what ends a chat.
_HEADING = re.compile(
    r"[^.]*\b(?:differences?|changes?|comparing|compared|following|here|images?)\b[^.]*:"
    r"|(?:yes, |no, )?(?:the |these )?(?:two |2 )?images are (?:different|not (?:exactly |completely )?(?:the same|identical|equal))\.?"
    r"|(?:everything|all) else [^,;]*\b(?:same|unchanged|identical)\b[^,;]*"
    r"|(?:please )?let me know\b.*|(?:i )?hope (?:this|that) helps.*"
    rf"|(?:yes, )?(?:there (?:is|are)|(?:i|we)(?: can)? (?:{_SEE}|found|count|spotted)) (?:\w+ ){{0,4}}(?:differences?|changes?)(?: between (?:the |these )?(?:two )?images)?[.:]?",
    re.IGNORECASE,
)
_KEYED = re.compile(
    r"type\s*:\s*([a-z ]+?)\s*[,;]\s*(?:object )?(?:category|object)\s*:\s*([a-z ]+)", re.IGNORECASE
)
_TUPLE = re.compile(r"[(\[]\s*['\"]?([A-Za-z ]{3,30})['\"]?\s*,\s*['\"]?([A-Za-z ]{3,30})['\"]?\s*[)\]]")


_DIFFERENCES = "How many differences are there?"  # the question that a count answers
_N = rf"\d{{1,3}}|single|{'|'.join(WORDS)}"
# "differ in two ways", "I found three: ..."
_WAYS = re.compile(
    rf"\bdiffer in ({_N}) (?:ways?|details?|points?|places?|respects?|aspects?)\b"
    rf"|\b(?:f[oi]u?nd|spot|spotted|see|count|counted|identif(?:y|ied)|noticed?|there (?:are|is)) ({_N})(?=\s*(?:[:.,;]|$))",
    re.IGNORECASE,
)
_ALIKE = re.compile(
    rf"\b((?:{_N}) (?:\w+ ){{0,2}})(?:changes?|modifications?|alterations?|discrepanc(?:y|ies)|variations?"
    r"|(?:things?|objects?|items?|details?|elements?) (?:(?:are|is|was|were|has|have) )?(?:different|changed|differs?))\b",
    re.IGNORECASE,
)
_THE_ONLY = re.compile(r"\bthe (?:only|sole|single) (?:difference|change)\b", re.IGNORECASE)
_ITEMIZED = re.compile(
    r"\b(?:one|another|a) (?:\w+ )?(?:difference|change) is\b", re.IGNORECASE
)  # it counts none
_ITEM = re.compile(r"^[ \t]*\(?(\d{1,2})[.)]\s", re.MULTILINE)
_KIND = r"(?:visible |noticeable |apparent |obvious |significant |discernible )?"
_NOTHING = re.compile(
    r"nothing (?:(?:has|was|is|has been) )?(?:changed|removed|moved|missing|added|different)\.?"
    r"|(?:the |these |both )?(?:two )?images (?:are|appear to be|look|seem to be|show) (?:exactly |completely |visually )?(?:identical|the same)(?: scene)?(?: to me)?(?:,? (?:so|and) there (?:are|is) (?:none|no differences?))?[.;!]?"
    rf"|(?:(?:there are|there is|i (?:do not|don't|cannot|can't|could not|couldn't|did not|didn't) {_SEE}|i {_SEE}) )?(?:no|any) {_KIND}"
    r"(?:differences?|changes?)(?: (?:between|in) (?:the |these )?(?:two )?images)?[.;!]?",
    re.IGNORECASE,
)


def parse_claims(text: str) -> list[Claim]:
    """Return the differences that an answer claims, in order; empty where a sentence of it is unread.

    Example:
        >>> claim, = parse_claims("The circle changed from red to blue.")
        >>> claim.type, claim.category, claim.before, claim.after
        ('color', 'circle', 'red', 'blue')
    """
    reading = read_claims(text)
    return [] if reading.unread else reading.claims


def read_claims(text: str) -> ReadClaims:
    """Return the claims of an answer, and the sentences that the rules did not read.

    An answer is JSON, a list of `(type, category)`, or sentences; only what follows `Answer:` or
    `Therefore:` counts. Claims beside an unread sentence count, but not where that takes something back ("Wait, ..."), and an
    answer says that nothing changed only if all of it is read.

    Example:
        >>> reading = read_claims("The dog was removed. The mood is calmer.")
        >>> [claim.category for claim in reading.claims], reading.unread
        (['dog'], ['The mood is calmer.'])
    """
    structured = _read_structured(text)
    if structured is not None:
        return ReadClaims(structured, not structured, [])
    claims: list[Claim] = []
    unread: list[str] = []
    nothing = False
    context = _Context()
    for sentence in iter_sentences(_by_image(_with_arrows(_read_tables(name_images(conclusion(text)))))):
        if _NOTHING.fullmatch(_OPENING.sub("", sentence.lower())):
            nothing = True
        elif (stated := _read_sentence(sentence, context)) is not None:
            claims += stated
        elif not (is_drawn(sentence) or _HEADING.fullmatch(sentence)):
            unread.append(sentence)
    alone = context.alone.values()  # it is so in the second image: not in the first
    if any("second" not in state for state in context.states.values()):
        unread += [claim.text for claim in alone]
    else:
        claims += alone
    if any(map(_TAKES_BACK.search, unread)) or (nothing and unread):
        return ReadClaims([], False, unread)
    return ReadClaims(claims, nothing and not claims, unread)


_TAKES_BACK = re.compile(rf"\b(?:{TAKES_BACK})\b", re.IGNORECASE)


def _with_arrows(text: str) -> str:
    text = re.sub(r"\bvs\.", "vs", re.sub(r"\s*(?:\u2192|->|=>)\s*", " to ", text))
    return re.sub(r",?\s\((\d)\) (?=[a-z])", r"\n\1. ", text)  # (1) the car is gone, (2) the dog is blue


# What an image has, in words of a sentence: `First image: a red car`, `unlike the first image, ...`, `neither the car nor the dog appears`.
_BY_IMAGE = tuple(
    (re.compile(pattern, re.IGNORECASE | re.MULTILINE), written)
    for pattern, written in (
        (r"\b(?:unlike|compared (?:to|with)|in contrast to) the (?:first|second) image,? ", ""),
        (r"(?:^|(?<=[.;] )|(?<=[-*] ))(?:(?:in )?the )?(first|second) image: ", r"In the \1 image, "),
        (r"[,;] the (first|second) image (?=an? )", r"; in the \1 image, there is "),
        (
            r"((?:not|n't) (?:have|show|contain)|\blacks|\bno longer (?:has|shows|contains)) ([^.,;:]{1,60}?) or ",
            r"\1 \2 and ",
        ),
        (r"\bboth (?=(?:are|were|have) )", "they "),
        (r"; (?=the second(?: image)? (?:does|has))", ", "),
        (
            r"\bneither ([^.,;]{1,60}?) nor ([^.,;]{1,60}?) (?:appears?|is|are|can be|was|were|remains?)\b",
            r"\1 and \2 no longer appear",
        ),
    )
)


def _by_image(text: str) -> str:
    for pattern, written in _BY_IMAGE:
        text = pattern.sub(written, text)
    return text


_ROW = re.compile(r"^[ \t]*\|(.+)\|[ \t]*$", re.MULTILINE)
_GONE = re.compile(
    r"(?:is |was )?(?:missing|absent|removed|gone|not (?:present|visible|there)|none|no|-|\u2013|\u2014)",
    re.IGNORECASE,
)
_THERE = re.compile(r"(?:is )?(?:present|visible|shown|there|yes)", re.IGNORECASE)


def _read_tables(text: str) -> str:
    """Return a text whose table of things by image, if it has one, is sentences.

    Example:
        >>> _read_tables("| Object | First image | Second image |\\n|---|---|---|\\n| Car | red | blue |\\n| Dog | present | missing |")
        'car: red to blue\\ndog: removed'
    """
    rows = [
        [cell.strip() for cell in row.split("|")][-3:] for row in _ROW.findall(text)
    ]  # a number may precede
    if len(rows) < 3 or len(rows[0]) != 3 or any(len(row) != 3 for row in rows):
        return text
    sentences = []
    for thing, before, after in rows[1:]:
        thing = re.sub(r"(?i)\b(?:of|the|presence|colou?r|position)\b", "", thing).strip().lower()
        if _THERE.fullmatch(before) and _GONE.fullmatch(after):
            sentences.append(f"{thing}: removed")
        elif before.casefold() != after.casefold():
            sentences.append(f"{thing}: {before.lower()} to {after.lower()}")
    return "\n".join([*[part for part in [_ROW.sub("", text).strip()] if part], *sentences])


# A sentence is read by its clauses: the thing that each begins with, and the one kind of change that its words tell.
_OPENING = re.compile(
    r"^(?:(?:(?:additionally|also|moreover|finally|first|second|next|lastly|however|meanwhile|notably|comparing [^,.]{1,60}|(?:upon|after|when|by|on) [^,.]{1,60}(?=,)),?"
    r"|(?:i|we) (?:can )?(?:see|notice|noticed|observe|observed|found) that|(?:the|an?) (?:only |main |key |one |other |first |second |notable )*(?:difference|change)"
    r"(?: between (?:the |these )?(?:two )?images)? is (?:that |in )?|(?:here is )?what changed:|there (?:is|are) (?:\w+ ){1,3}differences?[^.:]{0,40}:) *)+"
)
_POSSESSIVE = re.compile(r"\b((?:the|an?) )[a-z]+'s ([a-z]+(?: [a-z]+)?)")


def _own(match: re.Match[str]) -> str:
    """Return whose thing it is without whose: the person's bag is a bag, and the car's paint is of the car."""
    return (
        match.group() if re.match(rf"{_HUE}|position|location|paint", match[2]) else f"{match[1]}{match[2]}"
    )


_REPLACED = re.compile(
    rf"\b(?:(?:has been|was|is|were) )?(?:replaced|swapped) (?:by|with|for) an? ({COLOUR}) (?:one|version)\b"
)
_LABEL = re.compile(r"^[a-z' ]{1,40}(?::| [-\u2013\u2014]) *(?=(?:the|an?|in the|there) )")
_OF_IT = re.compile(r"(?:in the (?:first|second) image,? )?(?:it|they)\b")
_PARTS = re.compile(
    r"(?:;|,? (?:and|but|while|whereas)|,(?= in the (?:first|second) image)|(?<!image),(?= (?:the|an?) (?:\w+ ){1,3}(?:is|are|was|were|has|have|moved|changed|turned)\b)) +(?=(?:in the (?:first|second) image,? )?(?:the|an?|it|they|it's|there|\w+'s) |in the (?:first|second) image)"
)
_IMAGE_PHRASE = re.compile(
    r"(?: (?:that|which) (?:is|was|are|were)(?: visible| present| shown| seen)?(?= in))?,? ?\(?(?:\b(?:in|from|of|to) )?\bthe (first|second) image\b\)?,?"
)
_VERB = (
    r"is|are|was|were|has|have|had|turned|went|became|becomes|appears?|moved|shifted|changed|changes|disappear(?:s|ed)|vanish(?:es|ed)|visible|present|shown|seen|that|which|no|removed|gone|absent"
    r"|does|do|did|in|on|at|from|to|with|near|behind|beside|next|under|located"
)
_ONE = r"(?:(?:the|an?|one|two|three|\d) )?[a-z]+(?:[ -][a-z]+){0,3}?"
_HAS_VERB = re.compile(rf"\b(?:{_VERB.partition('|in|on|')[0]}|lacks|shows|contains|includes|looks|seems)\b")
_NOUN = rf"(?P<thing>{_ONE}(?: and {_ONE}){{0,3}}?)"
_PHRASE = re.compile(
    rf"\s*(?P<pronoun>it|they)\b|\s*(?:there(?: is| are| was| were) (?:no (?:longer )?|not )?|(?:has|shows|contains|includes) )?(?:the |a )?"
    rf"(?:(?:{_HUE}|position|location|presence|removal) (?:change )?of )?{_NOUN}"
    rf"(?:'s)?(?=\s*[,:;.(!]|\s[\u2013\u2014-]\s|\s(?:{_VERB}|but|\w+ing)\b|\s*$|(?<='s)\s| (?:{_HUE}|position|location)\b)"
)
# "The second image lacks the dog.", "Missing object: a dog"
_LACKS = re.compile(
    rf"^(?:(?:the \w+ )?(?:lacks|is missing|no longer (?:has|shows|contains|includes)|has no|shows no|does not (?:have|show|contain|include))(?: an?)?"
    rf"|(?:the )?(?:\w+ (?:objects?|items?|things?) (?:is|are|was|were|has been|have been) )?(?:removed?|missing|gone)(?: objects?| items?)?:) {_NOUN}(?= (?:that|which|in|from)\b|\s*[.,;!]|\s*$)"
)
# "The first image has a dog, while the second does not."
_GONE_FROM = re.compile(
    rf"(?:the first image (?:has|shows|contains|includes|depicts)|in the first image,? there is) {_NOUN}"
    r"(?:,?(?: while| but| whereas| and)? (?:in )?the second(?: image)? (?:does not|has none|there is none)"
    r"|,? (?:that|which) (?:is|are|does|do) (?:both )?(?:not (?:(?:present|visible|shown|there|appear|exist) )?|absent |missing |gone )(?:in|from) the second image)\W*"
)
_MOVED_LABEL = re.compile(rf"^(?:moved?|position)(?: change)?: {_NOUN}\W*$")
_RECOLOURED_LABEL = re.compile(rf"^(?:{_HUE}(?: change)?|recolou?red): {_NOUN}\W*$")
_LOST = re.compile(
    r"\b(?:removed|removal|deleted|erased|missing|absent|gone|disappear(?:s|ed)?\b|vanished|taken away|no longer\b(?! \w+ing\b)"
    r"|not (?:be )?(?:present|visible|there|seen|appear|exist|included|shown|in\b)|(?<=, )not\W*$|(?<=\bbut )not\W*$)"
)
_LOST_END = re.compile(
    r"\s*(?:(?:be )?(?:present|visible|there|seen|appears?|exists?|included|shown)\b)?\s*(?:(?:from|in|on) (?:the )?\w+|entirely|completely"
    r"|as well|too|it)?\s*[.!;,]?\s*"
)
_THERE_IS = re.compile(r"^\s*there (?:is|are|was|were) (?!no\b|not\b)|^\s*(?:shows|has|contains) ")
_ONLY = re.compile(
    r"(?=.* only\b)(?: (?:only|is|are|was|were|appears?|exists?|visible|present|seen|shown|found))+\W*"
)
_FROM_NOTHING = re.compile(r"\b(?:not(?! only)|absent|missing)\b[^.]*\bthe first image")
_NONE_LEFT = re.compile(r"^\s*(?:there (?:is|are) (?:no|not)\b)")
_ADDED = re.compile(r"\b(?:added|appears|appeared|newly|introduced|(?:is|are) new)\b")
_UNFIT = re.compile(
    r"\b(?:replaced?|swapped|same|similar|both|or|either|never|unchanged)\b|\b(?:not|never) (?:removed|moved|changed?|deleted)\b"
)
_RECOLOURED = re.compile(
    r"\b(?:chang(?:ed?|es)|turned|bec[oa]mes?|altered|recolou?red|repainted|painted|went|switched|shifted|instead of|rather than|now|vs|to)\b"
)
_COLOURED = re.compile(
    rf"\b(?:chang|alter|differ|turn)\w*\b.*\b{_HUE}\b|\b{_HUE}\b.*\b(?:chang|alter|differ)\w*\b|\b(?:recolou?red|repainted)\b"
)
_MOVED = re.compile(r"\b(?:moved|shifted|relocated|repositioned|displaced)\b|\b(?:position|location)\b")


class _Context:
    """What clauses said: the things that the last was about, and the colours and places of things in one of the images."""

    def __init__(self) -> None:
        self.things: list[tuple[str | None, int | None]] = []
        self.states: dict[tuple[EditType, str | None], dict[str, str]] = {}
        self.alone: dict[tuple[EditType, str | None], Claim] = {}

    def add(self, kind: EditType, thing: str | None, image: str, value: str, quote: str) -> list[Claim]:
        """Note a thing's state in an image, and return the claim where it differs from that in the other image."""
        state = self.states.setdefault((kind, thing), {})
        state[image] = value
        if len(state) < 2:
            if image == "second":
                self.alone[kind, thing] = Claim(kind, thing, None, value, text=quote)
            return []
        self.alone.pop((kind, thing), None)
        return (
            []
            if state["first"] == state["second"]
            else [Claim(kind, thing, state["first"], state["second"], text=quote)]
        )


def _read_sentence(sentence: str, context: _Context) -> list[Claim] | None:
    """Return the claims of a sentence; none where it describes the first image; None where a clause of it is unread."""
    text = " ".join(sentence.lower().split()).replace("n't", " not")
    text = re.sub(r"\b(it|there|that)'s\b", r"\1 is", text)
    text = _POSSESSIVE.sub(_own, _REPLACED.sub(r"changed to \1", _OPENING.sub("", text)))
    label = _LABEL.match(text)
    if label and not is_open(label.group()):
        topic = label.group().strip(" :-\u2013\u2014")
        about = _find_things(re.sub(rf" (?:{_HUE}|position|location)(?: change)?$", "", topic))
        if about and _OF_IT.match(text[label.end() :]):
            context.things, text = about, text[label.end() :]
        elif (not _find_things(topic) and _HAS_VERB.search(text, label.end())) or topic.split()[-1] in text[
            label.end() :
        ].split():
            text = text[label.end() :]
    if text.endswith(":") and (
        about := _find_things(re.sub(rf" (?:{_HUE}|position|location)(?= ?:)", "", text).strip(" :"))
    ):
        context.things = about
        return []
    if (gone := _GONE_FROM.fullmatch(text)) and (things_gone := _find_things(gone["thing"])):
        return [
            Claim("remove", name, None, None, n, text=sentence[:_QUOTE_CHARACTERS]) for name, n in things_gone
        ]
    claims: list[Claim] = []
    image, before = "", ""
    things: set[str | None] = set()
    for part in _split_parts(text):
        named = _IMAGE_PHRASE.findall(part)
        read = _read_clause(part, image if not named else "", context, sentence[:_QUOTE_CHARACTERS])
        if read is None:
            return None
        image = named[0] if len(named) == 1 else image or ("second" if claims else "")  # after what changed
        if before == "first" and image == "second" and not {claim.category for claim in read} <= things:
            return None  # a clock is in one, and a cat is missing in the other
        things, before = {thing for thing, _ in context.things}, image
        claims += read
    return claims


def _split_parts(text: str) -> list[str]:
    """Return the parts of a sentence that each have a verb: `the dog and the cat are gone` is one."""
    parts, start = [], 0
    for mark in _PARTS.finditer(text):
        has_verbs = _HAS_VERB.search(text, start, mark.start()) and _HAS_VERB.search(text, mark.end())
        if not mark.group().strip().endswith("and") or has_verbs:
            parts.append(text[start : mark.start()])
            start = mark.end()
    return [*parts, text[start:]]


def _read_clause(text: str, image: str, context: _Context, quote: str) -> list[Claim] | None:
    """Return the claims of a clause; None where it tells another change, several kinds, or of another thing."""
    images = _IMAGE_PHRASE.findall(text) or ([image] if image else [])
    in_both = set(images) == {"first", "second"}
    plain = _OPENING.sub("", " ".join(_IMAGE_PHRASE.sub(" ", text).split()))
    if _UNFIT.search(text) or DOUBT.search(plain):
        return None
    kind: EditType | None
    for form, kind in ((_LACKS, "remove"), (_MOVED_LABEL, "position"), (_RECOLOURED_LABEL, "color")):
        if (match := form.match(plain)) and images != ["first"] and (things := _find_things(match["thing"])):
            context.things = things
            return [Claim(kind, category, None, None, quantity, text=quote) for category, quantity in things]
    plain = f"it is {plain}" if re.fullmatch(rf"(?:{COLOUR}|{PLACE})\W*", plain) else plain
    if (
        images == ["first"]
        and (there := _THERE_IS.match(plain))
        and len(parts := plain[there.end() :].split(" and ")) > 1
    ):
        listed: list[tuple[str | None, int | None]] = []
        for part in parts:
            if _read_clause(f"there is {part}", "first", context, quote) is None:
                return None
            listed += context.things
        context.things = listed
        return []
    phrase = _PHRASE.match(plain)
    things = (context.things if phrase["pronoun"] else _find_things(phrase["thing"])) if phrase else None
    if not phrase or not things:
        return None
    context.things = things
    rest = _WHERE.sub("", plain[phrase.end() :])
    names = {name for name, _ in things}  # an orange is a thing
    own = re.findall(rf"\b{COLOUR}", plain[: phrase.end()])
    hues = [hue for hue in map(normalize_colour, own) if hue not in names]
    hues += map(normalize_colour, re.findall(rf"\b{COLOUR}", plain[phrase.end() :]))
    places = [normalize_place(place) for place in re.findall(rf"\b{PLACE}", rest)]
    lost = _LOST.search(rest) or (images == ["first"] and _ONLY.fullmatch(rest)) or _NONE_LEFT.match(plain)
    if lost and lost.string is rest and (is_denied(rest, *lost.span()) or _NONE_LEFT.match(plain)):
        return None  # it is not missing
    others = re.search(rf"\b(?:the|an?) (?!{COLOUR}|{_HUE}|{PLACE}|scene|image|picture|view)[a-z]+", rest)

    def claim(kind: EditType | None, before: str | None = None, after: str | None = None) -> list[Claim]:
        return [
            Claim(kind, category, before, after, quantity, text=quote) for category, quantity in things or ()
        ]

    is_new = _FROM_NOTHING.search(text) or (lost and images == ["first"] and _IMAGE_PHRASE.match(text))
    if is_new or (_ADDED.search(rest) and not lost):
        return claim(None)  # the benchmark adds nothing
    recoloured = (
        bool(hues) and not places and (_RECOLOURED.search(rest) is not None or len(hues) == 2 and in_both)
    )
    moved = (
        _MOVED.search(plain) is not None
        or (len(places) == 2 and (in_both or " to " in rest))
        or (len(places) == 1 and "now" in rest.split())
    )
    if sum(map(bool, (lost, recoloured, moved and not recoloured))) > 1:
        return None
    if lost:
        after = rest[lost.end() :] if lost.string is rest else ""
        between = rest[: lost.start()] if lost.string is rest else ""
        if not _LOST_END.fullmatch(after) or re.search(
            r"(?:[,:]|\b(?:but|and|while)\b).*\b(?:the|an?) [a-z]", between
        ):
            return None
        return claim("remove")
    if recoloured:
        if len(hues) > 2 or others:
            return None
        before, new = (
            (hues[0], hues[1])
            if len(hues) == 2
            else (context.states.get(("color", things[0][0]), {}).get("first"), hues[0])
        )
        if re.search(r"\b(?:instead of|rather than)\b", rest) or images[:1] == ["second"] and in_both:
            before, new = new, before
        return claim("color", before, new)
    if moved:
        if (
            not places
            and (tail := re.search(r"\b(?:moved|shifted|relocated|repositioned|displaced)\b(.+)", rest))
            and not _ASIDE.fullmatch(tail[1])
        ):
            return None  # moved to Paris
        earlier, later = (places[0], places[1]) if len(places) == 2 else (None, places[0] if places else None)
        if images[:1] == ["second"] and in_both:
            earlier, later = later, earlier
        return claim("position", earlier, later)
    if not hues and _COLOURED.search(plain):
        return claim("color")
    values = hues or places
    if len(values) == len(things) == len(set(images)) == 1 and not others:
        return context.add("color" if hues else "position", things[0][0], images[0], values[0], quote)
    if images == ["first"] and not values and (_THERE_IS.match(plain) or not rest.strip(" .,")):
        return []
    return None


_WHERE = re.compile(rf"^ (?:(?:that|which) is )?(?:on|in|at) the {PLACE}(?: of the image)?(?= (?:{_VERB})\b)")
_ASIDE = re.compile(
    r"\s*(?:slightly|a bit|(?:up|down|left|right|for|back)wards?|away|closer|higher|lower)?\s*[.,;!]?"
)


def normalize_place(words: str) -> str:
    """Return one spelling for each place: cells in capitals, `upper-left` becomes `top left`."""
    if re.fullmatch(r"[a-d][1-4]", words):
        return words.upper()
    parts = re.sub(r" (?:side|corner|edge)$", "", words).replace("-", " ").split()
    return " ".join(SIDES.get(part, part) for part in parts)


def _find_things(words: str) -> list[tuple[str | None, int | None]] | None:
    """Return category and number of each object in `the dog and two red cars`; None for other words."""
    things: list[tuple[str | None, int | None]] = []
    parts = re.split(r",? and |, ", re.sub(rf"\b{COLOUR} and (?={COLOUR} [a-z])", "", words))
    for part in parts:
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
            or not (is_thing or match["det"] or part == parts[0])  # the salt and pepper shaker
        ):
            return None
        number = match["det"] if match["det"] not in (None, "the", "a", "an") else None
        quantity = None if number is None else int(number) if number.isdigit() else WORDS[number]
        things.append((named[-1][0] if is_thing else _singular(noun), quantity or None))
    return things


def _singular(noun: str) -> str:
    """Return a noun of no category in the singular."""
    return noun[:-1] if noun.endswith("s") and noun in make_plurals(noun[:-1]) else noun


def _read_structured(text: str) -> list[Claim] | None:
    """Return the claims of JSON, `Type: …, Category: …` or `(type, category)`; else None."""
    fenced = re.findall(r"```\w*\s*(.*?)\s*```", text, re.DOTALL)
    body = fenced[0] if len(fenced) == 1 else text.strip()
    if body[:1] in ("[", "{"):
        try:
            data: Any = json.loads(body)
        except (ValueError, RecursionError):
            data = None
        items = data.get("differences", [data]) if isinstance(data, dict) else data
        if isinstance(items, list):
            if items and all(isinstance(item, str) for item in items):
                told = [read_claims(item).claims for item in items]
                return [claim for each in told for claim in each] if all(told) else None
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
    category = next((fields[key] for key in ("category", "object", "item", "thing") if key in fields), "")
    kind = next((fields[key] for key in ("type", "change", "change_type", "kind") if key in fields), "")
    before, after = fields.get("before", fields.get("from")), fields.get("after", fields.get("to"))
    return _make_claim(kind, category, json.dumps(item), before, after)


def _make_claim(
    kind: str, category: str, quote: str, before: str | None = None, after: str | None = None
) -> Claim | None:
    """Return a claim of data. One of another type is a claim, too: it is never true."""
    if not kind.strip() or not category.strip():
        return None
    edit_type, name = _TYPES.get(kind.strip().lower()), category.strip().lower()
    if edit_type is None and (told := _read_sentence(_with_arrows(f"{name}: {kind}"), _Context())):
        edit_type, before, after = told[0].type, before or told[0].before, after or told[0].after
    return Claim(edit_type, _THINGS.get(name) or name, before, after, text=quote[:_QUOTE_CHARACTERS])


def parse_count(text: str) -> int | None:
    """Return the number of differences that an answer states; None for a refusal and where it is unread.

    It is a declared number, or a first sentence such as "There are 3 differences between the two images."
    without another count after it. "Nothing changed." and "The images are identical." are 0.

    Example:
        >>> [parse_count(text) for text in ("There are **two** differences.", "No differences!", "2 or 3")]
        [2, 0, None]
    """
    said = name_images(clean(conclusion(text)))
    sentences = list(iter_sentences(said))
    if sentences and _NOTHING.fullmatch(sentences[0]) and all(map(_NOTHING.fullmatch, sentences)):
        return 0
    answer = find_answer(text)
    if answer.text is None or answer.refused:
        return None
    numbers = [int(number) for number in _ITEM.findall(text)]
    told = _ALIKE.sub(
        r"\1differences",
        _THE_ONLY.sub("there is 1 difference", _WAYS.sub(r"there are \1\2 differences", answer.text)),
    )
    number = None if _ITEMIZED.search(told) else read_number(told, _DIFFERENCES, only_asked=True)
    if number is None:
        items = numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 1 and not answer.marked
        return (
            len(numbers)
            if items and not re.search(r"\bat least|\bmore\b|\bor\b", text, re.IGNORECASE)
            else None
        )
    return int(number) if number == int(number) and len(numbers) in (0, number) else None
