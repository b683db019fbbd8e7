"""Read which colours an answer claims of things, by rules: `a red car`, `the car is red`, `Red.` to a question for the colour.

What no rule reads is not a claim. We chose the lists.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from mmprobe.benchmarks.answers.coco import SYNONYMS, Span, find_objects, make_plurals
from mmprobe.benchmarks.answers.forms import clean, find_answer
from mmprobe.benchmarks.answers.texts import COLOUR, iter_sentences, normalize_colour
from mmprobe.benchmarks.answers.words import IMAGE, NAMED_IMAGE, TAKES_BACK, image_number, is_open

# Colours whose names people exchange. Whether a navy car is blue, nobody can tell from the words.
_NEAR = {
    "navy": ("blue", "black"), "indigo": ("blue", "purple"), "teal": ("green", "blue", "cyan"),
    "turquoise": ("cyan", "blue", "green"), "cyan": ("blue", "green"), "lime": ("green", "yellow"), "olive": ("green", "brown"),
    "maroon": ("red", "brown", "purple"), "crimson": ("red", "pink"), "scarlet": ("red", "orange"), "magenta": ("pink", "purple"),
    "lavender": ("purple", "pink"), "gold": ("yellow", "orange", "brown"), "tan": ("brown", "beige", "orange"),
    "beige": ("brown", "white", "yellow", "gray"), "cream": ("white", "beige", "yellow"), "silver": ("gray", "white"),
}  # fmt: skip
_TONES = {
    **dict.fromkeys(("dark", "deep"), ("black", "brown")),
    **dict.fromkeys(("light", "pale", "bright"), ("white", "pink")),
}
# Words that may be between a colour and the noun: `a red leather couch`, and not `a green salad bowl`.
_KINDS = (
    "small|large|big|little|tiny|huge|old|new|vintage|classic|antique|modern|sports?|parked|shiny|wooden|metal|plastic|leather|ceramic"
    "|porcelain|fabric|upholstered|cushioned|stuffed|plush|rubber|steel|electric|public|city|delivery|police|passenger|commuter|freight"
    "|cargo|toy|fluffy|furry|short-haired|long-haired|open|closed|empty|folding|rolling|two-door|four-door|double-decker|tall|long"
)
_HUES = rf"(?<![\w-]){COLOUR}(?:(?:,? and |, | & |-and-|[ /-]){COLOUR})*"
_BEFORE = re.compile(rf"(?P<hues>{_HUES})(?:(?:,? |-)(?:{_KINDS}))*[ -]$")
_ANOTHER = re.compile(rf"{COLOUR},? and (?:an?|one|the) $")
# What may follow a noun or a colour, so that it is not a part of a longer name: `a red car door`, `red hot`.
_PREPOSITIONS = (
    r"on|in|at|to|near|beside|behind|under|above|by|next to|in front of|from|of|along|across|inside|outside|against|between|among|around|down|up"
    r"|past|over|through|off|onto|into|towards?"
)
_AFTER = (
    rf"(?=\s*$|\s*[.,;:!?)\"]|\s+(?:{_PREPOSITIONS}|and|with|that|which|is|are|was|were|has|have|while|as|because|but|whereas|where|who"
    r"|there|here|visible|shown|(?:in )?colou?r|(?!painting|ring|king|wing|building|bed\b|red\b)[a-z]{2,}(?:ing|ed)"
    r"|stands|sits|lies|rests|runs|waits|hangs|drives|goes|walks|talks|flies|moves|follows|stops|travels|passes|leans"
    r"|grazes|sleeps|stood|sat|lay|too|one)\b)"
)
_BE = r"(?: is|'s| was)"  # of one thing
_HOW = (
    r"(?: (?:also|still|actually|clearly|mainly|mostly|primarily|predominantly|all|entirely|completely|painted|colou?red|in|an?|the colou?r|shade of|very"
    r"|quite))*"
)
_PLACE = rf"(?:,? (?:(?:that|which) is )?(?:(?:parked|shown|visible|placed|mounted|\w+ing) )?(?:{_PREPOSITIONS}) [^,.;:]{{1,60}}?)?"
_SUBJECT = re.compile(
    rf"(?:^|[,;:] |\b(?:and|but|while|whereas|where|{IMAGE}|scene) )(?:(?:the|this|that|an?|one|his|her|their|its) )?"
    rf"(?:(?:{_KINDS}) )*$"
)
_IS = re.compile(rf"{_PLACE}{_BE}{_HOW} (?P<hues>{_HUES}){_AFTER}")
_THAT_IS = re.compile(rf",? (?:that|which){_BE}{_HOW} (?P<hues>{_HUES}){_AFTER}")
_OWN = re.compile(rf"'s? colou?r{_BE}{_HOW} (?P<hues>{_HUES}){_AFTER}")
_HAS = re.compile(rf"{_PLACE} has an? (?P<hues>{_HUES}) colou?r\b")
_COLOUR_OF = re.compile(rf"colou?r of (?:the |this |that )?(?:(?:{_KINDS}) )*$")
# A second colour of the same thing: `green with white stripes`, `yellow with a blue top`.
_DECORATED = re.compile(
    rf"[^.;]*\bwith (?:an? |some |two )?(?:\w+ )?{COLOUR}(?:(?:,? and |, ){COLOUR})* (?:\w+ )?"
    r"(?:stripes?|accents?|trim|spots?|patch(?:es)?|markings?|details?|highlights?|polka|patterns?|letter(?:s|ing)|bands?|lines?|dots?)\b"
    rf"|,? (?:with|but) (?:an? |some |partly |its |two )?(?:\w+ )?{COLOUR}"
)
_ALONE = re.compile(
    rf"(?:(?:it|they|that|this|(?:the|its) (?:colou?r|answer))(?:'s| is| are| was) )?"
    rf"(?:(?:an?|in|mainly|mostly|primarily|predominantly|painted|colou?red|shade of) )*(?P<hues>{_HUES})(?: in colou?r| colou?r| one)?[.!]?"
)
# Names that hold a colour: of a breed, and of what a glass is for.
_NAMED = re.compile(r"\b(?:golden retriever|red panda|(?:red|white|green|black) (?:wine|tea)(?: [a-z]+)?)$")
_ASKED = re.compile(
    rf"colou?r(?:'s| is| are| was| were| of| does| do| did)(?: (?:the|this|that|his|her|their|its))? (?:(?:{_KINDS}) )*$"
)
_ASKED_AFTER = re.compile(
    rf"\s*\?| have\b|(?:,? (?:parked|shown|visible|sitting|standing|lying))? (?:{_PREPOSITIONS})\b|'s? colou?r\b"
)
_ASKED_OWN = re.compile(r"\b(?:what|which)\b.*\b(?:the|this|that) (?:\w+ )?$")
_TAKEN_BACK = re.compile(rf"(?:^|[.!?\n]\s*)(?:no, )?(?:{TAKES_BACK}|sorry)\b", re.IGNORECASE)
_SINGULAR = {phrase for category, words in SYNONYMS.items() for phrase in (category, *words)}
_PLURAL = {form for phrase in _SINGULAR for form in make_plurals(phrase)} - _SINGULAR


class ColourClaim(NamedTuple):
    """A colour that an answer claims of a thing.

    Attributes:
        image: the index of the image that the sentence or the question names; None where it names none, or several.
        name: a category of COCO, or one of the further names.
        colour: in one spelling, such as `dark gray`.
    """

    image: int | None
    name: str
    colour: str


def compare_colours(said: str, true: str) -> bool | None:
    """Return whether two colours are the same; None where words cannot tell, or where one is not a colour.

    The same are spelling variants (`gray` and `grey`, `golden` and `gold`) and shades of a colour (`dark red`, `light red` and
    `red`). Navy is neither the same as blue nor another colour, and so are others that people exchange (teal and green, silver and
    gray), dark colours and black or brown, and light ones and white or pink.

    Example:
        >>> [compare_colours("dark red", true) for true in ("red", "blue", "brown")]
        [True, False, None]
    """
    colours = [colour.strip().lower() for colour in (said, true)]
    if not all(re.fullmatch(COLOUR, colour) for colour in colours):
        return None
    (*tones, hue), (*true_tones, true_hue) = (normalize_colour(colour).split() for colour in colours)
    if hue in true_tones or true_hue in tones:
        return True  # navy is navy blue
    if hue == true_hue:
        return None if (set(true_tones) - set(tones)) & set(_NEAR) else True
    near, true_near = _NEAR.get(hue, ()), _NEAR.get(true_hue, ())
    if hue in true_near or true_hue in near or set(near) & set(true_near):
        return None
    if any(true_hue in _TONES.get(tone, ()) for tone in tones) or any(
        hue in _TONES.get(tone, ()) for tone in true_tones
    ):
        return None
    return False


def name_hue(colour: str) -> str | None:
    """Return a colour in one spelling and without its shade; None for words that are not a colour.

    Example:
        >>> [name_hue(colour) for colour in ("Dark grey", "golden", "spotted")]
        ['gray', 'gold', None]
    """
    words = colour.strip().lower()
    return normalize_colour(words).split()[-1] if re.fullmatch(COLOUR, words) else None


def read_colours(text: str, question: str = "", names: Collection[str] = ()) -> list[ColourClaim]:
    """Return the colours that an answer claims of things, in order and without repeats.

    Things are COCO's objects by their own words or synonyms, and further names. It reads `a red car`, `the car (on the left) is dark
    red`, `a car that is red`, `the car has a red color`, `the car's color is red`, `the color of the car is red`, and answers that
    are only a colour (`Red.`, `It is red.`, `Answer: red`) if the question asks for the color of a thing. It leaves out sentences that
    deny, doubt or ask, plurals, and things with two colours (`a red and white bus`), also in different sentences. It reads nothing
    of an answer that is taken back (`Wait, …`).

    Args:
        question: that is answered.
        names: in lower case, of things that are none of COCO's.

    Example:
        >>> read_colours("The kitten next to the red mug is black.")
        [ColourClaim(image=None, name='cat', colour='black'), ColourClaim(image=None, name='cup', colour='red')]
        >>> read_colours("It is gray.", "In the second image, what color is the sofa?")
        [ColourClaim(image=1, name='couch', colour='gray')]
    """
    about, answer = _find_image(question), clean(text)
    if _TAKEN_BACK.search(answer):
        return []
    claims: list[ColourClaim] = []
    sentences = list(iter_sentences(answer))
    declared = find_answer(text)
    if declared.marked and declared.text:
        sentences.insert(0, declared.text)
    for number, sentence in enumerate(sentences):
        if is_open(sentence):
            continue
        named = _find_image(sentence)
        image = about if named is None and not NAMED_IMAGE.search(sentence) else named
        words = " ".join(sentence.lower().split())
        claims += (ColourClaim(image, *claim) for claim in _read_sentence(words, names))
        alone = _ALONE.fullmatch(words) if number == 0 else None
        asked = _find_asked(question, names) if alone else None
        if alone and asked and (colour := _read_hues(alone["hues"])):
            claims.append(ColourClaim(image, asked, colour))
    claims = list(dict.fromkeys(claims))
    said: dict[tuple[int | None, str], set[str | None]] = {}
    for claim in claims:
        said.setdefault(claim[:2], set()).add(name_hue(claim.colour))
    return [claim for claim in claims if len(said[claim[:2]]) == 1]


def _find_image(text: str) -> int | None:
    """Return the index of the one image that a text names by its place."""
    images = {image_number(match) - 1 for match in NAMED_IMAGE.finditer(text)}
    return images.pop() if len(images) == 1 else None


def _read_sentence(sentence: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield what a sentence in lower case claims: a name and its colour."""
    for name, (start, end) in find_things(sentence, names):
        before, after = sentence[:start], sentence[end:]
        found = None
        if re.match(_AFTER, after) and not _NAMED.search(sentence[:end]):
            found = _BEFORE.search(before)
            if found and _ANOTHER.search(before[: found.start()]):
                found = None
        rest = after
        if found is None:
            for is_possible, form in (
                (bool(_SUBJECT.search(before)), _IS),
                (True, _THAT_IS),
                (True, _OWN),
                (bool(_SUBJECT.search(before)), _HAS),
                (bool(_COLOUR_OF.search(before)), _IS),
            ):
                if is_possible and (found := form.match(after)):
                    rest = after[found.end() :]
                    break
        if found and not _DECORATED.match(rest) and (colour := _read_hues(found["hues"])):
            yield name, colour


def find_things(text: str, names: Collection[str] = ()) -> list[tuple[str, Span]]:
    """Return the things that a text in lower case names in the singular, in order: COCO's objects, and further names.

    Example:
        >>> find_things("a puppy and two cats", ["egg"])
        [('dog', (2, 7))]
    """
    found = [
        (category, span) for category, span in find_objects(text) if text[slice(*span)].lower() not in _PLURAL
    ]
    for name in names:
        found += (
            (name, match.span()) for match in re.finditer(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)
        )
    return sorted(found, key=lambda each: each[1])


def _read_hues(words: str) -> str | None:
    """Return the one colour of some words; None for two."""
    hues = list(re.finditer(COLOUR, words))
    return normalize_colour(hues[0].group()) if len(hues) == 1 else None


def _find_asked(question: str, names: Collection[str]) -> str | None:
    """Return the thing whose colour a question is for; None where it is for none, or for several."""
    words = " ".join(question.lower().split())
    found = {
        name
        for name, (start, end) in find_things(words, names)
        if (after := _ASKED_AFTER.match(words, end))
        and (_ASKED.search(words[:start]) or ("colo" in after.group() and _ASKED_OWN.search(words[:start])))
    }
    return found.pop() if len(found) == 1 else None
