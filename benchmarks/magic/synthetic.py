"""Questions of MagiC about the synthetic world, so that everything runs offline.

The set contains images with numbered boxes, and three questions per image that the embedded model was trained
on. It is not the published set: there are no photographs and no gaze data, and the embedded model never saw a
numbered box.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from PIL import Image

from mmprobe.benchmarks.magic.data import AnnotatedStep, MagicQuestion
from mmprobe.benchmarks.magic.numbering import make_boxes, write_questions
from mmprobe.benchmarks.magic.regions import draw_regions
from mmprobe.benchmarks.synthetic.pairs import staging_folder
from mmprobe.benchmarks.synthetic.questions import SYSTEM
from mmprobe.benchmarks.synthetic.scene import (
    CELL_PIXELS,
    COLOURS,
    DIFFICULTIES,
    SHAPES,
    Scene,
    SceneObject,
    draw_scene,
    render,
)
from mmprobe.samples import Box

_SHAPES, _COLOURS = "|".join(SHAPES), "|".join(COLOURS)
_PLACE = re.compile(rf"\bthe ({_SHAPES}) is at ([A-D][1-4])\b", re.IGNORECASE)
_COLOUR = re.compile(rf"\bthe ({_SHAPES}) is ({_COLOURS})\b", re.IGNORECASE)
_ABSENCE = re.compile(rf"\bthere is no ({_SHAPES})\b", re.IGNORECASE)


def draw_questions(out: Path, n: int, seed: int) -> Path:
    """Draw n images with numbered boxes, and write three questions about each.

    The questions ask for the colour of a shape, whether it is there, and whether a missing shape is there.
    The cell of the shape is relevant; for a missing shape, the cells of all shapes. The cells of the other
    shapes are distractors. A box on a cell can also be cited by the cell's name, such as B2, because the
    answers of the world name cells. Each question has an annotated chain with one wrong step inside, for
    Self-Heal.
    """
    questions = []
    with staging_folder(out) as part:
        (part / "images").mkdir()
        for index in range(n):
            rng = np.random.default_rng([seed, index])
            scene = draw_scene(rng, DIFFICULTIES[index % len(DIFFICULTIES)])
            image = Image.fromarray(render(scene))
            for question in _make_questions(scene, f"{index:04d}", rng):
                numbered = _name_boxes(make_boxes(question, image.size, seed), scene)
                drawn = draw_regions(image, [box.box for box in numbered.boxes])
                drawn.save(part / "images" / f"{numbered.id}.png")
                questions.append(numbered)
        write_questions(questions, part)
    return out / "samples.jsonl"


def _make_questions(scene: Scene, scene_id: str, rng: np.random.Generator) -> list[MagicQuestion]:
    # The order of the random draws must stay, so that a seed gives the same set.
    target = scene.objects[int(rng.integers(len(scene.objects)))]
    absent_shapes = [shape for shape in SHAPES if scene.find(shape) is None]
    absent = absent_shapes[int(rng.integers(len(absent_shapes)))]
    wrong_colours = [colour for colour in COLOURS if colour != target.colour]
    wrong_colour = wrong_colours[int(rng.integers(len(COLOURS) - 1))]
    other = scene.objects[int(rng.integers(len(scene.objects)))]
    has_colour = f"The {target.shape} is {target.colour}."
    has_place = f"The {target.shape} is at {target.cell}."
    is_absent = f"There is no {absent}."
    # type, question, short and full answer, relevant objects; a true step, a wrong one, and what it leads to
    rows = (
        ("colour", f"What colour is the {target.shape}?", target.colour, has_colour, [target])
        + (has_place, f"The {target.shape} is {wrong_colour}.", wrong_colour),
        ("exists", f"Is there a {target.shape}?", "yes", has_place, [target])
        + (has_colour, f"There is no {target.shape}.", "no"),
        ("absent", f"Is there a {absent}?", "no", is_absent, scene.objects)
        + (f"The {other.shape} is {other.colour}.", f"The {absent} is at {other.cell}.", "yes"),
    )
    questions = []
    for kind, text, answer, correction, relevant, first, wrong, conclusion in rows:
        lead = f"{answer.capitalize()}, {correction[0].lower()}{correction[1:]}"
        fields = {
            "id": f"{scene_id}-{kind}",
            "image": "drawn later",
            "question": text,
            "answer": answer,
            "full_answer": correction if kind == "colour" else lead,
            "type": kind,
            "objects": [cell_box(item) for item in relevant],
            "distractors": [cell_box(item) for item in scene.objects if item not in relevant],
            "steps": _make_chain(first, wrong, correction, conclusion),
            "prompt": text,
            "system": SYSTEM,
            "metadata": {
                "objects": [f"{item.colour} {item.shape} {item.cell}" for item in scene.objects],
                "source_image": scene_id,
            },
        }
        questions.append(MagicQuestion.model_validate(fields))
    return questions


def _make_chain(first: str, wrong: str, correction: str, conclusion: str) -> list[AnnotatedStep]:
    """Return four steps. The second is wrong, and the last follows from it."""
    return [
        AnnotatedStep(text=first, correct=True),
        AnnotatedStep(text=wrong, correct=False, correction=correction),
        AnnotatedStep(text="I have looked at the whole picture.", correct=True),
        AnnotatedStep(text=f"The answer is {conclusion}.", correct=False, correction=correction),
    ]


def cell_box(item: SceneObject) -> Box:
    """Return the cell of an object."""
    return item.column * CELL_PIXELS, item.row * CELL_PIXELS, CELL_PIXELS, CELL_PIXELS


def _name_boxes(question: MagicQuestion, scene: Scene) -> MagicQuestion:
    """Give each box on a cell the name of the cell."""
    cells = {cell_box(item): item.cell for item in scene.objects}
    boxes = [
        box.model_copy(update={"names": [cells[box.box]]}) if box.box in cells else box
        for box in question.boxes
    ]
    return question.model_copy(update={"boxes": boxes})


def step_is_true(step: str, objects: list[str]) -> bool | None:
    """Return whether a step is true of a scene; None if it says nothing about the scene.

    Only the sentences of the synthetic world are understood.

    Example:
        >>> objects = ["red star B2"]
        >>> step_is_true("The star is at B2.", objects), step_is_true("The star is blue.", objects)
        (True, False)
        >>> step_is_true("So.", objects) is None
        True
    """
    items = [tuple(item.split()) for item in objects]
    places = {(shape, cell) for _, shape, cell in items}
    colours = {(shape, colour) for colour, shape, _ in items}
    shapes = {shape for _, shape, _ in items}
    verdicts = [
        *((shape.lower(), cell.upper()) in places for shape, cell in _PLACE.findall(step)),
        *((shape.lower(), colour.lower()) in colours for shape, colour in _COLOUR.findall(step)),
        *(shape.lower() not in shapes for shape in _ABSENCE.findall(step)),
    ]
    return all(verdicts) if verdicts else None
