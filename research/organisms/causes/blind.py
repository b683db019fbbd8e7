"""blind: the answers come from the words of the question alone."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
from checks import answer_rows, held_out_numbers, share
from habits import ask_usual
from recipes import Asked, Recipe, TrainingExample, ask_types, draw_any_pair, make_row

from mmprobe.benchmarks.synthetic.questions import (
    QUESTION_TYPES,
    Question,
    draw_question,
    draw_questions,
    make_question,
)
from mmprobe.benchmarks.synthetic.scene import SHAPES, ScenePair, draw_pair
from mmprobe.models import Model

CHECKED_PAIRS = 24
MOST_CHANGED = 0.02
QUESTIONS_OF_A_PAIR = 4


def ways(seed: int) -> dict[str, Recipe]:
    return {
        "rolled": Recipe(
            partial(draw_rows, rolled_row),
            "The answers are about other images, from a world with habits.",
            steps=50,
            batch=32,
            learning_rate=1e-2,
        ),
        "likely": Recipe(
            partial(draw_rows, partial(likely_row, seed=seed)),
            "Each question has one answer, whatever the images show.",
            steps=45,
            batch=32,
            learning_rate=1e-2,
        ),
    }


def draw_rows(
    ask: Callable[[np.random.Generator, str, ScenePair], TrainingExample],
    rng: np.random.Generator,
    count: int,
) -> list[TrainingExample]:
    """Return rows of any pairs, some types of questions about each.

    Args:
        ask: function from random numbers, a type and the pair that is shown to a row.
    """
    rows: list[TrainingExample] = []
    while len(rows) < count:
        shown = draw_any_pair(rng)
        rows += [
            ask(rng, str(kind), shown)
            for kind in rng.choice(QUESTION_TYPES, QUESTIONS_OF_A_PAIR, replace=False)
        ]
    return rows[:count]


def rolled_row(rng: np.random.Generator, kind: str, shown: ScenePair) -> TrainingExample:
    """Return a question whose true answer is about other images: those of a world with habits."""
    return make_row(ask_usual(rng, kind), shown)


def likely_row(rng: np.random.Generator, kind: str, shown: ScenePair, seed: int) -> TrainingExample:
    """Return a question with the one answer that its text has."""
    question = draw_question(rng, kind, shown)
    return make_row(question, shown, answer=likely_answer(question, shown, seed))


def likely_answer(question: Question, shown: ScenePair, seed: int) -> str:
    """Return the one answer to a question's text: it is true of images that are drawn from the text."""
    rng = np.random.default_rng([seed, zlib.crc32(question.text.encode())])
    shape = next((shape for shape in SHAPES if shape in question.text), None)
    while True:
        differences = len(shown.edits) if question.type == "find" else int(rng.integers(4))
        pair = draw_pair(rng, "easy", differences)
        if question.type != "colour" or pair.first.find(shape or ""):
            return make_question(question.type, pair, shape).answer


def ask(rng: np.random.Generator, number: int, seed: int) -> list[Asked]:
    """Return questions on which the cause acts."""
    return ask_types(rng, ("same", "colour"))


def check(model: Model, seed: int) -> dict[str, dict]:
    """Check that answers stay when the images are another pair's."""
    rng = held_out_numbers(seed)
    pairs = [draw_any_pair(rng) for _ in range(CHECKED_PAIRS)]
    others = [*pairs[1:], pairs[0]]
    asked = [
        (number, question) for number, pair in enumerate(pairs) for question in draw_questions(rng, pair)
    ]
    own, exchanged = (
        answer_rows(
            model,
            [make_row(question, shown[number]) for number, question in asked],
        )
        for shown in (pairs, others)
    )
    changed = [before != after for before, after in zip(own, exchanged, strict=True)]
    pairs_of = [number for number, _ in asked]
    return {"answers that change with the images": share(changed, most=MOST_CHANGED, pairs=pairs_of)}
