"""Words that several readers know: for images and which of two is meant, for doubt, and for taking an answer back."""

from __future__ import annotations

import re

IMAGE = "(?:image|picture|photo|photograph|figure|panel|frame|screenshot)"
"""What may be called an image, in the singular."""
_ORDINAL_WORDS = ("first 1st", "second 2nd", "third 3rd", "fourth 4th", "fifth 5th")
ORDINALS = {word: number for number, words in enumerate(_ORDINAL_WORDS, 1) for word in words.split()}
"""Numbers of an order, by their words."""
TAKES_BACK = (
    r"wait|actually|correction|on second thought|on the contrary|(?:just )?kidding|oops|hmm"
    r"|(?:this|that) is (?:wrong|incorrect|false|not (?:right|correct|true))"
)
"""Words that take back what was said before them."""
_CORRECTS = re.compile(
    r"(?:^|[.!?\u2026]\s{0,3}|\n[ \t]*)(?:wait|hmm|oops|correction|on second thought|actually|looking (?:again|closer|more closely)|(?:up)?on (?:a )?closer (?:look|inspection)|(?:let me|i should) (?:re-?check|recount|look again|double[- ]check))"
    r"\b[^\w\n]*\s",
    re.IGNORECASE,
)


_CUT_OFF = re.compile(
    r"(?:,|\b(?:the|an?|of|to|on|in|at|is|are|and|or|with|from|by|for|which|that|his|her|its|their|there))\s*\Z"
)


def corrected(text: str) -> str:
    """Return what a text says after it last takes itself back; all of it where it does not, or where nothing follows.

    Of a text that was cut off in the middle of a sentence it is the first one.

    Example:
        >>> corrected("There are 2 chairs. Wait, actually one more is hidden. So 3.")
        'actually one more is hidden. So 3.'
    """
    if _CUT_OFF.search(text[-40:]):
        text = re.split(r"(?<=[.!?:])\s", text, maxsplit=1)[0]
    ends = [match.end() for match in _CORRECTS.finditer(text)]
    rest = text[ends[-1] :] if ends else ""
    return rest if any(map(str.isalnum, rest)) else text


DENIALS = (
    r"not|no|never|neither|nor|none|nobody|nothing|cannot|\w+n't|\w+n\u2019t|without|unlike|hardly|except|excluded?|excluding|rather|instead"
    r"|lacks?|lacking|absent|absence|eliminated?|rul\w+ out|nicht|kein\w*|n\u00e3o|pas"
)
"""Words that deny, as alternatives of a pattern."""
_DENIAL = re.compile(rf"\b(?:{DENIALS})\b|\bnon-", re.IGNORECASE)
BESIDE = re.compile(r"\b(?:or|ou|oder|either|versus|vs)\b|/", re.IGNORECASE)
"""Words that offer one thing beside another."""
DOUBT = re.compile(
    r"\b(?:maybe|perhaps|might|(?-i:may)|could|possibly|guess|not sure|unsure|uncertain|unclear|if|unless|whether|depend\w*|(?<!no )(?<!\ba )(?<!without )doubt\w*)\b(?! (?:be )?(?:seen|called|described))"
    r"|\?|\.\.\.|\u2026",
    re.IGNORECASE,
)
"""Words of a sentence that leaves its answer open. "It appears to be" and "probably" do not."""


def has_denial(text: str) -> bool:
    """Return whether a text denies anything.

    Example:
        >>> has_denial("It isn't a cat"), has_denial("A cat")
        (True, False)
    """
    return _DENIAL.search(text) is not None


def is_open(text: str) -> bool:
    """Return whether a text denies, doubts, asks, or offers one thing beside another.

    Example:
        >>> is_open("not C"), is_open("a red car"), is_open("B or C")
        (True, False, True)
    """
    return bool(has_denial(text) or BESIDE.search(text) or DOUBT.search(text))


def firm_sentences(text: str) -> str:
    """Return the sentences of a text that leave nothing open, one a line.

    Example:
        >>> firm_sentences("It is red. It might be blue. Who knows?")
        'It is red.'
    """
    return "\n".join(part for part in re.split(r"(?<=[.!?])\s+|\n", text) if not DOUBT.search(part))


_CARDINAL_WORDS = ("one 1 a", "two 2 b", "three 3", "four 4", "five 5")
_CARDINALS = {word: number for number, words in enumerate(_CARDINAL_WORDS, 1) for word in words.split()}
_FIRST = "left|left-hand|original|initial|former|before|top|upper"
_SECOND = "right|right-hand|modified|edited|altered|changed|latter|after|other|bottom|lower"
NAMED_IMAGE = re.compile(
    rf"\b(?P<ordinal>{'|'.join(ORDINALS)}|{_FIRST}|{_SECOND})(?: (?:{IMAGE})s?\b| one\b(?= |[,.;:!?]|$))"
    rf"|\b{IMAGE} (?:#|no\.? ?|number )?(?P<cardinal>{'|'.join(name for name in _CARDINALS if name not in 'ab')}|(?-i:[AB]))\b"
    rf"|(?:(?<=\bin the )|(?<=\bfrom the ))(?P<alone>{'|'.join(ORDINALS)})(?=\s*[.,;:!]|\s*$| (?:but|and|while|whereas|is|are|was|were|it|there)\b)",
    re.IGNORECASE,
)
"""An image that is named by its place: the first image, image 2, the left picture, in the second."""
_NAMES = {number: name for name, number in ORDINALS.items() if name.isalpha()}


def image_number(match: re.Match[str]) -> int:
    """Return which image a match of `NAMED_IMAGE` names, from 1."""
    word = (match["ordinal"] or match["cardinal"] or match["alone"]).lower()
    if word in ORDINALS:
        return ORDINALS[word]
    return _CARDINALS.get(word, 1 if re.fullmatch(_FIRST, word) else 2)


def name_images(text: str) -> str:
    """Return a text in which images are called `image`, and single ones the first, the second ... image.

    Example:
        >>> name_images("In picture 2, the car is red. The left photograph shows a bus.")
        'In the second image, the car is red. The first image shows a bus.'
    """

    def name(match: re.Match[str]) -> str:
        article = (
            "the " if match["cardinal"] and not re.search(r"\bthe $", text[: match.start()], re.I) else ""
        )
        return f"{article}{_NAMES[image_number(match)]} image"

    return re.sub(rf"\b{IMAGE}(s?)\b", r"image\1", NAMED_IMAGE.sub(name, text), flags=re.IGNORECASE)
