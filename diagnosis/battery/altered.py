"""Altered things: does a claim follow where a thing gets another colour, shape or place?

Wrong claims about an attribute are a suspicion: a model may err about images of a kind, or about everything. Where images can be
drawn again, one thing in them gets a value of the attribute that is often claimed wrongly, and the model answers again. If the
attribute is why, the error comes with the value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mmprobe.benchmarks.synthetic.scene import COLOURS, COLUMNS, Scene, SceneObject
from mmprobe.diagnosis.battery.answers import ParsedAnswer, answer_edited
from mmprobe.diagnosis.battery.attributes import ATTRIBUTES, Thing, match_claims, read_contents
from mmprobe.diagnosis.battery.cues import draw, read_scenes
from mmprobe.models import Model

MOST_ALTERED = 12  # things that are altered in one attribute


class Alteration(NamedTuple):
    """An answer, and the scenes of its images with one thing of the first altered.

    Attributes:
        answer: as the model gave it.
        attribute: one of `ATTRIBUTES`.
        before: what the answer claims of the thing; was: what is true.
        thing: the altered thing.
        contents: the things in each image, this one altered.
        scenes: of the images, from which these are drawn again.
    """

    answer: ParsedAnswer
    attribute: str
    before: str
    was: str
    thing: Thing
    contents: list[list[Thing]]
    scenes: list[Scene]


def find_suspected(claims: Iterable[dict[str, Any]], least: int, share: float) -> list[str]:
    """Return the attributes that are often claimed wrongly. Claims in steps do not count.

    Args:
        claims: as from `measure_attributes`.
        least: claims about an attribute, at least.
        share: of them that are wrong, at least.
    """
    found = {attribute: [0, 0] for attribute in ATTRIBUTES}
    for claim in claims:
        if claim["attribute"] in found and claim["source"] != "steps":
            found[claim["attribute"]][0] += claim["wrong"]
            found[claim["attribute"]][1] += 1
    return [name for name, (wrong, total) in found.items() if total >= least and wrong >= share * total]


def rank_values(claims: Sequence[dict[str, Any]], attribute: str) -> list[str]:
    """Return the values of an attribute that are claimed wrongly at least half of the times, those with most wrong claims first.

    Example:
        >>> claims = [{"attribute": "colour", "true": "red", "wrong": True}, {"attribute": "colour", "true": "blue", "wrong": False}]
        >>> rank_values(claims, "colour")
        ['red']
    """
    wrong: dict[str, list[bool]] = defaultdict(list)
    for claim in claims:
        if claim["attribute"] == attribute:
            wrong[claim["true"]].append(claim["wrong"])
    often = [value for value, own in wrong.items() if 2 * sum(own) >= len(own)]
    return sorted(often, key=lambda value: -sum(wrong[value]))


def plan_alterations(
    answers: Sequence[ParsedAnswer], claims: Sequence[dict[str, Any]], attributes: Sequence[str]
) -> list[Alteration]:
    """Return what is altered: for each attribute up to `MOST_ALTERED` things, spread over the answers that claim it of a thing.

    Nothing for images that cannot be drawn again.

    Args:
        claims: those of all answers, which tell the values that things get.
        attributes: which ones are altered.
    """
    planned: list[Alteration] = []
    for attribute in attributes:
        values = rank_values(claims, attribute)
        found = [
            each
            for number, answer in enumerate(answers)
            if (each := _alter_first(answer, attribute, _turn(values, number))) is not None
        ]
        apart = max(1.0, len(found) / MOST_ALTERED)
        planned += [found[int(number * apart)] for number in range(min(MOST_ALTERED, len(found)))]
    return planned


def _turn(values: Sequence[str], number: int) -> list[str]:
    start = number % max(len(values), 1)
    return [*values[start:], *values[:start]]


def _alter_first(answer: ParsedAnswer, attribute: str, values: Sequence[str]) -> Alteration | None:
    """Return an alteration of the first thing of the first image that an answer claims the attribute of; None without one.

    Args:
        values: what the thing may get, the first that is possible.
    """
    scenes = [scene for _, scene in read_scenes(answer.sample)]
    contents = read_contents(answer.sample)
    if not scenes or not contents:
        return None
    for source, image, claim, true in match_claims(contents, answer.text):
        own = None if true is None else scenes[0].find(true.shape)
        if source == "steps" or image or true is None or own is None or not _tells(claim, attribute):
            continue
        altered = alter(own, scenes[0], attribute, values)
        if altered is None:
            continue
        objects = [altered if each is own else each for each in scenes[0].objects]
        thing = Thing(altered.colour, altered.shape, altered.cell)
        first = [thing if each is true else each for each in contents[0]]
        shown = [replace(scenes[0], objects=tuple(objects)), *scenes[1:]]
        said, was = getattr(claim, attribute), getattr(true, attribute)
        return Alteration(answer, attribute, said, was, thing, [first, *contents[1:]], shown)
    return None


def _tells(claim: Thing, attribute: str) -> bool:
    """Return whether a claim tells an attribute; a shape only if it tells the thing apart by its colour and place."""
    return getattr(claim, attribute) is not None and (attribute != "shape" or None not in claim)


def alter(thing: SceneObject, scene: Scene, attribute: str, values: Sequence[str]) -> SceneObject | None:
    """Return a thing of a scene with the first value of an attribute that nothing in the scene has; None if all are taken.

    Args:
        values: colours, shapes, or places such as `B2`.

    Example:
        >>> import numpy as np
        >>> from mmprobe.benchmarks.synthetic.scene import draw_scene
        >>> scene = draw_scene(np.random.default_rng(0), "easy")
        >>> [each.colour for each in scene.objects], alter(scene.objects[0], scene, "colour", ["green", "red"]).colour
        (['blue', 'green', 'purple'], 'red')
    """
    name = "cell" if attribute == "place" else attribute
    value = next((each for each in values if all(getattr(own, name) != each for own in scene.objects)), None)
    if value is None:
        return None
    if attribute == "place":
        return replace(thing, column=COLUMNS.index(value[0]), row=int(value[1]) - 1)
    return (
        replace(thing, colour=value, rgb=COLOURS[value]) if name == "colour" else replace(thing, shape=value)
    )


def measure_alterations(model: Model, altered: Sequence[Alteration]) -> list[dict[str, Any]]:
    """Return what the model claims of each altered thing. Each is answered again, which counts as one pass.

    - attribute: which one was altered; was, before: what was true and what was claimed before
    - true: what is true now; said: what is claimed now, None where the answer claims nothing of the thing
    """
    images = [[draw(scene) for scene in each.scenes] for each in altered]
    texts = answer_edited(model, [each.answer for each in altered], images)
    return [
        {
            "attribute": each.attribute,
            "was": each.was,
            "before": each.before,
            "true": getattr(each.thing, each.attribute),
            "said": next(
                (
                    getattr(claim, each.attribute)
                    for _, image, claim, true in match_claims(each.contents, text)
                    if image == 0 and true is each.thing and _tells(claim, each.attribute)
                ),
                None,
            ),
        }
        for each, text in zip(altered, texts, strict=True)
    ]
