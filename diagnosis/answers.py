"""The model's answers, parsed into sentences, steps and a conclusion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from mmprobe.diagnosis.schedule import Say, Task, say
from mmprobe.models import Model
from mmprobe.models.prompt import (
    build_blind_chat,
    build_chat,
    decode_answer,
    decode_sequence,
    find_opened_thought,
)
from mmprobe.samples import Sample
from mmprobe.thoughts import THINKING_MARKS, drop_thoughts

# Words that may begin a conclusion. A last line is one without them, a last sentence of a line is not.
CONCLUSIONS = (
    "Therefore",
    "Thus",
    "Hence",
    "In conclusion",
    "Conclusion",
    "Final answer",
    "The answer is",
    "Answer",
    "So",
)
_MARKER = re.compile(rf"[\W_]*(?:{'|'.join(CONCLUSIONS)})\b\W*", re.IGNORECASE)
_OPENING, _CLOSING = (re.compile("|".join(map(re.escape, marks)), re.IGNORECASE)
                      for marks in (THINKING_MARKS.keys(), THINKING_MARKS.values()))  # fmt: skip
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?]) (?=\W*\w)")
_SENTENCE_END = re.compile(r"[.!?]\W*$")


LONGER = 8  # tokens of an answer about edited images, beyond those of the model's own


class ParsedAnswer(NamedTuple):
    """A sample and what the model answered.

    Attributes:
        text: the answer; a thought that the prompt opened and that was cut off has its mark.
        tokens: the text of each token, the end token included.
    """

    sample: Sample
    ids: list[int]
    text: str
    tokens: list[str]

    @property
    def conclusion(self) -> int | None:
        """The first token of what is concluded from the lines or sentences before; None without such.

        It is what follows the thoughts between their marks; else the last line, after the words that mark it; else the last sentence,
        if such words begin it.
        """
        text = self.text.rstrip()
        if text and not drop_thoughts(text).strip():
            return None  # it was cut off while the model thought
        thoughts, tag, said = "", "", text
        for mark in _CLOSING.finditer(text):
            thoughts, tag, said = text[: mark.start()], mark.group(), text[mark.end() :]
        first = (
            len(text) - len(said.lstrip()) if tag else 0
        )  # of what is said after the thoughts, which may be empty
        head, line_break, last = text[first:].rpartition("\n")
        if tag and _OPENING.sub("", thoughts).strip():
            start = first
        elif line_break and head.strip():
            marker = _MARKER.match(last)
            start = first + len(head) + 1 + (marker.end() if marker else 0)
        else:
            sentence = max((each.end() for each in _BETWEEN_SENTENCES.finditer(text, first)), default=0)
            marker = _MARKER.match(text, sentence)
            if not sentence or marker is None:
                return None
            start = marker.end()
        starts = np.cumsum([0, *map(len, self.tokens)])[:-1]
        ends = starts + [len(token) for token in self.tokens]
        inside = np.flatnonzero(ends > start)
        return int(inside[0]) if len(inside) and inside[0] > 0 else None

    @property
    def verdict(self) -> str:
        """What the answer comes to: its conclusion, or else the whole text."""
        start = self.conclusion
        return self.text if start is None else "".join(self.tokens[start:])

    @property
    def sentences(self) -> list[slice]:
        """The tokens of each sentence or line. A part without letters and digits belongs to the one before."""
        ends, written = [0], ""
        for place, token in enumerate(self.tokens, 1):
            written += token
            last = place == len(self.tokens)
            following = "" if last else self.tokens[place]
            stops = _SENTENCE_END.search(written) and not re.match(r"[\w.]", following)
            if last or stops or written.endswith("\n"):
                if re.search(r"\w", re.sub(r"<\|.*?\|>|</s>", "", written)) or len(ends) == 1:
                    ends.append(place)
                else:
                    ends[-1] = place
                written = ""
        return [slice(start, end) for start, end in zip(ends[:-1], ends[1:], strict=True)]


def make_answer(model: Model, sample: Sample, ids: Sequence[int]) -> ParsedAnswer:
    """Return an answer from its token ids."""
    text = decode_answer(model.tokenizer, ids)
    opened = find_opened_thought(model, build_blind_chat(sample), text)
    return ParsedAnswer(sample, list(ids), opened + text, decode_sequence(model, np.asarray(ids)))


def say_edited(model: Model, answer: ParsedAnswer, images: Sequence[Image.Image]) -> Task[str]:
    """Return what the model answers to the same question about edited images."""
    chat = build_chat(answer.sample)._replace(images=list(images))
    (ids,) = yield from say([Say(chat, len(answer.ids) + LONGER)])
    text: str = model.tokenizer.decode(ids, skip_special_tokens=True)
    return text
