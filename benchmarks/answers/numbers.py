"""Read numbers, and compare numbers and expressions with math-verify."""

from __future__ import annotations

import logging
import math
import re
import unicodedata

from mmprobe.benchmarks.answers.chinese import NUMBERS
from mmprobe.benchmarks.answers.forms import clean, decide, is_open

THRESHOLD = 0.05  # relative error, our choice
_NAMES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
WORDS = {name: value for value, name in enumerate(_NAMES.split())}
_TENS = {
    name: 10 * value
    for value, name in enumerate(["thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 3)
}
_COMPOUND = re.compile(
    rf"({'|'.join(('twenty', *_TENS))})(?:[- ]({'|'.join(_NAMES.split()[1:10])}))?", re.IGNORECASE
)

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?<=\d)(?:e[-+]?\d{1,3})?(?:\s*/\s*\d+(?:\.\d+)?)?"
_UNIT = (
    r"(?:\s*(?:[a-z\u00b5\u03bc\u03a9]+|(?:\u5e73\u65b9|\u7acb\u65b9)?(?:\u5398\u7c73|\u6beb\u7c73|\u5343\u7c73|\u516c\u91cc|\u7c73|\u5ea6|\u514b|\u5343\u514b|\u516c\u65a4|\u79d2|\u5206\u949f|\u5c0f\u65f6|\u5143|\u4e2a|\u53ea|\u4eba|\u6761|\u5f20|\u8f86|\u5c81)|\u00b0\s?[CFcf]?|%)"
    r"(?:\s*[/\u00b7]\s*[a-z]+|\^-?\d|(?<=[a-z]) [a-z]+)*)"
)
_QUANTITY = re.compile(
    rf"(?:(?:x|y|z|n|[a-zA-Z])\s*=\s*)?(?P<money>[$\u20ac\u00a3]?)(?P<number>{_NUMBER})(?P<unit>{_UNIT}?)",
    re.IGNORECASE,
)
_ABOUT = re.compile(r"^(?:approximately|approx\.?|about|roughly|circa|\u2248|~|\\approx)\s*", re.IGNORECASE)
_NOT_UNITS = re.compile(
    r"\b(?:to|of|out|by|and|plus|minus|more|less|fewer|in|on|at|is|are|was|or|so|rows?|th|st|nd|rd|from"
    r"|because|since|times|x|ish|dozen|hundred|thousand|[mbtr]+illions?|lakh|crore|am|pm)\b",
    re.IGNORECASE,
)
_TEX: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:text\w{0,2}|math\w{2}|operatorname|mbox)\s*\{([^{}]*)\}", r"\1"),
        (r"\\f?boxed\s*\{([^{}]*)\}", r"\1"),
        (r"\^\s*\{?\s*\\circ\s*\}?", "\u00b0"),
        (r"\\([%#&_$])", r"\1"),
        (r"(?<=\d)(?:\{,\}|\\[,!]|[\u00a0\u2009\u202f ])(?=\d{3}(?!\d))", ""),  # between thousands
        (r"\\[,;! ]", " "),
        (r"\^\s*\{\s*([-+]?\w+)\s*\}", r"^\1"),
        (r"(?<=\d)\s*(?:\\times|\\cdot|[x*\u00d7\u00b7\u22c5])\s*10\s?\^\s?([-+]?\d+)", r"e\1"),
        (r"(?<![\w.^])10\s?\^\s?([-+]?\d+)", r"1e\1"),
        (r"^([-+]?)\s*\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}", r"\1\2/\3"),
    )
)


def remove_tex(text: str) -> str:
    """Return a text without the TeX around its numbers, powers and words."""
    for pattern, replacement in _TEX:
        text = pattern.sub(replacement, text)
    text = text.strip()
    return text.strip("$").strip() if text.startswith("$") and text.endswith("$") else text


def read_number(response: str) -> float | None:
    """Return the number that a response declares; None for a refusal and where it is unread.

    It is a declared answer (`forms.decide`) of one number with or without a unit. A percent sign does
    not divide by 100.

    Example:
        >>> [read_number(text) for text in ("about 1,250 km^2", "The answer is -3/4.", "24 out of 60")]
        [1250.0, -0.75, None]
    """
    return decide(response, _value, "number").value


