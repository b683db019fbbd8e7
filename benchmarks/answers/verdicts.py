"""Judge whether an answer is the true one, by what the truth is: a quantity, mathematics, a colour, a place, or words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from mmprobe.benchmarks.answers.assertions import (
    LITTLE,
    NEARBY,
    choose,
    find_words,
    is_aside,
    is_denied,
    offers_others,
    split_clauses,
    stems,
)
from mmprobe.benchmarks.answers.coco import find_category
from mmprobe.benchmarks.answers.colours import compare_colours, name_hue, read_colours
from mmprobe.benchmarks.answers.forms import Verdict, clean, find_answer
from mmprobe.benchmarks.answers.numbers import (
    parse_quantity,
    read_quantity,
    remove_tex,
    same_expression,
    same_quantity,
    stated_quantities,
    write_digits,
)
from mmprobe.benchmarks.answers.places import find_places, parse_place
from mmprobe.benchmarks.answers.refusals import is_refusal
from mmprobe.benchmarks.answers.texts import COLOUR, normalize_words, same_text
from mmprobe.benchmarks.answers.words import BESIDE, IMAGE, corrected, firm_sentences, has_denial

# A truth that is compared as mathematics: TeX, a power, a root, an equation, or letters with an operator.
_MATHEMATICS = re.compile(
    r"\\[a-z]|\^|=|[\u221a\u03c0]|\bsqrt\b|\d\s*[a-z]\b(?!.*[A-Za-z]{2})|\b[a-z]\s*[-+*/]\s*\d|\d\s*[-+*]\s*[a-z]\b|^[a-z]\s*[-+*/]\s*[a-z]$|^\(\s*-?[\d.]+\s*,"
)
_AS_TEXT = re.compile(
    r"^when\b|\b(?:date|day|month|time|clock|code|plate|label|seat|room|flight|score|ratio|address|phone|say|says|read|reads|written|text|word)\b",
    re.IGNORECASE,
)  # of a question: its answer is what is written, so 12/5 is not 2.4


# "The author is not visible on the cover.", "I don't see a name."
_UNSEEN = re.compile(
    r"(?:\bcannot|\bnot|n't) (?:clearly |fully )?(?:visible|legible|readable|mentioned|shown|specified|provided|given|identified|discernible|see)\b",
    re.IGNORECASE,
)


def judge_text(response: str, *true: str, question: str = "") -> Verdict:
    """Return whether a response gives one of the true answers.

    A quantity is right if it is equal, also in another unit; mathematics if math-verify says so; a colour or a place if
    it is the one that the answer names; other words if the answer is or contains them and does not deny them. What is
    left is wrong; other words than the true ones are `other`: a judge may know that a couch is a sofa. `unread` is what
    holds no answer, or several.

    Example:
        >>> [judge_text(text, "2x+3") for text in ("Answer: 3+2x", "The answer is 5.", "What?")]
        ['right', 'wrong', 'unread']
        >>> [judge_text(text, "cat") for text in ("A black cat is on the sofa.", "It is not a cat.", "A cat or a dog.")]
        ['right', 'other', 'unread']
        >>> judge_text("The banana is in the top right.", "top center", question="Where is the banana?")
        'wrong'
    """
    response = corrected(response)
    declared = find_answer(response)
    text = clean(response) if declared.text is None else declared.text
    if any(_is_same(text, truth, question) for truth in true) and not text.endswith("?"):
        return "right"
    if declared.refused:
        own = [
            _squash(truth) for truth in true if is_refusal(truth) or has_denial(truth) and " " in truth
        ]  # "Not legible"
        return "right" if any(truth in _squash(response) for truth in own) else "refused"
    if declared.text is None or text.endswith("?") or not any(map(str.isalnum, text)):
        return "unread"
    firm = firm_sentences(text) or " ".join(part.text for part in split_clauses(text) if not part.is_open)
    verdicts = [_judge(firm, truth, question) for truth in true] if firm else []
    for verdict in ("right", "unread", "other", "wrong"):
        if verdict in verdicts and not (verdict == "other" and _UNSEEN.search(firm)):
            return verdict  # type: ignore[return-value]
    return "unread"


def is_mathematics(truth: str) -> bool:
    """Return whether a true answer is compared as mathematics and not as text.

    Example:
        >>> [is_mathematics(truth) for truth in ("2x+3", r"\\sqrt{3}", "(3, 4)", "B12", "A-1", "3-1")]
        [True, True, True, False, False, False]
    """
    return bool(_MATHEMATICS.search(truth)) and (parse_quantity(truth) is None or "frac" in truth)


def _is_same(said: str, truth: str, question: str) -> bool:
    if _squash(said) == _squash(truth) != "":
        return True
    if _AS_TEXT.search(question) or (_is_code(truth) and not is_mathematics(truth)):
        return normalize_words(said) == normalize_words(truth) != ()
    return same_text(said, truth)


def _squash(text: str) -> str:
    """Return a text without case, spaces and punctuation at its ends: `AB 123` is `ab123`."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text)).strip(".,;:!\"'*").casefold()


