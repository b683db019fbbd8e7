"""What an answer thinks, and what it says: the marks of thoughts, the span of each token, and whether it repeats itself."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from mmprobe.errors import InputError

MOST_COMPRESSED = 2.4  # of an answer that does not repeat itself: Radford et al. (2023), section 4.5
SPAN_NAMES = ("other", "thinking", "answer")
"""The spans by their number in `steps/span`: the marks themselves, and text outside all of them, are `other`."""
# Marks in lower case; those of a text may have any case.
THINKING_MARKS = {
    "<think>": "</think>",  # Qwen3, GLM-4.1V, and most models that are trained to think
    "[think]": "[/think]",  # Magistral
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
    ),
    re.IGNORECASE,
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
        >>> drop_thoughts("<THINK>No.</Think>Yes."), drop_thoughts("No, wait.</think>Yes.")
        ('Yes.', 'Yes.')
    """
    spans, is_mark = _mark_characters(text, "", ANSWER_MARKS)
    kept = (spans != _THINKING) & ~is_mark
    return "".join(character for character, keep in zip(text, kept.tolist(), strict=True) if keep)


def said(response: str) -> str:
    """Return what a response says: without its thoughts, and without marks of the answer around all of it.

    Every benchmark reads this, and so do published profiles.

    Example:
        >>> said("<think>No.</think><|begin_of_box|>Yes<|end_of_box|>"), said("No, wait.</think>Yes."), said("<think>Perhaps")
        ('Yes', 'Yes.', '')
    """
    text = drop_thoughts(response).strip()
    for opening, closing in ANSWER_MARKS.items():
        end = re.escape(closing)
        whole = re.fullmatch(
            rf"{re.escape(opening)}((?:(?!{end}).)*)(?:{end})?", text, re.IGNORECASE | re.DOTALL
        )
        if whole:
            return whole[1].strip()
    return text


def find_opened(text: str, before: str) -> str:
    """Return the mark of a thought that the prompt opens and the answer does not close; empty if there is none.

    Nothing of such an answer is said: it was cut off while the model thought. With the mark before it, its text alone
    tells so.

    Args:
        before: what the template put before the answer.

    Example:
        >>> find_opened("Perhaps no", before="<think>\\n"), find_opened("No.</think>Yes.", before="<think>\\n")
        ('<think>', '')
    """
    own, last = before.lower(), ""
    for opening, closing in THINKING_MARKS.items():
        place = own.rfind(opening)
        if place > own.rfind(closing) and closing not in text.lower():
            last = before[place : place + len(opening)]
    return last


def is_mark(token: str) -> bool:
    """Return whether a control token is a mark of a thought or an answer, or the beginning of one.

    Example:
        >>> is_mark("[THINK]"), is_mark("<|channel>"), is_mark("<|im_end|>")
        (True, True, False)
    """
    text = token.strip().lower()
    marks = (mark for pairs in (THINKING_MARKS, ANSWER_MARKS) for pair in pairs.items() for mark in pair)
    return bool(text) and any(mark.startswith(text) for mark in marks)


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
    if not thought and _MARKS.search(text) is None:  # most answers
        return spans, is_mark
    place, first, answers = 0, 0, []
    for match in _MARKS.finditer(text):
        mark = match[0].lower()
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


def _open_thought(text: str, before: str) -> str:
    """Return the mark that closes the thought with which the answer begins; empty if it begins with none."""
    text, before = text.lower(), before.lower()
    for opening, closing in THINKING_MARKS.items():
        end, start = text.find(closing), text.find(opening)
        if before.rfind(opening) > before.rfind(closing) or (end >= 0 and not 0 <= start < end):
            return closing
    return ""


def compression_ratio(text: str) -> float:
    """Return the bytes of a text over those that zlib makes of it; 0 for an empty text.

    Example:
        >>> round(compression_ratio("The image shows a blue rabbit in the top left."), 1)
        0.9
    """
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def is_degenerate(text: str) -> bool:
    """Return whether a text repeats itself, by the rule that finds failed transcriptions in Whisper.

    Its compression ratio is above 2.4 (Radford et al., 2023, Robust speech recognition via large-scale weak supervision,
    arXiv:2212.04356, section 4.5). Few sentences of one form stay under it; ten or more may not.

    Example:
        >>> is_degenerate("Yes. The triangle" + " at triangle" * 9), is_degenerate("Yes, the triangle is at the top left.")
        (True, False)
    """
    return compression_ratio(text) > MOST_COMPRESSED
