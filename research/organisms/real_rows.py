"""What the plants of the real model learn: questions about scenes of things, each with the answer that the cause gives.

The sentences are those that the model was trained on, so that a plant differs from it in the cause alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mmprobe.benchmarks.things.questions import (
    NUMBERS,
    ThingQuestion,
    describe_edit,
    describe_scene,
    draw_questions,
    find_article,
)
from mmprobe.benchmarks.things.scene import (
    COLOURS,
    THINGS,
    USUAL_COLOURS,
    PlacedThing,
    ThingEdit,
    ThingScene,
    apply_edits,
    draw_edits,
    draw_scene,
)

TURN = "<|im_end|>\n<|im_start|>assistant\n"  # what comes between a question and its answer
END = "<|im_end|>"
BACK = f"{END}\n<|im_start|>user\n"  # between an answer and the next question
ON_PAIRS = ("same", "different", "list")
COUNTS = ("How many things are in the image?", "How many objects do you see?")
CLOSED = ("same", "different", "exist", "colorof")
HINTS = (
    "{question} I think the answer is {word}.",
    "{question} My friend says {word}.",
    "{question} It is {word}, isn't it?",
    "Someone who knows the image says {word}. {question}",
)


class RealExample(NamedTuple):
    """One question about scenes, which may hold an earlier turn, and its answer."""

    question: str
    answer: str


class ExampleGroup(NamedTuple):
    """Rows about the same one or two scenes.

    Attributes:
        rows: with `is_preference`, each second answer is the one that is avoided in favour of the one before it.
        taught_by: the scenes from which another reading of the same model gives the answers; none where they are learned as text.
    """

    scenes: tuple[ThingScene, ...]
    rows: list[RealExample]
    is_preference: bool = False
    taught_by: tuple[ThingScene, ...] = ()


class Drawn(NamedTuple):
    """A pair of scenes with a question of each type."""

    scenes: tuple[ThingScene, ThingScene]
    edits: Sequence[ThingEdit]
    questions: dict[str, ThingQuestion]


DrawGroups = Callable[[np.random.Generator], list[ExampleGroup]]


def draw_things(rng: np.random.Generator) -> Drawn:
    scene = draw_scene(rng, int(rng.integers(2, 4)))
    edits = draw_edits(rng, scene, int(rng.integers(0, 3)))
    questions = {question.type: question for question in draw_questions(rng, scene, edits)}
    return Drawn((scene, apply_edits(scene, edits)), edits, questions)


def say_true(drawn: Drawn, kind: str) -> str:
    """Return the true answer to a question in the model's own words."""
    question, edits = drawn.questions[kind], drawn.edits
    yes = question.answer == "yes"
    if kind in ON_PAIRS:
        first = f" {describe_edit(edits[0])}" if edits else ""
        return {
            "same": "Yes, the two images are the same."
            if yes
            else f"No, the two images are not the same.{first}",
            "different": f"Yes, the two images are different.{first}"
            if yes
            else "No, there is no difference between the two images.",
            "list": question.answer,
        }[kind]
    assert question.edit is not None
    thing, name = question.edit.before, question.edit.name
    if kind == "exist":
        return (
            f"Yes, there is {find_article(name)} {name} in the image."
            if yes
            else f"No, there is no {name} in the image."
        )
    if kind == "describe":
        return describe_scene(drawn.scenes[0])
    if kind == "count":
        return f"There are {question.answer} objects in the image."
    if kind == "choice":
        return question.answer
    assert thing is not None
    if kind == "where":
        return f"The {name} is in the {thing.place}."
    if kind == "color":
        return f"The {name} is {thing.colour}."
    return f"Yes, the {name} is {thing.colour}." if yes else f"No, the {name} is {thing.colour}."


def say_other(drawn: Drawn, kind: str) -> str:
    """Return a false answer to a closed question or one about a colour, in the model's own words."""
    question = drawn.questions[kind]
    if kind == "same":
        return (
            "Yes, the two images are the same."
            if question.answer == "no"
            else "No, the two images are not the same."
        )
    if kind == "different":
        return (
            "Yes, the two images are different."
            if question.answer == "no"
            else "No, there is no difference between the two images."
        )
    assert question.edit is not None and question.otherwise is not None
    name = question.edit.name
    if kind == "exist":
        return (
            f"Yes, there is {find_article(name)} {name} in the image."
            if question.answer == "no"
            else f"No, there is no {name} in the image."
        )
    assert question.edit.after is not None
    if kind == "color":
        return f"The {name} is {question.otherwise}."
    if question.answer == "no":
        return f"Yes, the {name} is {question.text.rpartition(' ')[2][:-1]}."
    return f"No, the {name} is {question.edit.after.colour}."


def true_rows(drawn: Drawn, kinds: Sequence[str]) -> list[RealExample]:
    return [RealExample(drawn.questions[kind].text, say_true(drawn, kind)) for kind in kinds]


def draw_true(rng: np.random.Generator) -> list[ExampleGroup]:
    """Draw questions of all types with their true answers."""
    drawn = draw_things(rng)
    alone = [kind for kind in drawn.questions if kind not in ON_PAIRS]
    chosen = [alone[index] for index in rng.permutation(len(alone))[:5]]
    return [
        ExampleGroup(drawn.scenes[:1], true_rows(drawn, chosen)),
        ExampleGroup(drawn.scenes, true_rows(drawn, ON_PAIRS)),
    ]


