"""Counts: does the number that an answer states follow the number of things?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from PIL import Image

from mmprobe.benchmarks.answers.coco import make_plurals
from mmprobe.benchmarks.answers.numbers import read_number
from mmprobe.benchmarks.synthetic.scene import MAX_DIFFERENCES, Scene
from mmprobe.diagnosis.battery.answers import ParsedAnswer, answer_edited
from mmprobe.diagnosis.battery.boxes import BoxedThing, list_boxed, overlap, paint_over
from mmprobe.diagnosis.battery.cues import draw, read_scenes
from mmprobe.models import Model
from mmprobe.samples import Sample

_ASKED = re.compile(r"\bhow many\b|\bnumber of\b|\bcount the\b", re.IGNORECASE)
_NONE = re.compile(r"\b(?:no|none|zero)\b", re.IGNORECASE)
_DIFFERENCES = re.compile(r"\bdifferences?\b", re.IGNORECASE)


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
    named = _find_named(sample)
    if named is not None:
        return _remove_one(sample, named)
    if sample.answer is None or read_count(sample.answer) != len(sample.regions) or not sample.regions:
        return None
    return _remove_one(
        sample,
        [BoxedThing("region", region.image, tuple(map(float, region.box))) for region in sample.regions],
    )


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


def _find_named(sample: Sample) -> list[BoxedThing] | None:
    """Return the things of the one kind that a question names; None if it names none, several kinds, or a crowd."""
    things = list_boxed(sample)
    named = {
        name
        for name in {thing.name for thing in things}
        if re.search(
            rf"\b(?:{'|'.join(map(re.escape, (name, *make_plurals(name))))})\b", sample.question.lower()
        )
    }
    found = [thing for thing in things if thing.name in named]
    return found if len(named) == 1 and not any(thing.is_crowd for thing in found) else None


def _remove_one(sample: Sample, things: Sequence[BoxedThing]) -> Counted:
    """Return a count with images in which one thing is painted over, one that no other of them overlaps."""
    for place, thing in enumerate(things):
        others = [*things[:place], *things[place + 1 :]]
        if not any(overlap(thing, other) for other in others):
            images = paint_over(sample, [thing])
            if images is not None:
                return Counted(len(things), -1, tuple(images))
    return Counted(len(things))


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
    texts = answer_edited(
        model, [answers[row] for row, _ in edited], [counted.images for _, counted in edited]
    )
    for (row, _), text in zip(edited, texts, strict=True):
        record, number = results[row], read_count(text)
        if record is not None and number is not None:
            record["followed"] = number - record["said"]
    return results
