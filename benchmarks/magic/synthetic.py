"""MagiC over the synthetic world, so that it runs offline.

The set holds pictures with numbered boxes and, of each, three questions that the embedded model was trained on. It is
not the published one: nothing is photographed, nobody's gaze was recorded, and that model never saw a numbered box.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from PIL import Image

from mmprobe.benchmarks.magic.boxes.numbering import with_boxes, write_questions
from mmprobe.benchmarks.magic.boxes.regions import Box, draw_regions
from mmprobe.benchmarks.magic.data import AnnotatedStep, MagicQuestion
from mmprobe.benchmarks.synthetic.pairs import drawing_into
from mmprobe.benchmarks.synthetic.questions import SYSTEM
from mmprobe.benchmarks.synthetic.render import render
from mmprobe.benchmarks.synthetic.scene import (
    CELL_PIXELS,
    COLOURS,
    DIFFICULTIES,
    SHAPES,
    Scene,
    SceneObject,
    draw_scene,
)

_SHAPES, _COLOURS = "|".join(SHAPES), "|".join(COLOURS)
_AT = re.compile(rf"\bthe ({_SHAPES}) is at ([A-D][1-4])\b", re.IGNORECASE)
_IS = re.compile(rf"\bthe ({_SHAPES}) is ({_COLOURS})\b", re.IGNORECASE)
_GONE = re.compile(rf"\bthere is no ({_SHAPES})\b", re.IGNORECASE)


def draw_questions(out: Path, n: int, seed: int) -> Path:
    """Draw `n` pictures and ask of each what colour a shape is, whether it is there, and whether another one is.

    What is relevant to a shape that is there is its cell; to one that is not, the cells of all shapes. Other shapes'
    cells are the distractors. A cell's box is also cited by its name, such as B2, since that is how the world's
    answers say where something is. Each question has a reasoning chain with one wrong step inside, for Self-Heal.

    Args:
        out: folder to make; must not exist or be empty.
        n: number of pictures.
        seed: source of all randomness; picture k depends on it and k alone.

    Returns:
        `out/samples.jsonl`.

    Raises:
        InputError: `out` is not empty.

    Example:
        >>> draw_questions(Path("magic"), 8, seed=0)                            # doctest: +SKIP
        PosixPath('magic/samples.jsonl')
    """
    made = []
    with drawing_into(out) as part:
        (part / "images").mkdir()
        for index in range(n):
            rng = np.random.default_rng([seed, index])
            scene = draw_scene(rng, DIFFICULTIES[index % len(DIFFICULTIES)])
            picture = Image.fromarray(render(scene))
            for question in _questions(scene, f"{index:04d}", rng):
                asked = _named(with_boxes(question, picture.size, seed), scene)
                drawn = draw_regions(picture, [box.box for box in asked.boxes])
                drawn.save(part / "images" / f"{asked.id}.png")
                made.append(asked)
        write_questions(made, part)
    return out / "samples.jsonl"


def _questions(scene: Scene, name: str, rng: np.random.Generator) -> list[MagicQuestion]:
    thing = scene.objects[int(rng.integers(len(scene.objects)))]
    absent = [shape for shape in SHAPES if scene.find(shape) is None]
    gone = absent[int(rng.integers(len(absent)))]
    colour = [other for other in COLOURS if other != thing.colour][int(rng.integers(len(COLOURS) - 1))]
    seen = scene.objects[int(rng.integers(len(scene.objects)))]
    true_colour, true_place = (
        f"The {thing.shape} is {thing.colour}.",
        f"The {thing.shape} is at {thing.cell}.",
    )
    nowhere = f"There is no {gone}."
    return [
        _question(
            scene,
            f"{name}-colour",
            f"What colour is the {thing.shape}?",
            (thing.colour, true_colour),
            [thing],
        ).model_copy(
            update={"steps": _chain(true_place, f"The {thing.shape} is {colour}.", true_colour, colour)}
        ),
        _question(
            scene,
            f"{name}-exists",
            f"Is there a {thing.shape}?",
            ("yes", f"Yes, {_lower(true_place)}"),
            [thing],
        ).model_copy(update={"steps": _chain(true_colour, f"There is no {thing.shape}.", true_place, "no")}),
        _question(
            scene,
            f"{name}-absent",
            f"Is there a {gone}?",
            ("no", f"No, {_lower(nowhere)}"),
            list(scene.objects),
        ).model_copy(
            update={
                "steps": _chain(
                    f"The {seen.shape} is {seen.colour}.", f"The {gone} is at {seen.cell}.", nowhere, "yes"
                )
            }
        ),
    ]


def _question(
    scene: Scene, name: str, text: str, answers: tuple[str, str], relevant: list[SceneObject]
) -> MagicQuestion:
    return MagicQuestion(
        id=name,
        image=Path("drawn later"),
        question=text,
        answer=answers[0],
        full_answer=answers[1],
        type=name.partition("-")[2],
        objects=[cell_box(thing) for thing in relevant],
        distractors=[cell_box(thing) for thing in scene.objects if thing not in relevant],
        prompt=text,
        system=SYSTEM,
        metadata={"objects": [f"{thing.colour} {thing.shape} {thing.cell}" for thing in scene.objects]},
    )


def _chain(first: str, wrong: str, correction: str, conclusion: str) -> list[AnnotatedStep]:
    """Four steps, the second of them wrong, which the last one follows."""
    return [
        AnnotatedStep(text=first, correct=True),
        AnnotatedStep(text=wrong, correct=False, correction=correction),
        AnnotatedStep(text="I have looked at the whole picture.", correct=True),
        AnnotatedStep(text=f"The answer is {conclusion}.", correct=False, correction=correction),
    ]


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def cell_box(thing: SceneObject) -> Box:
    """The cell that an object stands in.

    Example:
        >>> cell_box(draw_scene(np.random.default_rng(0), "easy").objects[0])[2:]
        (28, 28)
    """
    return thing.column * CELL_PIXELS, thing.row * CELL_PIXELS, CELL_PIXELS, CELL_PIXELS


def _named(question: MagicQuestion, scene: Scene) -> MagicQuestion:
    cells = {cell_box(thing): thing.cell for thing in scene.objects}
    boxes = [
        box.model_copy(update={"names": [cells[box.box]]}) if box.box in cells else box
        for box in question.boxes
    ]
    return question.model_copy(update={"boxes": boxes})


def holds(step: str, objects: list[str]) -> bool | None:
    """Whether what a step says of the world is so, in the world's own words; None where it says nothing of it.

    Args:
        objects: all that the picture shows, each `colour shape cell`.

    Example:
        >>> holds("The star is at B2.", ["red star B2"]), holds("The star is blue.", ["red star B2"]), holds("So.", [])
        (True, False, None)
    """
    facts = [tuple(thing.split()) for thing in objects]
    there = {shape for _, shape, _ in facts}
    said = [
        *(
            (shape.lower(), cell.upper()) in {(s, c) for _, s, c in facts}
            for shape, cell in _AT.findall(step)
        ),
        *(
            (shape.lower(), colour.lower()) in {(s, k) for k, s, _ in facts}
            for shape, colour in _IS.findall(step)
        ),
        *(shape.lower() not in there for shape in _GONE.findall(step)),
    ]
    return all(said) if said else None
