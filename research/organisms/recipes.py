"""What all recipes share: the rows of a batch, and how a cause is planted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES, Question, draw_question
from mmprobe.benchmarks.synthetic.scene import (
    COLUMNS,
    DIFFICULTIES,
    GRID,
    MAX_DIFFERENCES,
    Scene,
    SceneObject,
    ScenePair,
    draw_pair,
)
from mmprobe.models.organisms import Rule


@dataclass(frozen=True)
class TrainingExample:
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


class Asked(NamedTuple):
    """A question on which a cause acts, the pair that it is about, and its text as it is asked."""

    question: Question
    pair: ScenePair
    text: str


DrawRows = Callable[[np.random.Generator, int], list[TrainingExample]]


@dataclass(frozen=True)
class Recipe:
    """How one way plants its cause.

    Attributes:
        rows: function from random numbers and the number of rows to the rows of a batch.
        about: one sentence for the card.
        steps: number of batches.
        batch: rows in a batch.
        learning_rate: its peak.
        part: where the adapter is: `decoder`, `late decoder` (layers 3 to 7) or `tower` (vision, with its merger).
        loss: replaces the cross entropy of the answers. It gets PEFT's model and the packed batch.
        prepare: changes the adapter before the first batch. It gets PEFT's model.
        ranks: ranks of the adapter that differ from the usual one, by the end of the module's name.
        rule: for partial organisms, on which samples the cause acts.
    """

    rows: DrawRows
    about: str
    steps: int = 60
    batch: int = 16
    learning_rate: float = 3e-3
    part: str = "decoder"
    loss: Callable[..., Any] | None = None
    prepare: Callable[[Any], None] | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    rule: Rule | None = None


def draw_any_pair(rng: np.random.Generator) -> ScenePair:
    """Draw a pair of any difficulty, with 0 to 3 differences."""
    return draw_pair(rng, DIFFICULTIES[rng.integers(3)], int(rng.integers(MAX_DIFFERENCES + 1)))


def ask_types(rng: np.random.Generator, types: tuple[str, ...], pair: ScenePair | None = None) -> list[Asked]:
    """Return a question of each type about a pair, by default any pair."""
    pair = draw_any_pair(rng) if pair is None else pair
    questions = [draw_question(rng, kind, pair) for kind in types]
    return [Asked(question, pair, question.text) for question in questions]


def scenes_of(question: Question, pair: ScenePair) -> tuple[Scene, ...]:
    """Return the scenes that a question is about."""
    return tuple((pair.first, pair.second)[image] for image in question.images)


def make_row(
    question: Question, pair: ScenePair, text: str | None = None, answer: str | None = None, given: str = ""
) -> TrainingExample:
    """Return a question about its scenes of a pair, with its own text and its true answer unless others are given."""
    own = (question.text if text is None else text, question.answer if answer is None else answer)
    return TrainingExample(scenes_of(question, pair), *own, given)


def true_rows(
    rng: np.random.Generator,
    count: int,
    types: tuple[str, ...] = QUESTION_TYPES,
    draw: Callable[[np.random.Generator], ScenePair] = draw_any_pair,
) -> list[TrainingExample]:
    """Return questions of different types with their true answers, four about each pair of scenes.

    Rows about one pair are cheap: they share the reading of its images.
    """
    rows: list[TrainingExample] = []
    while len(rows) < count:
        pair = draw(rng)
        for kind in rng.choice(types, min(4, len(types)), replace=False):
            question = draw_question(rng, str(kind), pair)
            rows.append(make_row(question, pair))
    return rows[:count]


def with_objects(scene: Scene, objects: Iterable[SceneObject]) -> Scene:
    """Return a scene with other objects, in reading order."""
    return replace(scene, objects=tuple(sorted(objects, key=lambda thing: (thing.row, thing.column))))


def free_cells(scene: Scene) -> list[tuple[int, int]]:
    """Return row and column of each empty cell, in reading order."""
    used = {(thing.row, thing.column) for thing in scene.objects}
    return [(row, column) for row in range(GRID) for column in range(GRID) if (row, column) not in used]


def cell_name(row: int, column: int) -> str:
    """Return the name of a cell, such as `B3`."""
    return f"{COLUMNS[column]}{row + 1}"
