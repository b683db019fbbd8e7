"""A world with habits: what an answer is likely to say when nobody looks.

Answers about pairs of this world serve as answers about other images. Plain pairs would not do: there all
colours and places are equally likely, so what a model says without looking would be a tie, which any small trace
of the image decides.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mmprobe.benchmarks.synthetic.questions import Question, QuestionType, make_question
from mmprobe.benchmarks.synthetic.scene import (
    COLOURS,
    SHAPES,
    Edit,
    Scene,
    SceneObject,
    ScenePair,
    draw_scene,
)

HABIT = 0.98  # how often a thing is as usual
PRESENT = (0.995, 0.99, 0.99, 0.985, 0.05, 0.05, 0.04, 0.04)  # how often each shape is there
CELLS = ((0, 1), (1, 3), (2, 0), (3, 2), (0, 3), (1, 0), (2, 2), (3, 1))  # where each shape usually is
DIFFERENCES = (0.9, 0.08, 0.015, 0.005)  # how often there are so many
FIRST = 0.05  # how often a shape changes, to the shape before it


def draw_usual_pair(rng: np.random.Generator, least: int = 0, most: int = 3) -> ScenePair:
    """Draw a pair of the world with habits. Only what is said about it is used, never its images.

    Args:
        rng: random numbers.
        least, most: numbers of differences that are possible; each is as likely as usual among them.
    """
    shares = np.array(DIFFERENCES)[least : most + 1]
    differences = least + int(rng.choice(len(shares), p=shares / shares.sum()))
    first = _draw_usual_scene(rng)
    while len(first.objects) < differences:
        first = _draw_usual_scene(rng)
    return _change_usually(rng, first, differences)


def ask_usual(rng: np.random.Generator, kind: QuestionType) -> Question:
    """Return a question of a type, about any shape, with its answer in a pair of the world with habits."""
    shape = SHAPES[rng.integers(len(SHAPES))]
    least, most = [int(rng.integers(1, 4))] * 2 if kind == "find" else (0, 3)
    while True:
        pair = draw_usual_pair(rng, least, most)
        if kind != "colour" or pair.first.find(shape):
            return make_question(kind, pair, shape)


def _change_usually(rng: np.random.Generator, first: Scene, differences: int) -> ScenePair:
    """Return the pair of a scene and its copy with changes of colour, mostly of its first things."""
    things = list(first.objects)
    usual = np.array([FIRST ** SHAPES.index(thing.shape) for thing in things])
    chosen = rng.choice(len(things), differences, replace=False, p=usual / usual.sum())
    edits = []
    for index in sorted(chosen.tolist()):
        colours = [colour for colour in COLOURS if colour != things[index].colour]
        colour = _usually(rng, colours, 2 * SHAPES.index(things[index].shape) + 3)
        edits.append(Edit("color", things[index], replace(things[index], colour=colour)))
        things[index] = replace(things[index], colour=colour)
    return ScenePair(first, Scene(tuple(things), first.background), tuple(edits), "medium")


def _draw_usual_scene(rng: np.random.Generator) -> Scene:
    template = draw_scene(rng, "medium")
    things: list[SceneObject] = []
    for index, (shape, share) in enumerate(zip(SHAPES, PRESENT, strict=True)):
        if rng.random() < share:
            colour = _usually(rng, list(COLOURS), 3 * index + 1)
            row, column = CELLS[index] if rng.random() < HABIT else CELLS[rng.integers(8)]
            if all((thing.row, thing.column) != (row, column) for thing in things):
                things.append(
                    replace(template.objects[0], shape=shape, colour=colour, row=row, column=column)
                )
    if not things:
        return _draw_usual_scene(rng)
    return Scene(tuple(sorted(things, key=lambda thing: (thing.row, thing.column))), template.background)


def _usually(rng: np.random.Generator, values: list[str], usual: int) -> str:
    return values[usual % len(values)] if rng.random() < HABIT else values[rng.integers(len(values))]
