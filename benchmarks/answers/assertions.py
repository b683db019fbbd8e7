"""Find which of several things a text asserts: the one mechanism under the readers of options, of yes and no, and of words.

A text is a list of clauses. A clause asserts the words that it holds, unless it denies them, doubts them, asks, or
offers them beside others. Of clauses that assert different things, the one that concludes decides, then the one that has
the most words of the question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from mmprobe.benchmarks.answers.words import DENIALS, DOUBT

Thing = TypeVar("Thing", bound=Hashable)

_SENTENCES = re.compile(
    r"(?<=[.!?])(?<!\b[A-Z]\.)[\"')*\u201d]*\s+|(?<=\b[A-Z]\.)\s+(?![a-z])|\n+|(?<=[\u3002\uff01\uff1f])"
)
NEARBY = ("next to", "near", "beside", "in front of", "just before")
"""Asides that name another thing than the one in question."""
# What begins another clause of a sentence; the first group begins one that says more about what it follows.
_CLAUSES = re.compile(
    r";\s+|,?\s+(?:(?<!anything )but|while|whereas|although|though|however|yet(?!\W*$))\b,?\s*|\s+[\u2013\u2014-]\s+|\u2014|,\s+(?:and\s+|(?=[Ii]\b))|,\s+(?:so|hence|thus|therefore)\b|\s+and\s+(?=(?:the|an?|its?|his|her) (?:\w+ )?\w+ (?:is|was|has)\b)|,?\s+which (?=(?:suggest|mean|indicat|impl))"
    rf"|(?P<aside>,?\s+(?:since|because|which|who|whose|where|{'|'.join(NEARBY)}|across(?= (?:\w+ ){{0,2}}from))\b|,\s+(?=\w+(?:ing|ed)\b)|\s*\((?![A-Ja-j]\)|option)|:\s+)|(?P<comma>,\s+|\))",  # a comma ends an aside
)
_DENIED_BEFORE = re.compile(
    rf"(?:\b(?:{DENIALS}|anything but)|\bnon)(?:[ -](?!but\b|only\b|doubt)[^\s,]+){{0,3}}[ -]\W*$|\b(?:not|neither) [^.;]{{0,40}}(?:, | or | nor )(?:an? |the )?\W*$|\bthan (?:an? |the |option )?\W*$|\u4e0d[\u662f\u9009]\W*$",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"[\s*_\"')]*(?:(?:, | and |, and )\(?[A-J]\b\)?)*[\s*_\"')]*(?:(?:is|are|was|were|does|do|has|would be|can be|must be|seems|looks) )?(?:(?:not|never)\b(?! only)|\w+n't\b"
    r"|(?:(?:clearly|also|definitely|very|highly|an?|the) )?(?:false|wrong|incorrect|contradicted|excluded|eliminated|ruled out|out\b|missing|absent|gone"
    r"|unlikely|doubtful|implausible|impossible|mistake|trap|distractor|fails))|(?:\u662f|\u5e76)?[\u4e0d\u9519]",
    re.IGNORECASE,
)
_OFFERED_BEFORE = re.compile(r"\beither\b|\bor (?:\w+ )?$", re.IGNORECASE)
_OFFERED_AFTER = re.compile(r"\s+or\b", re.IGNORECASE)
_CONCLUDES = re.compile(
    r"\bi(?:'d| would|'ll| will)? (?:go with|pick|choose|select|say)\b|^\W*(?:so|thus|hence|therefore|overall|in conclusion|in summary)\b|\b(?:so|thus|hence|therefore|answer|correct|leaves|leaving)\b",
    re.IGNORECASE,
)


# What is the least or the wrong one is not the answer, unless the question asks for it.
_WORST = "least|less|worst|wrong|incorrect|false|mistake|distractor|(?:second|2nd)[ -]best"
_WORST_BEFORE = re.compile(
    rf"\b(?:{_WORST})\b(?: \w+){{0,2}} (?:is|are|was|would be)(?: option)?\W*$", re.IGNORECASE
)
_WORST_AFTER = re.compile(
    rf"\W*(?:is|are|was|would be|seems|looks) (?:clearly )?(?:the |an? )?(?:{_WORST})\b", re.IGNORECASE
)
_NEAR = 80  # characters beside a thing that may deny, offer or reject it; our choice, so that time grows with the text alone
_PREPOSITIONS = frozenset(["on", "in", "under", "behind", "at", "near", "above", "below", "beside", "insid"])
_WORD = re.compile(r"[^\W\d_]+|\d+(?:[.,]\d+)*")


_ITEM = re.compile(r"(?:^|(?<=\n))(\W*[A-J])[.:](?=\s)")  # `A. The bus is far.`
_UNSURE = re.compile(r"\b(?:not (?:sure|certain)|unsure|uncertain|i guess|otherwise)\b", re.IGNORECASE)


class Clause(NamedTuple):
    """A clause, the number of its sentence, whether it concludes or only adds to another, and whether it is open."""

    text: str
    sentence: int
    concludes: bool
    aside: str
    is_open: bool


def split_clauses(text: str, question: str | None = "") -> Iterator[Clause]:
    """Yield the clauses of a text, in order. What only adds to another clause is one of its own, unless the `question` begins so
    (what is in front of the house), or is None.

    Example:
        >>> [(clause.text, clause.is_open) for clause in split_clauses("It may be red; the bus is blue.")]
        [('It may be red', True), ('the bus is blue.', False)]
    """
    for number, sentence in enumerate(
        filter(None, _SENTENCES.split(_ITEM.sub(r"\1 ", re.sub(r"[ \t]{2,}", " ", text))))
    ):
        unsure = bool(_UNSURE.search(sentence))
        start, aside, so = 0, "", False
        for mark in [*_CLAUSES.finditer(sentence), None]:
            if mark and (
                mark["aside"]
                and (question is None or _begins(mark["aside"], question))
                or mark["comma"]
                and not aside
            ):
                continue
            part = sentence[start : mark.start() if mark else len(sentence)].strip()
            if any(map(str.isalnum, part)):
                so = so or bool(_CONCLUDES.search(part))
                yield Clause(part, number, so, aside, unsure or bool(DOUBT.search(part)))
            if mark:
                start, aside, so = (
                    mark.end(),
                    (mark["aside"] or (aside if aside == ":" else "")).strip(" ,"),  # to the end of a list
                    mark.group().strip(" ,") in ("so", "hence", "thus", "therefore")
                    or (":" in mark.group() and so),
                )


def _begins(aside: str, question: str) -> bool:
    word = aside.strip(" ,:(").lower()
    return word in NEARBY and word in question.lower()


def stem(word: str) -> str:
    """Return a word in lower case without the endings of plurals and verbs.

    Example:
        >>> [stem(word) for word in ("wearing", "Wears", "riding", "rides", "sitting", "glasses", "bus", "berries", "berry")]
        ['wear', 'wear', 'rid', 'rid', 'sit', 'glass', 'bus', 'berri', 'berri']
    """
    word = word.lower()
    for ending in ("ing", "ed", "es", "s"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3 and not word.endswith("ss"):
            if ending == "es" and rest[-1] not in "sxzh":
                continue
            if ending in ("ing", "ed") and (
                not re.search("[aeiouy]", rest) or word in ("bed", "red", "king")
            ):
                continue
            word = (
                rest[:-1]
                if ending in ("ing", "ed") and rest[-1] == rest[-2] and rest[-1] not in "ls"
                else rest
            )
            break
    return re.sub("(?<=...)(?:e|ie|y)$", lambda end: "" if end.group() == "e" else "i", word)


def stems(text: str) -> list[str]:
    """Return the stems of a text's words and numbers, in order."""
    return [stem(word) for word in _WORD.findall(text)]


