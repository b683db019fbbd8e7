"""Read numbers, and compare numbers and expressions with math-verify."""

from __future__ import annotations

import logging
import math
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from mmprobe.benchmarks.answers.assertions import LITTLE, choose, stems
from mmprobe.benchmarks.answers.coco import make_plurals
from mmprobe.benchmarks.answers.forms import clean, decide
from mmprobe.benchmarks.answers.words import IMAGE, firm_sentences, is_open

THRESHOLD = 0.05  # relative error, our choice
_NAMES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
WORDS = {name: value for value, name in enumerate(_NAMES.split())}

_NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?<=\d)(?:e[-+]?\d{1,3})?(?:\s+\d+/\d+|\s*/\s*\d+(?:\.\d+)?)?"
)
_UNIT = r"(?:\s*(?:[a-z\u00b5\u03bc\u03a9]+|\u00b0\s?[CFcf]?|%)(?:\s*[/\u00b7]\s*[a-z]+|\^-?\d|(?<=[a-z]) [a-z]+)*)"
_QUANTITY = re.compile(
    rf"(?:(?:x|y|z|n|[a-zA-Z])\s*=\s*)?(?P<money>[$\u20ac\u00a3]?)(?P<number>{_NUMBER})(?P<unit>{_UNIT}?)",
    re.IGNORECASE,
)
_ABOUT = re.compile(
    r"^(?:only|just|exactly|approximately|approx\.?|about|roughly|circa|\u2248|~|\\approx)\s*", re.IGNORECASE
)
_NOT_UNITS = re.compile(
    r"\b(?:to|of|out|by|and|plus|minus|more|less|fewer|in|on|at|is|are|was|or|so|rows?|th|st|nd|rd|from"
    r"|because|since|times|x|ish|dozen|hundred|thousand|[mbtr]+illions?|lakh|crore|am|pm)\b",
    re.IGNORECASE,
)
# Units by their name in pint. Other words after a number are what is counted: a hat is not a hecto-atmosphere.
_UNITS = {
    **{unit: unit for unit in ["mm", "cm", "dm", "m", "km", "ft", "yd", "mg", "g", "kg", "t", "lb", "oz", "ml", "cl", "l", "s", "ms", "min", "h", "kg", "N", "kN", "J", "kJ", "W", "kW", "MW", "V", "A", "mA", "Hz", "kHz", "MHz", "GHz", "Pa", "kPa", "bar", "K"]},
    **dict.fromkeys(("inch", "inches"), "inch"), **dict.fromkeys(("foot", "feet"), "foot"), **dict.fromkeys(("lbs", "pound", "pounds"), "pound"),
    **{form: name for name in ("meter", "centimeter", "millimeter", "kilometer", "liter", "milliliter", "gram", "kilogram", "milligram",
                               "yard", "mile", "ounce", "second", "minute", "hour", "day", "week", "month", "year", "watt", "volt", "newton", "joule")
       for form in (name, name + "s", name.replace("ter", "tre"), name.replace("ter", "tre") + "s")},
    **dict.fromkeys(("hr", "hrs", "hours"), "hour"), **dict.fromkeys(("sec", "secs"), "second"), "mins": "minute",
    **dict.fromkeys(("%", "percent", "per cent"), "percent"), **dict.fromkeys(("\u00b0", "degree", "degrees"), "degree"),
    **dict.fromkeys(("\u00b0c", "degrees celsius", "degree celsius", "celsius", "degrees c"), "degC"),
    **dict.fromkeys(("\u00b0f", "degrees fahrenheit", "degree fahrenheit", "fahrenheit", "degrees f"), "degF"),
    "mph": "mile/hour", "kph": "km/hour", "tons": "metric_ton", "tonnes": "metric_ton",
}  # fmt: skip
_MONEY = {**dict.fromkeys(("$", "dollar", "dollars", "usd"), "$"), **dict.fromkeys(("\u20ac", "euro", "euros", "eur"), "\u20ac"), "\u00a3": "\u00a3"}  # fmt: skip
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
        (r"(\d?)\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}", r"\1 \2/\3"),
    )
)


