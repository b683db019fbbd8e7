"""Cue without object: is an object claimed because another one is present?

Claims that go with a cue are a suspicion. Where images can be drawn again, the suspected cues are edited out of images
and into others (`measure_edits`), which shows whether the claim follows.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from mmprobe.benchmarks.answers.coco import find_category, find_objects
from mmprobe.benchmarks.answers.forms import is_open
from mmprobe.benchmarks.answers.texts import iter_sentences
from mmprobe.benchmarks.answers.yes_no import first_word
from mmprobe.benchmarks.synthetic.scene import COLOURS, GRID, SHAPES, Background, Scene, SceneObject, render
from mmprobe.diagnosis.battery.attributes import Thing, read_claims, read_contents
from mmprobe.diagnosis.battery.boxes import list_boxed, overlap, paint_over
from mmprobe.diagnosis.battery.reading import read_answers
from mmprobe.models import Model
from mmprobe.models.prompt import Chat, build_chat
from mmprobe.samples import Sample

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


def find_suspects(records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the pairs of a cue and an absent object whose claims go with the cue most, those first."""
    asked = [each for record in records for each in record["cues"]]
    things = sorted({each["thing"] for each in asked})
    lifts = []
    for thing in (thing for thing in things if any(e["claimed"] for e in asked if e["thing"] == thing)):
        for cue in things:
            sides = [
                [
                    each["claimed"]
                    for each in asked
                    if each["thing"] == thing and (cue in each["cues"]) == side
                ]
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
            things = [each for each in list_boxed(sample) if each.image == number]
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


def read_scenes(sample: Sample) -> Iterator[tuple[Path, Scene]]:
    """Yield the images of a drawn sample with their scenes; nothing where the file of the scenes is not there."""
    name = sample.metadata.get("scene")
    file = None if not isinstance(name, str) else sample.images[0].parent.parent / name
    if file is None or not file.is_file():
        return
    scenes = json.loads(file.read_text(encoding="utf-8"))
    for image, key in zip(sample.images, ("first", "second"), strict=False):
        objects = [SceneObject(**thing) for thing in scenes[key]["objects"]]
        yield image, Scene(tuple(objects), Background(**scenes[key]["background"]))


def draw(scene: Scene) -> Image.Image:
    return Image.fromarray(render(scene))


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


def measure_edits(model: Model, edits: Sequence[CueEdit]) -> list[dict[str, Any]]:
    """Return whether each object is claimed in each edited image, in one forward pass."""
    claimed = _read_claims(model, [edit.chat for edit in edits])
    return [
        {"cue": edit.cue, "thing": edit.thing, "has_cue": edit.has_cue, "claimed": each}
        for edit, each in zip(edits, claimed, strict=True)
    ]


def list_cues(things: Sequence[Thing]) -> list[str]:
    """Return the shapes and the colours of things."""
    return sorted({word for thing in things for word in (thing.shape, thing.colour) if word})


def ask_cues(model: Model, questions: Sequence[CueQuestion]) -> list[dict[str, Any]]:
    """Return whether the model claims each absent object, in one forward pass: yes is likelier than no at the first token."""
    claimed = _read_claims(model, [build_chat(each.sample) for each in questions])
    return [
        {"thing": each.thing, "cues": each.cues, "claimed": said, "image": each.sample.images[0].name}
        for each, said in zip(questions, claimed, strict=True)
    ]


def _read_claims(model: Model, chats: Sequence[Chat]) -> list[bool]:
    """Return for each question whether yes is likelier than no."""
    if not chats:
        return []
    yes, no = (
        [model.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in words]
        for words in (("Yes", "yes"), ("No", "no"))
    )
    readings = read_answers(model, chats, [[yes[0]]] * len(chats))
    return [bool(reading.last[yes].max() > reading.last[no].max()) for reading in readings]


def find_claims(sample: Sample, text: str) -> list[dict[str, Any]]:
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


def list_false(contents: Sequence[Sequence[Thing]], claimed: Mapping[int, set[str]]) -> list[dict[str, Any]]:
    """Return which of the claimed objects each image lacks, with the cues.

    Args:
        contents: the things in each image.
        claimed: the names of what is claimed, by the index of the image.
    """
    found = []
    for image, shapes in claimed.items():
        if image < len(contents):
            present = {thing.shape for thing in contents[image]}
            found.append(
                {"image": image, "cues": list_cues(contents[image]), "false": sorted(shapes - present)}
            )
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
