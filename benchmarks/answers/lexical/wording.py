"""The vocabulary of the lexical judge: markup, sentences, image names, colours, places, numbers and verbs."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

# Longer sentences are cut, so that the time is linear in the length of the answer.
SENTENCE_CHARACTERS = 600
FIRST, SECOND, BOTH = "\ue001", "\ue002", "\ue003"  # placeholders for words that name an image

_UNITS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen""".replace("\n", " ").split(" ")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
NUMBERS: dict[str, int] = {
    **{word: value for value, word in enumerate(_UNITS)},
    **{
        f"{ten}-{_UNITS[unit]}" if unit else ten: 10 * value + unit
        for value, ten in enumerate(_TENS, 2)
        for unit in range(10)
    },
    "single": 1,
    "couple": 2,
    "dozen": 12,
}
NUMBER = rf"(?:\d{{1,6}}(?!\d)|{'|'.join(sorted(NUMBERS, key=len, reverse=True))})"


def parse_number_word(word: str) -> int:
    """Return the value of a match of `NUMBER`."""
    return int(word) if word.isdigit() else NUMBERS[word]


_HUES = (
    *(
        "red",
        "orange",
        "yellow",
        "green",
        "cyan",
        "blue",
        "purple",
        "black",
        "white",
        "gray",
        "grey",
        "brown",
    ),
    *("pink", "violet", "teal", "turquoise", "magenta", "beige", "tan", "golden", "gold", "silver", "navy"),
    *("maroon", "cream", "lavender", "lime", "olive", "crimson", "scarlet", "aqua", "indigo"),
)
_HUE_NAMES = {"grey": "gray", "golden": "gold", "violet": "purple", "aqua": "cyan"}
MODIFIERS = ("light", "dark", "bright", "pale", "deep", "vivid")
_COLOUR_WORD = rf"(?:{'|'.join(_HUES)})(?:ish)?"
COLOUR_WORD = re.compile(rf"(?:(?:{'|'.join(MODIFIERS)})-)?{_COLOUR_WORD}")
COLOUR = rf"(?:(?:{'|'.join(MODIFIERS)})[ -])?{_COLOUR_WORD}\b"
_SIDES = r"(?:left|right|top|bottom|cent(?:er|re)|middle|foreground|background|upper|lower|higher|up|down)"
PLACE = rf"(?:[a-d][1-4]\b|(?:{_SIDES}[ -])?(?:(?:left|right|up|down)wards?|{_SIDES})\b)"
_SIDE_NAMES = {
    **dict.fromkeys(("upper", "up", "upward", "upwards", "higher"), "top"),
    **dict.fromkeys(("lower", "down", "downward", "downwards"), "bottom"),
    **dict.fromkeys(("centre", "middle"), "center"),
    **dict.fromkeys(("leftward", "leftwards"), "left"),
    **dict.fromkeys(("rightward", "rightwards"), "right"),
}


def normalize_colour(words: str) -> str:
    """Return one spelling for each colour: `grey-ish` and `gray` become `gray`."""
    parts = words.replace("-", " ").split()
    hue = parts[-1].removesuffix("ish")
    hue = {"redd": "red"}.get(hue, hue)
    return " ".join([*parts[:-1], _HUE_NAMES.get(hue, hue)])


def normalize_place(words: str) -> str:
    """Return one spelling for each place: cells in capitals, `upper-left` becomes `top left`."""
    if re.fullmatch(r"[a-d][1-4]", words):
        return words.upper()
    return " ".join(_SIDE_NAMES.get(part, part) for part in words.replace("-", " ").split())