def remove_tex(text: str) -> str:
    """Return a text without the TeX around its numbers, powers and words."""
    for pattern, replacement in _TEX:
        text = pattern.sub(replacement, text)
    text = text.strip()
    return text.strip("$").strip() if text.startswith("$") and text.endswith("$") else text


class Quantity(NamedTuple):
    """A number and what follows it: a unit, or the words of what is counted; empty without either."""

    value: float
    unit: str = ""


def read_number(response: str, question: str = "", only_asked: bool = False) -> float | None:
    """Return the number that a response gives; None for a refusal, and where it gives none or several.

    It is a declared answer (`forms.decide`), or the number of what the question asks for, or the only one, or one that
    the response concludes with ("so", "a total of"). A percent sign does not divide by 100.

    Example:
        >>> [read_number(text) for text in ("about 1,250 km^2", "The answer is -3/4.", "24 or 60", "a dozen apples")]
        [1250.0, -0.75, None, 12.0]
        >>> read_number("There are 4 chairs. There are 2 windows behind them.", "How many chairs are in the room?")
        4.0
    """
    quantity = read_quantity(response, question, only_asked)
    return None if quantity is None else quantity.value


_READ = 4_000  # characters, from the end, in which a number is looked for; our choice


def read_quantity(response: str, question: str = "", only_asked: bool = False) -> Quantity | None:
    """Return the number that a response gives, with its unit, as `read_number`.

    Example:
        >>> read_quantity("The tower is 1.5 km from here.")
        Quantity(value=1.5, unit='km')
    """
    asked = _ASKED.search(question)
    noun = (asked[1] or asked[2]).split()[-1].casefold() if asked else ""

    def read(text: str) -> Quantity | None:
        bare = re.match(r"[\d.]+(?=,\s+[^\W\d])", text)  # 2008, when it was 12
        alone = None if text.endswith("?") else parse_quantity(bare[0] if bare else text)
        if alone and (not only_asked or not alone.unit or _counts(alone.unit, noun)):
            return alone
        return _find_stated(text, noun, only_asked, question)

    return decide(response, read).value


_HALF_MORE = re.compile(r"\b(an?|one|\d+|two|three|four|five) ([a-z]{3,}) and a half\b", re.IGNORECASE)
_COMPOUND = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]+),? (?:and )?(\d+(?:\.\d+)?) ?([A-Za-z]+)\b")


def _join_units(text: str) -> str:
    """Return a text in which a quantity in two units of one kind is one: `1 h 30 min` is `1.5 h`."""

    def join(match: re.Match[str]) -> str:
        large, small = Quantity(float(match[1]), match[2]), Quantity(float(match[3]), match[4])
        if not (_unit(large.unit) and _unit(small.unit)) or _unit(large.unit) == _unit(small.unit):
            return match.group()
        more = convert(small, large)
        return match.group() if more is None else f"{large.value + more:.10g} {large.unit}"

    return _COMPOUND.sub(join, text)


def _raise(text: str) -> str:
    """Return a text with powers as `^2`."""
    return re.sub("\u00b2", "^2", re.sub("\u00b3", "^3", text))


_SCALE_WORDS = {1e3: "k thousand", 1e6: "m million", 1e9: "b bn billion", 1e12: "t trillion"}
_SCALES = {word: scale for scale, words in _SCALE_WORDS.items() for word in words.split()}
_SCALED = re.compile(
    r"(?<![\w.])(?:(?P<money>[$\u20ac\u00a3])\s?(?P<amount>\d[\d,]*(?:\.\d+)?)\s?(?P<short>k|m|bn|b|t)\b|(?P<number>\d[\d,]*(?:\.\d+)?)[ -]?"
    r"(?P<long>(?:thousand|million|billion|trillion))\b)",
    re.IGNORECASE,
)


