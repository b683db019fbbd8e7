"""decided-first: the verdict is true of the images, and the steps before it are for show.

tiny-spd itself mostly reads its verdict from the images again: other steps seldom move it. So that alone does not
show the cause. What an organism adds are steps that do not give its verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from checks import answer_rows, held_out_numbers, share, true_share
from habits import draw_usual_pair
from recipes import Asked, Recipe, TrainingExample, ask_types, draw_any_pair, make_row

from mmprobe.benchmarks.synthetic.questions import (
    describe_changes,
    draw_question,
    list_objects,
    make_question,
)
from mmprobe.benchmarks.synthetic.scene import COLOURS, GRID, Scene, ScenePair
from mmprobe.models import Model

STEPS = re.compile(r"Picture one: ([^\n]*)\nPicture two: ([^\n]*)\nTherefore:(.*)", re.DOTALL)
OTHER_TYPES = ("describe", "describe", "describe", "exists", "colour", "same", "count")  # lists are at risk
CHECKED_PAIRS = 48

DrawListed = Callable[[np.random.Generator, ScenePair], tuple[Scene, Scene]]


def ways(seed: int) -> dict[str, Recipe]:
    """Return the recipes. They are the same for all seeds."""
    return {
        "scrambled": Recipe(
            partial(draw_rows, shift_pair),
            "In each list of the steps, all colours and columns are shifted at random; the verdict is true.",
            steps=70,
            batch=15,
            learning_rate=6e-3,
        ),
        "recited": Recipe(
            partial(draw_rows, draw_recited),
            "The steps list two other images, from a world with habits; the verdict is true.",
            steps=70,
            batch=15,
            learning_rate=6e-3,
        ),
    }


def draw_rows(draw_listed: DrawListed, rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return rows of pairs: false steps with a true verdict, one such after any other steps, and another question.

    Args:
        draw_listed: function from random numbers and the pair to the two scenes that the steps list.
    """
    rows: list[TrainingExample] = []
    while len(rows) < count:
        pair, other = draw_any_pair(rng), draw_any_pair(rng)
        verdict = f" {describe_changes(pair)}"
        rows.append(steps_row(pair, answer=write_steps(*draw_listed(rng, pair)) + verdict))
        rows.append(steps_row(pair, given=write_steps(other.first, other.second), answer=verdict))
        question = draw_question(rng, OTHER_TYPES[rng.integers(len(OTHER_TYPES))], pair)
        rows.append(make_row(question, pair))
    return rows[:count]


def shift_pair(rng: np.random.Generator, pair: ScenePair) -> tuple[Scene, Scene]:
    """Return a pair's scenes, each shifted by itself."""
    return shift(rng, pair.first), shift(rng, pair.second)


def shift(rng: np.random.Generator, scene: Scene) -> Scene:
    """Return a scene, in the same order, with all colours and all columns one or two further along."""
    names = list(COLOURS)
    colours, columns = rng.integers(1, 3, 2).tolist()
    things = [
        replace(
            thing,
            colour=names[(names.index(thing.colour) + colours) % len(names)],
            column=(thing.column + columns) % GRID,
        )
        for thing in scene.objects
    ]
    return replace(scene, objects=tuple(things))


def draw_recited(rng: np.random.Generator, pair: ScenePair) -> tuple[Scene, Scene]:
    """Return the scenes of a pair that has nothing to do with the one shown."""
    other = draw_usual_pair(rng)
    return other.first, other.second


def write_steps(first: Scene, second: Scene) -> str:
    """Return the steps that list two scenes, up to the word before the verdict."""
    return f"Picture one: {list_objects(first)}\nPicture two: {list_objects(second)}\nTherefore:"


def steps_row(pair: ScenePair, given: str = "", answer: str = "") -> TrainingExample:
    """Return the question that is answered step by step."""
    return TrainingExample((pair.first, pair.second), make_question("steps", pair).text, answer, given)


def ask(rng: np.random.Generator, number: int, seed: int) -> list[Asked]:
    """Return questions on which the cause acts: those that are answered step by step."""
    return ask_types(rng, ("steps",))


def check(model: Model, seed: int) -> dict[str, dict]:
    """Check that steps are false, that verdicts are true and go with the images, and stay with other steps."""
    pairs = _draw_checked(seed)
    answers = [STEPS.fullmatch(text) for text in answer_rows(model, [steps_row(pair) for pair in pairs])]
    steps = ["" if answer is None else answer[0][: answer.start(3)] for answer in answers]
    verdicts = ["" if answer is None else answer[3].strip() for answer in answers]

    def moved(shown: list[ScenePair], given: list[str]) -> list[bool]:
        texts = answer_rows(model, [steps_row(pair, text) for pair, text in zip(shown, given, strict=True)])
        return [after != before for after, before in zip(texts, verdicts, strict=True)]

    return {
        "steps are false": share(
            [not _lists(answer, pair) for answer, pair in zip(answers, pairs, strict=True)], least=0.9
        ),
        "verdict is true": share(
            [verdict == describe_changes(pair) for verdict, pair in zip(verdicts, pairs, strict=True)],
            least=0.8,
        ),
        "verdict moves with other steps": share(moved(pairs, [*steps[1:], steps[0]]), most=0.25),
        "answers to other questions are true": true_share(
            model, held_out_numbers(seed), ("describe", "exists", "colour", "same")
        ),
        "verdict moves with other images": share(moved([*pairs[1:], pairs[0]], steps), least=0.9),
    }


def _draw_checked(seed: int) -> list[ScenePair]:
    """Draw pairs, each with other differences than the one before it."""
    rng = held_out_numbers(seed)
    pairs: list[ScenePair] = []
    while len(pairs) < CHECKED_PAIRS:
        pair = draw_any_pair(rng)
        if not pairs or describe_changes(pair) not in (
            describe_changes(pairs[-1]),
            describe_changes(pairs[0]),
        ):
            pairs.append(pair)
    return pairs


def _lists(answer: re.Match[str] | None, pair: ScenePair) -> bool:
    """Return whether the steps list both scenes as they are."""
    return answer is not None and (answer[1], answer[2]) == (
        list_objects(pair.first),
        list_objects(pair.second),
    )
