"""Altered things: does a claim follow where a thing gets another colour, shape or place?

Wrong claims about an attribute are a suspicion: a model may err about images of a kind, or about everything. Where images can be
drawn again, one thing in them gets a value of the attribute that is often claimed wrongly, and the model answers again. If the
attribute is why, the error comes with the value. In photographs, things with masks or boxes get other colours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from PIL import Image

from mmprobe.benchmarks.photo_pairs.colours import PALETTE
from mmprobe.benchmarks.synthetic.scene import COLOURS, COLUMNS, Scene, SceneObject
from mmprobe.diagnosis.battery.answers import ParsedAnswer, answer_edited
from mmprobe.diagnosis.battery.attributes import ATTRIBUTES, Thing, match_claims, read_contents
from mmprobe.diagnosis.battery.boxes import choose_colour, give_colour, list_boxed
from mmprobe.diagnosis.battery.cues import draw, read_scenes
from mmprobe.models import Model

MOST_ALTERED = 12  # things that are altered in one attribute


class Alteration(NamedTuple):
    """An answer, and its images with one thing of the first altered.

    Attributes:
        answer: as the model gave it.
        attribute: one of `ATTRIBUTES`.
        before: what the answer claims of the thing; was: what is true.
        thing: the altered thing.
        contents: the things in each image, this one altered.
        draw_images: returns the images, which are not kept.
    """

    answer: ParsedAnswer
    attribute: str
    before: str
    was: str
    thing: Thing
    contents: list[list[Thing]]
    draw_images: Callable[[], list[Image.Image]]


Planned = Callable[[], Alteration | None]
"""Returns an alteration of an answer; None if it turns out to be impossible, which photographs show only when they are opened."""


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

    Drawn images are drawn again. In photographs, a thing with a `segmentation` or a `bbox` gets another colour
    (`boxes.give_colour`). Nothing else is altered.

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
            if (each := _plan_first(answer, attribute, _turn(values, number))) is not None
        ]
        planned += _take_spread(found)
    return planned


def _take_spread(found: Sequence[Planned]) -> list[Alteration]:
    """Return up to `MOST_ALTERED` of the alterations that are possible, at equal distances; others only where some are not."""
    apart = max(1.0, len(found) / MOST_ALTERED)
    places = [int(number * apart) for number in range(min(MOST_ALTERED, len(found)))]
    taken: dict[int, Alteration] = {}
    for place in (*places, *(place for place in range(len(found)) if place not in places)):
        if len(taken) < MOST_ALTERED and (each := found[place]()) is not None:
            taken[place] = each
    return [taken[place] for place in sorted(taken)]


def _turn(values: Sequence[str], number: int) -> list[str]:
    start = number % max(len(values), 1)
    return [*values[start:], *values[:start]]


def _plan_first(answer: ParsedAnswer, attribute: str, values: Sequence[str]) -> Planned | None:
    """Return an alteration of the first thing of the first image that an answer claims the attribute of; None without one.

    Args:
        values: what the thing may get, the first that is possible.
    """
    if next(read_scenes(answer.sample), None) is None:
        return _plan_colour(answer, values) if attribute == "colour" else None
    found = _alter_first(answer, attribute, values)
    return None if found is None else lambda: found


def _plan_colour(answer: ParsedAnswer, values: Sequence[str]) -> Planned | None:
    """Return an alteration of a thing of a photograph whose colour an answer claims; None without one that has a mask or a box.

    The thing gets a colour that it does not have and that the answer does not claim of it.
    """
    contents, things = read_contents(answer.sample), list_boxed(answer.sample)
    found: list[_Recoloured] = []
    for source, image, claim, true in match_claims(contents, answer.text, answer.sample.question):
        if source == "steps" or image or true is None or claim.colour is None or true.colour is None:
            continue
        place = next(number for number, thing in enumerate(contents[0]) if thing is true)
        colours = [each for each in values if each in PALETTE and each not in (true.colour, claim.colour)]
        if colours and (things[place].segmentation or things[place].box):
            found.append(_Recoloured(place, claim.colour, colours))
    return partial(_recolour, answer, contents, found) if found else None


class _Recoloured(NamedTuple):
    """A thing of the first image by its place in the list, what the answer claims of it, and the colours that it may get."""

    place: int
    before: str
    colours: list[str]


def _recolour(
    answer: ParsedAnswer, contents: list[list[Thing]], found: Sequence[_Recoloured]
) -> Alteration | None:
    """Return the alteration of the first thing that one of its colours visibly changes, by the first such colour."""
    things = list_boxed(answer.sample)
    for place, before, colours in found:
        colour = choose_colour(answer.sample, things, place, colours)
        if colour is None:
            continue
        old = contents[0][place]
        thing = old._replace(colour=colour)
        first = [thing if each is old else each for each in contents[0]]
        show = partial(give_colour, answer.sample, things, place, colour)
        return Alteration(answer, "colour", before, str(old.colour), thing, [first, *contents[1:]], show)
    return None


def _alter_first(answer: ParsedAnswer, attribute: str, values: Sequence[str]) -> Alteration | None:
    """Return an alteration of a drawn image, as in `_plan_first`."""
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
        show = partial(_draw_all, shown)
        return Alteration(answer, attribute, said, was, thing, [first, *contents[1:]], show)
    return None


def _draw_all(scenes: Sequence[Scene]) -> list[Image.Image]:
    return [draw(scene) for scene in scenes]


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
    images = [each.draw_images() for each in altered]
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
                    for _, image, claim, true in match_claims(
                        each.contents, text, each.answer.sample.question
                    )
                    if image == 0 and true is each.thing and _tells(claim, each.attribute)
                ),
                None,
            ),
        }
        for each, text in zip(altered, texts, strict=True)
    ]