def find_words(clause: str, texts: Mapping[Thing, Sequence[str]]) -> Iterator[tuple[Thing, int, int]]:
    """Yield where the stems of each text stand side by side in a clause, articles apart."""
    words = [match for match in _WORD.finditer(clause) if match.group().lower() not in ("a", "an", "the")]
    found = [stem(match.group()) for match in words]
    for thing, text in texts.items():
        wanted = [word for word in text if word not in ("a", "an", "the")]
        for start in range(len(found) - len(wanted) + 1 if wanted else 0):
            gap = len(wanted) > 1 and wanted[0] in _PREPOSITIONS  # on the grey sofa is on the sofa
            for skip in (0, 1) if gap else (0,):
                if [found[start], *found[start + 1 + skip :]][: len(wanted)] == wanted:
                    yield thing, words[start].start(), words[start + skip + len(wanted) - 1].end()


def is_denied(text: str, start: int, end: int) -> bool:
    """Return whether a clause denies the words from start to end: `not a cat`, `a cat is absent`.

    Example:
        >>> is_denied("It is not a cat", 12, 15), is_denied("Not a dog but a cat", 16, 19), is_denied("B is false", 0, 1)
        (True, False, True)
    """
    return bool(
        _DENIED_BEFORE.search(text[max(0, start - _NEAR) : start])
        or _DENIED_AFTER.match(text[end : end + _NEAR // 2])
    )


def is_aside(text: str) -> bool:
    """Return whether a text begins with words that begin an aside: `next to the tree`."""
    mark = _CLAUSES.match(f" {text}")
    return bool(mark and mark["aside"])


def offers_others(text: str, start: int, end: int) -> bool:
    """Return whether a clause offers the words from start to end beside others: `a cat or a dog`, `either a cat`."""
    return bool(
        _OFFERED_BEFORE.search(text[max(0, start - _NEAR) : start]) or _OFFERED_AFTER.match(text, end)
    )


Finder = Callable[[str], Iterator[tuple[Thing, int, int]]]
"""Yields the things that a clause names, each with its first and its end character."""


def choose(
    text: str, find: Finder[Thing], question: str = "", among: frozenset[Thing] = frozenset()
) -> Thing | None:
    """Return the thing that a text asserts; None where it asserts none, or several of which no clause decides.

    Args:
        find: finds the things that a clause names.
        question: of two clauses, the one with more of its words decides.
        among: all the things that there are. Where all but one are denied and none is asserted, the last one is left.

    Example:
        >>> find = lambda clause: ((m.group(), *m.span()) for m in re.finditer("cat|dog|cow", clause))
        >>> choose("The cat is small, but the animal in front is a dog.", find, "Which animal is in front?")
        'dog'
    """
    order = [word for word in stems(question) if word not in LITTLE]
    asked = set(order)
    rejects = not re.search(rf"\b(?:{_WORST})\b", question, re.IGNORECASE)
    ranked: list[tuple[tuple[int, ...], frozenset[Thing]]] = []
    denied: set[Thing] = set()
    clauses = list(split_clauses(text, question))
    for clause, after in zip(clauses, [*clauses[1:], None], strict=True):
        named = list(find(clause.text))
        own = {
            thing
            for thing, start, end in named
            if is_denied(clause.text, start, end)
            or (
                rejects
                and (
                    _WORST_BEFORE.search(clause.text[max(0, start - _NEAR) : start])
                    or _WORST_AFTER.match(clause.text[end : end + _NEAR])
                )
            )
        }
        denied |= own
        left = frozenset(thing for thing, *_ in named) - own
        if len(left) > 1 and not re.search(r"\b(?:and|or)\b", clause.text):
            does = frozenset(
                each
                for each, _, end in named
                if asked & set(stems(clause.text[end : end + _NEAR].partition(",")[0])[:2])
            )
            left = does & left if len(does & left) == 1 else left  # the knight is speaking to the king
        if left and not clause.is_open:
            bare = not re.sub(r"\W", "", re.sub(r"(?i)\boption|answer\b", "", _cut(clause.text, named)))
            bare &= (
                after is None or after.aside != ":" or any(True for _ in find(after.text))
            )  # `Brazil: 10` is a row
            own_words = {each for _, start, end in named for each in stems(clause.text[start:end])}
            about = (asked - own_words) & set(stems(clause.text))
            first = min(map(order.index, about), default=len(order))  # what is asked for comes first
            n_about = sum(1 + word.isdigit() for word in about)
            rank = (2 * clause.concludes or bare, not clause.aside, n_about, len(left) == 1, -first)
            ranked.append((rank, left))
    if not ranked:
        rest = among - denied
        return next(iter(rest)) if denied and len(rest) == 1 and len(among) > 2 else None
    named_at_all: frozenset[Thing] = frozenset().union(*(things for _, things in ranked))
    if len(named_at_all) > 1:
        best = max(rank for rank, _ in ranked)
        tops = [things for rank, things in ranked if rank == best]
        if best[0] == 2:
            tops = tops[-1:]  # of two conclusions the last
        named_at_all = frozenset().union(*tops)
    return next(iter(named_at_all)) if len(named_at_all) == 1 else None


def _cut(text: str, named: Sequence[tuple[Thing, int, int]]) -> str:
    """Return a clause without the things that it names."""
    for _, start, end in sorted(named, key=lambda each: -each[1]):
        text = text[:start] + text[end:]
    return text


_LITTLE = (
    "a an the is are was were be been do does did has have had can could will you i we it this that "
    "there in on of to at and or by for from with what which who where when how many much image "
    "picture photo shown show see any some several"
)
LITTLE = frozenset(map(stem, _LITTLE.split()))
"""Stems of words that no question is about."""
