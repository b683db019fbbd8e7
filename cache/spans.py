"""Spans of an answer: what the model thinks, and what it says, where tags or the chat template mark them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.errors import InputError

SPAN_NAMES = ("other", "thinking", "answer")
"""The spans by their number in `steps/span`: the marks themselves, and text outside all of them, are `other`."""
THINKING_MARKS = {
    "<think>": "</think>",  # Qwen3, GLM-4.1V, and most models that are trained to think
    "[THINK]": "[/THINK]",  # Magistral
    "\u25c1think\u25b7": "\u25c1/think\u25b7",  # Kimi-VL
    "<|channel>thought": "<channel|>",  # Gemma 4
}
ANSWER_MARKS = {
    "<answer>": "</answer>",
    "<|begin_of_box|>": "<|end_of_box|>",  # GLM-4.5V
}
_MARKS = re.compile(
    "|".join(
        re.escape(mark) for marks in (THINKING_MARKS, ANSWER_MARKS) for pair in marks.items() for mark in pair
    )
)
_OTHER, _THINKING, _ANSWER = range(3)


def check_span(span: str) -> None:
    """Raise InputError if analyses cannot be limited to a span of this name.

    Example:
        >>> check_span("answer")
    """
    if span not in SPAN_NAMES[1:]:
        raise InputError(f"span {span!r}: choose {' or '.join(SPAN_NAMES[1:])}")


def find_spans(texts: Sequence[str], before: str = "") -> np.ndarray:
    """Return the span of each token of an answer, uint8 [step], as numbers of `SPAN_NAMES`.

    Text between the marks of a thought is `thinking`: to the end where the thought was cut off, and from the beginning
    where the prompt opened it. All other text is `answer`; but if there are marks of an answer outside the thoughts, only
    the text between those is, and the rest is `other`. A token is of the span of its first character that is not of a
    mark.

    Args:
        texts: the text of each token.
        before: what the template put before the answer.

    Example:
        >>> find_spans(["<think>", "Hm", "</think>", "Yes", "."]).tolist()
        [0, 1, 0, 2, 2]
        >>> find_spans(["Hm", "</think>", "Yes"], before="<think>\\n").tolist()
        [1, 0, 2]
    """
    spans, is_mark = _mark_characters("".join(texts), before)
    found = np.full(len(texts), _OTHER, np.uint8)
    start = 0
    for step, length in enumerate(map(len, texts)):
        own = np.flatnonzero(~is_mark[start : start + length])
        if len(own):
            found[step] = spans[start + own[0]]
        elif not length and len(spans):  # its character is in another token
            found[step] = spans[min(start, len(spans) - 1)]
        start += length
    return found


def drop_thoughts(text: str) -> str:
    """Return an answer without its thoughts and their marks; empty where its only thought was cut off.

    Example:
        >>> drop_thoughts("[THINK]No.[/THINK]Yes."), drop_thoughts("<think>Perhaps no")
        ('Yes.', '')
    """
    spans, is_mark = _mark_characters(text, "", ANSWER_MARKS)
    kept = (spans != _THINKING) & ~is_mark
    return "".join(character for character, keep in zip(text, kept.tolist(), strict=True) if keep)


def _mark_characters(
    text: str, before: str, unmarked: Mapping[str, str] = MappingProxyType({})
) -> tuple[np.ndarray, np.ndarray]:
    """Return the span of each character, uint8, and whether it is of a mark, bool.

    Args:
        unmarked: marks of an answer that are left as they are.
    """
    spans = np.full(len(text), _ANSWER, np.uint8)
    is_mark = np.zeros(len(text), bool)
    thought, answer = _open_thought(text, before), ""  # the marks that would close them
    place, first, answers = 0, 0, []
    for match in _MARKS.finditer(text):
        mark = match[0]
        if thought:
            if mark != thought:
                continue  # a part of the thought
            spans[place : match.start()] = _THINKING
            thought = ""
        elif mark in THINKING_MARKS:
            thought, place = THINKING_MARKS[mark], match.end()
        elif answer and mark == answer:
            answers.append((first, match.start()))
            answer = ""
        elif mark in ANSWER_MARKS and mark not in unmarked and not answer:
            answer, first = ANSWER_MARKS[mark], match.end()
        else:
            continue
        is_mark[match.start() : match.end()] = True
    if thought:
        spans[place:] = _THINKING
    if answer:
        answers.append((first, len(text)))
    if answers:
        outside = spans == _ANSWER
        for start, end in answers:
            outside[start:end] = False
        spans[outside] = _OTHER
    return spans, is_mark


def spans_of_answer(texts: Sequence[str], groups: np.ndarray) -> np.ndarray:
    """Return the span of each step, uint8 [step], from the tokens of a prompt and its answer.

    What the prompt ends with, after the last text of the conversation, may open a thought.

    Args:
        texts: of all tokens.
        groups: uint8 [token].
    """
    first = len(texts) - int((groups == GROUP_NAMES.index("generated")).sum())
    own = np.flatnonzero(groups[:first])  # all but those of the template
    return find_spans(texts[first:], "".join(texts[int(own[-1]) + 1 if len(own) else 0 : first]))


def _open_thought(text: str, before: str) -> str:
    """Return the mark that closes the thought with which the answer begins; empty if it begins with none."""
    for opening, closing in THINKING_MARKS.items():
        end, start = text.find(closing), text.find(opening)
        if before.rfind(opening) > before.rfind(closing) or (end >= 0 and not 0 <= start < end):
            return closing
    return ""