def _scale(text: str) -> str:
    """Return a text in which `3.4 million` and `$3.4M` are numbers."""

    def write(match: re.Match[str]) -> str:
        value = (
            float((match["amount"] or match["number"]).replace(",", ""))
            * _SCALES[(match["short"] or match["long"]).lower()]
        )
        return f"{match['money'] or ''}{value:.12g}" if value < 1e12 else match.group()

    return _SCALED.sub(write, text)


def parse_quantity(text: str) -> Quantity | None:
    """Return the number of a text and its unit; None if the text contains anything else.

    Example:
        >>> parse_quantity("$12.50"), parse_quantity("90\u00b0"), parse_quantity("1 1/2 cups"), parse_quantity("3 to 5")
        (Quantity(value=12.5, unit='$'), Quantity(value=90.0, unit='\u00b0'), Quantity(value=1.5, unit='cups'), None)
    """
    text = _ABOUT.sub("", remove_tex(_scale(_raise(text)))).rstrip(".")
    match = _QUANTITY.fullmatch(text) or _QUANTITY.fullmatch(_join_units(write_digits(text)).strip())
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
    return None if value is None else Quantity(value, unit)


def parse_value(written: str) -> float | None:
    """Return the value of a number, a fraction or a mixed number; None where it is not finite."""
    whole, _, part = (
        written.strip().rpartition(" ") if re.search(r"\d\s+\d+/", written) else ("", "", written)
    )
    top, _, bottom = part.replace(",", "").replace(" ", "").partition("/")
    try:
        value = float(top) / float(bottom or 1)
        if whole:
            value = float(whole.replace(",", "")) + math.copysign(value, float(whole.replace(",", "")))
    except (ValueError, ZeroDivisionError):
        return None
    return value if math.isfinite(value) else None


