"""The questions about a pair of scenes of things, and their true answers.

The real model was trained on these questions, so their sentences must not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mmprobe.benchmarks.things.scene import (
    COLOURS,
    PlacedThing,
    ThingEdit,
    ThingScene,
    draw_thing,
    move,
    recolour,
)

ThingQuestionType = Literal[
    "same", "different", "list", "describe", "exist", "color", "colorof", "where", "count", "choice"
]
NUMBERS = ("no", "one", "two", "three", "four")
_TEXTS = {
    "list": (
        "What are the differences between the two images?",
        "List all differences between the first and the second image.",
        "Compare the two images step by step.",
    ),
    "same": ("Are the two images the same?", "Do both images show the same?"),
    "different": ("Are the two images different?", "Is there any difference between the two images?"),
    "describe": ("Describe the image.", "What is in the image?", "What do you see in this picture?"),
    "exist": (
        "Is there {article} {name} in the image?",
        "Can you see {article} {name}?",
        "Does the picture show {article} {name}?",
    ),
    "color": ("What color is the {name}?", "Which color does the {name} have?"),
    "colorof": ("Is the {name} {colour}?",),
    "where": ("Where is the {name}?", "Where in the image is the {name}?"),
    "count": ("How many things are in the image?", "How many objects do you see?"),
    "choice": ("What color is the {name}?\n{options}\nAnswer with the letter of the option.",),
}


@dataclass(frozen=True)
class ThingQuestion:
    """A question with its true answer, about both scenes of a pair or about the first one.

    One about the first scene has an edit that makes its answer false, and the answer that is true then.
    """

    type: ThingQuestionType
    text: str
    answer: str
    edit: ThingEdit | None = None
    otherwise: str | None = None


def draw_questions(
    rng: np.random.Generator, scene: ThingScene, edits: Sequence[ThingEdit]
) -> list[ThingQuestion]:
    """Return a question of each type. Those about one thing of the first scene are all about the same thing."""
    return [*_draw_pair_questions(rng, edits), *_draw_scene_questions(rng, scene)]


def _draw_pair_questions(rng: np.random.Generator, edits: Sequence[ThingEdit]) -> list[ThingQuestion]:
    numbered = "\n".join(f"{number}. {describe_edit(edit)}" for number, edit in enumerate(edits, 1))
    return [
        ThingQuestion("same", _word(rng, "same"), "no" if edits else "yes"),
        ThingQuestion("different", _word(rng, "different"), "yes" if edits else "no"),
        ThingQuestion(
            "list", _word(rng, "list"), numbered or "There are no differences between the two images."
        ),
    ]


def _draw_scene_questions(rng: np.random.Generator, scene: ThingScene) -> list[ThingQuestion]:
    thing = scene.things[rng.integers(len(scene.things))]
    other, moved, gone = (
        recolour(rng, thing),
        move(rng, thing, scene.find_free_cells()),
        ThingEdit(thing, None),
    )
    assert other.after is not None and moved.after is not None
    name, colour, other_colour = thing.name, thing.colour, other.after.colour
    other_scene = other.apply(scene)

    is_present = rng.random() < 0.5
    exists = gone if is_present else _draw_addition(rng, scene)
    exist = ("yes", "no") if is_present else ("no", "yes")
    is_right = rng.random() < 0.5
    asked = colour if is_right else other_colour
    colour_of = ("yes", "no") if is_right else ("no", "yes")
    options = _draw_options(rng, colour, other_colour)
    listed = "\n".join(f"{letter}. {option}" for letter, option in options.items())
    letters = {option: letter for letter, option in options.items()}
    count = len(scene.things)
    described = describe_scene(scene), describe_scene(other_scene)
    return [
        ThingQuestion("describe", _word(rng, "describe"), described[0], other, described[1]),
        ThingQuestion("exist", _word(rng, "exist", exists.name), exist[0], exists, exist[1]),
        ThingQuestion("color", _word(rng, "color", name), colour, other, other_colour),
        ThingQuestion("colorof", _word(rng, "colorof", name, asked), colour_of[0], other, colour_of[1]),
        ThingQuestion("where", _word(rng, "where", name), thing.place, moved, moved.after.place),
        ThingQuestion("count", _word(rng, "count"), NUMBERS[count], gone, NUMBERS[count - 1]),
        ThingQuestion(
            "choice",
            _word(rng, "choice", name, options=listed),
            letters[colour],
            other,
            letters[other_colour],
        ),
    ]


def _word(
    rng: np.random.Generator, kind: ThingQuestionType, name: str = "", colour: str = "", options: str = ""
) -> str:
    """Return one of the texts of a type of questions."""
    text = _TEXTS[kind][rng.integers(len(_TEXTS[kind]))]
    return text.format(article=find_article(name), name=name, colour=colour, options=options)


def _draw_addition(rng: np.random.Generator, scene: ThingScene) -> ThingEdit:
    """Return an edit that adds a thing that the scene lacks."""
    absent, free = scene.find_absent(), scene.find_free_cells()
    name, cell = absent[rng.integers(len(absent))], free[rng.integers(len(free))]
    return ThingEdit(None, draw_thing(rng, name, cell))


def _draw_options(rng: np.random.Generator, colour: str, other: str) -> dict[str, str]:
    """Return four colours by letter, among them these two."""
    rest = [each for each in COLOURS if each not in (colour, other)]
    chosen = [colour, other, *(rest[index] for index in rng.permutation(len(rest))[:2])]
    return {letter: chosen[index] for letter, index in zip("ABCD", rng.permutation(4), strict=True)}


def find_article(word: str) -> str:
    """Return `a` or `an`."""
    return "an" if word[:1] in tuple("aeiou") else "a"


def describe_edit(edit: ThingEdit) -> str:
    """Return one sentence for one difference: `The shoe changed from red to blue.`"""
    if edit.before is None:
        return f"The {edit.name} was added."
    if edit.after is None:
        return f"The {edit.name} was removed."
    if edit.type == "color":
        return f"The {edit.name} changed from {edit.before.colour} to {edit.after.colour}."
    return f"The {edit.name} moved from the {edit.before.place} to the {edit.after.place}."


def describe_scene(scene: ThingScene) -> str:
    """Return a caption in reading order: `The image shows a red shoe in the top left and an orange egg in the center.`"""
    items = [_describe_thing(thing) for thing in sorted(scene.things, key=lambda thing: thing.cell)]
    return f"The image shows {' and '.join(filter(None, [', '.join(items[:-1]), items[-1]]))}."


def _describe_thing(thing: PlacedThing) -> str:
    return f"{find_article(thing.colour)} {thing.colour} {thing.name} in the {thing.place}"
