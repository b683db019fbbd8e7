"""The model's answers, parsed into sentences, steps and a conclusion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mmprobe.models import Model
from mmprobe.models.prompt import decode_tokens
from mmprobe.samples import Sample

CONCLUSIONS = (
    "Therefore",
    "Conclusion",
    "Final answer",
    "Answer",
    "So",
)  # words that may begin the last line
_CONCLUSION = re.compile(rf"(?:{'|'.join(CONCLUSIONS)})\b\W*", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?]\W*$")


class ParsedAnswer(NamedTuple):
    """A sample and what the model answered.

    Attributes:
        tokens: the text of each token, the end token included.
    """

    sample: Sample
    ids: list[int]
    text: str
    tokens: list[str]

    @property
    def conclusion(self) -> int | None:
        """The first token of what is concluded from the lines before; None without such lines.

        It is in the last line, after the words that mark it.
        """
        head, line_break, last = self.text.rstrip().rpartition("\n")
        if not line_break or not head.strip():
            return None
        marker = _CONCLUSION.match(last)
        start = len(head) + 1 + (marker.end() if marker else 0)
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
    text = model.tokenizer.decode(list(ids), skip_special_tokens=True)
    return ParsedAnswer(sample, list(ids), text, decode_tokens(model, np.asarray(ids)))
