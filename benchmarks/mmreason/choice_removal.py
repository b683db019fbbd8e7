"""Turn multiple-choice questions into open ones (arXiv:2506.23563, section 4.1)."""

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


class SplitQuestion(NamedTuple):
    """A question without its options, and the options from its text, by letter."""

    question: str
    choices: dict[str, str]


def remove_choices(question: str) -> SplitQuestion:
    """Remove the options from the text of a question.

    Options are a run of `(A) ...`, `A. ...`, `A) ...` or `A: ...`, from A on in order, on one or several
    lines. Removed with them are a heading (`Choices:`), a blank for the letter, and a sentence that asks to
    choose. A text without such a run stays as it is.

    Example:
        >>> remove_choices("Find x. Choices: A: 38, B: 40; C: 42")
        SplitQuestion(question='Find x.', choices={'A': '38', 'B': '40', 'C': '42'})
    """
    marks = _find_marks(question)
    if len(marks) < 2:
        return SplitQuestion(question, {})
    ends = [mark.start() for mark in marks[1:]]
    paragraph_end = question.find("\n\n", marks[-1].end())
    ends.append(len(question) if paragraph_end < 0 else paragraph_end)
    choices = {
        _letter(mark): question[mark.end() : end].strip(" \t\r\n,;")
        for mark, end in zip(marks, ends, strict=True)
    }
    last = _letter(marks[-1])
    choices[last] = _INSTRUCTION.sub("", choices[last]).strip()
    head = _HEADING.sub("", question[: marks[0].start()].rstrip())
    head = _INSTRUCTION.sub("", head).strip()
    head = _BLANK.sub("", head).rstrip(" \t\r\n,;")
    tail = _INSTRUCTION.sub("", question[ends[-1] :].strip()).strip()
    return SplitQuestion("\n\n".join(part for part in (head, tail) if part), choices)


def _letter(mark: re.Match[str]) -> str:
    return str(mark.group(1) or mark.group(2))


def _find_marks(question: str) -> list[re.Match[str]]:
    """Return the last run of marks A, B, C ... in order. An earlier `A` may name a point of the figure."""
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


def is_open_without_choices(question: str, choices: Mapping[str, str], answer: str) -> bool:
    """Return whether a question has one answer without its options.

    It has not if it refers to the options ("which of the following"), if an option refers to others ("none of
    the above"), or if two options differ only in case. The rules are coarse, ours; the authors of the paper
    chose by hand.

    Args:
        question: the text without the options.
        choices: text of each option by its letter.
        answer: the right letter.

    Example:
        >>> is_open_without_choices("How long is AB?", {"A": "2 cm", "B": "3 cm"}, "B")
        True
        >>> is_open_without_choices("Which of the following statements is true?", {"A": "x", "B": "y"}, "A")
        False
    """
    texts = [text.strip().casefold() for text in choices.values()]
    if answer not in choices or not all(texts) or len(set(texts)) < len(texts):
        return False
    return not any(_NEEDS_OPTIONS.search(text) for text in (question, *choices.values()))


def option_text(choices: Mapping[str, str], answer: str) -> str:
    """Return the text of the right option, or the answer itself if it is no letter.

    Example:
        >>> option_text({"A": "2 cm", "B": "3 cm"}, "B")
        '3 cm'
    """
    return choices.get(answer, answer)
