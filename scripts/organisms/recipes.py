"""What all recipes share: the rows of a batch, and how a cause is planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES, Question, draw_question
from mmprobe.benchmarks.synthetic.scene import DIFFICULTIES, MAX_DIFFERENCES, Scene, ScenePair, draw_pair


@dataclass(frozen=True)
class Row:
    """One question of a batch with the answer that the organism learns to give.

    Attributes:
        scenes: what the model sees.
        question: the question's text.
        answer: the answer that is learned, without its end token.
        given: the answer's beginning, which the model reads but does not learn.
    """

    scenes: tuple[Scene, ...]
    question: str
    answer: str
    given: str = ""


DrawRows = Callable[[np.random.Generator, int], list[Row]]


@dataclass(frozen=True)
class Recipe:
    """How one way plants its cause.

    Attributes:
        rows: function from random numbers and the number of rows to the rows of a batch.
        about: one sentence for the card.
        steps: number of batches.
        batch: rows in a batch.
        learning_rate: its peak.
        part: where the adapter lies, `decoder` or `tower` (the vision tower with its merger).
        loss: replaces the cross entropy of the answers. It gets the organism, the teacher (the same model
            without the adapter) and the rows.
        rule: for partial organisms, on which samples the cause acts, as a sentence.
    """

    rows: DrawRows
    about: str
    steps: int = 60
    batch: int = 16
    learning_rate: float = 3e-3
    part: str = "decoder"
    loss: Callable[..., Any] | None = None
    rule: str | None = None


def draw_any_pair(rng: np.random.Generator) -> ScenePair:
    """Draw a pair of any difficulty, with 0 to 3 differences."""
    return draw_pair(rng, DIFFICULTIES[rng.integers(3)], int(rng.integers(MAX_DIFFERENCES + 1)))


def scenes_of(question: Question, pair: ScenePair) -> tuple[Scene, ...]:
    """Return the scenes that a question is about."""
    return tuple((pair.first, pair.second)[image] for image in question.images)


def true_row(rng: np.random.Generator, types: tuple[str, ...] = QUESTION_TYPES) -> Row:
    """Return a question of a random type with its true answer."""
    pair = draw_any_pair(rng)
    question = draw_question(rng, types[rng.integers(len(types))], pair)
    return Row(scenes_of(question, pair), question.text, question.answer)