def _is_code(truth: str) -> bool:
    """Return whether a text has letters and digits in one word (B12), or digits with other signs between (3-1, 10:30)."""
    return bool(
        re.fullmatch(r"(?=.*\d)(?:[A-Za-z]+[- ]?\d[\w-]*|\d+[A-Z]\w*|\d+(?:[-:]\d+)+)", truth.strip())
    )


def _judge(text: str, truth: str, question: str) -> Verdict:
    if is_mathematics(truth):
        return _judge_mathematics(text, truth)
    quantity = None if _is_code(truth) else parse_quantity(truth)
    if quantity and quantity.unit in ("%", "percent"):
        text = re.sub(r"\b(\d+) (?:in|out of) (\d+)\b", r"\1/\2", write_digits(text))
    if quantity and not (_AS_TEXT.search(question) and "/" in truth):
        said = read_quantity(text, question)
        if said is not None:
            return "right" if same_quantity(said, quantity, question) else "wrong"
        several = stated_quantities(text)
        is_none = several and not any(
            each is None or same_quantity(each, quantity, question) for each in several
        )
        return "wrong" if is_none else "unread"
    if name_hue(truth.strip(" .").removesuffix(" color")) is not None:
        return _judge_colour(text, truth.strip(" ."), question)
    relative = _RELATIVE.fullmatch(truth.strip(" ."))
    if parse_place(truth) is not None or relative:
        other = relative and re.search(
            rf"\bof (?:the |an? )?(?!(?:the|an?|{IMAGE}|{re.escape(relative[2])})\b)\w+", text, re.IGNORECASE
        )
        return (
            "other"
            if other
            else _judge_place(text, relative[1] if relative else truth, relative is not None, question)
        )
    return _judge_words(text, truth, question)


def _judge_mathematics(text: str, truth: str) -> Verdict:
    """Judge the whole text, or what its last sentence says that it is."""
    last = re.split(r"(?<=[.!])\s|\n", text.strip())[-1].rstrip(".")
    last = re.split(r",? \b(?:so|hence|thus|therefore|giving|gives)\b", last)[-1]
    ends = [text, re.split(r"\b(?:is|are|equals)\b|:", last)[-1], *re.findall(r"\$([^$]+)\$", last)]
    ends.append(last.rpartition("=")[2] if "=" not in truth else last)
    bare = [re.sub(r"(?:\s+[a-z]{2,})+$", "", part) for part in ends]  # without words of units
    said = [_same_mathematics(part.strip(" $."), truth) for part in bare]
    verdicts = [same for same in said if same is not None]
    return "right" if True in verdicts else "wrong" if verdicts else _judge_words(text, truth)


def _same_mathematics(said: str, truth: str) -> bool | None:
    pairs = [_split_tuple(side) for side in (said, truth)]
    if pairs[1] is None:
        return same_expression(said, truth)
    if pairs[0] is None or len(pairs[0]) != len(pairs[1]):
        return None
    same = [same_expression(one, other) for one, other in zip(*pairs, strict=True)]
    return None if None in same else all(same)


def _split_tuple(text: str) -> list[str] | None:
    inner = re.fullmatch(
        r"(?:[A-Za-z]\s*=?\s*)?\(([^()]+)\)", remove_tex(re.sub(r"\\(?:left|right)", "", text)).strip()
    )
    return [part.strip() for part in inner[1].split(",")] if inner and "," in inner[1] else None


