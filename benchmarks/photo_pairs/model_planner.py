"""Which objects of a photograph are edited, and how: by any model that inspect-ai reaches, within the rules.

The model sees what the paper's does, the objects' places and names, not the picture. Where no reply can be used, the
rules plan alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from mmprobe.benchmarks.judges import Judge, JudgeRequest, Unscored
from mmprobe.benchmarks.judges.parsing import StrictReply, UnusableReply, read_reply
from mmprobe.benchmarks.judges.prompts import DATA_NOTICE
from mmprobe.benchmarks.photo_pairs.colours import colour_of, new_colours
from mmprobe.benchmarks.photo_pairs.masks import box_of
from mmprobe.benchmarks.photo_pairs.photos import Photo, share
from mmprobe.benchmarks.photo_pairs.planner import (
    LIVING,
    Edit,
    Rules,
    edit_of,
    find_room,
    fit_instances,
    taken_by,
)
from mmprobe.benchmarks.synthetic.scene import EditType

PLAN = (
    """\
You plan changes to a photograph, from which somebody else will make a second picture; people then look for the
differences. You do not see the photograph: you get its size in pixels and the objects in it that can be changed.

"""
    + DATA_NOTICE
    + """\
{"edits": [{"object": 3, "type": "color", "colour": "blue"}, {"object": 1, "type": "remove", "colour": null}]}

- As many edits as "differences" says, each of another object, named by its "number".
- "type": one of the object's "edits". "color" gives it another colour, "remove" takes it away, "position" moves it to a
  free place, which is found for you.
- "colour": for "color" one of the object's "colours"; else null.
- Choose what leaves a picture that could be real: a bus may be another colour, a cup may be gone from a table; do not
  take away what carries another object. Use different types where you can.

For example, for 2 differences among a car (number 1; color, remove), a dog (number 2; remove, position) and a traffic
light (number 3; color), good edits are the car in another colour and the dog moved or gone.
"""
)


class _Edit(StrictReply):
    object: int
    type: EditType
    colour: str | None


class _Plan(StrictReply):
    edits: Annotated[list[_Edit], Field(max_length=50)]


Drawn = Callable[[], np.random.Generator]
"""Makes a photograph's generator of random numbers anew, so that a reply is read the same way every time."""


def plan_by_model(
    judge: Judge, photos: Sequence[tuple[Photo, Drawn]], differences: tuple[int, int], rules: Rules
) -> list[list[Edit] | Unscored | None]:
    """Ask a model for the edits of several photographs.

    Args:
        judge: asks, repairs up to three times, remembers.
        differences: fewest and most; the number is drawn, and lowered where fewer objects can be edited.

    Returns:
        For each photograph its edits, or why there are none: what was wrong with the replies, or None where too few
        objects can be edited, for which the model is not asked.
    """
    asked: dict[int, JudgeRequest[Edit]] = {}
    for place, (photo, drawn) in enumerate(photos):
        objects = _objects(photo, drawn(), rules)
        wanted = min(int(drawn().integers(differences[0], differences[1] + 1)), len(objects))
        if wanted >= max(differences[0], 1):
            height, width = photo.pixels.shape[:2]
            data = {"width": width, "height": height, "differences": wanted, "objects": objects}
            read = partial(_edits, photo=photo, objects=objects, wanted=wanted, drawn=drawn, rules=rules)
            asked[place] = JudgeRequest(PLAN, data, read)
    replies = asyncio.run(judge.ask(list(asked.values())))
    plans: list[list[Edit] | Unscored | None] = [None] * len(photos)
    for place, reply in zip(asked, replies, strict=True):
        plans[place] = list(reply.items) if reply.items is not None else reply.unscored
    return plans


def _objects(photo: Photo, rng: np.random.Generator, rules: Rules) -> list[dict[str, Any]]:
    """What the model is told of each object that can be edited; numbers are those of the instances, from 1."""
    told = []
    for index in fit_instances(photo, rules)[0]:
        instance = photo.instances[index]
        colours = [] if instance.category in LIVING else new_colours(photo.pixels, instance.mask)
        room = find_room(photo, index, taken_by(photo, []), rng, rules)
        kinds = {"color": bool(colours), "remove": True, "position": room is not None}
        told.append(
            {
                "number": index + 1,
                "object": instance.category,
                "box": list(box_of(instance.mask)),
                "share": round(share(instance.mask), 4),
                "colour": colour_of(photo.pixels, instance.mask),
                "edits": [kind for kind, can in kinds.items() if can],
                "colours": colours,
            }
        )
    return told


def _edits(
    reply: str, photo: Photo, objects: list[dict[str, Any]], wanted: int, drawn: Drawn, rules: Rules
) -> tuple[Edit, ...]:
    given = read_reply(reply, _Plan).edits
    if len(given) != wanted:
        raise UnusableReply(f"it holds {len(given)} edits, but {wanted} are wanted")
    known = {one["number"]: one for one in objects}
    rng, edits = drawn(), list[Edit]()
    for number, one in enumerate(given, 1):
        if one.object not in known:
            raise UnusableReply(f"edit {number}: there is no object of that number that can be changed")
        if one.object - 1 in [edit.instance for edit in edits]:
            raise UnusableReply(f"edit {number}: its object has an edit already")
        if (one.type == "color") != (one.colour is not None):
            raise UnusableReply(f"edit {number}: a colour goes with type color, and with no other")
        taken = taken_by(photo, edits)
        edit = edit_of(photo, one.object - 1, one.type, one.colour, taken, rng, rules)
        if edit is None:
            raise UnusableReply(f"edit {number}: that cannot be done to its object; see its edits and colours")
        edits.append(edit)
    return tuple(edits)
