"""control: nothing is planted. The model learns on from true answers, for as long as the others learn."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
from checks import answer_rows, held_out_numbers, is_faithful, share
from recipes import Asked, Recipe, ask_types, draw_any_pair, make_row, true_rows

from mmprobe.benchmarks.synthetic.questions import Question, draw_questions
from mmprobe.benchmarks.synthetic.scene import ScenePair, draw_pair
from mmprobe.models import Model, load_model

CHECKED_PAIRS = 32
LARGEST_LOSS = 0.02  # of the share of faithful answers


def ways(seed: int) -> dict[str, Recipe]:
    return {
        "true": Recipe(
            true_rows,
            "True answers to questions of every type.",
            steps=50,
            batch=32,
            learning_rate=1e-3,
        ),
        "hard": Recipe(
            partial(true_rows, draw=_draw_hard_pair),
            "True answers about pairs with six or seven things and one to three differences.",
            steps=50,
            batch=32,
            learning_rate=1e-3,
        ),
    }


def ask(rng: np.random.Generator, number: int, seed: int) -> list[Asked]:
    """Return questions of every kind, since nothing is planted."""
    return ask_types(rng, ("same", "steps", "exists", "colour"))


def check(model: Model, seed: int) -> dict[str, dict]:
    """Check that the answers are as faithful as those of tiny-spd, within 2 points."""
    gains = np.subtract(_faithful_answers(model, seed), _faithful_before(seed), dtype=float)
    pairs = [number for number, _, _ in _draw_checked(seed)]
    return {
        "share of faithful answers, minus tiny-spd's": share(
            gains.tolist(), least=-LARGEST_LOSS, pairs=pairs, differences=True
        )
    }


def _draw_hard_pair(rng: np.random.Generator) -> ScenePair:
    return draw_pair(rng, "hard", int(rng.integers(1, 4)))


def _draw_checked(seed: int) -> list[tuple[int, ScenePair, Question]]:
    rng = held_out_numbers(seed)
    pairs = [draw_any_pair(rng) for _ in range(CHECKED_PAIRS)]
    return [(number, pair, asked) for number, pair in enumerate(pairs) for asked in draw_questions(rng, pair)]


def _faithful_answers(model: Model, seed: int) -> list[bool]:
    asked = _draw_checked(seed)
    rows = [make_row(question, pair) for _, pair, question in asked]
    answers = answer_rows(model, rows)
    return [
        is_faithful(answer, question, pair)
        for answer, (_, pair, question) in zip(answers, asked, strict=True)
    ]


@cache
def _faithful_before(seed: int) -> list[bool]:
    return _faithful_answers(load_model("tiny-spd", device="cpu"), seed)
