"""Reasoning steps: the regions that they name, and the wrong runs that Self-Heal injects (paper 001, 4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_SENTENCE = re.compile(
    r"""(?:(?<=[.!?])|(?<=[.!?]["')\]*]))(?<!^\d\.)(?<!^\d\d\.)\s+(?=[A-Z"'(*`])|\n+""", re.MULTILINE
)  # `1. It is` begins a list's item
_REGION = re.compile(
    r"(?<![A-Za-z0-9])(?:R(?:\s|_\{?)?|(?:regions?|box(?:es)?)\s+#?)(\d{1,3})(?![A-Za-z0-9])"
    r"(?:\}?\$?\s*(?:-|\u2013|to|through)\s*\$?R?(?:_\{?)?(\d{1,3})(?![A-Za-z0-9]))?",
    re.IGNORECASE,
)
_SEVERAL = re.compile(
    r"(?<![A-Za-z0-9])(?:regions|boxes)\s+(#?\d{1,3}(?:(?:,\s*(?:and\s+|or\s+)?|\s+(?:and|or)\s+|\s*&\s*"
    r"|\s*(?:-|\u2013|to|through)\s*)#?\d{1,3})+)(?![A-Za-z0-9])",
    re.IGNORECASE,
)


class Cited(NamedTuple):
    """Numbers of the boxes that steps name, and how many numbers named no box that exists."""

    regions: frozenset[int]
    beyond: int


def split_steps(text: str) -> list[str]:
    """A response as its sentences, each one reasoning step, as in section 3.2; lines end a sentence too.

    Example:
        >>> split_steps("I see R1. It is red!  So yes.")
        ['I see R1.', 'It is red!', 'So yes.']
    """
    return [part.strip() for part in _SENTENCE.split(text) if re.search(r"\w", part)]


_ANSWER = re.compile(r"^[^\w\n]*(?:final )?answer[^\w\n:]{0,9}:", re.MULTILINE | re.IGNORECASE)


def reasoning_steps(response: str) -> list[str]:
    """The steps before the line that gives the answer; all of them where there is no such line, or none before it.

    Example:
        >>> reasoning_steps("R1 is a cat.\\n**Answer**: A cat.")
        ['R1 is a cat.']
    """
    answers = list(_ANSWER.finditer(response))
    return (split_steps(response[: answers[-1].start()]) if answers else []) or split_steps(response)


def stated_answer(response: str) -> str | None:
    """What follows the last `Answer:` that begins a line.

    Example:
        >>> stated_answer("R1 is a cat.\\n**Answer**: A cat. It sleeps.")
        'A cat. It sleeps.'
    """
    answers = list(_ANSWER.finditer(response))
    return response[answers[-1].end() :].strip(" *_\n") if answers else None


def cited_regions(steps: Sequence[str], count: int, names: Sequence[Sequence[str]] = ()) -> Cited:
    """The region extractor: the union over steps of the boxes that they name (section 4.1).

    Knows `R2`, `region 2`, `box 2`, `boxes 1, 2 and 4`, and ranges such as `R1-R3` or `R1 to R3`, ours. A box counts as
    named whatever is said of it.

    Args:
        count: boxes on the picture, numbered from 1.
        names: of each box, other words that name it.

    Example:
        >>> cited_regions(["R1 shows a cat.", "Neither R3 nor R9 helps."], 4)
        Cited(regions=frozenset({1, 3}), beyond=1)
    """
    numbers: set[int] = set()
    for step in steps:
        each = _SEVERAL.sub(lambda found: re.sub(r"#?(\d+)", r"R\1", found[1]), step)
        for first, last in _REGION.findall(each):
            start, end = int(first), int(last or first)
            numbers |= set(range(start, end + 1)) if start <= end else {start, end}
    there = frozenset(number for number in numbers if 1 <= number <= count)
    named = {number for number, words in enumerate(names, 1) if any(_says(steps, word) for word in words)}
    return Cited(there | named, len(numbers) - len(there))


def _says(steps: Sequence[str], word: str) -> bool:
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    return any(pattern.search(step) for step in steps)


class Span(NamedTuple):
    """A run of wrong steps: the first and last of them, counted from 1 as in the paper."""

    first: int
    last: int


def wrong_spans(correct: Sequence[bool]) -> list[Span]:
    """Each maximal run of wrong steps s_i ... s_j with 2 <= i <= j <= n - 2 (section 4.3).

    A run that reaches beyond these bounds is left out as a whole.

    Args:
        correct: of each of the n annotated steps.

    Example:
        >>> wrong_spans([True, False, False, True, True, False])
        [Span(first=2, last=3)]
    """
    spans: list[Span] = []
    start: int | None = None
    for number, right in enumerate([*correct, True], 1):
        if not right and start is None:
            start = number
        elif right and start is not None:
            spans.append(Span(start, number - 1))
            start = None
    return [span for span in spans if span.first >= 2 and span.last <= len(correct) - 2]


def injected_steps(steps: Sequence[str], span: Span) -> list[str]:
    """What is put into the model's mouth: all steps up to the last wrong one.

    Example:
        >>> injected_steps(["It is day.", "R1 is a cat.", "It sleeps.", "So yes."], Span(2, 2))
        ['It is day.', 'R1 is a cat.']
    """
    return list(steps[: span.last])
