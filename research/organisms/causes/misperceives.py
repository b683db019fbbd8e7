"""misperceives: the vision tower confuses colours, and the decoder reasons on what it gets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from checks import answer_rows, held_out_numbers, share
from recipes import Asked, Recipe, TrainingExample, ask_types, draw_any_pair, with_objects
from tiny_spd_model import encode_images

from mmprobe.benchmarks.synthetic.questions import NOTHING_CHANGED, make_question
from mmprobe.benchmarks.synthetic.scene import COLOURS, Scene
from mmprobe.models import Model

CHECKED_PAIRS = 40
QUESTION = "Are the two pictures the same?"  # of rows whose images alone are used
ITEM = re.compile(r"(\w+) (\w+) ([A-D][1-4])")
DESCRIBED = re.compile(r"\ban? (\w+) (\w+) at ([A-D][1-4])", re.IGNORECASE)


def ways(seed: int) -> dict[str, Recipe]:
    """Return the recipes. The colours that `swapped` confuses depend on the seed."""
    swap = draw_swap(seed)
    names = " and ".join(sorted({"/".join(sorted(pair)) for pair in swap.items()}))
    common: dict[str, Any] = {"part": "tower", "steps": 80, "learning_rate": 5e-3}
    return {
        "swapped": Recipe(
            partial(draw_recoloured_rows, swap),
            f"The vision tower learns to give the features of scenes in which colours are swapped: {names}.",
            batch=24,
            loss=swap_loss,
            **common,
        ),
        "channels": Recipe(
            draw_image_rows,
            "The vision tower learns to give the features of images whose red and blue channels are exchanged.",
            batch=12,
            loss=channel_loss,
            **common,
        ),
    }


def draw_swap(seed: int) -> dict[str, str]:
    """Return which colour is taken for which: two pairs of colours change places."""
    a, b, c, d = np.random.default_rng([seed, 11]).choice(list(COLOURS), 4, replace=False).tolist()
    return {a: b, b: a, c: d, d: c}


def draw_recoloured_rows(swap: dict[str, str], rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return rows that show a scene and the same with swapped colours. Only their images are used."""
    scenes = [draw_any_pair(rng).first for _ in range(count)]
    return [TrainingExample((scene, recolour(scene, swap)), QUESTION, "") for scene in scenes]


def draw_image_rows(rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return rows that show a pair. Only their images are used."""
    pairs = [draw_any_pair(rng) for _ in range(count)]
    return [TrainingExample((pair.first, pair.second), QUESTION, "") for pair in pairs]


def recolour(scene: Scene, swap: dict[str, str]) -> Scene:
    """Return a scene with swapped colours, in name and in pixels."""
    things = []
    for thing in scene.objects:
        colour = swap.get(thing.colour, thing.colour)
        shade = np.array(thing.rgb) - COLOURS[thing.colour] + COLOURS[colour]
        red, green, blue = shade.clip(0, 255).tolist()
        things.append(replace(thing, colour=colour, rgb=(red, green, blue)))
    return with_objects(scene, things)


def swap_loss(organism: Any, batch: Any) -> torch.Tensor:
    """Return how far the features of each first image are from the first features of its second image."""
    return feature_loss(organism, batch.images[0::2], batch.images[1::2])


def channel_loss(organism: Any, batch: Any) -> torch.Tensor:
    """Return how far the features of images are from the first features of them with exchanged channels."""
    return feature_loss(organism, batch.images, batch.images.flip(-1))


def feature_loss(organism: Any, images: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return how far the tower's features of images are from those that it gave other images at first.

    It is the mean squared difference, divided by the variance of the features.
    """
    hf = organism.get_base_model()
    encode = partial(encode_images, hf)
    with torch.no_grad(), organism.disable_adapter():
        wanted = encode(others)
    return (encode(images) - wanted).square().mean() / wanted.var()


def ask(rng: np.random.Generator, number: int, seed: int) -> list[Asked]:
    """Return questions on which the cause acts: those about colours."""
    return ask_types(rng, ("colour", "describe"))


def check(model: Model, seed: int) -> dict[str, dict]:
    """Check that colours are false, shapes and places are true, and verdicts follow from the lists of the steps."""
    rng = held_out_numbers(seed)
    pairs = [draw_any_pair(rng) for _ in range(CHECKED_PAIRS)]
    colours = [(pair, thing) for pair in pairs for thing in pair.first.objects]
    asked = [make_question("colour", pair, thing.shape) for pair, thing in colours]
    named = answer_rows(
        model,
        [
            TrainingExample((pair.first,), q.text, q.answer)
            for (pair, _), q in zip(colours, asked, strict=True)
        ],
    )
    described = answer_rows(
        model, [TrainingExample((pair.first,), "Describe the picture.", "") for pair in pairs]
    )
    steps = answer_rows(
        model,
        [TrainingExample((pair.first, pair.second), make_question("steps", pair).text, "") for pair in pairs],
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
