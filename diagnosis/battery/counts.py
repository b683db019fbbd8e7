"""Counts: does the number that an answer states follow the number of things?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from mmprobe.benchmarks.answers.coco import make_plurals
from mmprobe.benchmarks.answers.numbers import read_number
from mmprobe.benchmarks.photo_pairs.edits import get_inpainter
from mmprobe.benchmarks.synthetic.scene import MAX_DIFFERENCES, Scene
from mmprobe.diagnosis.battery.answers import ParsedAnswer
from mmprobe.diagnosis.battery.attributes import list_contents, read_thing
from mmprobe.diagnosis.battery.cues import draw, read_scenes
from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.generation import build_generation_kwargs
from mmprobe.models.prompt import build_batch, build_chat, read_image
from mmprobe.samples import Sample

_ASKED = re.compile(r"\bhow many\b|\bnumber of\b|\bcount the\b", re.IGNORECASE)
_NONE = re.compile(r"\b(?:no|none|zero)\b", re.IGNORECASE)
_DIFFERENCES = re.compile(r"\bdifferences?\b", re.IGNORECASE)
_MARGIN = 2  # pixels by which the box of a removed thing grows
_LONGER = 8  # tokens of an answer beyond those of the model's own


class Counted(NamedTuple):
    """How many things a question asks for, and images in which there is one more or one less.

    Attributes:
        true: their number in the images as they are.
        by: 1 or -1; 0 where the images could not be edited.
        images: the edited ones; () where they could not.
    """

    true: int
    by: int = 0
    images: tuple[Image.Image, ...] = ()


def read_count(text: str) -> int | None:
    """Return the number that the first sentence of an answer states; None if it states none, or several.

    Example:
        >>> [read_count(text) for text in ("There are two dogs. One is black.", "No dogs.", "2 of 3 dogs")]
        [2, 0, None]
    """
    sentence = re.split(r"(?<=[.!?])\s", text.strip(), maxsplit=1)[0]
    number = read_number(sentence)
    if number is None and _NONE.search(sentence) and not re.search(r"\d", sentence):
        return 0
    return None if number is None or number != int(number) else int(number)


def find_counted(sample: Sample) -> Counted | None:
    """Return the things that a question counts; None where it counts none, or their number is not known.

    They are the differences of two drawn images; or things that `metadata.objects` lists with boxes (`bbox`: x, y, width, height)
    by a name that the question contains; or the sample's regions, if the true answer is their number.
    """
    if not _ASKED.search(sample.question):
        return None
    if _DIFFERENCES.search(sample.question):
        scenes = [scene for _, scene in read_scenes(sample)]
        return count_differences(scenes[0], scenes[1]) if len(scenes) == 2 else None
    listed = _find_named(sample)
    if listed is not None:
        return _remove_one(sample, *listed)
    if sample.answer is None or read_count(sample.answer) != len(sample.regions) or not sample.regions:
        return None
    boxes = [(region.image, tuple(map(float, region.box))) for region in sample.regions]
    return _remove_one(sample, len(boxes), boxes)


def count_differences(first: Scene, second: Scene) -> Counted:
    """Return the number of differences of two drawn scenes, with one of them undone or a further thing removed."""
    changed = [
        thing for thing in first.objects if _version(second, thing.shape) != _version(first, thing.shape)
    ]
    same = [thing for thing in first.objects if thing not in changed]
    add = not changed or (len(changed) < MAX_DIFFERENCES and len(first.objects) % 2 == 0)
    if add and same and len(second.objects) > 1:
        objects = [thing for thing in second.objects if thing.shape != same[0].shape]
        by = 1
    elif changed:
        objects = [thing for thing in second.objects if thing.shape != changed[0].shape] + [changed[0]]
        objects.sort(key=lambda thing: (thing.row, thing.column))
        by = -1
    else:
        return Counted(0)
    edited = replace(second, objects=tuple(objects))
    return Counted(len(changed), by, (draw(first), draw(edited)))


def _version(scene: Scene, shape: str) -> tuple[str, str] | None:
    thing = scene.find(shape)
    return None if thing is None else (thing.colour, thing.cell)


Box = tuple[int, tuple[float, ...]]
"""The index of an image, and x, y, width and height in it."""


def _find_named(sample: Sample) -> tuple[int, list[Box]] | None:
    """Return the number of the things that a question names, and the boxes of those that have one; None if it names no one kind."""
    by_name: dict[str, list[tuple[int, Any]]] = {}
    for number, image in enumerate(list_contents(sample)[: len(sample.images)]):
        for each in image:
            if (thing := read_thing(each)) is not None:
                by_name.setdefault(thing.shape, []).append((number, each))
    question = sample.question.lower()
    named = [
        name
        for name in by_name
        if re.search(rf"\b(?:{'|'.join(map(re.escape, (name, *make_plurals(name))))})\b", question)
    ]
    if len(named) != 1:
        return None
    boxes = []
    for number, each in by_name[named[0]]:
        box = each.get("bbox") if isinstance(each, dict) else None
        if isinstance(box, list) and len(box) == 4 and all(isinstance(side, int | float) for side in box):
            boxes.append((number, tuple(map(float, box))))
    return len(by_name[named[0]]), boxes


def _remove_one(sample: Sample, true: int, boxes: Sequence[Box]) -> Counted:
    """Return a count with images in which one thing is painted over, one that no other of them overlaps."""
    free = [
        (image, box)
        for place, (image, box) in enumerate(boxes)
        if not any(
            image == other and _overlap(box, taken)
            for number, (other, taken) in enumerate(boxes)
            if number != place
        )
    ]
    try:
        inpaint = get_inpainter("opencv")
    except InputError:  # OpenCV is not installed
        return Counted(true)
    if not free:
        return Counted(true)
    number, (x, y, width, height) = free[0]
    images = [read_image(path, f"sample {sample.id}").convert("RGB") for path in sample.images]
    pixels = np.asarray(images[number])
    hole = np.zeros(pixels.shape[:2], bool)
    top, left = max(0, int(y) - _MARGIN), max(0, int(x) - _MARGIN)
    hole[top : int(y + height) + _MARGIN + 1, left : int(x + width) + _MARGIN + 1] = True
    if hole.all() or not hole.any():
        return Counted(true)
    images[number] = Image.fromarray(inpaint(pixels.copy(), hole))
    return Counted(true, -1, tuple(images))


def _overlap(box: Sequence[float], other: Sequence[float]) -> bool:
    return all(
        box[axis] < other[axis] + other[axis + 2] and other[axis] < box[axis] + box[axis + 2]
        for axis in (0, 1)
    )


def measure_counts(model: Model, answers: Sequence[ParsedAnswer]) -> list[dict[str, Any] | None]:
    """Return what each answer counts, and what the model counts where there is one thing more or one less.

    None for answers that count nothing, or things whose number is not known. To answer again takes one forward pass, as all
    generated answers.

    - said, true: numbers for the images as they are
    - by: 1 or -1, how many more things the edited images show, 0 where there are none; followed: the number that is said of
      them minus `said`, None where it is unread
    """
    results: list[dict[str, Any] | None] = [None] * len(answers)
    edited: list[tuple[int, Counted]] = []
    for row, answer in enumerate(answers):
        said, counted = read_count(answer.text), find_counted(answer.sample)
        if said is None or counted is None:
            continue
        results[row] = {"said": said, "true": counted.true, "by": counted.by, "followed": None}
        if counted.by:
            edited.append((row, counted))
    for n_images in sorted({len(counted.images) for _, counted in edited}):
        same = [(row, counted) for row, counted in edited if len(counted.images) == n_images]
        chats = [
            build_chat(answers[row].sample)._replace(images=list(counted.images)) for row, counted in same
        ]
        batch = build_batch(model, chats)
        longest = max(len(answers[row].ids) for row, _ in same) + _LONGER
        with torch.inference_mode():
            ids = model.hf.generate(**batch.inputs, **build_generation_kwargs(model, longest))
        start = batch.inputs["input_ids"].shape[1]
        texts = model.tokenizer.batch_decode(ids[:, start:], skip_special_tokens=True)
        for (row, _), text in zip(same, texts, strict=True):
            record, number = results[row], read_count(text)
            if record is not None and number is not None:
                record["followed"] = number - record["said"]
    return results