def _judge_colour(text: str, truth: str, question: str) -> Verdict:
    head = re.split(r"\bwith\b", text, maxsplit=1)[0]
    if head != text and re.search(rf"\b{COLOUR}", head, re.IGNORECASE):
        text = head  # yellow with black dots
    asked = _ASKED_COLOUR.search(question)
    noun = asked[1].split()[-1].lower() if asked else ""
    said = {
        claim.colour
        for claim in read_colours(text, question, [noun] if noun else [])
        if claim.name == (find_category(noun) or noun)
    }
    if not said:
        named = [match for match in re.finditer(rf"\b{COLOUR}", text, re.IGNORECASE)]
        chosen = choose(
            text,
            lambda clause: (
                (m.group().lower(), *m.span()) for m in re.finditer(rf"\b{COLOUR}", clause, re.I)
            ),
            question,
        )
        if named and chosen is None and all(is_denied(text, *match.span()) for match in named):
            return "wrong"
        said = {chosen} if chosen else set()
    same = {compare_colours(colour, truth) for colour in said}
    (verdict,) = same if len(same) == 1 and len({name_hue(colour) for colour in said}) == 1 else (None,)
    return "unread" if verdict is None else "right" if verdict else "wrong"


_ASKED_COLOUR = re.compile(
    r"colou?rs?\b(?: (?:is|are|was|were|does|do|did|of|has))*(?: (?:the|this|that|his|her|its|an?))? ([\w' -]+?)"
    r"(?= (?:on|in|at|to|near|that|which|is|are|does|have|has|wearing|worn|with|of|behind|under|beside|next)\b|\W*$|\?)",
    re.IGNORECASE,
)
_RELATIVE = re.compile(
    r"(?:(?:to|on|at|in) the )?(left|right)(?: side)? of (?:the |an? )?(\w+)", re.IGNORECASE
)
_OF_A_THING = re.compile(
    rf"(?<!top)(?<!bottom)(?<!upper)(?<!lower),? (?:and )?(?:to the )?(?:left|right)(?: side)? of (?:the|an?) (?!{IMAGE})\w+",
    re.IGNORECASE,
)  # left of the bell
_OPPOSITE = (
    frozenset(("left", "right")),
    frozenset(("top", "bottom")),
    frozenset(("foreground", "background")),
)


def _judge_place(text: str, truth: str, relative: bool, question: str) -> Verdict:
    true, asked = parse_place(truth), set(stems(question))
    own = _OF_A_THING.sub(lambda match: match.group() if stems(match.group())[-1] in asked else "", text)
    said = find_places(text if relative else own)
    assert true is not None
    if not said:
        return "other"
    if len(said) > 1 and BESIDE.search(text):
        return "unread"
    first = (
        choose(own, lambda clause: ((place, 0, 0) for place in find_places(clause)[:1]), question) or said[0]
    )
    union = frozenset().union(*said)
    if len(set(said)) > 1 and true not in said and true <= union:
        opposed = any(pair <= union for pair in _OPPOSITE)
        return "unread" if opposed or true != union else "right"
    whole = "center" in true
    return "right" if (first == true if whole else true <= first) else "wrong"


_JOINT = r"(?:\)?\s?(?:[-\u2010-\u2014:.]|to)\s?|\)?\s)"  # 3-1, 3 : 1, 3 to 1
_MONTH = r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DATES = (
    re.compile(rf"\b{_MONTH} (\d{{1,2}})(?:st|nd|rd|th)?\b,?(?: (\d{{4}})\b)?", re.IGNORECASE),
    re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH}\b,?(?: (\d{{4}})\b)?", re.IGNORECASE),
)


def _write_dates(text: str) -> str:
    """Return a text in which dates with the name of a month have one order: day, month in three letters, year."""
    text = _DATES[0].sub(lambda m: " ".join(filter(None, (m[2], m[1][:3], m[3]))), text)
    return _DATES[1].sub(lambda m: " ".join(filter(None, (m[1], m[2][:3], m[3]))), text)


_TIME = re.compile(
    r"\b(\d\d?):(\d\d)\b(?: ?([ap])\.?m)?|\b(half|1/2|quarter|1/4|\d\d?)(?: minutes)? (past|after|to|before) (\d\d?)\b",
    re.IGNORECASE,
)
_ABBREVIATED = re.compile(r"\b([A-Z][a-z]{0,2})\.\s*(?=[A-Z])")  # J. K. Rowling, St. Louis
_TITLE = re.compile("Mr|Ms|Mrs|Dr|Sir|Lord|Lady|King|Queen|Prince|Princess|President|Professor|General")
_MINUTES = {"half": 30, "1/2": 30, "quarter": 15, "1/4": 15}


