"""The final answer in a response, by rules: an option, a number or a few words."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection

THRESHOLD = 0.05  # relative error, ours

_MARKED = (
    re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE),
    re.compile(r"\[\[(.+?)\]\]", re.DOTALL),
)
_BOXED = "\\boxed{"
_STATED = re.compile(
    r"\b(?:answer\b[^\n.:\uff1a]{0,40}?|(?:correct|right|best) (?:option|choice)\s*)(?:\bis\b\s*[:\uff1a]?|[:=\uff1a])\s*",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"(?<![\w.^])(?<!\^[-+])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?<=\d)(?:e[-+]?\d+)?(?:\s*/\s*\d+(?:\.\d+)?)?",
    re.IGNORECASE,
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}")
_SUPERSCRIPT = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_PLAIN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\\(?:text\w{0,2}|math\w{2}|operatorname|mbox)\s*\{([^{}]*)\}", r"\1"),
        (r"\\boxed\s*\{([^{}]*)\}", r"\1"),
        (r"\\([%#&_])", r"\1"),
        (r"(?<=\d)(?:\{,\}|\\[,!]|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))", ""),  # between thousands
        (r"\^\s*\{\s*([-+]?\w+)\s*\}", r"^\1"),
        (r"(?<=\d)\s*(?:\\times|\\cdot|[x*\u00d7\u00b7\u22c5])\s*10\s?\^\s?([-+]?\d+)", r"e\1"),
        (r"(?<![\w.^])10\s?\^\s?([-+]?\d+)", r"1e\1"),
    )
)
_MIXED = re.compile(r"(?<![\w.,/^])(\d{1,3}) +(\d{1,3})/(\d{1,3})(?![\w/.])")
_REMARK = re.compile(r"\s\([^()]*\)[\s.$*]*$")
_BEGINS = re.compile(
    r"[*_(\['\"\u2018\u201c]*([A-Za-z])[*_)\]'\"\u2019\u201d]*\s*(?:[,.;:)\u2013\u2014-]|$|(?:because|since|as)\b)"
)
_ALONE = re.compile(  # between letters of ours: Chinese ones stand right beside
    r"(?<![A-Za-z0-9_'])([B-HJ-Z]|(?<=[Oo]ption )[AI]|[AI](?=\W*(?:[^\w\s]|$|or\b|and\b)))(?![A-Za-z0-9_'])"
)
_ENDS = "\"'`*_,;:!?()[]{}\\\u2018\u2019\u201c\u201d\u00ab\u00bb\u3001\u3002"
_ARTICLES = {"a", "an", "the"}


def find_final_answer(text: str) -> str | None:
    r"""The part of a response that is marked or stated as its answer; None if none is.

    Looked for in this order, the last of each: `<answer>...</answer>`, `[[...]]`, `\boxed{...}`, and what
    follows "the answer is", "answer:" or "the correct option is" to the end of its sentence.

    Example:
        >>> find_final_answer("So <answer> 1.5 cm </answer>"), find_final_answer("The answer is (B).")
        ('1.5 cm', '(B)')
    """
    for pattern in _MARKED:
        if found := pattern.findall(text):
            return found[-1].strip() or None
    if (boxed := _boxed(text)) is not None:
        return boxed.strip() or None
    if stated := list(_STATED.finditer(text)):
        rest = text[stated[-1].end() :].split("\n")[0]
        return re.split(r"[.;!?](?=\s|$)|\u3002", rest)[0].strip(" *_`") or None
    return None


def _boxed(text: str) -> str | None:
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    depth, start = 1, start + len(_BOXED)
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[start:place]
    return None


def parse_choice(text: str, options: Collection[str]) -> str | None:
    """The option that a response chooses, by its letter; None if none or more than one is left.

    Within the final answer, or in the whole response if nothing is marked as one, a letter counts that stands
    alone: `B`, `(B)`, `B.`, `**B**`. Among other words only upper-case ones count, and `A` and `I`, which are
    words, only before punctuation, an end, `or` or `and`, or after `option`.

    Example:
        >>> parse_choice("The answer is (b).", "AB"), parse_choice("A cat, so B", "AB"), parse_choice("A or B", "AB")
        ('B', 'B', None)
    """
    letters = {option.upper(): option for option in options}
    marked = find_final_answer(text)
    part = text if marked is None else marked
    bare = part.strip().strip(_ENDS + ". ").upper()
    if bare in letters:
        return letters[bare]
    if marked is not None and (first := _BEGINS.match(part)) and first.group(1).upper() in letters:
        return letters[first.group(1).upper()]
    found = {letters[mark] for mark in re.findall(r"(?<![\w'])\(([A-Za-z])\)", part) if mark in letters}
    if not found:
        found = {letters[mark] for mark in _ALONE.findall(part) if mark in letters}
    return found.pop() if len(found) == 1 else None


def parse_number(text: str) -> float | None:
    """The number that a response gives: the last one of its final answer, or of the whole response.

    What stands in brackets at the end is a remark, which counts only if there is no number before it.
    Knows signs, decimals, thousands set apart by commas or thin spaces, powers of ten, fractions and mixed
    numbers, in TeX, too. The exponent of a unit is no number; a percent sign does not divide by 100.

    Example:
        >>> parse_number("about 1,250 km^2"), parse_number("The answer is -3/4."), parse_number("none")
        (1250.0, -0.75, None)
    """
    marked = find_final_answer(text)
    part = _untex(text if marked is None else marked)
    numbers = _numbers(_REMARK.sub("", part)) or _numbers(part)
    return numbers[-1] if numbers else None


def _numbers(text: str) -> list[float]:
    return [value for found in _NUMBER.finditer(text) if (value := _value(found.group())) is not None]


def _untex(text: str) -> str:
    """A text whose numbers, powers and words stand as they are typed, not as TeX or superscripts set them."""
    text = _SUPERSCRIPT.sub(lambda found: "^" + unicodedata.normalize("NFKC", found.group()), text)
    text = text.replace("\u2212", "-")
    for pattern, by in _PLAIN:
        text = pattern.sub(by, text)
    return _MIXED.sub(_improper, _FRACTION.sub(r" \1/\2", text))


def _improper(mixed: re.Match[str]) -> str:
    whole, top, bottom = (int(part) for part in mixed.groups())
    return f"{whole * bottom + top}/{bottom}" if top < bottom else mixed.group()


def _value(written: str) -> float | None:
    top, _, bottom = written.replace(",", "").partition("/")
    try:
        value = float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        return None
    return value if math.isfinite(value) else None


def is_near(found: float, true: float, threshold: float = THRESHOLD) -> bool:
    """Whether the relative error |found - true| / |true| is below a threshold; of 0, only 0 itself is near.

    Args:
        threshold: paper 000 names one but not its value; ours is 0.05.

    Example:
        >>> is_near(104, 100), is_near(105, 100), is_near(0.01, 0)
        (True, False, False)
    """
    return found == true or abs(found - true) < threshold * abs(true)


def same_text(found: str, true: str) -> bool:
    """Whether two short answers are the same but for case, punctuation, articles and how a number is written.

    Example:
        >>> same_text("The Red Star.", "red star"), same_text("1,500", "1500.0"), same_text("3 cm", "3 m")
        (True, True, False)
    """
    one, two = normalize_words(found), normalize_words(true)
    if one == two:
        return bool(one)
    return len(one) == len(two) and all(map(_same_word, one, two))


def normalize_words(text: str) -> tuple[str, ...]:
    """The words of a short answer: folded, without punctuation at their ends, articles and TeX's dollars."""
    text = unicodedata.normalize("NFKC", _untex(text)).replace("$", " ")
    words = (word.rstrip(_ENDS + ".").lstrip(_ENDS) for word in text.casefold().split())  # .5 keeps its point
    whole = tuple(word for word in words if word)
    return tuple(word for word in whole if word not in _ARTICLES) or whole  # an answer may be the letter A


def _same_word(one: str, two: str) -> bool:
    if one == two:
        return True
    if not (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(two)):
        return False
    first, second = _value(one), _value(two)
    return first is not None and second is not None and math.isclose(first, second, rel_tol=1e-9)


_CONCLUDES = re.compile(
    r"^[\s*_#>-]*(?:therefore|thus|hence|so|in conclusion|conclusion)\b[,:*_\s]*", re.IGNORECASE
)


def find_answer(response: str) -> str | None:
    """The final answer of a response, by rules; None if it is empty.

    What is marked or stated as the answer; else the last line, without a "therefore" before it.

    Example:
        >>> find_answer("3 x 4 = 12. The answer is 12 cm."), find_answer("I add.\\nTherefore: 7."), find_answer(" ")
        ('12 cm', '7.', None)
    """
    stated = find_final_answer(response)
    if stated is not None:
        return stated
    lines = [line for line in response.split("\n") if any(letter.isalnum() for letter in line)]
    return _CONCLUDES.sub("", lines[-1]).strip() if lines else None
