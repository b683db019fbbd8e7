"""Find the final answer in a response by rules: an option, a number or a few words."""

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
_REPLACEMENTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
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
    r"""Return the part of a response that is marked or stated as its answer, or None.

    These forms are tried in order, and the last match of a form counts: `<answer>...</answer>`, `[[...]]`,
    `\boxed{...}`, and the rest of the sentence after "the answer is", "answer:" or "the correct option is".

    Example:
        >>> find_final_answer("So <answer> 1.5 cm </answer>"), find_final_answer("The answer is (B).")
        ('1.5 cm', '(B)')
    """
    for pattern in _MARKED:
        if matches := pattern.findall(text):
            return matches[-1].strip() or None
    if (boxed := _find_boxed(text)) is not None:
        return boxed.strip() or None
    if stated := list(_STATED.finditer(text)):
        line = text[stated[-1].end() :].split("\n")[0]
        return re.split(r"[.;!?](?=\s|$)|\u3002", line)[0].strip(" *_`") or None
    return None


def _find_boxed(text: str) -> str | None:
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    start += len(_BOXED)
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[start:end]
    return None


def parse_choice(text: str, options: Collection[str]) -> str | None:
    """Return the option that a response chooses by its letter; None if there is no such option or several.

    The final answer is read, or the whole response if it has none. A letter counts if it stands alone: `B`,
    `(B)`, `B.`, `**B**`. Among other words, only capital letters count. `A` and `I` are also words, so they
    count only before punctuation, the end, `or` or `and`, or after `option`.

    Example:
        >>> [parse_choice(text, "AB") for text in ("The answer is (b).", "A cat, so B", "A or B")]
        ['B', 'B', None]
    """
    letters = {option.upper(): option for option in options}
    marked = find_final_answer(text)
    part = text if marked is None else marked
    bare = part.strip().strip(_ENDS + ". ").upper()
    if bare in letters:
        return letters[bare]
    if marked is not None and (first := _BEGINS.match(part)) and first.group(1).upper() in letters:
        return letters[first.group(1).upper()]
    chosen = {letters[mark] for mark in re.findall(r"(?<![\w'])\(([A-Za-z])\)", part) if mark in letters}
    if not chosen:
        chosen = {letters[mark] for mark in _ALONE.findall(part) if mark in letters}
    return chosen.pop() if len(chosen) == 1 else None


def parse_number(text: str) -> float | None:
    """Return the last number of the final answer, or of the whole response if there is no final answer.

    A remark in brackets at the end counts only if there is no number before it. Signs, decimals, thousands
    separated by commas or thin spaces, powers of ten, fractions and mixed numbers are understood, also in
    TeX. The exponent of a unit is not a number. A percent sign does not divide by 100.

    Example:
        >>> parse_number("about 1,250 km^2"), parse_number("The answer is -3/4."), parse_number("none")
        (1250.0, -0.75, None)
    """
    marked = find_final_answer(text)
    part = _remove_tex(text if marked is None else marked)
    numbers = _find_numbers(_REMARK.sub("", part)) or _find_numbers(part)
    return numbers[-1] if numbers else None


def _find_numbers(text: str) -> list[float]:
    return [value for match in _NUMBER.finditer(text) if (value := _parse_value(match.group())) is not None]


def _remove_tex(text: str) -> str:
    """Return a text without TeX and superscripts around its numbers, powers and words."""
    text = _SUPERSCRIPT.sub(lambda match: "^" + unicodedata.normalize("NFKC", match.group()), text)
    text = text.replace("\u2212", "-")
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return _MIXED.sub(_to_improper, _FRACTION.sub(r" \1/\2", text))


def _to_improper(mixed: re.Match[str]) -> str:
    whole, top, bottom = (int(part) for part in mixed.groups())
    return f"{whole * bottom + top}/{bottom}" if top < bottom else mixed.group()


def _parse_value(written: str) -> float | None:
    top, _, bottom = written.replace(",", "").partition("/")
    try:
        value = float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        return None
    return value if math.isfinite(value) else None


def is_near(number: float, true: float, threshold: float = THRESHOLD) -> bool:
    """Return whether the relative error |number - true| / |true| is below a threshold. Only 0 is near 0.

    Args:
        number: the number.
        true: the true number.
        threshold: largest relative error. MIRAGE (arXiv:2505.24238) uses one without its value; ours is 0.05.

    Example:
        >>> is_near(104, 100), is_near(105, 100), is_near(0.01, 0)
        (True, False, False)
    """
    return number == true or abs(number - true) < threshold * abs(true)


def same_text(first: str, second: str) -> bool:
    """Return whether two short answers are equal up to case, punctuation, articles and number format.

    Example:
        >>> same_text("The Red Star.", "red star"), same_text("1,500", "1500.0"), same_text("3 cm", "3 m")
        (True, True, False)
    """
    words, other_words = normalize_words(first), normalize_words(second)
    if words == other_words:
        return bool(words)
    return len(words) == len(other_words) and all(map(_same_word, words, other_words))


def normalize_words(text: str) -> tuple[str, ...]:
    """Return the casefolded words of a short answer, without punctuation around them, articles and dollars."""
    text = unicodedata.normalize("NFKC", _remove_tex(text)).replace("$", " ")
    stripped = (
        word.rstrip(_ENDS + ".").lstrip(_ENDS) for word in text.casefold().split()
    )  # .5 keeps its point
    words = tuple(word for word in stripped if word)
    return tuple(word for word in words if word not in _ARTICLES) or words  # an answer may be the letter A


def _same_word(first: str, second: str) -> bool:
    if first == second:
        return True
    if not (_NUMBER.fullmatch(first) and _NUMBER.fullmatch(second)):
        return False
    number, other = _parse_value(first), _parse_value(second)
    return number is not None and other is not None and math.isclose(number, other, rel_tol=1e-9)


_CONCLUDES = re.compile(
    r"^[\s*_#>-]*(?:therefore|thus|hence|so|in conclusion|conclusion)\b[,:*_\s]*", re.IGNORECASE
)


def find_answer(response: str) -> str | None:
    """Return the final answer of a response, or else its last line without a leading "therefore".

    The result is None if the response has no letter and no digit.

    Example:
        >>> [find_answer(text) for text in ("The answer is 12 cm.", "I add.\\nTherefore: 7.", " ")]
        ['12 cm', '7.', None]
    """
    stated = find_final_answer(response)
    if stated is not None:
        return stated
    lines = [line for line in response.split("\n") if any(letter.isalnum() for letter in line)]
    return _CONCLUDES.sub("", lines[-1]).strip() if lines else None
