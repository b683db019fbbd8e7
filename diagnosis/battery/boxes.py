"""Boxes of things in photographs, and photographs in which some of them are painted over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from mmprobe.benchmarks.photo_pairs.edits import get_inpainter
from mmprobe.diagnosis.battery.attributes import list_contents, read_thing
from mmprobe.errors import InputError
from mmprobe.models.prompt import read_image
from mmprobe.samples import Sample

_MARGIN = 2  # pixels by which a box grows
_MOST = 0.5  # of an image that may be painted over


class BoxedThing(NamedTuple):
    """A thing with its box.

    Attributes:
        name: what it is.
        image: the index of its image.
        box: x, y, width and height, in pixels; None where it is not known.
    """

    name: str
    image: int
    box: tuple[float, ...] | None


def list_boxed(sample: Sample) -> list[BoxedThing]:
    """Return the things that `metadata.objects` lists, with the boxes (`bbox`: x, y, width, height) that they have.

    Example:
        >>> objects = [{"category": "dog", "bbox": [4, 4, 9, 9]}]
        >>> list_boxed(Sample(id="a", images=["a.png"], question="?", metadata={"objects": objects}))
        [BoxedThing(name='dog', image=0, box=(4.0, 4.0, 9.0, 9.0))]
    """
    found = []
    for number, image in enumerate(list_contents(sample)[: len(sample.images)]):
        for each in image:
            thing = read_thing(each)
            box = each.get("bbox") if isinstance(each, dict) else None
            if not (
                isinstance(box, list) and len(box) == 4 and all(isinstance(side, int | float) for side in box)
            ):
                box = None
            if thing is not None:
                found.append(BoxedThing(thing.shape, number, None if box is None else tuple(map(float, box))))
    return found


def overlap(thing: BoxedThing, other: BoxedThing) -> bool:
    """Return whether two things are in one image and their boxes overlap, or one box is not known.

    Example:
        >>> overlap(BoxedThing("dog", 0, (0, 0, 5, 5)), BoxedThing("cat", 0, (4, 4, 5, 5)))
        True
    """
    if thing.image != other.image:
        return False
    if thing.box is None or other.box is None:
        return True
    box, second = thing.box, other.box
    return all(
        box[axis] < second[axis] + second[axis + 2] and second[axis] < box[axis] + box[axis + 2]
        for axis in (0, 1)
    )


def paint_over(sample: Sample, things: Sequence[BoxedThing]) -> list[Image.Image] | None:
    """Return a sample's images in which OpenCV fills the boxes of some things from around them.

    None where OpenCV is not installed, a box is not known, or more than half of an image would be filled.
    """
    try:
        inpaint = get_inpainter("opencv")
    except InputError:
        return None
    images = [read_image(path, f"sample {sample.id}").convert("RGB") for path in sample.images]
    for number in sorted({thing.image for thing in things}):
        pixels = np.array(images[number])
        hole = np.zeros(pixels.shape[:2], bool)
        for thing in things:
            if thing.box is None:
                return None
            if thing.image == number:
                x, y, width, height = thing.box
                rows = slice(max(0, int(y) - _MARGIN), int(y + height) + _MARGIN + 1)
                hole[rows, max(0, int(x) - _MARGIN) : int(x + width) + _MARGIN + 1] = True
        if not 0 < hole.mean() <= _MOST:
            return None
        images[number] = Image.fromarray(inpaint(pixels, hole))
    return images