_MARKUP: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"[\ue000-\ue00f]", ""),
        (r"[\u2018\u2019\u02bc]", "'"),
        (r"[\u201c\u201d]", '"'),
        (r"<br\s{0,3}/?>", "\n"),
        (r"</?[A-Za-z!][^<>]{0,200}>", " "),
        (r"```\w{0,20}", "\n"),
        (r"!?\[([^\[\]\n]{0,200})\]\([^()\n]{0,300}\)", r"\1"),
        (r"\\(?:right|Right|long)\w{0,12}arrow\b|\\to\b|[\u2192\u21d2\u27f6\u279c\u2794]|-{1,2}>|=>", " to "),
        (r"\\[a-zA-Z]{1,20}", " "),
        (r"(?=[*_`~$\\])(?:[*_]{2,}|[`~$\\]|\*(?=\w)|(?<=[\w.,!?;:])\*|\b_|_\b)", ""),
        (r"(?m)^[ \t>]*#{1,6}[ \t]+", ""),
        (r"(?m)^(?=[ \t|:]*-)[ \t|:-]+$", ""),
        (r"(?m)^[ \t]*\||\|[ \t]{0,4}$", ""),
        (r"[ \t]{0,4}\|[ \t]{0,4}", ", "),
    )
)


_MARKED = re.compile(r"[*_`~$\\<>|#\[&\ue000-\ue00f\u2018\u2019\u02bc\u201c\u201d\u2190-\u2bff]|--")


def strip_markup(text: str) -> str:
    """Return a text without markup: Markdown, HTML, tables, LaTeX commands and arrows.

    Example:
        >>> strip_markup("**Car**: <b>red</b> → blue")
        'Car:  red   to  blue'
    """
    if not _MARKED.search(text):
        return text
    text = html.unescape(text)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text


_ENDS = re.compile(r"(?<=[.!?;])(?<!\bvs\.)(?<!\be\.g\.)(?<!\bi\.e\.)\s+|(?<=[。！？；])")
_BULLET = re.compile(
    r"\s*(?:(?:[-•–—+▪●◦*]+\s+|\(?\d{1,3}[.):](?!\d)\s*|\(?[a-hA-H][.)]\s+|#\d{1,3}[:.]?\s*)+)"
)
_ORDINAL = re.compile(
    r"\s*(?:(?:difference|change|modification|edit|item|step)\s*(?:no\.?|number|#)?\s*(?:\d{1,3}|one|two|three|four|five)?"
    r"\s*[:.–—-]\s*|(?:first|second|third|fourth|fifth|next|last|final)(?:ly)?\s*[,:]\s*|(?:yes|no|therefore|thus|so)\s*[,:;.!–—-]+\s*)",
    re.IGNORECASE,
)