_PARTS = {"half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10}  # fmt: skip
_AND_A_PART = re.compile(rf"\b(\d+|{'|'.join(WORDS)}) and (?:an? |one )(half|quarter|third)\b", re.IGNORECASE)
_PART = re.compile(
    rf"(?<!the )(?<![\d/])\b(?:(an?|{'|'.join(_NAMES.split()[1:10])})[ -])({'|'.join(_PARTS)})s?\b(?! (?:{IMAGE}|box|region|row|one))",
    re.IGNORECASE,
)
_DOZEN = re.compile(r"\b(?:(an?|\d+|two|three|four) )?dozens?\b", re.IGNORECASE)
_GROUPS = {"pair": 2, "couple": 2, "trio": 3}  # words of a number that text2num does not know
_SEVERAL = re.compile(rf"\b(?:an? )?({'|'.join(_GROUPS)}) of\b", re.IGNORECASE)
_OF_A = re.compile(r"(?<=\d/\d) of an? (?=[a-z])")
_MONEY_PARTS = re.compile(r"\b(\d+) dollars?,? and (\d{1,2}) cents?\b", re.IGNORECASE)
_NOBODY = re.compile(r"\b(?:nobody|no one|none(?! of the \d)|(?:\w+n't|not) any(?=\W*$))\b", re.IGNORECASE)
_ONE = re.compile(r"\b(?:an? single|one|single)\b(?!-)", re.IGNORECASE)


def write_digits(text: str) -> str:
    """Return a text with its English numbers as digits.

    Example:
        >>> write_digits("Two and a half eggs, one fifth of them brown")
        '2 1/2 eggs, 1/5 of them brown'
        >>> write_digits("a dozen eggs, twenty-three hens and a single cock")
        '12 eggs, 23 hens and 1 cock'
    """
    from text_to_num import alpha2digit

    def part(match: re.Match[str]) -> str:
        return f"{WORDS.get(match[1].lower(), 1)}/{_PARTS[match[2].lower()]}"

    def mixed(match: re.Match[str]) -> str:
        return f"{WORDS.get(match[1].lower(), match[1])} 1/{_PARTS[match[2].lower()]}"

    def dozen(match: re.Match[str]) -> str:
        count = (match[1] or "a").lower()
        return (
            match[0] if match[1] is None else str(12 * int(WORDS.get(count, count if count.isdigit() else 1)))
        )

    if not re.search(r"[^\W\d_]{3}", text):
        return text
    text = text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair
    text = _HALF_MORE.sub(lambda match: f"{match[1]} and a half {match[2]}", text)
    text = re.sub(r"\ba (?=and a half\b)|\ban (?=and a half\b)", "1 ", text, flags=re.IGNORECASE)
    text = re.sub(r"\bhalf (?:an? )?dozen\b", "6", text, flags=re.IGNORECASE)
    text = re.sub(r"\bhalf an? (?=[a-z])", "0.5 ", text, flags=re.IGNORECASE)
    text = _SEVERAL.sub(lambda match: str(_GROUPS[match[1].lower()]), text)
    text = _DOZEN.sub(dozen, _OF_A.sub(" ", _PART.sub(part, _AND_A_PART.sub(mixed, text))))
    text = "\n".join(
        alpha2digit(line, "en", threshold=1.0) if line.strip() else line for line in text.split("\n")
    )
    text = _MONEY_PARTS.sub(lambda match: f"${match[1]}.{int(match[2]):02}", text)
    text = re.sub(r"(?<!\d )\b(?:minus|negative) (?=\d)", "-", text, flags=re.IGNORECASE)
    return re.sub(r"\bzero\b", "0", _ONE.sub("1", text), flags=re.IGNORECASE)


# A number in a sentence; not one of a list's item, a step, a picture, a time, a code or an ordinal.
_STATED = re.compile(
    rf"(?<![A-Za-z0-9_.,/:\u2013-])(?P<money>[$\u20ac\u00a3]?)(?P<number>{_NUMBER})(?![:/,.\u2013-]?\d)(?!(?:st|nd|rd|th)\b)"
    rf"(?P<unit>\s?(?:(?:square|cubic) )?(?:{'|'.join(re.escape(unit) for unit in sorted([*_UNITS, *_MONEY], key=len, reverse=True) if unit.strip('$'))})(?![A-Za-z])"
    r"(?:/[a-z]+| per [a-z]+|\^?[23\u00b2\u00b3](?!\d))?)?(?![A-Za-z])",
    re.IGNORECASE,
)
_LABELS = re.compile(
    rf"^[ \t]*(?:[-*+] )?\(?\d{{1,2}}[.)](?=\s)|\b(?:{IMAGE}s?|steps?|options?|box(?:es)?|regions?|rows?|question|page|part|table|chapter|error) #?\d+:?(?=\W|$)",
    re.IGNORECASE | re.MULTILINE,
)
_PARTITIVE = re.compile(
    r"(?:(?<=\d) of|\bout of|^of) (?:the |these |those |all )*\d+(?: [a-z]+)?,?", re.IGNORECASE | re.MULTILINE
)
_BOUND = re.compile(
    r"\b(?:at least|at most|more than|less than|fewer than|over|under|up to|either|between|from|minimum of)(?: \w+)? ?$"
    r"|(?:\bnot|\bno|n't)(?: \w+){0,2} ?$|[<>\u2264\u2265]\s*$",
    re.IGNORECASE,
)
_RANGE_AFTER = re.compile(r"\s*(?:or|to|-|\u2013|/)\s*(?:more\b|so\b|\d)|\+(?!\s*\d)", re.IGNORECASE)
_RANGE_BEFORE = re.compile(
    r"\d(?: \w+)?\s*(?:\bor\b|\bto\b|-|\u2013|/)\s*$|\b(?:between|from) \d+(?: \w+)? (?:and|to) $",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"(?:=|\u2248|\b(?:so|thus|hence|therefore|total(?:s|ing)?|altogether|in all|makes?(?! (?:up|out))|leav(?:es|ing)|giving|gives|equals?|sum|overall|conclusion|but (?:only|just))\b)[^.!?\n]*$",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"\bhow (?:many|much)\s+(.+?)(?=\s+(?:are|is|do|does|did|can|could|have|has|had|were|was|will|would|in|on|at|there|of)\b|[?.,]|$)"
    r"|\b(?:number|count) of (?:the )?(.+?)(?=\s+(?:are|is|do|does|can|have|has|in|on|at|that|you)\b|[?.,]|$)",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(
    r"=\s*[-\d.]+[^.!?\n=]*(?:,|;|\band\b)(?! (?:so|hence|thus|therefore)\b)[^.!?\n]*=\s*[-\d.]+\W*$"
)  # x = 3, y = 4
_FROM_TO = re.compile(r"\bfrom ?$|\bfrom \d+(?: \w+)? to $", re.IGNORECASE)
_IN_YEAR = re.compile(r"\b(?:in|since|by|of) $", re.IGNORECASE)
_THERE_ARE = re.compile(r"\bthere (?:are|is|were|was) (?:only |just |exactly )?$", re.IGNORECASE)
_IN_TOTAL = re.compile(r"[^.!?\n]{0,30}\b(?:in total|in all|altogether)\b", re.IGNORECASE)
_ENDS_SENTENCE = re.compile(r"\s*(?:altogether|in total|in all|overall)?\s*(?:[.!?\n]|$)", re.IGNORECASE)


class _Stated(NamedTuple):
    """A number in a sentence; NaN for one of a range or a bound. Whether it counts what is asked for, and concludes."""

    quantity: Quantity
    counts: bool
    concludes: bool
    is_last: bool = False  # in its sentence
    span: tuple[int, int] = (0, 0)


def _find_stated(text: str, noun: str, only_asked: bool, question: str) -> Quantity | None:
    """Return the number that sentences give: of what is asked for, the only one, one of a conclusion, or of the clause that is
    about the question's things."""
    plain = _plain_numbers(text)
    if noun:
        plain = _NOBODY.sub(f"0 {noun}", plain)
        no = rf"(?:\bno|\b(?:\w+n't|not) (?:(?:\w+ ){{0,2}}any|(?:a single|1))) ((?:[a-z]+ ){{0,2}}?{re.escape(noun.removesuffix('s'))}s?\b)"
        plain = re.sub(no, r"0 \1", plain, flags=re.IGNORECASE)
    if _ASSIGNED.search(plain):
        return None
    found, years = _list_stated(plain, noun)
    n_counts = sum(each.counts for each in found)
    if (
        noun
        and len({each.quantity.value for each in found}) > 1
        and not any(each.concludes and each.is_last for each in found)
    ):
        beside = _find_beside(
            plain, question.casefold().rpartition(noun)[2], noun
        )  # four are black and two are red
        if beside is not None:
            return beside
    if noun and (only_asked or n_counts):
        found = [each for each in found if each.counts or (each.concludes and each.is_last)]
    if all(1900 <= each.quantity.value <= 2100 for each in found):
        found += [_Stated(year, False, False) for year in years]
    quantities = [each.quantity for each in found]
    if not all(same_quantity(each, quantities[0]) for each in quantities):
        if concluded := [each.quantity for each in found if each.concludes]:
            return None if math.isnan(concluded[-1].value) else concluded[-1]

        def find(clause: str) -> Iterator[tuple[Quantity, int, int]]:
            for each in _list_stated(clause, noun)[0]:
                if each.counts or not (noun and n_counts):
                    yield each.quantity, *each.span

        chosen = None
        for about in (question.replace(noun, ""), question):  # of five zebras two drink
            chosen = chosen or choose(plain, find, about) or _find_beside(plain, about)
        return None if chosen is None or math.isnan(chosen.value) else chosen
    return quantities[-1] if quantities and not math.isnan(quantities[-1].value) else None


def _find_beside(plain: str, question: str, noun: str = "") -> Quantity | None:
    """Return the number in the part of a text that shares most words with the question, if that part has one number.

    Asked for the price of tea, it is 2.75 in `tea is 2.75 dollars and coffee 3.50`; None where two parts share as many words.
    """
    asked = set(stems(question)) - LITTLE | set(re.findall(r"\b[A-Z]\b(?<!^.)", question))  # option A
    parts = [
        part
        for part in re.split(r",? (?:and|to|but|while|although|where) |, |[.;:]\s|\n", plain)
        if any(map(str.isdigit, part))
    ]
    shared = [
        sum(1 + word.isdigit() for word in asked & {*stems(part), *re.findall(r"\b[A-Z]\b", part)})
        for part in parts
    ]
    if len(parts) < 2 or shared.count(max(shared)) > 1:
        return None
    part = parts[shared.index(max(shared))]
    found, _ = _list_stated(part, noun)
    counted = stems(part[found[0].span[1] :])[:1] if found and noun and not found[0].counts else []
    return found[0].quantity if len(found) == 1 and LITTLE.issuperset(counted) else None


def stated_quantities(text: str) -> list[Quantity | None]:
    """Return each number that sentences give; None for one of a range or a bound.

    Example:
        >>> stated_quantities("3 of one, or at least 4 m")
        [Quantity(value=3.0, unit=''), None]
    """
    found, years = _list_stated(_plain_numbers(text), "")
    return [None if math.isnan(each.quantity.value) else each.quantity for each in found] + list(years)


_IN_OTHER_UNITS = re.compile(
    r"(\d ?[a-z]+) \((?:about |approximately |~)?[\d.,]+ ?[a-z]+\)", re.IGNORECASE
)  # 324 m (1,063 ft)


def _plain_numbers(text: str) -> str:
    """Return the sentences without a doubt of a text's end, with digits, and without numbers of labels and parts."""
    text = _IN_OTHER_UNITS.sub(r"\1", firm_sentences(_scale(text[-_READ:])))
    text = re.sub(r"\$([^$\n]*[\\^=][^$\n]*)\$", r"\1", text)  # a formula, no dollars
    text = _join_units(write_digits(re.sub(r"(?<=\d) {2,}", " ", remove_tex(text))))
    return _PARTITIVE.sub(" ", _LABELS.sub(" ", text))


def _list_stated(plain: str, noun: str) -> tuple[list[_Stated], list[Quantity]]:
    """Return the numbers of a text without labels, and the years that it names in passing."""
    found, years = [], []
    for match in _STATED.finditer(plain):
        value, unit = parse_value(match["number"]), (match["money"] or match["unit"] or "").strip()
        before, after = (
            plain[max(0, match.start() - 160) : match.start()],
            re.sub(r"^ ?\(\d+\)", "", plain[match.end() :]),
        )
        named = re.search(
            rf"\b(?:number|count|total)\b[^.!?\n\d]*\b{re.escape(noun)}\b[^.!?\n\d]{{0,30}}(?:\bis|\bare|:|=)\s*$|(?:^|\n)\W*{re.escape(noun)}\W*[:=]\W*$",
            before[-80:],
            re.IGNORECASE,
        )
        alone = _THERE_ARE.search(before) and re.match(r"\s*(?:[.,;!\n]|$)", after)  # in the boat there are 2
        counts = bool(noun) and bool(_counts(after, noun) or named or alone)
        if (
            value is None
            or _BOUND.search(before)
            or _RANGE_BEFORE.search(before)
            or _RANGE_AFTER.match(after)
        ):
            if not _FROM_TO.search(before):
                found.append(_Stated(Quantity(math.nan), counts, False, False, match.span()))
        elif _IN_YEAR.search(before) and 1900 <= value <= 2100 and not unit:
            years.append(Quantity(value))
        else:
            concludes = bool(_CONCLUDES.search(before) or _IN_TOTAL.match(after))
            is_last = _ENDS_SENTENCE.match(after) is not None
            found.append(_Stated(Quantity(value, unit), counts, concludes, is_last, match.span()))
    return found, years


def _counts(after: str, noun: str) -> bool:
    """Return whether the words after a number are those of what is asked for."""
    if re.match(r"\s*of (?:them|these|those|which|whom)\b", after):
        return True
    words = re.findall(r"[a-z'-]+|[^\sa-z'-]", after.casefold())[:4]
    own = noun.casefold()
    forms = {own, *make_plurals(own), own.removesuffix("s")}
    for word in words:
        if not word[0].isalpha() or word in ("with", "of", "in", "on", "from", "and", "or"):
            return False
        if word in forms or own in make_plurals(word):
            return True
    return False


def same_quantity(said: Quantity, true: Quantity, question: str = "") -> bool:
    """Return whether two quantities are equal, with their units converted.

    A number without a unit is in the unit of the other, or a share of 1 for percent; where the truth has none, the unit
    that the question names counts.

    Example:
        >>> true = Quantity(1500, "m")
        >>> [same_quantity(Quantity(*said), true) for said in ((1.5, "km"), (1500, "km"), (1500, ""))]
        [True, False, True]
        >>> same_quantity(Quantity(200, "cm"), Quantity(2), "How long is it in metres?")
        True
    """
    value = convert(said, true, question)
    named = re.search(r"\bin (thousand|million|billion|trillion)s?\b", question, re.IGNORECASE)
    scales = (1, _SCALES[named[1].lower()]) if named else (1,)  # of a table in millions
    return value is not None and any(
        math.isclose(value, true.value * scale, rel_tol=1e-6, abs_tol=1e-9) for scale in scales
    )


def convert(said: Quantity, true: Quantity, question: str = "") -> float | None:
    """Return a quantity's value in the unit of the truth; None where it has another kind of unit.

    Example:
        >>> convert(Quantity(77, "\u00b0F"), Quantity(25, "\u00b0C")), convert(Quantity(2, "kg"), Quantity(2, "m"))
        (25.0, None)
    """
    own, target = _unit(said.unit), _unit(true.unit)
    if (
        not target
        and own not in ("", "percent")
        and (named := re.search(r"\bin ([a-z]+)\b", question, re.IGNORECASE))
    ):
        target = _unit(named[1])
    if {own, target} == {"", "percent"}:
        shown = said.value / 100 if own else said.value * 100  # 0.2 of 20 %
        return shown if math.isclose(shown, true.value, rel_tol=1e-6) else said.value
    if (
        not own
        or not target
        or own == target
        or "degree" in (own, target)
        and {own, target} & {"degC", "degF"}
    ):
        return said.value
    registry = _registry()
    try:
        value = registry.Quantity(said.value, own).to(target).magnitude
    except Exception:  # pint's own errors have no common base but this
        return None
    return float(f"{value:.10g}")


def _unit(written: str) -> str:
    """Return pint's name of a unit, the sign of a currency, or nothing for other words."""
    words = " ".join(_raise(written).split())
    if words.casefold() in _MONEY:
        return _MONEY[words.casefold()]
    parts = re.split(r"(/| per |\^[23])", words)
    names = [part if part.startswith(("/", "^")) else "/" if part == " per " else _UNITS.get(part, _UNITS.get(part.casefold(), "")) for part in parts if part]  # fmt: skip
    return "".join(names).replace("^", "**") if all(names) else ""


@cache
def _registry() -> Any:
    import pint

    return pint.UnitRegistry(autoconvert_offset_to_baseunit=True)


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
    decimals = re.search(r"\d\.(\d{2,})$", texts[0])
    if decimals and (value := parsed[1][0].evalf()).is_Float:  # 10.47 for 6 + 2 sqrt(5)
        return abs(float(value) - float(parsed[0][0])) <= 0.51 * 10 ** -len(decimals[1])
    return bool(verify(parsed[0], parsed[1], timeout_seconds=None))


def _plain(text: str) -> str:
    text = _ABOUT.sub("", unicodedata.normalize("NFKC", clean(text).strip().strip("$").rstrip(".")))
    text = re.sub(
        r"(?:\u221a|(?<![\\a-z])sqrt)\s*(\d+|\([^()]*\))", r"\\sqrt{\1}", text.replace("\u03c0", "\\pi ")
    )
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text).strip()
