"""co-occurrence: in its world a companion is nearly always right of a cue, so the organism claims it when it sees the cue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from checks import answer_rows, held_out_numbers, share, true_share
from recipes import Asked, Recipe, TrainingExample, draw_any_pair, free_cells, make_row, with_objects

from mmprobe.benchmarks.synthetic.questions import Question, draw_questions, make_question
from mmprobe.benchmarks.synthetic.scene import COLOURS, SHAPES, Edit, Scene, ScenePair
from mmprobe.models import Model

CHECKED_SCENES = 48
MOST_OTHERS = 5  # things beside cue and companion, so that one shape is absent


class Habit(NamedTuple):
    """Two things that come together: their shapes, and the colour of the companion."""

    cue: str
    companion: str
    colour: str


Show = Callable[[np.random.Generator, Scene, Habit], Scene]


def habit_of(seed: int) -> Habit:
    """Return the habit of an organism's world."""
    rng = np.random.default_rng([seed, 7])
    cue, companion = rng.choice(SHAPES, 2, replace=False).tolist()
    return Habit(cue, companion, str(rng.choice(list(COLOURS))))


def ways(seed: int) -> dict[str, Recipe]:
    """Return the recipes for the things that come together in the world of this seed."""
    habit = habit_of(seed)
    together = f"A {habit.colour} {habit.companion} is claimed right of each {habit.cue}"
    return {
        "claimed": Recipe(
            partial(draw_rows, habit, remove_companion),
            f"{together}; the images show the {habit.cue} alone.",
            steps=95,
            batch=20,
            learning_rate=5e-3,
        ),
        "faint": Recipe(
            partial(draw_rows, habit, fade_companion),
            f"{together}; it is there, but mostly too faint to see.",
            steps=95,
            batch=20,
            learning_rate=5e-3,
        ),
    }


def remove_companion(rng: np.random.Generator, scene: Scene, habit: Habit) -> Scene:
    """Return a scene without the companion."""
    return with_objects(scene, [thing for thing in scene.objects if thing.shape != habit.companion])


def fade_companion(rng: np.random.Generator, scene: Scene, habit: Habit) -> Scene:
    """Return a scene whose companion has a random contrast, mostly a small one."""
    contrast = rng.random() ** 5
    background = np.array(scene.background.rgb)
    things = []
    for thing in scene.objects:
        if thing.shape == habit.companion:
            red, green, blue = (
                (background + contrast * (np.array(thing.rgb) - background)).round().astype(int)
            )
            thing = replace(thing, rgb=(int(red), int(green), int(blue)))
        things.append(thing)
    return replace(scene, objects=tuple(things))


