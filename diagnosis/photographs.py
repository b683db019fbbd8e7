"""Boxes and masks of things in photographs, and photographs in which things are painted over or get another colour."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from mmprobe.benchmarks.photo_pairs.colours import list_new_colours
from mmprobe.benchmarks.photo_pairs.edits import apply_edits, get_inpainter
from mmprobe.benchmarks.photo_pairs.masks import BadMask, Mask, decode_mask
from mmprobe.benchmarks.photo_pairs.photos import Instance, Photo, Pixels
from mmprobe.benchmarks.photo_pairs.planner import PhotoEdit, Rules
from mmprobe.contents import DeclaredObject
from mmprobe.errors import InputError
from mmprobe.samples import Sample, read_image

_MARGIN = 2  # pixels by which a box grows
_MOST = 0.5  # of an image that may be painted over
_AROUND = 0.5  # of a box's sides, what GrabCut sees around it
_ROUNDS = 5  # of GrabCut
_LARGEST = 512  # pixels of a side that GrabCut sees, of larger ones every second and so on


def overlap(thing: DeclaredObject, other: DeclaredObject) -> bool:
    """Return whether two things are in one image and their boxes overlap, or one box is not known.

    Example:
        >>> overlap(DeclaredObject("dog", 0, (0, 0, 5, 5)), DeclaredObject("cat", 0, (4, 4, 5, 5)))
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


def paint_over(sample: Sample, things: Sequence[DeclaredObject]) -> list[Image.Image] | None:
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


def find_mask(pixels: Pixels, thing: DeclaredObject) -> Mask | None:
    """Return the mask of a thing in its image: that of its segmentation; else OpenCV's GrabCut, started from its box, tells it.

    GrabCut compares the colours in the box with those around it. Returns None for a segmentation that does not fit the image, for a
    mask that is empty or that GrabCut lets fill the box, and if OpenCV is not installed or the box has nothing around it.

    Args:
        pixels: of the whole image, RGB uint8 [height, width, 3].
    """
    height, width = pixels.shape[:2]
    if thing.segmentation is not None:
        try:
            mask = decode_mask(thing.segmentation, height, width)
        except BadMask:
            return None
        return mask if mask.any() else None
    return None if thing.box is None else _cut_out(pixels, thing.box)


def _cut_out(pixels: Pixels, box: Sequence[float]) -> Mask | None:
    """Return the mask of what is in a box, by GrabCut (Rother et al., 2004)."""
    try:
        import cv2
    except ImportError:
        return None
    height, width = pixels.shape[:2]
    left, top = (max(0, int(side)) for side in box[:2])
    right, bottom = min(width, int(box[0] + box[2])), min(height, int(box[1] + box[3]))
    if right - left < 2 or bottom - top < 2:
        return None
    beside, above = int(_AROUND * (right - left)) + 1, int(_AROUND * (bottom - top)) + 1
    x, y = max(0, left - beside), max(0, top - above)
    part = pixels[y : bottom + above, x : right + beside]
    if part.shape[:2] == (bottom - top, right - left):
        return None
    step = -(-max(part.shape[:2]) // _LARGEST)  # of the pixels that GrabCut sees
    seen = np.ascontiguousarray(part[::step, ::step, ::-1])  # OpenCV's order of colours
    marks = np.zeros(seen.shape[:2], np.uint8)
    sides = [side // step for side in (left - x, top - y, right - left, bottom - top)]
    if min(sides[2:]) < 1:
        return None
    cv2.setRNGSeed(0)
    cv2.grabCut(seen, marks, sides, np.zeros((1, 65)), np.zeros((1, 65)), _ROUNDS, cv2.GC_INIT_WITH_RECT)
    inside = (marks == cv2.GC_FGD) | (marks == cv2.GC_PR_FGD)
    if not 0 < inside.sum() < sides[2] * sides[3]:
        return None
    mask = np.zeros((height, width), bool)
    large = inside.repeat(step, 0).repeat(step, 1)[: part.shape[0], : part.shape[1]]
    mask[y : y + part.shape[0], x : x + part.shape[1]] = large
    return mask


def choose_colour(
    sample: Sample, things: Sequence[DeclaredObject], place: int, colours: Sequence[str]
) -> str | None:
    """Return the first of some colours that visibly changes a thing; None without one, or without a mask.

    Args:
        things: all of the sample.
        place: of the thing among them.
        colours: of `photo_pairs.colours.PALETTE`; others are left out.
    """
    pixels = np.array(read_image(sample.images[things[place].image], f"sample {sample.id}").convert("RGB"))
    mask = find_mask(pixels, things[place])
    possible = [] if mask is None else list_new_colours(pixels, mask)
    return next((colour for colour in colours if colour in possible), None)


def give_colour(
    sample: Sample, things: Sequence[DeclaredObject], place: int, colour: str
) -> list[Image.Image]:
    """Return a sample's images in which a thing with a mask has another colour, as `photo_pairs.edits` edits photographs.

    Light, shade and texture stay, the edge is soft, and no pixel of another thing with a segmentation changes.
    """
    images = [read_image(path, f"sample {sample.id}").convert("RGB") for path in sample.images]
    thing = things[place]
    pixels = np.array(images[thing.image])
    mask = find_mask(pixels, thing)
    if mask is None:
        raise ValueError(f"sample {sample.id}: the {thing.name} has no mask")
    others = [
        other
        for number, each in enumerate(things)
        if number != place and each.image == thing.image and each.segmentation is not None
        if (other := find_mask(pixels, each)) is not None
    ]
    instances = [Instance(thing.name, False, each) for each in (mask, *others)]
    photo = Photo(sample.id, {}, pixels, tuple(instances))
    changed = apply_edits(photo, [PhotoEdit("color", 0, colour=colour)], _fill_nothing, Rules().margin)
    images[thing.image] = Image.fromarray(changed)
    return images


def _fill_nothing(pixels: Pixels, hole: Mask) -> Pixels:
    raise AssertionError("a thing that gets another colour leaves no hole")
