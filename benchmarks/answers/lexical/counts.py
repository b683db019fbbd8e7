"""Read how many differences an answer says there are."""

from __future__ import annotations

import re

from mmprobe.benchmarks.answers.lexical.wording import NUMBER, parse_number_word, strip_markup

_NOUN = r"(?:differences?|changes?|modifications?|alterations?|discrepanc(?:y|ies)|edits?|variations?)"
_DESCRIBING = (
    r"(?: (?!(?:of|the|is|are|was|and|to|in|few|lot|number|couple|several|dozen|handful|variety|total|"
    r"images?|pictures?|photos?|photographs?|scenes?|have|has|show|shows|contain|with)\b)[a-z][a-z-]*){0,3}"
)
_COUNTED = re.compile(
    rf"(?<![\w.,/-])(?P<word>couple of|no|any|an?|(?<=the )only|{NUMBER}){_DESCRIBING} {_NOUN}\b"
)
_TOTAL = re.compile(
    rf"\b(?:answer|count|total|number of (?:\w+ )?{_NOUN})(?: is| are| of|:| =){{0,2}} ?(?P<word>{NUMBER})\b(?!\s?(?:-|to|or)\b)"
)
_RANGE = re.compile(rf"(?:\b{NUMBER}|\d) ?(?:-|–|to|or) $")
_NOT = re.compile(r"\b(?:not|never|without|cannot|hardly)(?: [a-z]+){0,4} $")
_FOUND = re.compile(
    r"\b(?:there(?: is| are|'s| was| were)|(?:i|we)(?: can| could)? (?:see|saw|found|find|count(?:ed)?|noticed?|"
    r"identif(?:y|ied)|spot(?:ted)?|observed?|detect(?:ed)?)|have|has|contain|total)(?: [a-z]+){0,3} $"
)
_FINAL = re.compile(
    r"\b(?:total|altogether|overall|therefore|thus|hence|in all|summary|conclusion|final|answer)\b"
)
_NOTHING = re.compile(
    r"\bnothing (?:has |was |is |have |seems |appears )?(?:been )?(?:to be )?(?:changed|different|differs|removed|moved)\b"
    r"|(?:\b(?:images|pictures|photos|photographs|scenes|they|both|two|everything)\b[^.\n]{0,40}|^\W*(?:yes\W+)?)"
    r"\b(?:identical|the same|unchanged|no different)\b"
)
_EXCEPT = re.compile(
    r"\b(?:except|apart from|but|however|although|though|other than|besides|otherwise|else|rest|not)\b"
)
_ALONE = re.compile(
    rf"\W*(?:(?:the answer is|about|exactly|only|just|(?:total )?{_NOUN}(?: found)?:) )?"
    rf"(?P<word>{NUMBER}|none|nothing|no)(?: in total| in all)?\W*"
)
_SAID = re.compile(
    r"\W*(?:yes\W+)?(?:there(?: is| are| was| were|'s|'re)|it(?: is|'s)|(?:i|we)(?: can| could)? "
    r"(?:see|saw|find|found|count(?:ed)?|noticed?|spot(?:ted)?))(?: about| exactly| only| just)? "
    rf"(?P<word>{NUMBER}|none)(?: of them| in total| in all)?(?: ?[.,:;!](?!\d)|\W*$)"
)
_TWICE = re.compile(rf"\b(?=[a-z])({NUMBER}) ?\(\d{{1,6}}\)")
_ITEM = re.compile(r"^\s*\(?(\d{1,2})[.):]\s", re.MULTILINE)


def parse_count(text: str) -> int | None:
    """Return the number of differences that an answer states in digits or words, or None.

    A total (`in total`, `therefore`, `the answer is`) wins over the first stated number, and both win over a
    number that is only mentioned (`one difference is …`). Without these, a number alone counts (`There are
    3.`), a list numbered from 1 counts as its number of items (ours), and `nothing changed` is 0. A range is
    not a number.

    Example:
        >>> [parse_count(text) for text in ("There are **two** differences.", "No differences!", "?")]
        [2, 0, None]
    """
    text = re.sub(r"[ \t]+", " ", re.sub(r"[{}]", "", strip_markup(text).lower())).replace("n't", " not")
    text = _TWICE.sub(r"\1", text)  # three (3) differences
    stated: list[tuple[int, int]] = []  # (rank, number), the lowest rank wins
    for match in _COUNTED.finditer(text):
        before = text[max(0, match.start() - 60) : match.start()]
        value = _read_count(match, before, text)
        if value is not None:
            around = before.rpartition(".")[2] + text[match.end() : match.end() + 14]
            rank = 0 if _FINAL.search(around) else 1 if _FOUND.search(before) or value == 0 else 2
            stated.append((rank, value))
    totals = [parse_number_word(match.group("word")) for match in _TOTAL.finditer(text)]
    finals = [value for rank, value in stated if rank == 0]
    if totals or finals:
        return totals[-1] if totals else finals[-1]
    if stated:
        return min(stated, key=lambda item: item[0])[1]
    return _infer_count(text)


def _read_count(match: re.Match[str], before: str, text: str) -> int | None:
    word = match.group("word")
    denied = _NOT.search(before) is not None
    if _RANGE.search(before) or re.match(rf" ?(?:-|–|to|or) ?{NUMBER}", text[match.end("word") :]):
        return None
    if word == "no":
        return 0
    if word == "any":
        return 0 if denied else None
    if word in ("a", "an", "only") or word in ("one", "1", "single"):
        return 0 if denied else 1
    return None if denied else parse_number_word(word.removesuffix(" of"))


def _infer_count(text: str) -> int | None:
    """Return the number of an answer that states none in a sentence."""
    first = text.strip().split("\n")[0].strip()[:60]
    alone = _ALONE.fullmatch(first) or _SAID.match(first)
    if alone:
        word = alone.group("word")
        return None if word == "no" else 0 if word in ("none", "nothing") else parse_number_word(word)
    items = [int(match.group(1)) for match in _ITEM.finditer(text)]
    if len(items) > 1 and items == list(range(1, len(items) + 1)):
        return len(items)
    return 0 if _NOTHING.search(text) and not _EXCEPT.search(text) else None