def iter_sentences(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the sentences of a text without list numbers and bullets, and whether each starts a list item.

    Example:
        >>> list(iter_sentences("1. The dog is gone. So is the cat.\\n- Yes, the car moved"))
        [('The dog is gone.', True), ('So is the cat.', False), ('the car moved', True)]
    """
    for line in text.splitlines():
        bullet = _BULLET.match(line)
        starts_item = bullet is not None
        content = line[bullet.end() :] if bullet else line
        for part in _ENDS.split(content):
            for start in range(0, len(part), SENTENCE_CHARACTERS):
                piece = part[start : start + SENTENCE_CHARACTERS]
                piece = _ORDINAL.sub("", piece, count=1) if _ORDINAL.match(piece) else piece
                if piece.strip():
                    yield piece.strip(), starts_item
                    starts_item = False


_NOUN = r"(?:images?|pictures?|photos?|photographs?|pics?|scenes?|frames?|versions?|figures?|panels?|shots?)"
_BARE = r"(?=\s*(?:[,.;:)]|$|but\b|and\b|while\b|it\b|is\b|was\b|only\b))"
_ACTS = r"(?= (?:contains?|has|have|shows?|depicts?|does|lacks|is missing|only has)\b)"
_NAMES = (
    (rf"\b(?:the )?(?:two|both|these|2) (?:of )?(?:the )?{_NOUN}\b|\bboth\b", BOTH),
    (
        rf"\b(?:the )?(?:first|1st|original|initial|left(?:-hand)?|former|unedited|unmodified) {_NOUN}\b",
        FIRST,
    ),
    (
        rf"\b(?:the )?(?:second|2nd|modified|edited|altered|new|right(?:-hand)?|latter|other) {_NOUN}\b",
        SECOND,
    ),
    (rf"\b(?:the )?{_NOUN} ?#?(?:1|one)\b(?! of)", FIRST),
    (rf"\b(?:the )?{_NOUN} ?#?(?:2|two)\b(?! of)", SECOND),
    (r"\b(?:the )?(?:first|original|former) one\b", FIRST),
    (r"\b(?:the )?(?:second|modified|latter|other) one\b", SECOND),
    (rf"(?<=\bin )the (?:first|original|former){_BARE}|\bthe (?:first|original){_ACTS}", FIRST),
    (rf"(?<=\bin )the (?:second|latter|other){_BARE}|\bthe (?:second|other){_ACTS}", SECOND),
)
_IMAGE_NAME = re.compile("|".join(f"(?P<name{at}>{pattern})" for at, (pattern, _) in enumerate(_NAMES)))
_TOKEN = {f"name{at}": token for at, (_, token) in enumerate(_NAMES)}
_LETTERED = ((re.compile(rf"\b(?i:{_NOUN}) A\b"), FIRST), (re.compile(rf"\b(?i:{_NOUN}) B\b"), SECOND))
_NOT = re.compile(r"(?<=[a-z])n't\b")
_HINTS = (
    *(
        "image",
        "picture",
        "photo",
        "pic",
        "scene",
        "frame",
        "version",
        "figure",
        "panel",
        "shot",
        "both",
        " one",
    ),
    *(
        "the first ",
        "the original ",
        "the second ",
        "the other ",
        "in the first",
        "in the original",
        "in the former",
    ),
    *("in the second", "in the latter", "in the other"),
)  # without any of these, the slow search for image names is skipped


def mask_image_names(sentence: str) -> str:
    """Return a sentence in lower case, with one placeholder character for each name of an image.

    Example:
        >>> mask_image_names("It isn't in the second image.") == f"it is not in {SECOND}."
        True
    """
    if " A" in sentence or " B" in sentence:
        for pattern, token in _LETTERED:
            sentence = pattern.sub(token, sentence)
    text = " ".join(sentence.lower().split())
    if "'" in text:
        text = _NOT.sub(" not", text).replace("there's ", "there is ").replace("it's ", "it is ")
    if not any(hint in text for hint in _HINTS):
        return text
    return _IMAGE_NAME.sub(lambda match: _TOKEN[str(match.lastgroup)], text)


_LINK = r"(?: in| of| to| its| their| the| a| an| different| new| another){0,4}"
SPOT = r"(?:positions?|locations?|places?|placement|spots?|arrangement)"
HUE = r"(?:colou?rs?|colou?ring|colou?ration|hues?|shades?)"
_OTHERWISE = (
    r"(?:different|new|another|altered|change[sd]?|switched|swapped|differs?|difference|shift|alteration)"
)
_ACROSS = r"(?:(?!\b(?:same|remains?|unchanged|while|but)\b)[^.;,\n]){0,60}?"
_VERB = r"(?:chang\w+|differ\w*|alter\w+|shift\w+|modified|adjusted|moved|turned|switched|swap\w*)"
_SEEN = r"(?:there|present|visible|seen|shown|exists?|pictured|depicted|found)"
_OWNS = r"(?:has|have|contains?|includes?|shows?|features?|depicts?)"
_A = r"(?:a|an|any|the|this|that|his|her|its|their)"
_NOT_A_THING = r"(?! (?:[a-z]+ ){0,2}?(?:chang|diff|alter|longer|colou?r|posit|locat|other))"

# Verbs by what they say. If two match at the same place, the earlier kind wins.
TRIGGERS: dict[str, str] = {
    "position": "|".join(
        (
            rf"(?:no longer|not) (?:in|at|on) (?:the |its |their )?(?:same|original|usual) {SPOT}",
            r"mov(?:ed|es|e|ement)|relocat(?:ed|es|ion)|reposition(?:ed|ing)|displaced|displacement|rearranged",
            r"transferred|slid|swapped (?:places|positions)|(?:placed|positioned|located)"
            r" (?:differently|elsewhere|further|farther|more|closer|slightly|higher|lower)",
            rf"{_OTHERWISE}{_LINK} {SPOT}\b|{SPOT}\b{_ACROSS}\b{_VERB}",
            rf"{SPOT} (?:is|are) now",
        )
    ),
    "gone": "|".join(
        (
            rf"no longer (?:(?:clearly|be|being|there) )?(?:{_SEEN}|{_OWNS}|in|on|at|appears?|around)",
            rf"not (?:\w+ )?(?:{_SEEN}|appear(?= (?:in|at)\b|[ .,;]*$))",
            rf"(?:not|cannot) (?:have|contain|include|show|feature|depict)(?= {_A}\b{_NOT_A_THING})",
            rf"(?:not|cannot) (?:see|find|spot)(?= (?:{_A}\b{_NOT_A_THING}|it\b|them\b))",
            rf"not(?= (?:in |on )?[{FIRST}{SECOND}])",
            rf"there (?:is|are|was|were) (?:no\b|not {_A}\b){_NOT_A_THING}",
            rf"there (?:is|are|was|were) no longer(?= {_A}\b{_NOT_A_THING})",
            rf"{_OWNS} no\b{_NOT_A_THING}",
            rf"missing|gone(?! from {COLOUR})|absent|absence|lack(?:s|ed|ing)?",
        )
    ),
    "removed": "|".join(
        (
            r"remov(?:ed|es|e|al|als|ing)|delet(?:ed|es|e|ion)|eras(?:ed|es|e)|eliminated|omitted",
            r"(?:taken|edited|cropped|photoshopped|wiped) (?:away|out)|disappear(?:ed|s|ing|ance)?",
            r"vanish(?:ed|es|ing)?|fewer|one less",
        )
    ),
    "only": rf"only (?:\w+ ){{0,3}}?(?=[{FIRST}{SECOND}])|(?<=[{FIRST}{SECOND}] )only(?=[.,;]|$)",
    "color": "|".join(
        (
            r"recolou?red|repainted|dyed|tinted|colou?red differently",
            rf"{_OTHERWISE}{_LINK} {HUE}\b|{HUE} (?:change|swap|shift|difference|modification)",
            rf"{HUE}\b{_ACROSS}\b(?:{_VERB}|went|became|(?:is|are) now)",
        )
    ),
    "same": "|".join(
        (
            r"(?:remain(?:s|ed|ing)?|stay(?:s|ed))(?: (?:in|at|on))?(?: (?:exactly )?(?:the )?(?:same|unchanged|identical))?",
            r"unchanged|unaltered|unmoved|identical",
            r"(?:(?:exactly )?the )?same(?! (?:time|way|image|picture|scene|photo))",
            r"no (?:visible |noticeable |other |apparent )?(?:changes?|differences?|alterations?)",
        )
    ),
    "added": r"added|inserted|introduced|appeared|newly|new|additional|extra",
    "changed": "|".join(
        (
            r"chang(?:ed|es|e)|alter(?:ed|s|ation)|modified|differ(?:s|ent|ently|ed)?|replaced|substituted|switched",
            r"transformed|swapped|converted|shift(?:ed|s)|turn(?:ed|s)|becom(?:es|e)|became|went|goes|painted|now",
            r"instead of|rather than|used to be",
        )
    ),
}
TRIGGER = re.compile(
    r"\b(?:" + "|".join(f"(?P<{kind}>(?:{words}))" for kind, words in TRIGGERS.items()) + r")(?!\w)"
)