def _value(text: str) -> float | None:
    quantity = parse_quantity(text)
    if quantity is None and "\\boxed" not in text:
        return decide(text, _bare_value, "number", unmarked=False).value
    return None if quantity is None else quantity[0]


def _bare_value(text: str) -> float | None:
    quantity = parse_quantity(text)
    return None if quantity is None else quantity[0]


def parse_quantity(text: str) -> tuple[float, str] | None:
    """Return the number of a text and its unit; None if the text contains anything else.

    Example:
        >>> parse_quantity("$12.50"), parse_quantity("90\u00b0"), parse_quantity("3 to 5")
        ((12.5, '$'), (90.0, '\u00b0'), None)
    """
    text = _ABOUT.sub("", remove_tex(text)).rstrip(".")
    if text.lower() in WORDS:
        return float(WORDS[text.lower()]), ""
    if compound := _COMPOUND.fullmatch(text):
        tens = compound[1].lower()
        return float(_TENS.get(tens, 20) + WORDS[(compound[2] or "zero").lower()]), ""
    if text in NUMBERS:
        return float(NUMBERS[text]), ""
    match = _QUANTITY.fullmatch(text)
    if match is None or not match["number"]:
        return None
    unit = (match["money"] or match["unit"]).strip().casefold()
    if (
        match["unit"].strip() in ("k", "M", "bn")
        or _NOT_UNITS.search(unit)
        or is_open(unit.replace("/", " "))
    ):
        return None
    value = parse_value(match["number"])
    return None if value is None else (value, unit)


def parse_value(written: str) -> float | None:
    """Return the value of a number or fraction; None where it is not finite."""
    top, _, bottom = written.replace(",", "").replace(" ", "").partition("/")
    try:
        value = float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        return None
    return value if math.isfinite(value) else None


def is_near(number: float, true: float, threshold: float = THRESHOLD) -> bool:
    """Return whether |number - true| / |true| is below a threshold. Only 0 is near 0.

    MIRAGE (arXiv:2505.24238) uses one without its value; our default is 0.05.

    Example:
        >>> is_near(104, 100), is_near(105, 100), is_near(0.01, 0)
        (True, False, False)
    """
    return number == true or abs(number - true) < threshold * abs(true)


# What math-verify may see. It has no eval, but no time limit outside the main thread either, so the texts are
# short, with small powers, and without functions.
_LONGEST = 60
_TOKEN = re.compile(
    r"\\(?:frac|sqrt|pi|times|cdot|div|left|right)(?![a-z])|\d{1,12}(?!\d)|(?<![a-z])[a-z](?![a-z])"
    r"|[-+*/^(){}.\s]",
    re.I,
)
_POWER = re.compile(r"(\w|[)}])\s*\^\s*(?:\{\s*-?(\d+|[a-z])\s*\}|-?(\d+|[a-z]))(?!\s*\^)", re.IGNORECASE)


def _is_harmless(text: str) -> bool:
    powers = [(match[1], match[2] or match[3]) for match in _POWER.finditer(text)]
    return (
        len(text) <= _LONGEST
        and not _TOKEN.sub("", text)
        and text.count("^") == len(powers) <= 3
        and text.count("(") <= 4
        and "**" not in text
        and sum(base in ")}" for base, _ in powers) <= 1
        and all(len(power) == 1 or (len(power) == 2 and base.isdigit()) for base, power in powers)
        and any(letter.isalnum() for letter in text)
    )


def same_expression(first: str, second: str) -> bool | None:
    r"""Return whether two expressions are equal, by math-verify; None where either is not a plain expression.

    Example:
        >>> [same_expression(first, "3+2x") for first in ("2x+3", "2x", "a cat")]
        [True, False, None]
    """
    texts = [re.sub(r"^[a-zA-Z]\s*=\s*", "", _plain(text)) for text in (first, second)]
    if not all(_is_harmless(text) and not re.fullmatch(r"\d+\s*-\s*\d+", text) for text in texts):
        return None
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that it has no time limit
    from math_verify import LatexExtractionConfig, parse, verify

    parsed = [
        parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
        for text in texts
    ]
    if not all(parsed):
        return None
    return bool(verify(parsed[0], parsed[1], timeout_seconds=None))


def _plain(text: str) -> str:
    text = unicodedata.normalize("NFKC", clean(text).strip().strip("$").rstrip("."))
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text).strip()
