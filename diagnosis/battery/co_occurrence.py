"""Cue without object: is an object claimed because another one is present?

Claims that go with a cue are a suspicion. Where images can be drawn again, the suspected cues are edited out of images
and into others, which shows whether the claim follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mmprobe.benchmarks.answers.coco import find_category, find_objects
from mmprobe.benchmarks.answers.texts import iter_sentences
from mmprobe.benchmarks.answers.words import is_open
from mmprobe.benchmarks.answers.yes_no import first_word
from mmprobe.benchmarks.synthetic.scene import COLOURS, GRID, SHAPES, Scene
from mmprobe.contents import list_objects
from mmprobe.diagnosis.causal_test import CausalTest, CauseScore, FollowUp
from mmprobe.diagnosis.claims import Thing, read_claims, read_contents
from mmprobe.diagnosis.effects import AnswerRecord, Effect, MeasuredPart, is_surer
from mmprobe.diagnosis.photographs import overlap, paint_over
from mmprobe.diagnosis.scenes import draw, read_scenes
from mmprobe.diagnosis.schedule import AnswerReading, Read, Task, read
from mmprobe.diagnosis.study import Case, Study
from mmprobe.diagnosis.table import Scores, Table
from mmprobe.models import Model
from mmprobe.models.prompt import Chat, build_chat
from mmprobe.samples import Sample

EDITS = "edits.jsonl"
NEEDS_CONTENTS = "the contents of the images (metadata.objects)"
LEAST_CUES = 3  # questions about an absent object, in images with a cue and in images without it
MOST_ASKED = 4  # questions about absent objects, per set of images that are shown together
SUSPECTS = 2  # pairs of cue and object that images are edited for
EDITED = 10  # images that a cue is edited out of, and as many that it is edited into
LEAST_LIFT = 0.3  # of the share of claims in images with the cue above that in others, from which on a pair is suspected
QUESTION = "Is there {article} {thing}?"


class CueQuestion(NamedTuple):
    """A question about an object that is not in the image.

    Attributes:
        sample: the image with the question.
        thing: the object that is asked about.
        cues: the words for what is in the image: shapes and colours.
    """

    sample: Sample
    thing: str
    cues: list[str]


class CueClaim(MeasuredPart):
    """Whether the model claims an absent object.

    Attributes:
        thing: the object.
        cues: the words for what is in the image.
        image: its file.
    """

    thing: str
    cues: list[str]
    claimed: bool
    image: str = ""


class Listed(MeasuredPart):
    """Which objects an answer lists for an image that lacks them.

    Attributes:
        image: its index.
        cues: the words for what is in the image.
        false: the objects.
    """

    image: int
    cues: list[str]
    false: list[str]


class EditedClaim(MeasuredPart):
    """Whether the model claims an absent object in an edited image, as in `CueEdit`."""

    cue: str
    thing: str
    has_cue: bool | None
    claimed: bool


class CuesRecord(MeasuredPart):
    """What an answer lists and what the model claims of absent objects, in images as they are and in edited ones."""

    cues: list[CueClaim] = []
    listed: list[Listed] = []
    edited: list[EditedClaim] = []


@dataclass(frozen=True)
class CoOccurrence(CausalTest):
    """Is an object claimed because another one is present?

    The model is asked about {most_asked} absent objects in each set of images, and its lists of an image's objects are searched for
    them. The {suspects} pairs of cue and object that go together most are suspected. Images are then drawn again without the cue, and
    others with it, and for comparison with another object removed or added. In photographs whose things have boxes, OpenCV paints over
    the cue, or another thing.

    A model that does not recognise the cue itself may take it for the object, which is not a co-occurrence. Where no image can be
    edited, a suspicion stays in doubt.
    """

    name = "co-occurrence"
    about = "an object is claimed because another one is present"
    effect = "claims of an absent object: share in images with its cue, minus share in images without it, as edited"
    needs = NEEDS_CONTENTS
    needs_sight = True
    is_difference = True
    files = MappingProxyType({"edited": EDITS})
    by_kind = False
    threshold: float = 0.6  # development models without it score 15 % at most, with it 83 % or more

    def ask(self, case: Case) -> Task[CuesRecord]:
        questions = case.study.once(_draw_questions).get(case.answer.sample.id, [])
        requests = [ask_first(case.study.model, build_chat(each.sample)) for each in questions]
        readings = yield from read(requests)
        claims = [
            CueClaim(
                thing=each.thing,
                cues=each.cues,
                claimed=is_claimed(case.study.model, reading),
                image=each.sample.images[0].name,
            )
            for each, reading in zip(questions, readings, strict=True)
        ]
        return CuesRecord(cues=claims)

    def read(self, sample: Sample, text: str) -> CuesRecord:
        return CuesRecord(listed=find_claims(sample, text))

    def follow_up(self, turn: int, study: Study, records: Sequence[AnswerRecord]) -> list[FollowUp]:
        """Ask about images in which suspected cues were edited."""
        if turn > 1:
            return []
        suspects = find_suspects([each for record in records for each in record.of(CuesRecord).cues])
        return [FollowUp(EDITS, ask_edit(study.model, edit)) for edit in plan_edits(study.samples, suspects)]

    def score(self, table: Table) -> CauseScore:
        """Return the surest effect of a cue on the claims of an absent object, in edited images where there are any.

        Without edited images, an effect that would be named is in doubt: what goes with a cue need not come from it. Nor is there a
        co-occurrence if the model does not recognise the cue, and so may take it for the object.
        """
        records = table.of(CuesRecord)
        found = self._find_edited(table, records) or self._find_correlated(table, records)
        if found is None:
            claimed: Scores = [0.0 if record.cues else None for record in records]
            return CauseScore(table.mean(self.effect, claimed, needs=self.needs), claimed)
        effect, cue, thing = found
        answers: Scores = [score_claims(record, cue, thing) for record in records]
        score = CauseScore(effect, answers, which=f"{thing} is claimed in images with {cue}")
        edited = [each for record in records for each in record.edited]
        seen = [each.claimed for each in edited if (each.cue, each.thing, each.has_cue) == (cue, thing, None)]
        if not edited:
            return score._replace(doubt="no image could be edited, so it is open whether the cue is why")
        if seen and np.mean(seen) < 0.5:
            return score._replace(hindrance=f"{cue} is not recognised itself, so it may be taken for {thing}")
        return score

    def _find_edited(self, table: Table, records: Sequence[CuesRecord]) -> tuple[Effect, str, str] | None:
        """Return the surest effect of the cues that were edited out of images and into others, with the pair.

        The pairs were chosen on images as they are, and their effects are measured on edited ones, so that the best of few pairs
        looks hardly better than it is.
        """
        edits = [(number, each) for number, record in enumerate(records) for each in record.edited]
        best: tuple[Effect, str, str] | None = None
        for cue, thing in sorted({(each.cue, each.thing) for _, each in edits}):
            counts = np.zeros((len(records), 4))
            for number, each in edits:
                if (each.cue, each.thing) == (cue, thing) and each.has_cue is not None:
                    side = 0 if each.has_cue else 2
                    counts[number, side : side + 2] += (each.claimed, 1)
            if counts[:, 1].sum() and counts[:, 3].sum():
                effect = table.difference(self.effect, counts, self.needs)
                if best is None or is_surer(effect, best[0]):
                    best = effect, cue, thing
        return best

    def _find_correlated(self, table: Table, records: Sequence[CuesRecord]) -> tuple[Effect, str, str] | None:
        """Return the surest difference of the claims in images with a cue and in others, with the pair."""
        asked = list_chances(records)
        cues = sorted({cue for _, each in asked for cue in each.cues})
        best: tuple[Effect, str, str] | None = None
        for thing in sorted({each.thing for _, each in asked}):
            own = [(number, each) for number, each in asked if each.thing == thing]
            for cue in cues if any(each.claimed for _, each in own) else ():
                counts = np.zeros((len(records), 4))
                for number, each in own:
                    side = 0 if cue in each.cues else 2
                    counts[number, side : side + 2] += (each.claimed, 1)
                if min(counts[:, 1].sum(), counts[:, 3].sum()) < LEAST_CUES:
                    continue
                effect = table.difference(self.effect, counts, self.needs)
                if best is None or is_surer(effect, best[0]):
                    best = effect, cue, thing
        return best


def score_claims(record: CuesRecord, cue: str, thing: str) -> float | None:
    """Return 1 if an answer claims an absent object in an image with its cue, else 0; None where it could claim nothing."""
    asked = [each.claimed for each in record.cues if each.thing == thing and cue in each.cues]
    listed = [thing in each.false for each in record.listed if cue in each.cues]
    claimed = asked + listed
    return float(any(claimed)) if claimed else None


def list_chances(records: Sequence[CuesRecord]) -> list[tuple[int, CueClaim]]:
    """Return every opportunity to claim an absent object: a question about it, or a list of an image's objects."""
    asked = [(number, each) for number, record in enumerate(records) for each in record.cues]
    things = sorted({each.thing for _, each in asked})
    listed = [
        (number, CueClaim(thing=thing, cues=each.cues, claimed=thing in each.false))
        for number, record in enumerate(records)
        for each in record.listed
        for thing in things
        if thing not in each.cues
    ]
    return asked + listed