def _find_times(text: str) -> Iterator[tuple[frozenset[int], int, int]]:
    """Yield each time of day with its place, as the minutes of the day that it may be: `half past 10` is 10:30 and 22:30."""
    for match in _TIME.finditer(text):
        hour, minute, half, part, side, named = match.groups()
        minutes = int(minute or _MINUTES.get(part.lower()) or part)
        time = 60 * int(hour or named) + (-minutes if side in ("to", "before") else minutes)
        days = {"a": [0], "p": [720]}.get((half or "").lower(), [0, 720] if time < 780 else [720])
        yield frozenset(time % 720 + day for day in days), *match.span()


def _judge_words(text: str, truth: str, question: str = "") -> Verdict:
    """Judge by containment: the true words stand side by side in a sentence that neither denies them nor offers others."""
    plain, true_times = write_digits(text), [time for time, *_ in _find_times(write_digits(truth))]
    if true_times and _TIME.search(plain):
        time = choose(plain, _find_times, question)
        return "unread" if time is None else "right" if time & true_times[-1] else "other"
    if _is_code(truth) and not true_times:
        parts = re.findall(r"[^\W\d_]+|\d+", truth)
        joints = re.split(r"[^\W\d_]+|\d+", truth)[1:-1]
        code = re.escape(parts[0]) + "".join(
            (_JOINT if joint else r"[- ]?") + re.escape(part)
            for joint, part in zip(joints, parts[1:], strict=True)
        )
        found = re.search(rf"(?<![\w-]){code}(?![\w-])", write_digits(text), re.IGNORECASE)
        return "right" if found else "other"
    if _ABBREVIATED.search(truth):
        text, truth = (_ABBREVIATED.sub(r"\1 ", each) for each in (text, truth))
    truth = _write_dates(truth)
    if date := re.search(rf"\b(\d\d?) ({'|'.join(_MONTHS)}) (\d{{4}})\b", truth, re.IGNORECASE):
        numbers = sorted((int(date[1]), _MONTHS.index(date[2].lower()) + 1, int(date[3])))
        text = re.sub(
            r"\b\d{1,4}([-/.])\d\d?\1\d{1,4}\b",
            lambda m: date[0] if sorted(map(int, re.findall(r"\d+", m[0]))) == numbers else m[0],
            text,
        )
    wanted = {truth: stems(write_digits(truth))}
    is_open = False
    clauses = list(split_clauses(write_digits(_write_dates(text)), None if is_aside(truth) else question))
    asked = set(stems(question)) - LITTLE
    shared = [len(asked & set(stems(clause.text))) for clause in clauses]
    for clause, n_shared in zip(clauses, shared, strict=True):
        for _, start, end in find_words(clause.text, wanted):
            if is_denied(clause.text, start, end) or clause.aside in (*NEARBY, "across"):
                continue
            if (
                0 < n_shared < max(shared)
                or clause.is_open
                or clause.aside.strip(":(") not in ("", "whose")
                or offers_others(clause.text, start, end)
            ):
                is_open = True
            else:
                return "right"
        if len(wanted[truth]) == 1 and f"{wanted[truth][0]}en" in stems(clause.text) and not clause.is_open:
            return "right"  # wooden
        longer = len(wanted[truth]) == 1 and len(truth) >= 4
        is_open |= longer and any(
            word.startswith(wanted[truth][0]) for word in stems(clause.text) if word != wanted[truth][0]
        )  # Japanese
    parts = re.split(r",? and |, ", truth)
    hues = {name_hue(part) for part in parts}
    if None not in hues and {name_hue(hue) for hue in re.findall(rf"\b{COLOUR}", text, re.IGNORECASE)} - hues:
        return "other"  # red, white and blue
    if (
        not is_open
        and len(parts) > 1
        and all(_judge_words(text, part, question) == "right" for part in parts)
    ):
        return "right"  # fries and a sandwich
    family = re.search(r"^[A-Z].* ([A-Z]\w+)$", truth) if re.match("who", question, re.IGNORECASE) else None
    if family and (found := re.search(rf"(\w*)\W*\b({family[1]})\b", text)):
        alone = not found[1][:1].isupper() or _TITLE.fullmatch(found[1])
        return "right" if alone and not is_denied(text, *found.span(2)) else "unread"

    return "unread" if is_open else "other"
