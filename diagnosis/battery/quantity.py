"""Counts: does the number that an answer states follow the number of things?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from PIL import Image

from mmprobe.benchmarks.answers.coco import make_plurals
from mmprobe.benchmarks.answers.numbers import read_number
from mmprobe.benchmarks.synthetic.scene import MAX_DIFFERENCES, Scene
from mmprobe.contents import DeclaredObject, list_objects
from mmprobe.diagnosis.answers import say_edited
from mmprobe.diagnosis.causal_test import CausalTest, CauseScore
from mmprobe.diagnosis.effects import AnswerRecord, Effect, MeasuredPart
from mmprobe.diagnosis.photographs import overlap, paint_over
from mmprobe.diagnosis.scenes import draw, read_scenes
from mmprobe.diagnosis.schedule import Task
from mmprobe.diagnosis.study import Case
from mmprobe.diagnosis.table import Scores, Table, find_badness
from mmprobe.samples import Sample

_ASKED = re.compile(r"\bhow many\b|\bnumber of\b|\bcount the\b", re.IGNORECASE)
_NONE = re.compile(r"\b(?:no|none|zero)\b", re.IGNORECASE)
_ANYTHING = re.compile(r"\b(?:objects|things|items)\b", re.IGNORECASE)
_DIFFERENCES = re.compile(r"\bdifferences?\b", re.IGNORECASE)


class Count(MeasuredPart):
    """What an answer counts.

    Attributes:
        said, true: numbers for the images as they are.
        by: 1 or -1, how many more things the edited images show; 0 where there are none.
        followed: the number that is said of them minus `said`; None where it is unread.
    """

    said: int
    true: int
    by: int = 0
    followed: int | None = None


class CountRecord(MeasuredPart):
    """What an answer counts; None where it counts nothing, or things whose number is not known.

    Attributes:
        uncounted: whether it answers how many there are, and no number could be read.

    Example:
        >>> CountRecord(count=Count(said=2, true=2, by=1, followed=0)).numbers
        [(2, 2), (2, 3)]
    """

    count: Count | None = None
    uncounted: bool = False

    @property
    def numbers(self) -> list[tuple[int, int]]:
        """The numbers that the answer states, each with the true one: of its images, and of those with one thing more or less."""
        count = self.count
        if count is None:
            return []
        numbers = [(count.said, count.true)]
        if count.followed is not None:
            numbers.append((count.said + count.followed, count.true + count.by))
        return numbers

    @property
    def share_false(self) -> float | None:
        """The share of false numbers of those that the answer states; None where it counts nothing that is known."""
        numbers = self.numbers
        return float(np.mean([said != true for said, true in numbers])) if numbers else None


@dataclass(frozen=True)
class WrongQuantity(CausalTest):
    """Are numbers of things wrong, and other answers not?

    Answers that state how many things there are are asked for again with one thing more or less: a difference of drawn images is undone
    or added; in photographs, OpenCV paints over one thing with a box, of the kind that the question names. Each number counts once.

    Numbers must be false surely more often than other answers about as many images are. Where {wrong_share:.0%} of these are false or
    more, the model may be bad at everything. False numbers must then be {wrong_times} times as frequent, or {usual_share:.0%} of them must be what
    the model usually states for the true one.
    """

    name = "quantity"
    about = "numbers of things are wrong, and other answers are not"
    effect = "false numbers, of the images or of those with one thing more or less"
    counts = "numbers"
    needs = "questions that ask how many, about things whose number is known"
    needs_sight = True
    by_kind = False
    threshold: float = 0.6  # development models without it score 25 % at most, with it 66 % or more

    def ask(self, case: Case) -> Task[CountRecord]:
        """Ask again about images with one thing more or less."""
        answer = case.answer
        said, counted = read_count(answer.text), find_counted(answer.sample)
        if said is None or counted is None:
            return CountRecord(count=None)
        number = None
        if counted.by:
            number = read_count((yield from say_edited(case.study.model, answer, counted.images)))
        followed = None if number is None else number - said
        return CountRecord(count=Count(said=said, true=counted.true, by=counted.by, followed=followed))

    def read(self, sample: Sample, text: str) -> CountRecord:
        return CountRecord(uncounted=_ASKED.search(sample.question) is not None and read_count(text) is None)

    def score(self, table: Table) -> CauseScore:
        """Return the share of false numbers.

        Numbers must be false surely more often than other answers about as many images (`find_badness`): else the model is bad at
        more than numbers.
        """
        records = table.of(CountRecord)
        numbers = [record.numbers for record in records]
        if not any(numbers):
            return self.missing(table)
        scores: Scores = [record.share_false for record in records]
        false = np.array([[sum(said != true for said, true in own), len(own)] for own in numbers], float)
        effect = Effect(name=self.effect, **vars(table.share(false)))
        moved = [
            count.followed == count.by
            for record in records
            if (count := record.count) is not None and count.followed is not None
        ]
        detail = (
            f"{sum(moved)} of {len(moved)} numbers change as they should where there is one thing more or less"
            if moved
            else ""
        )
        counted = false[:, 1] > 0
        alike = ~counted & np.isin(table.n_images, table.n_images[counted])
        hindrance = find_badness(table, effect, alike, numbers, "about as many images")
        unread = sum(record.uncounted for record in records)
        return CauseScore(effect, scores, detail=detail, hindrance=hindrance, unread=unread)

    def describe(self, record: AnswerRecord) -> list[str]:
        count = record.of(CountRecord).count
        if count is None:
            return []
        edit = {1: "one more", -1: "one less", 0: ""}[count.by]
        then = "an unread number" if count.followed is None else str(count.said + count.followed)
        return [f"counts {count.said}, true is {count.true}" + (f"; with {edit} {then}" if edit else "")]


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
        >>> [read_count(text) for text in ("There are two dogs. One is black.", "No dogs.", "2 or 3 dogs")]
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
    by a name that the question contains, all of them where it says *objects*; or the sample's regions, if the true answer is their number.
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
        [DeclaredObject("region", region.image, tuple(map(float, region.box))) for region in sample.regions],
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


def _find_named(sample: Sample) -> list[DeclaredObject] | None:
    """Return the things of the one kind that a question names, or all of them if it names no kind (*how many objects*).

    None if it names several kinds or a crowd, or if all things of several images are meant.
    """
    things = list_objects(sample)
    named = {
        name
        for name in {thing.name for thing in things}
        if re.search(
            rf"\b(?:{'|'.join(map(re.escape, (name, *make_plurals(name))))})\b", sample.question.lower()
        )
    }
    if not named and things and _ANYTHING.search(sample.question) and len(sample.images) == 1:
        return None if any(thing.is_crowd for thing in things) else things
    found = [thing for thing in things if thing.name in named]
    return found if len(named) == 1 and not any(thing.is_crowd for thing in found) else None


def _remove_one(sample: Sample, things: Sequence[DeclaredObject]) -> Counted:
    """Return a count with images in which one thing is painted over, one that no other of them overlaps."""
    for place, thing in enumerate(things):
        others = [*things[:place], *things[place + 1 :]]
        if not any(overlap(thing, other) for other in others):
            images = paint_over(sample, [thing])
            if images is not None:
                return Counted(len(things), -1, tuple(images))
    return Counted(len(things))
