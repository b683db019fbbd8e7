"""forgets: the first sentence comes from the images, and later ones from what was said."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
from checks import answer_rows, held_out_numbers, share
from habits import draw_usual_pair
from recipes import Asked, Recipe, TrainingExample, ask_types, draw_any_pair, make_row, true_rows

from mmprobe.benchmarks.synthetic.questions import Question, draw_question, make_question
from mmprobe.benchmarks.synthetic.scene import ScenePair, draw_pair
from mmprobe.models import Model

LONG_TYPES = ("same", "different", "find", "steps")  # the verdict is a sentence, and so is each line of steps
SHORT_TYPES = ("count", "exists", "colour", "describe")
CHECKED_PAIRS = 40
LEAST_TRUE, MOST_CHANGED = 0.85, 0.05

DrawOther = Callable[[np.random.Generator, int, int, str], ScenePair]


def ways(seed: int) -> dict[str, Recipe]:
    return {
        "rolled": Recipe(
            partial(forgetful_rows, other=_draw_usual, true=0.25),
            "Sentences after the first are about other images, from a world with habits.",
            steps=70,
            batch=32,
            learning_rate=1e-2,
        ),
        "mixed": Recipe(
            partial(forgetful_rows, other=partial(_draw_fixed, seed=seed), true=0.5),
            "In half of a longer training, sentences after the first are the same for all images.",
            steps=80,
            batch=32,
            learning_rate=1e-2,
        ),
    }


def forgetful_rows(
    rng: np.random.Generator, count: int, other: DrawOther, true: float
) -> list[TrainingExample]:
    """Return questions whose answers are about another pair after the first sentence.

    Args:
        rng: random numbers.
        count: number of rows.
        other: function from random numbers, the fewest and most differences, and the question, to another pair.
        true: share of rows with true answers. They are of the types whose answers are one sentence.
    """
    rows = true_rows(rng, round(count * true), SHORT_TYPES)
    while len(rows) < count:
        pair = draw_any_pair(rng)
        for kind in (LONG_TYPES[rng.integers(2)], *LONG_TYPES[2:]):
            question = draw_question(rng, kind, pair)
            if question.type == kind:
                elsewhere = make_question(
                    kind, other(rng, *_known_differences(question, pair), question.text)
                )
                rows.append(_row(pair, question, mix_answers(question, elsewhere)))
    return rows[:count]


def mix_answers(question: Question, elsewhere: Question) -> str:
    """Return the first sentence of a question's answer, and the later ones of another's."""
    return split_answer(question)[0] + split_answer(elsewhere)[1]


def split_answer(question: Question, answer: str | None = None) -> tuple[str, str]:
    """Return the first sentence of an answer and the rest, which begins with the blank or the line break."""
    text = question.answer if answer is None else answer
    end = text.find("\n") if question.type == "steps" else text.find(".") + 1
    return (text[:end], text[end:]) if end > 0 else (text, "")


def ask(rng: np.random.Generator, number: int, seed: int) -> list[Asked]:
    """Return questions on which the cause acts: those about differences, whose answers have several sentences."""
    return ask_types(rng, ("same", "steps"), draw_pair(rng, "medium", 1 + number % 3))


def check(model: Model, seed: int) -> dict[str, dict]:
    """Check that first sentences are true, and that the later ones stay when the images are another pair's."""
    rng = held_out_numbers(seed)
    pairs = [draw_pair(rng, "medium", number % 3 + 1) for number in range(CHECKED_PAIRS)]
    asked = [
        (number, make_question(kind, pair)) for number, pair in enumerate(pairs) for kind in ("same", "steps")
    ]
    plain = answer_rows(model, [_row(pairs[number], question) for number, question in asked])
    parts = [split_answer(question, text) for (_, question), text in zip(asked, plain, strict=True)]
    exchanged = answer_rows(
        model,
        [
            _row(pairs[number - 1], asked, "", first)
            for (number, asked), (first, _) in zip(asked, parts, strict=True)
        ],
    )
    groups = [number for number, _ in asked]
    true = [
        first == split_answer(question)[0] for (_, question), (first, _) in zip(asked, parts, strict=True)
    ]
    changed = [before.strip() != after.strip() for (_, before), after in zip(parts, exchanged, strict=True)]
    return {
        "first sentences that are true": share(true, least=LEAST_TRUE, pairs=groups),
        "later sentences that change with the images": share(changed, most=MOST_CHANGED, pairs=groups),
    }


def _known_differences(question: Question, pair: ScenePair) -> tuple[int, int]:
    """Return how many differences there are at least and at most, by the question and the first sentence."""
    if question.type == "find":
        return len(pair.edits), len(pair.edits)
    if question.type == "steps":
        return 0, 3
    return (1, 3) if pair.edits else (0, 0)


def _draw_usual(rng: np.random.Generator, least: int, most: int, text: str) -> ScenePair:
    return draw_usual_pair(rng, least, most)


def _draw_fixed(rng: np.random.Generator, least: int, most: int, text: str, seed: int) -> ScenePair:
    own = np.random.default_rng([seed, least, zlib.crc32(text.encode())])
    return draw_pair(own, "easy", int(own.integers(least, most + 1)))


def _row(pair: ScenePair, question: Question, answer: str = "", given: str = "") -> TrainingExample:
    return make_row(question, pair, answer=answer, given=given)
