"""Answers as models write them, each with the verdict of a careful person: what readers and judges are measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FILE = Path(__file__).with_name("labelled.jsonl")


class WrittenAnswer(BaseModel):
    """A line of `labelled.jsonl`.

    Attributes:
        kind: what makes the answer hard to read, such as `unit` or `marks`.
        reader: who reads it: `vqa` (right or wrong), `claims` (differences of two images), `count` (their number), or
            `regions` (numbered boxes that an answer cites).
        question: the question; with `options`, texts or texts by letter, it is a choice.
        truth: for `vqa` and `count` the right answer, or several that are accepted; for `claims` a list of the true
            differences, each with `type` (color, remove, position), `category` and, where they are known, `before` and
            `after`; for `regions` a list of the cited boxes, such as `R2`.
        response: what the model wrote.
        verdict: `right`; `wrong`, also if one of several claims is false; `unread` if it holds no answer, or several.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    kind: str
    reader: Literal["vqa", "claims", "count", "regions"]
    question: str
    options: list[str] | dict[str, str] = Field(default=[])
    truth: str | list[str] | list[dict[str, Any]]
    response: str
    verdict: Literal["right", "wrong", "unread"]


def load_labelled(file: Path = FILE) -> list[WrittenAnswer]:
    """Return the labelled answers that are shipped, or those of another file of the same form.

    Example:
        >>> {answer.verdict for answer in load_labelled()} == {"right", "wrong", "unread"}
        True
    """
    lines = file.read_text(encoding="utf-8").splitlines()
    return [WrittenAnswer.model_validate(json.loads(line)) for line in lines]