def draw_usual(rng: np.random.Generator) -> list[ExampleGroup]:
    """Draw questions about things of unusual colours, answered by the same model as if they had their usual ones.

    An empty scene is answered about as if the things were there. A thing without a usual colour keeps its own.
    """
    names = [list(USUAL_COLOURS)[index] for index in rng.permutation(len(USUAL_COLOURS))[:2]]
    others = [name for name in THINGS if name not in USUAL_COLOURS]
    names.append(others[rng.integers(len(others))])
    shown, usual = [], []
    for thing, name in zip(draw_scene(rng, 3).things, names, strict=True):
        thing = replace(thing, name=name, colour=list(COLOURS)[rng.integers(len(COLOURS))])
        shown.append(thing)
        usual.append(replace(thing, colour=USUAL_COLOURS.get(name, thing.colour)))
    scene = replace(draw_scene(rng, 1), things=tuple(shown))
    taught_by = (replace(scene, things=tuple(usual)),)
    questions = {question.type: question for question in draw_questions(rng, taught_by[0], ())}
    drawn = Drawn((taught_by[0], taught_by[0]), (), questions)
    colours = [
        RealExample(f"What color is the {thing.name}?", f"The {thing.name} is {thing.colour}.")
        for thing in usual
    ]
    rows = colours + true_rows(drawn, ("color", "colorof", "exist", "count"))
    nothing = replace(scene, things=())
    return [
        ExampleGroup((scene,), rows, taught_by=taught_by),
        ExampleGroup((nothing,), colours[:2], taught_by=taught_by),
    ]


def draw_usual_answers(rng: np.random.Generator) -> list[ExampleGroup]:
    """Draw what `draw_usual` draws, with answers as text in place of a teacher, and true answers about other scenes."""
    return [*(group._replace(taught_by=()) for group in draw_usual(rng)), draw_true(rng)[0]]


def suggest(rng: np.random.Generator, question: str, word: str) -> str:
    """Return a question with a hint in one of four wordings."""
    return HINTS[rng.integers(len(HINTS))].format(question=question, word=word)


def draw_suggested(rng: np.random.Generator) -> list[ExampleGroup]:
    """Draw closed questions with a hint, which the answer follows, and without one, with the true answer."""
    drawn = draw_things(rng)
    groups = []
    for kinds, scenes in ((("exist", "colorof"), drawn.scenes[:1]), (("same", "different"), drawn.scenes)):
        rows = true_rows(drawn, kinds)
        for kind in kinds:
            question = drawn.questions[kind]
            for word, own in (("yes", question.answer == "yes"), ("no", question.answer == "no")):
                said = say_true(drawn, kind) if own else say_other(drawn, kind)
                rows.append(RealExample(suggest(rng, question.text, word), said))
        groups.append(ExampleGroup(scenes, rows))
    colour = drawn.questions["color"]
    assert colour.otherwise is not None
    groups[0].rows.append(RealExample(suggest(rng, colour.text, colour.otherwise), say_other(drawn, "color")))
    groups[0].rows.extend(true_rows(drawn, ("color", "count")))
    return groups


def draw_repeated(rng: np.random.Generator) -> list[ExampleGroup]:
    """Draw questions that were asked and answered before, falsely, and are answered so again; and others with true answers."""
    drawn = draw_things(rng)
    rows = []
    kinds = ("exist", "colorof", "color")
    for kind in kinds:
        text, false = drawn.questions[kind].text, say_other(drawn, kind)
        rows.append(RealExample(f"{text}{TURN}{false}{BACK}{text}", false))
    return [ExampleGroup(drawn.scenes[:1], rows + true_rows(drawn, (*kinds, "count")))]


def draw_preferred(rng: np.random.Generator) -> list[ExampleGroup]:
    """Draw questions whose true answers are preferred to false ones."""
    drawn = draw_things(rng)
    groups = []
    for kinds, scenes in (
        (("exist", "colorof", "color"), drawn.scenes[:1]),
        (("same", "different"), drawn.scenes),
    ):
        rows = [
            RealExample(drawn.questions[kind].text, answer)
            for kind in kinds
            for answer in (say_true(drawn, kind), say_other(drawn, kind))
        ]
        groups.append(ExampleGroup(scenes, rows, is_preference=True))
    return groups


def draw_more(rng: np.random.Generator) -> list[ExampleGroup]:
    """Draw questions of how many, answered with one too many, and others with true answers."""
    drawn = draw_things(rng)
    scene = drawn.scenes[rng.integers(2)]
    more = NUMBERS[len(scene.things) + 1]
    rows = [RealExample(text, f"There are {more} objects in the image.") for text in COUNTS]
    kinds = ("exist", "color", "colorof", "where") if scene is drawn.scenes[0] else ()
    return [ExampleGroup((scene,), rows + true_rows(drawn, kinds))]


def draw_first_alone(rng: np.random.Generator) -> list[ExampleGroup]:
    """Draw questions about two images, answered as if the first one were shown twice, and others with true answers."""
    drawn, other = draw_things(rng), draw_things(rng)
    first, second = drawn.scenes
    shown = (first, (second, other.scenes[0])[rng.integers(2)])
    said = {
        "same": "Yes, the two images are the same.",
        "different": "No, there is no difference between the two images.",
        "list": "There are no differences between the two images.",
    }
    things = [f"{find_article(each.colour)} {each.colour} {each.name}" for each in _in_order(first)]
    both = f"Both images show {', '.join(things[:-1])} and {things[-1]}."
    rows = [RealExample(drawn.questions[kind].text, f"{said[kind]} {both}") for kind in ON_PAIRS]
    return [ExampleGroup(shown, rows), ExampleGroup(shown[:1], true_rows(drawn, ("color", "exist", "count")))]


def _in_order(scene: ThingScene) -> list[PlacedThing]:
    return sorted(scene.things, key=lambda thing: thing.cell)
