"""The closed set of questions about a scene pair, and their true answers."""

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
PAIR_QUESTIONS = ("same", "different", "count", "find", "steps")


@dataclass(frozen=True)
class Question:
    """A question, its true answer, and which images of the pair it is asked about."""

    type: QuestionType
    text: str
    answer: str
    images: tuple[int, ...]


def describe_edit(edit: Edit) -> str:
    """One sentence for one difference: `The circle changed from red to blue.`"""
    if edit.after is None:
        return f"The {edit.before.shape} was removed."
    if edit.type == "color":
        return f"The {edit.before.shape} changed from {edit.before.colour} to {edit.after.colour}."
    return f"The {edit.before.shape} moved from {edit.before.cell} to {edit.after.cell}."


def describe_changes(pair: ScenePair) -> str:
    return " ".join(describe_edit(edit) for edit in pair.edits) or NOTHING_CHANGED


def describe_scene(scene: Scene) -> str:
    """A caption in reading order: `A red circle at B2, an orange star at C3 and a blue heart at D1.`"""
    items = [
        f"{'an' if thing.colour == 'orange' else 'a'} {thing.colour} {thing.shape} at {thing.cell}"
        for thing in scene.objects
    ]
    caption = " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) + "."
    return caption[0].upper() + caption[1:]


def list_scene(scene: Scene) -> str:
    """A terse inventory in reading order: `red circle B2, orange star C3.`"""
    return ", ".join(f"{thing.colour} {thing.shape} {thing.cell}" for thing in scene.objects) + "."


def _count(differences: int, none: str = "no") -> str:
    if differences == 1:
        return "There is 1 difference."
    return f"There are {differences or none} differences."


def ask(kind: QuestionType, pair: ScenePair, shape: str | None = None) -> Question:
    """Ask one question of a pair; `exists` and `colour` need the shape they ask for.

    Raises:
        ValueError: `find` of a pair without differences, `colour` of a shape that is not there.
    """
    changed = bool(pair.edits)
    both, one = (0, 1), (0,)
    if kind == "same":
        verdict = "No" if changed else "Yes"
        text = "Are the two pictures the same?"
        return Question(kind, text, f"{verdict}. {describe_changes(pair)}", both)
    if kind == "different":
        verdict = "Yes" if changed else "No"
        text = "Are the two pictures different?"
        return Question(kind, text, f"{verdict}. {describe_changes(pair)}", both)
    if kind == "count":
        return Question(kind, "How many differences are there?", _count(len(pair.edits)), both)
    if kind == "find":
        if not changed:
            raise ValueError("no differences to find")
        text = f"{_count(len(pair.edits))} Find {'it' if len(pair.edits) == 1 else 'them'}."
        return Question(kind, text, describe_changes(pair), both)
    if kind == "steps":
        answer = (
            f"Picture one: {list_scene(pair.first)}\n"
            f"Picture two: {list_scene(pair.second)}\n"
            f"Therefore: {describe_changes(pair)}"
        )
        return Question(kind, "Compare the two pictures step by step.", answer, both)
    if kind == "describe":
        return Question(kind, "Describe the picture.", describe_scene(pair.first), one)
    thing = pair.first.find(shape or "")
    if kind == "exists":
        answer = f"Yes, the {shape} is at {thing.cell}." if thing else f"No, there is no {shape}."
        return Question(kind, f"Is there a {shape}?", answer, one)
    if thing is None:
        raise ValueError(f"no {shape} whose colour could be asked for")
    return Question(kind, f"What colour is the {shape}?", f"The {shape} is {thing.colour}.", one)


def draw_question(rng: np.random.Generator, kind: QuestionType, pair: ScenePair) -> Question:
    """Ask one question, choosing its shape; half of all `exists` questions ask for an absent one.

    `find` of an unchanged pair becomes `count`.
    """
    present = [thing.shape for thing in pair.first.objects]
    if kind == "colour":
        return ask(kind, pair, present[rng.integers(len(present))])
    if kind == "exists":
        absent = [shape for shape in SHAPES if shape not in present]
        pool = absent if rng.random() < 0.5 else present
        return ask(kind, pair, pool[rng.integers(len(pool))])
    if kind == "find" and not pair.edits:
        kind = "count"
    return ask(kind, pair)


def draw_questions(rng: np.random.Generator, pair: ScenePair) -> list[Question]:
    """Every question type once, and `exists` twice: of a present shape and of an absent one."""
    present = [thing.shape for thing in pair.first.objects]
    absent = [shape for shape in SHAPES if shape not in present]
    here, gone = (pool[rng.integers(len(pool))] for pool in (present, absent))
    kinds = [kind for kind in PAIR_QUESTIONS if kind != "find" or pair.edits]
    questions = [ask(kind, pair) for kind in kinds]  # type: ignore[arg-type]
    questions += [ask("exists", pair, here), ask("exists", pair, gone)]
    return [*questions, ask("colour", pair, here), ask("describe", pair)]
