"""Cue without object: is an object claimed because another one is present?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.diagnosis.battery.attributes import Thing, read_claims, read_contents
from mmprobe.diagnosis.battery.reading import read_answers
from mmprobe.models import Model
from mmprobe.models.chat import build_chat
from mmprobe.samples import Sample

MOST_ASKED = 4  # questions about absent objects, per image
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

    The objects are those that some image of the data shows. The questions about one image are spread over the samples
    that show it.
    Images whose contents are not listed in `metadata.objects` are left out.
    """
    contents: dict[Path, list[Thing]] = {}
    shown: dict[Path, list[Sample]] = defaultdict(list)
    for sample in samples:
        for image, things in zip(sample.images, read_contents(sample), strict=False):
            contents.setdefault(image, things)
            shown[image].append(sample)
    known = sorted({thing.shape for things in contents.values() for thing in things})
    asked: dict[str, list[CueQuestion]] = defaultdict(list)
    for number, (image, things) in enumerate(contents.items()):
        shapes = {thing.shape for thing in things}
        absent = [shape for shape in known if shape not in shapes]
        start = number % max(
            len(absent), 1
        )  # so that all are asked about where there are more than MOST_ASKED
        for place, shape in enumerate((absent[start:] + absent[:start])[:MOST_ASKED]):
            sample = shown[image][place % len(shown[image])]
            question = QUESTION.format(article="an" if shape[0] in "aeiou" else "a", thing=shape)
            fields = {"images": [image], "question": question, "prefill": None, "regions": []}
            asked[sample.id].append(CueQuestion(sample.model_copy(update=fields), shape, list_cues(things)))
    return dict(asked)


def list_cues(things: Sequence[Thing]) -> list[str]:
    """Return the shapes and the colours of things."""
    return sorted({word for thing in things for word in (thing.shape, thing.colour) if word})


def ask_cues(model: Model, questions: Sequence[CueQuestion]) -> list[dict[str, Any]]:
    """Return whether the model claims each absent object, in one forward pass: yes is likelier than no at the first token."""
    if not questions:
        return []
    yes, no = (
        [model.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in words]
        for words in (("Yes", "yes"), ("No", "no"))
    )
    readings = read_answers(
        model, [build_chat(each.sample) for each in questions], [[yes[0]]] * len(questions)
    )
    return [
        {
            "thing": each.thing,
            "cues": each.cues,
            "claimed": bool(reading.last[yes].max() > reading.last[no].max()),
            "image": each.sample.images[0].name,
        }
        for each, reading in zip(questions, readings, strict=True)
    ]


def find_claims(sample: Sample, text: str) -> list[dict[str, Any]]:
    """Return the objects that an answer lists for each image although the image lacks them, with the cues."""
    contents = read_contents(sample)
    claimed: dict[int, set[str]] = {}
    for image, claim in read_claims(text):
        if claim.colour and claim.place:
            claimed.setdefault(image, set()).add(claim.shape)
    found = []
    for image, shapes in claimed.items():
        if image < len(contents):
            present = {thing.shape for thing in contents[image]}
            found.append(
                {"image": image, "cues": list_cues(contents[image]), "false": sorted(shapes - present)}
            )
    return found