def ask_first(model: Model, chat: Chat) -> Read:
    """Return what asks for the first token of the answer to a question about an object."""
    return Read(chat, [_words(model)[0][0]])


def is_claimed(model: Model, reading: AnswerReading) -> bool:
    """Return whether the model claims the object: yes is likelier than no."""
    yes, no = _words(model)
    return bool(reading.last[yes].max() > reading.last[no].max())


def _words(model: Model) -> tuple[list[int], list[int]]:
    """Return the first tokens of yes and of no, as they are spelled at the beginning of an answer."""
    yes, no = (
        [model.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in words]
        for words in (("Yes", "yes"), ("No", "no"))
    )
    return yes, no


def ask_edit(model: Model, edit: CueEdit) -> Task[list[dict[str, Any]]]:
    """Return the line that says whether an object is claimed in an edited image."""
    (reading,) = yield from read([ask_first(model, edit.chat)])
    claim = EditedClaim(
        cue=edit.cue, thing=edit.thing, has_cue=edit.has_cue, claimed=is_claimed(model, reading)
    )
    return [{"id": edit.id, **claim.model_dump()}]


def _draw_questions(study: Study) -> dict[str, list[CueQuestion]]:
    return draw_questions(study.samples)


def draw_questions(samples: Sequence[Sample]) -> dict[str, list[CueQuestion]]:
    """Return the questions about absent objects by the id of the sample that they are asked with.

    The objects are those that some image of the data shows. Images that are shown together have similar contents, so they share
    the number of questions. Those about one image are spread over the samples that show it.
    Images whose contents are not listed in `metadata.objects` are left out.
    """
    contents: dict[Path, list[Thing]] = {}
    shown: dict[Path, list[Sample]] = defaultdict(list)
    together: dict[Path, int] = defaultdict(int)  # how many images an image is shown with, itself included
    for sample in samples:
        for image, things in zip(sample.images, read_contents(sample), strict=False):
            contents.setdefault(image, things)
            shown[image].append(sample)
            together[image] = max(together[image], len(sample.images))
    known = sorted({thing.shape for things in contents.values() for thing in things})
    asked: dict[str, list[CueQuestion]] = defaultdict(list)
    for number, (image, things) in enumerate(contents.items()):
        shapes = {thing.shape for thing in things}
        absent = [shape for shape in known if shape not in shapes]
        most = max(1, MOST_ASKED // together[image])
        start = most * number % max(len(absent), 1)  # so that all are asked about where there are more
        for place, shape in enumerate((absent[start:] + absent[:start])[:most]):
            sample = shown[image][place % len(shown[image])]
            asked[sample.id].append(CueQuestion(ask(sample, image, shape), shape, list_cues(things)))
    return dict(asked)


class CueEdit(NamedTuple):
    """A question about an absent object, about an image in which something was edited.

    Attributes:
        id: of the sample that shows the image.
        cue, thing: the suspected pair.
        has_cue: whether the edited image shows the cue: another object was removed or the cue was added. Else the cue was
            removed or another object added. None where the cue itself is asked about, in the image as it is.
        chat: the edited image with the question.
    """

    id: str
    cue: str
    thing: str
    has_cue: bool | None
    chat: Chat


def ask(sample: Sample, image: Path, thing: str) -> Sample:
    """Return the question whether a thing is in an image. Of a conversation, it keeps the system prompt alone."""
    question = QUESTION.format(article="an" if thing[0] in "aeiou" else "a", thing=thing)
    fields = {"images": [image], "question": question, "prefill": None, "regions": []}
    if sample.messages:
        system = [turn.text for turn in sample.messages if turn.role == "system"]
        fields |= {"messages": [], "system": "\n".join(system) or None}
    return sample.model_copy(update=fields)


def find_suspects(asked: Sequence[CueClaim]) -> list[tuple[str, str]]:
    """Return the pairs of a cue and an absent object whose claims go with the cue most, those first."""
    things = sorted({each.thing for each in asked})
    lifts = []
    for thing in (thing for thing in things if any(e.claimed for e in asked if e.thing == thing)):
        for cue in things:
            sides = [
                [each.claimed for each in asked if each.thing == thing and (cue in each.cues) == side]
                for side in (True, False)
            ]
            if cue != thing and all(sides):
                with_cue, without = (sum(side) / len(side) for side in sides)
                lifts.append((with_cue - without, sum(sides[0]), cue, thing))
    lifts.sort(reverse=True)
    return [(cue, thing) for lift, _, cue, thing in lifts if lift >= LEAST_LIFT][:SUSPECTS]


def plan_edits(samples: Sequence[Sample], suspects: Sequence[tuple[str, str]]) -> list[CueEdit]:
    """Return the questions about edited images, for suspected pairs of a cue and an object; [] where no image can be edited.

    Drawn images are drawn again. Of photographs whose things have boxes, the cue is painted over, and another thing to compare with.
    """
    scenes = [(sample, *found) for sample in samples for found in read_scenes(sample)]
    shown = list({image: (sample, image, scene) for sample, image, scene in scenes}.values())
    edits: list[CueEdit] = []
    for cue, thing in suspects:
        counts = {True: 0, False: 0}
        for sample, image, scene in shown:
            present = scene.find(cue) is not None
            if scene.find(thing) is not None or counts[present] >= EDITED:
                continue
            versions = _edit(scene, cue, thing)
            if versions is None:
                continue
            counts[present] += 1
            for has_cue, edited in zip((True, False), versions, strict=True):
                chat = build_chat(ask(sample, image, thing))
                edits.append(CueEdit(sample.id, cue, thing, has_cue, chat._replace(images=[draw(edited)])))
            if present:
                edits.append(CueEdit(sample.id, cue, thing, None, build_chat(ask(sample, image, cue))))
        edits += _paint_cues(samples, cue, thing)
    return edits


def _paint_cues(samples: Sequence[Sample], cue: str, thing: str) -> list[CueEdit]:
    """Return the questions about photographs in which a cue, or another thing, is painted over."""
    edits: list[CueEdit] = []
    seen: set[Path] = set()
    for sample in samples:
        for number, image in enumerate(sample.images):
            things = [each for each in list_objects(sample) if each.image == number]
            cues = [each for each in things if each.name == cue]
            others = [
                each for each in things if each.name != cue and not any(overlap(each, own) for own in cues)
            ]
            known = cues and others and not any(each.name == thing for each in things)
            if image in seen or not known or len(seen) >= EDITED:
                continue
            versions = [paint_over(sample, painted) for painted in (others[:1], cues)]
            if None in versions:
                continue
            seen.add(image)
            for has_cue, edited in zip((True, False), versions, strict=True):
                assert edited is not None
                chat = build_chat(ask(sample, image, thing))._replace(images=[edited[number]])
                edits.append(CueEdit(sample.id, cue, thing, has_cue, chat))
            edits.append(CueEdit(sample.id, cue, thing, None, build_chat(ask(sample, image, cue))))
    return edits


def _edit(scene: Scene, cue: str, thing: str) -> tuple[Scene, Scene] | None:
    """Return a scene with and without the cue, each with one object removed or added; None where neither is possible."""
    own = scene.find(cue)
    others = [each for each in scene.objects if each.shape != cue]
    if own is not None:
        if not others:
            return None
        removed = [each for each in scene.objects if each is not others[0]]
        return replace(scene, objects=tuple(removed)), replace(scene, objects=tuple(others))
    used = {(each.row, each.column) for each in scene.objects}
    cell = next(((r, c) for r in range(GRID) for c in range(GRID) if (r, c) not in used), None)
    absent = [shape for shape in SHAPES if scene.find(shape) is None and shape not in (cue, thing)]
    if cell is None or not absent or not scene.objects:
        return None
    red = next(iter(COLOURS))
    added = replace(scene.objects[0], colour=red, rgb=COLOURS[red], row=cell[0], column=cell[1], shift=(0, 0))
    versions = (replace(added, shape=shape) for shape in (cue, absent[0]))
    with_cue, without = (replace(scene, objects=(*scene.objects, new)) for new in versions)
    return with_cue, without


def list_cues(things: Sequence[Thing]) -> list[str]:
    """Return the shapes and the colours of things."""
    return sorted({word for thing in things for word in (thing.shape, thing.colour) if word})


def find_claims(sample: Sample, text: str) -> list[Listed]:
    """Return the objects that an answer lists for each image although the image lacks them, with the cues."""
    contents = read_contents(sample)
    claimed: dict[int, set[str]] = {}
    for image, claim in read_claims(text):
        if claim.colour and claim.place:
            claimed.setdefault(image, set()).add(claim.shape)
    if len(contents) == 1 and not claimed and first_word(text) not in ("yes", "no"):
        named = _find_named(text, {thing.shape for thing in contents[0]})
        claimed = {0: named} if named else {}
    return list_false(contents, claimed)


def list_false(contents: Sequence[Sequence[Thing]], claimed: Mapping[int, set[str]]) -> list[Listed]:
    """Return which of the claimed objects each image lacks, with the cues.

    Args:
        contents: the things in each image.
        claimed: the names of what is claimed, by the index of the image.
    """
    found = []
    for image, shapes in claimed.items():
        if image < len(contents):
            present = {thing.shape for thing in contents[image]}
            cues, false = list_cues(contents[image]), sorted(shapes - present)
            found.append(Listed(image=image, cues=cues, false=false))
    return found


def _find_named(text: str, present: set[str]) -> set[str]:
    """Return the objects of COCO's categories that a text names, where an image's things are such, too; {} where they are not.

    What an image shows has the name that its list has: a puppy is its `dog`, and a `sports car` a car. Sentences that deny or
    doubt name nothing.
    """
    own = {category: name for name in present if (category := find_category(name)) is not None}
    if len(own) < len(present):  # what is not listed may be there by another name
        return set()
    named = {
        category
        for sentence in iter_sentences(text)
        if not is_open(sentence)
        for category, _ in find_objects(sentence)
    }
    return {own.get(category, category) for category in named}