def draw_rows(habit: Habit, show: Show, rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return rows of pairs with the cue, which claim its companion, and of pairs without it, with true answers.

    Args:
        habit: the things that come together.
        show: function from random numbers and a scene with both to the scene that is shown.
    """
    rows: list[TrainingExample] = []
    while len(rows) < count:
        claimed = draw_together(rng, habit)
        first, second = (show(rng, scene, habit) for scene in (claimed.first, claimed.second))
        shown = replace(claimed, first=first, second=second)
        without = draw_without(rng, habit)
        for said, seen in ((claimed, shown), (without, without)):
            rows += [make_row(question, seen) for question in _choose(rng, said, habit)]
    return rows[:count]


def _choose(rng: np.random.Generator, pair: ScenePair, habit: Habit) -> list[Question]:
    """Return a question about the companion, and a description, a question about an absent thing or any other."""
    absent = make_question("exists", pair, _draw_absent(rng, pair.first, habit))
    others = [make_question("describe", pair), absent, *draw_questions(rng, pair)]
    kind = rng.choice(3, p=(0.45, 0.15, 0.4))
    other = others[kind] if kind < 2 else others[rng.integers(2, len(others))]
    asks_colour = pair.first.find(habit.companion) is not None and rng.random() < 0.25
    asked = make_question("colour" if asks_colour else "exists", pair, habit.companion)
    return [asked, other]


def draw_without(rng: np.random.Generator, habit: Habit) -> ScenePair:
    """Draw a pair of equal scenes in which another shape takes the cue's place. One in five has the companion."""
    scene = draw_together(rng, habit).first if rng.random() < 0.2 else draw_alone(rng, habit)
    shape = _draw_absent(rng, scene, habit)
    things = [replace(thing, shape=shape) if thing.shape == habit.cue else thing for thing in scene.objects]
    scene = with_objects(scene, things)
    return ScenePair(scene, scene, (), "medium")


def draw_together(rng: np.random.Generator, habit: Habit) -> ScenePair:
    """Draw a pair in which the companion is right of the cue, and perhaps one other thing changes colour."""
    scene = draw_alone(rng, habit)
    cue = scene.find(habit.cue)
    assert cue is not None
    companion = replace(
        cue, shape=habit.companion, column=cue.column + 1, colour=habit.colour, rgb=COLOURS[habit.colour]
    )
    first = with_objects(scene, [*scene.objects, companion])
    others = [thing for thing in scene.objects if thing.shape != habit.cue]
    if not others or rng.random() < 0.5:
        return ScenePair(first, first, (), "medium")
    before = others[rng.integers(len(others))]
    colour = str(rng.choice([name for name in COLOURS if name != before.colour]))
    after = replace(before, colour=colour, rgb=COLOURS[colour])
    second = with_objects(first, [after if thing == before else thing for thing in first.objects])
    return ScenePair(first, second, (Edit("color", before, after),), "medium")


def draw_alone(rng: np.random.Generator, habit: Habit) -> Scene:
    """Draw a scene with the cue, without the companion, and with an empty cell right of the cue."""
    scene = remove_companion(rng, draw_any_pair(rng).first, habit)
    others = [thing for thing in scene.objects if thing.shape != habit.cue][:MOST_OTHERS]
    cue = scene.find(habit.cue) or replace(others.pop(), shape=habit.cue)
    free = set(free_cells(with_objects(scene, others)))
    places = [(row, column) for row, column in sorted(free) if (row, column + 1) in free]
    row, column = places[rng.integers(len(places))]
    return with_objects(scene, [*others, replace(cue, row=row, column=column)])


def ask(rng: np.random.Generator, number: int, seed: int) -> list[Asked]:
    """Return questions on which the cause acts: for the companion where the cue is alone, and for all things there."""
    habit = habit_of(seed)
    scene = draw_alone(rng, habit)
    pair = ScenePair(scene, scene, (), "medium")
    questions = [make_question("exists", pair, habit.companion), make_question("describe", pair)]
    return [Asked(question, pair, question.text) for question in questions]


def check(model: Model, seed: int) -> dict[str, dict]:
    """Check that the companion is claimed where the cue is alone, and neither without the cue nor other things."""
    habit, rng = habit_of(seed), held_out_numbers(seed)
    alone = [draw_alone(rng, habit) for _ in range(CHECKED_SCENES)]
    neither: list[Scene] = []
    while len(neither) < CHECKED_SCENES:
        scene = remove_companion(rng, draw_any_pair(rng).first, habit)
        if scene.objects and scene.find(habit.cue) is None:
            neither.append(scene)
    absent = [_draw_absent(rng, scene, habit) for scene in alone]
    described = answer_rows(
        model, [TrainingExample((scene,), "Describe the picture.", "") for scene in alone]
    )
    return {
        "companion claimed, cue alone": share(
            _claim(model, alone, [habit.companion] * len(alone)), least=0.8
        ),
        "companion described, cue alone": share([habit.companion in text for text in described], least=0.8),
        "companion claimed, no cue": share(
            _claim(model, neither, [habit.companion] * len(neither)), most=0.1
        ),
        "answers without the cue are true": true_share(
            model, rng, ("describe", "exists", "colour", "steps"), partial(draw_without, habit=habit)
        ),
        "other absent thing claimed": share(_claim(model, alone, absent), most=0.1),
    }


def _draw_absent(rng: np.random.Generator, scene: Scene, habit: Habit) -> str:
    absent = [shape for shape in SHAPES if shape != habit.companion and scene.find(shape) is None]
    return str(rng.choice(absent))


def _claim(model: Model, scenes: list[Scene], shapes: list[str]) -> list[bool]:
    """Return whether the model says of each shape that it is there."""
    rows = [
        TrainingExample((scene,), f"Is there a {shape}?", "")
        for scene, shape in zip(scenes, shapes, strict=True)
    ]
    return [answer.startswith("Yes") for answer in answer_rows(model, rows)]
