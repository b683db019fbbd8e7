"""Choose the objects of a photograph and their edits with a model, within the rules.

As in SPD-Faith Bench (arXiv:2602.07833), the model sees the places and names of the objects, not the image.
Where no reply is usable, the rules plan alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from mmprobe.benchmarks.judges import Judge, JudgeRequest, Unscored
from mmprobe.benchmarks.judges.requests import StrictReply, UnusableReply, read_reply
from mmprobe.benchmarks.photo_pairs.colours import list_new_colours, name_colour
from mmprobe.benchmarks.photo_pairs.masks import bounding_box
from mmprobe.benchmarks.photo_pairs.photos import Photo, covered_share
from mmprobe.benchmarks.photo_pairs.planner import (
    LIVING,
    PhotoEdit,
    Rules,
    find_editable,
    find_free_shift,
    find_occupied,
    make_edit,
)
from mmprobe.benchmarks.synthetic.scene import EditType

PLAN = """\
You plan changes to a photograph, from which somebody else will make a second picture; people then look for the
differences. You do not see the photograph: you get its size in pixels and the objects in it that can be changed.

{notice}
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


class _PlannedEdit(StrictReply):
    object: int
    type: EditType
    colour: str | None


class _PlannedEdits(StrictReply):
    edits: Annotated[list[_PlannedEdit], Field(max_length=50)]


MakeRng = Callable[[], np.random.Generator]
"""Returns a new generator with the seed of a photograph, so that a reply is read the same way every time."""


def plan_by_model(
    judge: Judge,
    photos: Sequence[tuple[Photo, MakeRng]],
    count_edits: Callable[[str], tuple[int, int]],
    rules: Rules,
) -> list[list[PhotoEdit] | Unscored | None]:
    """Return the edits of each photograph by a model, or why its replies were unusable.

    None means a photograph with too few objects that can be edited; the model is not asked.
    """
    requests: dict[int, JudgeRequest[PhotoEdit]] = {}
    for index, (photo, make_rng) in enumerate(photos):
        objects = _describe_objects(photo, make_rng(), rules)
        fewest, most = count_edits(photo.name)
        n_edits = min(int(make_rng().integers(fewest, most + 1)), len(objects))
        if n_edits >= max(fewest, 1):
            height, width = photo.pixels.shape[:2]
            data = {"width": width, "height": height, "differences": n_edits, "objects": objects}
            read = partial(
                _read_edits, photo=photo, objects=objects, n_edits=n_edits, make_rng=make_rng, rules=rules
            )
            requests[index] = JudgeRequest(PLAN, data, read)
    replies = asyncio.run(judge.ask(list(requests.values())))
    plans: list[list[PhotoEdit] | Unscored | None] = [None] * len(photos)
    for index, reply in zip(requests, replies, strict=True):
        plans[index] = list(reply.items) if reply.items is not None else reply.unscored
    return plans


def _describe_objects(photo: Photo, rng: np.random.Generator, rules: Rules) -> list[dict[str, Any]]:
    """Return what the model sees of each editable object. Numbers are instance indices from 1."""
    objects = []
    for index in find_editable(photo, rules)[0]:
        instance = photo.instances[index]
        colours = [] if instance.category in LIVING else list_new_colours(photo.pixels, instance.mask)
        free_shift = find_free_shift(photo, index, find_occupied(photo, []), rng, rules)
        possible = {"color": bool(colours), "remove": True, "position": free_shift is not None}
        objects.append(
            {
                "number": index + 1,
                "object": instance.category,
                "box": list(bounding_box(instance.mask)),
                "share": round(covered_share(instance.mask), 4),
                "colour": name_colour(photo.pixels, instance.mask),
                "edits": [name for name, is_possible in possible.items() if is_possible],
                "colours": colours,
            }
        )
    return objects


def _read_edits(
    reply: str, photo: Photo, objects: list[dict[str, Any]], n_edits: int, make_rng: MakeRng, rules: Rules
) -> tuple[PhotoEdit, ...]:
    """Return the edits of a reply."""
    planned = read_reply(reply, _PlannedEdits).edits
    if len(planned) != n_edits:
        raise UnusableReply(f"it holds {len(planned)} edits, but {n_edits} are wanted")
    numbers = {item["number"] for item in objects}
    rng = make_rng()
    edits: list[PhotoEdit] = []
    for number, item in enumerate(planned, 1):
        if item.object not in numbers:
            raise UnusableReply(f"edit {number}: there is no object of that number that can be changed")
        if item.object - 1 in [edit.instance for edit in edits]:
            raise UnusableReply(f"edit {number}: its object has an edit already")
        if (item.type == "color") != (item.colour is not None):
            raise UnusableReply(f"edit {number}: a colour goes with type color, and with no other")
        occupied = find_occupied(photo, edits)
        edit = make_edit(photo, item.object - 1, item.type, item.colour, occupied, rng, rules)
        if edit is None:
            raise UnusableReply(
                f"edit {number}: that cannot be done to its object; see its edits and colours"
            )
        edits.append(edit)
    return tuple(edits)
