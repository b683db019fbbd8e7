"""Reasoning steps of MagiC (arXiv:2507.07297): the regions that they cite, and the runs of wrong ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from mmprobe.benchmarks.answers.words import ORDINALS

_SENTENCE = re.compile(
    r"""(?:(?<=[.!?])|(?<=[.!?]["')\]*]))(?<!^\d\.)(?<!^\d\d\.)\s+(?=[A-Z"'(*`])|\n+""", re.MULTILINE
)  # not after `1.`, which begins an item of a list
_R = (
    r"(?:R(?:_\{?|\s)?|(?:regions?|box(?:es)?)\s+(?:number\s+|no\.?\s*|(?:that is )?(?:labell?ed|marked|numbered|named|tagged)\s+(?:(?:as|with)\s+)?)?"
    r"[\"'\u201c]?#?R?)"
)
_ORDINAL = rf"(?:{'|'.join(ORDINALS)})"
_ORDINALS = re.compile(
    rf"\b({_ORDINAL}(?:(?:, | and |, and )(?:the )?{_ORDINAL})*)\s+((?:red |bounding |numbered )*)(regions?|box(?:es)?)\b",
    re.IGNORECASE,
)
_NUMBER = r"\d{1,3}(?![A-Za-z0-9])"
_CITED = re.compile(
    rf"(?<![A-Za-z0-9])(?:(?:regions|boxes)\s+(#?{_NUMBER}(?:(?:,\s*(?:and\s+|or\s+)?|\s+(?:and|or)\s+"
    rf"|\s*&\s*)(?:(?:regions?|box(?:es)?)\s+)?#?{_NUMBER})+)"
    rf"|{_R}({_NUMBER}))",
    re.IGNORECASE,
)
_RANGE = re.compile(
    rf"(?<![A-Za-z0-9]){_R}{_NUMBER}\}}?\$?\s*(?:-|\u2013|\bto\b|\bthrough\b)\s*\$?(?:{_R})?{_NUMBER}"
    r"|\b(?:all|every|each)(?: (?:of|the|other|numbered|red))* (?:box|region)(?:es|s)?\b"
    rf"|\b(?:other|remaining) (?:box|region)|(?<![A-Za-z0-9])R{_NUMBER}\s*=",
    re.IGNORECASE,
)
_ANSWER = re.compile(r"^[^\w\n]*(?:final )?answer[^\w\n:]{0,9}:", re.MULTILINE | re.IGNORECASE)


class CitedRegions(NamedTuple):
    """Numbers of the cited boxes that exist, and how many cited numbers have no box."""

    regions: frozenset[int]
    missing: int


class StepSpan(NamedTuple):
    """A run of wrong steps: its first and its last step, counted from 1 as in the paper."""

    first: int
    last: int


def split_steps(text: str) -> list[str]:
    """Split a response into sentences; each is one reasoning step (section 3.2). A line also ends a sentence.

    Example:
        >>> split_steps("I see R1. It is red!  So yes.")
        ['I see R1.', 'It is red!', 'So yes.']
    """
    return [part.strip() for part in _SENTENCE.split(text) if re.search(r"\w", part)]


def reasoning_steps(response: str) -> list[str]:
    """Return the steps before the line with the answer; all sentences if there are none.

    Example:
        >>> reasoning_steps("R1 is a cat.\\n**Answer**: A cat.")
        ['R1 is a cat.']
    """
    answers = list(_ANSWER.finditer(response))
    steps = split_steps(response[: answers[-1].start()]) if answers else []
    return steps or split_steps(response)


def find_cited_regions(
    steps: Sequence[str], count: int, names: Sequence[Sequence[str]] = ()
) -> CitedRegions | None:
    """Extract the boxes that the steps cite, all steps together (section 4.1); None where that is unread.

    Known forms are `R2`, `region 2`, `box number 2`, `the box labeled 2`, `the second box`, `boxes 1, 2 and 4`, and a box's
    other `names`. A box counts as
    cited whatever the step says of it. A range (`R1-R3`, `R1 to R3`, `all boxes`) leaves open what is cited.
    `count` boxes are numbered from 1.

    Example:
        >>> find_cited_regions(["R1 shows a cat.", "Neither R3 nor R9 helps."], 4)
        CitedRegions(regions=frozenset({1, 3}), missing=1)
        >>> find_cited_regions(["The distance from R1 to R3"], 4) is None
        True
    """
    text = "\n".join(steps).replace("*", "").replace("$", "").replace("}", "")
    text = _ORDINALS.sub(
        lambda match: (
            "boxes " + ", ".join(str(ORDINALS[word.lower()]) for word in re.findall(_ORDINAL, match[1], re.I))
            if re.search("and|,", match[1])
            else f"box {ORDINALS[match[1].lower()]}"
        ),
        text,
    )
    if _RANGE.search(text):
        return None
    numbers = {
        int(number) for cited in _CITED.findall(text) for number in re.findall(r"\d+", " ".join(cited))
    }
    existing = frozenset(number for number in numbers if 1 <= number <= count)
    by_name = {
        number for number, words in enumerate(names, 1) if any(_contains_word(steps, word) for word in words)
    }
    return CitedRegions(existing | by_name, len(numbers) - len(existing))


def _contains_word(steps: Sequence[str], word: str) -> bool:
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    return any(pattern.search(step) for step in steps)


def find_wrong_spans(correct: Sequence[bool]) -> list[StepSpan]:
    """Return each maximal run of wrong steps s_i ... s_j with 2 <= i <= j <= n - 2 (section 4.3).

    A run that reaches beyond these bounds is left out completely.

    Example:
        >>> find_wrong_spans([True, False, False, True, True, False])
        [StepSpan(first=2, last=3)]
    """
    spans: list[StepSpan] = []
    start: int | None = None
    for number, is_correct in enumerate([*correct, True], 1):
        if not is_correct and start is None:
            start = number
        elif is_correct and start is not None:
            spans.append(StepSpan(start, number - 1))
            start = None
    return [span for span in spans if span.first >= 2 and span.last <= len(correct) - 2]


def injected_steps(steps: Sequence[str], span: StepSpan) -> list[str]:
    """Return all steps up to the last wrong one. The model's answer begins with them.

    Example:
        >>> injected_steps(["It is day.", "R1 is a cat.", "It sleeps.", "So yes."], StepSpan(2, 2))
        ['It is day.', 'R1 is a cat.']
    """
    return list(steps[: span.last])
