"""The questions about a scene pair, and their true answers.

The set of questions is closed. Their sentences must not change: the embedded model was trained on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mmprobe.benchmarks.synthetic.scene import SHAPES, Edit, Scene, ScenePair

SYSTEM = (
    "You answer questions about pictures of coloured shapes. "
    "Columns are A to D from left to right, rows are 1 to 4 from top to bottom."
)
NOTHING_CHANGED = "Nothing changed."

QuestionType = Literal["same", "different", "count", "find", "exists", "colour", "describe", "steps"]
QUESTION_TYPES: tuple[QuestionType, ...] = (
    "same",
    "different",
    "count",
    "find",
    "exists",
    "colour",
    "describe",
    "steps",
)
PAIR_QUESTION_TYPES: tuple[QuestionType, ...] = ("same", "different", "count", "find", "steps")
_BOTH_IMAGES = (0, 1)
_FIRST_IMAGE = (0,)


@dataclass(frozen=True)
class Question:
    """A question with its true answer and the indices of the images of the pair that it needs."""

    type: QuestionType
    text: str
    answer: str
    images: tuple[int, ...]


def describe_edit(edit: Edit) -> str:
    """Return one sentence for one difference: `The circle changed from red to blue.`"""
    if edit.after is None:
        return f"The {edit.before.shape} was removed."
    if edit.type == "color":
        return f"The {edit.before.shape} changed from {edit.before.colour} to {edit.after.colour}."
    return f"The {edit.before.shape} moved from {edit.before.cell} to {edit.after.cell}."


def describe_changes(pair: ScenePair) -> str:
    """Return one sentence for each difference, or `Nothing changed.`"""
    return " ".join(describe_edit(edit) for edit in pair.edits) or NOTHING_CHANGED


def describe_scene(scene: Scene) -> str:
    """Return a caption in reading order: `A red circle at B2 and an orange star at C3.`"""
    items = [
        f"{'an' if obj.colour == 'orange' else 'a'} {obj.colour} {obj.shape} at {obj.cell}"
        for obj in scene.objects
    ]
    caption = " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) + "."
    return caption[0].upper() + caption[1:]


def list_objects(scene: Scene) -> str:
    """Return a short list in reading order: `red circle B2, orange star C3.`"""
    return ", ".join(f"{obj.colour} {obj.shape} {obj.cell}" for obj in scene.objects) + "."


def _state_count(differences: int) -> str:
    if differences == 1:
        return "There is 1 difference."
    return f"There are {differences or 'no'} differences."


def make_question(question_type: QuestionType, pair: ScenePair, shape: str | None = None) -> Question:
    """Return one question about a pair. Raises ValueError for one that cannot be asked about it."""
    changed = bool(pair.edits)
    if question_type == "same":
        answer = f"{'No' if changed else 'Yes'}. {describe_changes(pair)}"
        return Question(question_type, "Are the two pictures the same?", answer, _BOTH_IMAGES)
    if question_type == "different":
        answer = f"{'Yes' if changed else 'No'}. {describe_changes(pair)}"
        return Question(question_type, "Are the two pictures different?", answer, _BOTH_IMAGES)
    if question_type == "count":
        answer = _state_count(len(pair.edits))
        return Question(question_type, "How many differences are there?", answer, _BOTH_IMAGES)
    if question_type == "find":
        if not changed:
            raise ValueError("no differences to find")
        text = f"{_state_count(len(pair.edits))} Find {'it' if len(pair.edits) == 1 else 'them'}."
        return Question(question_type, text, describe_changes(pair), _BOTH_IMAGES)
    if question_type == "steps":
        answer = (
            f"Picture one: {list_objects(pair.first)}\n"
            f"Picture two: {list_objects(pair.second)}\n"
            f"Therefore: {describe_changes(pair)}"
        )
        return Question(question_type, "Compare the two pictures step by step.", answer, _BOTH_IMAGES)
    if question_type == "describe":
        return Question(question_type, "Describe the picture.", describe_scene(pair.first), _FIRST_IMAGE)
    obj = pair.first.find(shape or "")
    if question_type == "exists":
        answer = f"Yes, the {shape} is at {obj.cell}." if obj else f"No, there is no {shape}."
        return Question(question_type, f"Is there a {shape}?", answer, _FIRST_IMAGE)
    if obj is None:
        raise ValueError(f"no {shape} whose colour could be asked for")
    answer = f"The {shape} is {obj.colour}."
    return Question(question_type, f"What colour is the {shape}?", answer, _FIRST_IMAGE)


def draw_question(rng: np.random.Generator, question_type: QuestionType, pair: ScenePair) -> Question:
    """Return one question with a random shape. Half of all `exists` questions ask for an absent shape.

    `find` becomes `count` if the pair has no differences.
    """
    present = [obj.shape for obj in pair.first.objects]
    if question_type == "colour":
        return make_question(question_type, pair, present[rng.integers(len(present))])
    if question_type == "exists":
        absent = [shape for shape in SHAPES if shape not in present]
        shapes = absent if rng.random() < 0.5 else present
        return make_question(question_type, pair, shapes[rng.integers(len(shapes))])
    if question_type == "find" and not pair.edits:
        question_type = "count"
    return make_question(question_type, pair)


def draw_questions(rng: np.random.Generator, pair: ScenePair) -> list[Question]:
    """Return a question of every type, and two of `exists`: about a present and an absent shape."""
    present = [obj.shape for obj in pair.first.objects]
    absent = [shape for shape in SHAPES if shape not in present]
    present_shape = present[rng.integers(len(present))]
    absent_shape = absent[rng.integers(len(absent))]
    return [
        *(make_question(name, pair) for name in PAIR_QUESTION_TYPES if name != "find" or pair.edits),
        make_question("exists", pair, present_shape),
        make_question("exists", pair, absent_shape),
        make_question("colour", pair, present_shape),
        make_question("describe", pair),
    ]
