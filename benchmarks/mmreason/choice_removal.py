"""Options taken out of a multiple-choice question, which makes it an open one (paper 004, section 4.1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_MARK = r"(?:\(([A-J])\)|(?<![\w(])([A-J])\s?[.):])"
_OPTION = re.compile(rf"(?:(?<=\s)|(?<=^)|(?<=[;,])){_MARK}\s*", re.MULTILINE)
_HEADING = re.compile(r"[\s,;]*\b(?:answer\s+)?(?:choices|options)\b\s*[:.]?\s*$", re.IGNORECASE)
_BLANK = re.compile(r"\s*\(\s*\)\s*[.?]?\s*$|\s*_{2,}\s*[.?]?\s*$")
_INSTRUCTION = re.compile(
    r"\s*(?:please\s+)?\b(?:select|choose|pick|answer with)\b"
    r"(?=[^.?!\n]*\b(?:correct|right|best|following|given|letters?|of the)\b)"
    r"[^.?!\n]*\b(?:options?|choices?|letters?|answers?)\b[^.?!\n]*[.!:]?",
    re.IGNORECASE,
)
_NEEDS_OPTIONS = re.compile(
    r"\b(?:which|what)\s+(?:one\s+)?(?:of|among)\s+(?:the\s+)?(?:following|these|those|above|below|options|choices)\b|"
    r"\bamong\s+(?:the\s+)?(?:following|options|choices)\b|\bof the (?:following|above|options|choices)\b|"
    r"\bthe following (?:statements?|options?|choices?|claims?|pictures?|images?|figures?|graphs?)\b|"
    r"\b(?:which|what) (?:statement|option|choice|answer|claim)\b|"
    r"\b(?:all|none|both) of (?:the above|these|them)\b",
    re.IGNORECASE,
)


class Open(NamedTuple):
    """A question without its options, and the options that were found in its text, by letter."""

    question: str
    choices: dict[str, str]


def remove_choices(question: str) -> Open:
    """Cut the options out of a question's text.

    Options are a run of `(A) ...`, `A. ...`, `A) ...` or `A: ...` from A on, in order, on one line or
    several. With them go the word before them (`Choices:`), a blank to write a letter into, and a sentence that
    tells to choose one. Text without such a run stays as it is.

    Example:
        >>> remove_choices("Find x. Choices: A: 38, B: 40; C: 42")
        Open(question='Find x.', choices={'A': '38', 'B': '40', 'C': '42'})
    """
    marks = _run(question)
    if len(marks) < 2:
        return Open(question, {})
    ends = [mark.start() for mark in marks[1:]]
    tail = question.find("\n\n", marks[-1].end())
    ends.append(len(question) if tail < 0 else tail)
    choices = {
        _letter(mark): question[mark.end() : end].strip(" \t\r\n,;")
        for mark, end in zip(marks, ends, strict=True)
    }
    last = _letter(marks[-1])
    choices[last] = _INSTRUCTION.sub("", choices[last]).strip()
    head = _HEADING.sub("", question[: marks[0].start()].rstrip())
    rest = question[ends[-1] :].strip()
    text = _INSTRUCTION.sub("", head).strip()
    text = _BLANK.sub("", text).rstrip(" \t\r\n,;")
    rest = _INSTRUCTION.sub("", rest).strip()
    return Open("\n\n".join(part for part in (text, rest) if part), choices)


def _letter(mark: re.Match[str]) -> str:
    return str(mark.group(1) or mark.group(2))


def _run(question: str) -> list[re.Match[str]]:
    """The last run of marks A, B, C ... in order: an earlier `A` may name a point of the figure."""
    best: list[re.Match[str]] = []
    current: list[re.Match[str]] = []
    for mark in _OPTION.finditer(question):
        if _letter(mark) == "A":
            current = [mark]
        elif current and ord(_letter(mark)) == ord(_letter(current[-1])) + 1:
            current.append(mark)
        if len(current) > 1:
            best = current
    return list(best)


def can_stand_open(question: str, choices: Mapping[str, str], answer: str) -> bool:
    """Whether a question still asks for one answer without its options.

    Not if it speaks of them ("which of the following"), if an option does ("none of the above"), or if two
    options are the same but for case. Rules are coarse, ours; the paper's authors chose by hand.

    Args:
        choices: text of each option by its letter.
        answer: the right letter.

    Example:
        >>> can_stand_open("How long is AB?", {"A": "2 cm", "B": "3 cm"}, "B")
        True
        >>> can_stand_open("Which of the following statements is true?", {"A": "x", "B": "y"}, "A")
        False
    """
    texts = [text.strip().casefold() for text in choices.values()]
    if answer not in choices or not all(texts) or len(set(texts)) < len(texts):
        return False
    return not any(_NEEDS_OPTIONS.search(text) for text in (question, *choices.values()))


def open_answer(choices: Mapping[str, str], answer: str) -> str:
    """The text of the right option, the answer to the open question; the answer itself if it is no letter.

    Example:
        >>> open_answer({"A": "2 cm", "B": "3 cm"}, "B")
        '3 cm'
    """
    return choices.get(answer, answer)
