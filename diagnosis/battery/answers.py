"""The model's answers, parsed into sentences, steps and a conclusion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from mmprobe.models import Model
from mmprobe.models.loading import build_generation_kwargs
from mmprobe.models.prompt import (
    build_batch,
    build_blind_chat,
    build_chat,
    decode_answer,
    decode_tokens,
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
_LONGER = 8  # tokens of an answer about edited images, beyond those of the model's own


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
    return ParsedAnswer(sample, list(ids), opened + text, decode_tokens(model, np.asarray(ids)))


def answer_edited(
    model: Model, answers: Sequence[ParsedAnswer], images: Sequence[Sequence[Image.Image]]
) -> list[str]:
    """Return what the model answers to the same questions about edited images. To generate an answer counts as one pass.

    Args:
        answers: its answers about the images as they are.
        images: the edited ones of each answer.
    """
    texts = [""] * len(answers)
    for n_images in sorted({len(own) for own in images}):
        rows = [row for row, own in enumerate(images) if len(own) == n_images]
        chats = [build_chat(answers[row].sample)._replace(images=list(images[row])) for row in rows]
        batch = build_batch(model, chats)
        longest = max(len(answers[row].ids) for row in rows) + _LONGER
        with torch.inference_mode():
            ids = model.hf.generate(**batch.inputs, **build_generation_kwargs(model, longest))
        start = batch.inputs["input_ids"].shape[1]
        for row, text in zip(
            rows, model.tokenizer.batch_decode(ids[:, start:], skip_special_tokens=True), strict=True
        ):
            texts[row] = text
    return texts
