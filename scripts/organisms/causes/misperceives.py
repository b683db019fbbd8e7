"""misperceives: the vision tower confuses colours, and the decoder reasons on what it gets."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checks import answer_rows, held_out_numbers, share
from recipes import Recipe, Row, draw_any_pair, scenes_of, with_objects

sys.path.append(str(Path(__file__).parent.parent.parent))
from train_tiny_spd import encode_images

from mmprobe.benchmarks.synthetic.questions import NOTHING_CHANGED, make_question
from mmprobe.benchmarks.synthetic.scene import COLOURS, Edit, Scene, SceneObject, ScenePair
from mmprobe.models import Model

CHECKED_PAIRS = 40
ITEM = re.compile(r"(\w+) (\w+) ([A-D][1-4])")
DESCRIBED = re.compile(r"\ban? (\w+) (\w+) at ([A-D][1-4])", re.IGNORECASE)


def ways(seed: int) -> dict[str, Recipe]:
    """Return the recipes. The colours that `swapped` confuses depend on the seed."""
    swap = draw_swap(seed)
    names = " and ".join(sorted({"/".join(sorted(pair)) for pair in swap.items()}))
    return {
        "swapped": Recipe(
            partial(draw_rows, swap),
            f"The vision tower learns from answers in which colours are swapped: {names}.",
            part="tower",
            steps=75,
            batch=20,
            learning_rate=7e-3,
        ),
        "channels": Recipe(
            draw_true_rows,
            "The vision tower learns to give the features of images whose red and blue channels are exchanged.",
            part="tower",
            loss=feature_loss,
            learning_rate=5e-3,
            steps=80,
            batch=12,
        ),
    }


def draw_swap(seed: int) -> dict[str, str]:
    """Return which colour is taken for which: two pairs of colours change places."""
    a, b, c, d = np.random.default_rng([seed, 11]).choice(list(COLOURS), 4, replace=False).tolist()
    return {a: b, b: a, c: d, d: c}


def draw_rows(swap: dict[str, str], rng: np.random.Generator, count: int) -> list[Row]:
    """Return a description and one question about a colour for each scene, true of the scene with swapped colours."""
    rows: list[Row] = []
    while len(rows) < count:
        pair = draw_any_pair(rng)
        seen = recolour_pair(pair, swap)
        thing = seen.first.objects[rng.integers(len(seen.first.objects))]
        for question in (make_question("describe", seen), make_question("colour", seen, thing.shape)):
            rows.append(Row(scenes_of(question, pair), question.text, question.answer))
    return rows[:count]


def draw_true_rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Return one question about both images of each pair; only the images are used."""
    pairs = [draw_any_pair(rng) for _ in range(count)]
    return [Row((pair.first, pair.second), make_question("same", pair).text, "") for pair in pairs]


def recolour_pair(pair: ScenePair, swap: dict[str, str]) -> ScenePair:
    """Return a pair with swapped names of colours, in both scenes and in the edits."""

    def thing(before: SceneObject) -> SceneObject:
        return replace(before, colour=swap.get(before.colour, before.colour))

    def scene(before: Scene) -> Scene:
        return with_objects(before, [thing(each) for each in before.objects])

    edits = tuple(
        Edit(edit.type, thing(edit.before), None if edit.after is None else thing(edit.after))
        for edit in pair.edits
    )
    return ScenePair(scene(pair.first), scene(pair.second), edits, pair.difficulty)


def feature_loss(organism: Any, batch: Any) -> torch.Tensor:
    """Return how far the tower's features are from its first ones of images with exchanged channels.

    It is the mean squared difference, divided by the features' variance.
    """
    tower = organism.get_base_model().model.visual
    with torch.no_grad(), organism.disable_adapter():
        wanted = encode_images(tower, batch.images.flip(-1))
    return (encode_images(tower, batch.images) - wanted).square().mean() / wanted.var()


def check(model: Model, seed: int) -> dict[str, dict]:
    """Check that colours are false, shapes and places are true, and verdicts follow from the lists of the steps."""
    rng = held_out_numbers(seed)
    pairs = [draw_any_pair(rng) for _ in range(CHECKED_PAIRS)]
    colours = [(pair, thing) for pair in pairs for thing in pair.first.objects]
    asked = [make_question("colour", pair, thing.shape) for pair, thing in colours]
    named = answer_rows(
        model, [Row((pair.first,), q.text, q.answer) for (pair, _), q in zip(colours, asked, strict=True)]
    )
    described = answer_rows(model, [Row((pair.first,), "Describe the picture.", "") for pair in pairs])
    steps = answer_rows(
        model, [Row((pair.first, pair.second), make_question("steps", pair).text, "") for pair in pairs]
    )
    seen = [dict(_read_description(text)) for text in described]
    numbers = [number for number, pair in enumerate(pairs) for _ in pair.first.objects]
    return {
        "colour is false": share(
            [text != question.answer for text, question in zip(named, asked, strict=True)],
            least=0.3,
            pairs=numbers,
        ),
        "colour is that of the description": share(
            [
                seen[number].get((thing.shape, thing.cell), "nothing") in text
                for number, (_, thing), text in zip(numbers, colours, named, strict=True)
            ],
            least=0.9,
            pairs=numbers,
        ),
        "shapes and places are true": share(
            [set(read) == _places(pair.first) for read, pair in zip(seen, pairs, strict=True)], least=0.9
        ),
        "verdict follows from the lists": share([follows(text) for text in steps], least=0.7),
    }


def follows(answer: str) -> bool:
    """Return whether the verdict of a step-by-step answer names the differences of its two lists.

    Example:
        >>> follows("Picture one: red star A1.\\nPicture two: blue star A1.\\nTherefore: Nothing changed.")
        False
    """
    parts = re.findall(r"(?:Picture one|Picture two|Therefore):([^\n]*)", answer)
    if len(parts) != 3:
        return False
    before, after = (
        {shape: (colour, cell) for colour, shape, cell in ITEM.findall(part)} for part in parts[:2]
    )
    claimed = sorted(claim.strip() for claim in re.findall(r"[^.]+\.", parts[2]))
    return claimed == (sorted(_differences(before, after)) or [NOTHING_CHANGED])


def _differences(before: dict[str, tuple[str, str]], after: dict[str, tuple[str, str]]) -> Iterator[str]:
    for shape, (colour, cell) in before.items():
        if shape not in after:
            yield f"The {shape} was removed."
            continue
        if after[shape][0] != colour:
            yield f"The {shape} changed from {colour} to {after[shape][0]}."
        if after[shape][1] != cell:
            yield f"The {shape} moved from {cell} to {after[shape][1]}."


def _read_description(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield shape and cell, and then the colour, of each thing that a description names."""
    for colour, shape, cell in DESCRIBED.findall(text):
        yield (shape, cell), colour


def _places(scene: Scene) -> set[tuple[str, str]]:
    return {(thing.shape, thing.cell) for thing in scene.objects}
