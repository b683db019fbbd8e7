"""Kinds of questions, since a mean over unlike questions hides what is so of one kind.

A sample's kind is its `metadata.type`; else its question without names and numbers, so that questions that differ in these alone are of one
kind. Each test is scored for each kind with answers enough, and the kinds of one test share Holm's correction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scipy.special import ndtr

from mmprobe.benchmarks.answers.coco import find_objects
from mmprobe.benchmarks.answers.options import split_options
from mmprobe.contents import list_objects
from mmprobe.diagnosis.effects import Effect
from mmprobe.samples import Sample

_NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")
_PROPER = re.compile(r"(?<=[a-z,] )[A-Z]\w*(?: [A-Z]\w*)*")
_Z = 1.959963984540054  # of 95 % intervals


def name_kinds(samples: Sequence[Sample]) -> list[str]:
    """Return the kind of each sample's question.

    Example:
        >>> asked = ["Is there a dog in image 1?", "Is there a cat in image 2?", "What colour is the cat?"]
        >>> name_kinds([Sample(id=str(number), question=text) for number, text in enumerate(asked)])
        ['is there a … in image …?', 'is there a … in image …?', 'what colour is the …?']
        >>> name_kinds([Sample(id="a", question="Why?", metadata={"type": "reason"})])
        ['reason']
    """
    names = sorted(
        {each.name.lower() for sample in samples for each in list_objects(sample)}, key=len, reverse=True
    )
    named = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})s?\b") if names else None
    kinds: dict[str, str] = {}
    found = []
    for sample in samples:
        kind = sample.metadata.get("type")
        if not isinstance(kind, str):
            if sample.question not in kinds:
                kinds[sample.question] = _strip(sample.question, named)
            kind = kinds[sample.question]
        found.append(kind)
    return found


def _strip(question: str, named: re.Pattern[str] | None) -> str:
    """Return a question in small letters, without its options, and with a mark in the place of names and numbers."""
    text = _PROPER.sub("…", split_options(question).question.strip()).lower()
    text = named.sub("…", text) if named is not None else text
    for _, span in reversed(find_objects(text)):
        text = text[: span[0]] + "…" + text[span[1] :]
    return re.sub(r"\s+", " ", _NUMBER.sub("…", text))


def find_p(effect: Effect, limit: float) -> float:
    """Return the one-sided p of a share, against one of the limit or less.

    It is that of the score test that Wilson's interval inverts, with the effective number of answers that the interval has: at
    p = 0.025 the interval begins at the limit.

    Example:
        >>> round(find_p(Effect(name="x", value=0.5, low=0.2, high=0.8, n=12, sets=12), 0.2), 3)
        0.025
    """
    value, low = effect.value, effect.low
    if not value > low >= 0 or value <= limit:
        return 1.0
    if limit <= 0:
        return 0.0 if low > 0 else 1.0
    effective = _Z**2 * low * (1 - low) / (value - low) ** 2
    return float(ndtr(-(value - limit) * (effective / (limit * (1 - limit))) ** 0.5))
