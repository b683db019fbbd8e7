"""Boxes on an image: relevant to a question, and adversarial (arXiv:2507.07297, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from mmprobe.errors import InputError
from mmprobe.samples import Box

_RANDOM_SIDES = (0.1, 0.3)  # sides of a random box, as shares of the image's sides
_SMALLEST_SIDE = 4  # pixels


@dataclass(frozen=True)
class BoxRules:
    """The rules by which boxes are made (algorithm 1). The paper names them without their values.

    Attributes:
        threshold: share of a saliency map's maximum above which pixels are salient; our default is 0.5.
        minimum_area: smallest share of the image that a salient component must fill; our default is 0.002.
        clean: iterations of closing and then of opening a map with a 3 x 3 square; our default is 1. 0 does not clean.
        overlap: largest overlap of two relevant boxes; our default is 0.5. Of two, the earlier one stays, our choice.
        rule: `coverage`, as in the algorithm, divides the overlap by the smaller box, `iou` by the union. The
            paper also names a temporal rule, without saying what it is.
        count: number of adversarial boxes; 3 in the paper.
        areas: smallest and largest share of the image that a distractor may fill; our choice.
    """

    threshold: float = 0.5
    minimum_area: float = 0.002
    clean: int = 1
    overlap: float = 0.5
    rule: Literal["coverage", "iou"] = "coverage"
    count: int = 3
    areas: tuple[float, float] = (0.002, 0.25)


RULES = BoxRules()


class MarkedRegion(NamedTuple):
    """A box, whether it is relevant to the question, and where it comes from."""

    box: Box
    relevant: bool
    source: Literal["object", "saliency", "distractor", "random"]


def mark_regions(
    size: tuple[int, int],
    objects: Sequence[Box],
    saliency: Sequence[np.ndarray],
    distractors: Sequence[Box],
    seed: int,
    rules: BoxRules = RULES,
) -> list[MarkedRegion]:
    """Return all boxes of one question, in the order of their numbers R1, R2, ...

    The relevant boxes are the annotated objects, then the components of the saliency maps [y, x] of where
    people looked who answered correctly. A box that overlaps an earlier one is left out. The order is random,
    our choice, so that a number does not reveal whether a box is relevant. `size` is width and height; distractors
    are objects of other questions. Raises InputError for a box beyond the image, no relevant box, or no room.

    Example:
        >>> regions = mark_regions((100, 100), [(0, 0, 40, 40)], [], [], seed=1)
        >>> sum(region.relevant for region in regions), len(regions)
        (1, 4)
    """
    for box in (*objects, *distractors):
        check_box(box, size)
    candidates = [MarkedRegion(box, True, "object") for box in objects]
    for saliency_map in saliency:
        salient = saliency_boxes(saliency_map, size, rules)
        candidates += [MarkedRegion(box, True, "saliency") for box in salient]
    relevant = prune_overlap(candidates, rules)
    if not relevant:
        raise InputError("no relevant box: no object is annotated and no saliency map is above the threshold")
    taken = [region.box for region in relevant]
    regions = relevant + adversarial_boxes(distractors, taken, size, seed, rules)
    return [regions[index] for index in np.random.default_rng((seed, 1)).permutation(len(regions))]


def check_box(box: Box, size: tuple[int, int]) -> None:
    """Raise InputError unless a box has an area and is within an image of this width and height."""
    x, y, w, h = box
    if min(x, y) < 0 or min(w, h) < 1 or x + w > size[0] or y + h > size[1]:
        raise InputError(f"box {list(box)} is not within the image of {size[0]} x {size[1]} pixels")


def saliency_boxes(saliency: np.ndarray, size: tuple[int, int], rules: BoxRules = RULES) -> list[Box]:
    """Return boxes around the salient parts of an image (algorithm 1), from top to bottom.

    The map [y, x] has any resolution: it is scaled to the image's width and height by linear interpolation,
    divided by its maximum, thresholded and cleaned. Each component, connected by edges or corners, gets a
    box. Raises InputError for an empty map, or a value that is negative or not finite.

    Example:
        >>> saliency = np.zeros((10, 20))
        >>> saliency[2:6, 4:10] = 1
        >>> saliency_boxes(saliency, (20, 10))
        [(4, 2, 6, 4)]
    """
    saliency = np.asarray(saliency, float)
    if saliency.ndim != 2 or not saliency.size or not np.isfinite(saliency).all() or saliency.min() < 0:
        raise InputError("a saliency map needs two dimensions and finite values of 0 or more")
    if saliency.max() == 0:
        return []
    width, height = size
    if saliency.shape != (height, width):
        saliency = np.array(
            Image.fromarray(saliency.astype(np.float32)).resize(size, Image.Resampling.BILINEAR), float
        )
    salient = saliency / saliency.max() > rules.threshold
    if clean := rules.clean:
        padded = np.pad(salient, clean, mode="edge")
        padded = ndimage.binary_closing(padded, np.ones((3, 3)), clean) | padded  # closing alone erodes edges
        padded = ndimage.binary_opening(padded, np.ones((3, 3)), clean)
        salient = padded[clean:-clean, clean:-clean]
    components, _ = ndimage.label(salient, structure=np.ones((3, 3)))
    areas = np.bincount(components.ravel())[1:]
    return [
        (int(x.start), int(y.start), int(x.stop - x.start), int(y.stop - y.start))
        for (y, x), area in zip(ndimage.find_objects(components), areas, strict=True)
        if area >= rules.minimum_area * width * height
    ]


def prune_overlap(regions: Sequence[MarkedRegion], rules: BoxRules = RULES) -> list[MarkedRegion]:
    """Remove the boxes that overlap an earlier box by more than the rules allow.

    Example:
        >>> large = MarkedRegion((0, 0, 10, 10), True, "object")
        >>> len(prune_overlap([large, MarkedRegion((1, 1, 3, 3), True, "saliency")]))
        1
    """
    kept: list[MarkedRegion] = []
    for region in regions:
        if all(_overlap(region.box, other.box, rules.rule) <= rules.overlap for other in kept):
            kept.append(region)
    return kept


def _overlap(first: Box, second: Box, rule: Literal["coverage", "iou"]) -> float:
    common = intersection(first, second)
    areas = first[2] * first[3], second[2] * second[3]
    return common / (min(areas) if rule == "coverage" else sum(areas) - common)


def intersection(first: Box, second: Box) -> int:
    """Return the number of pixels in both boxes."""
    width = min(first[0] + first[2], second[0] + second[2]) - max(first[0], second[0])
    height = min(first[1] + first[3], second[1] + second[3]) - max(first[1], second[1])
    return max(width, 0) * max(height, 0)


def adversarial_boxes(
    candidates: Sequence[Box],
    relevant: Sequence[Box],
    size: tuple[int, int],
    seed: int,
    rules: BoxRules = RULES,
) -> list[MarkedRegion]:
    """Return boxes that touch neither a relevant box nor each other, by a single pixel.

    They are drawn from the candidates, objects of other questions. If there are too few, random boxes are
    added, with sides of 0.1 to 0.3 of the image's, our choice; every free place is equally likely. If no place is
    free, the sides are halved. Raises InputError where no room is left.

    Example:
        >>> regions = adversarial_boxes([(50, 50, 10, 10)], [(0, 0, 40, 40)], (100, 100), seed=0)
        >>> [region.source for region in regions]
        ['distractor', 'random', 'random']
        >>> any(intersection(region.box, (0, 0, 40, 40)) for region in regions)
        False
    """
    rng = np.random.default_rng(seed)
    width, height = size
    taken = list(relevant)
    regions: list[MarkedRegion] = []
    smallest, largest = rules.areas
    fitting = [box for box in candidates if smallest <= box[2] * box[3] / (width * height) <= largest]
    for index in rng.permutation(len(fitting)):
        box = fitting[index]
        if len(regions) < rules.count and not any(intersection(box, other) for other in taken):
            regions.append(MarkedRegion(box, False, "distractor"))
            taken.append(box)
    while len(regions) < rules.count:
        box = _draw_free_box(taken, size, rng)
        regions.append(MarkedRegion(box, False, "random"))
        taken.append(box)
    return regions


def _draw_free_box(taken: Sequence[Box], size: tuple[int, int], rng: np.random.Generator) -> Box:
    """Draw a box that overlaps no taken one. Every free place for its size is equally likely."""
    width, height = size
    sums = np.zeros((height + 1, width + 1), int)  # integral image of the taken pixels
    for x, y, w, h in taken:
        sums[y + 1 : y + h + 1, x + 1 : x + w + 1] = 1
    sums = sums.cumsum(0).cumsum(1)
    box_width, box_height = (int(side * rng.uniform(*_RANDOM_SIDES)) for side in size)
    while True:
        box_width = max(box_width, min(_SMALLEST_SIDE, width))
        box_height = max(box_height, min(_SMALLEST_SIDE, height))
        taken_pixels = (
            sums[box_height:, box_width:]
            - sums[:-box_height, box_width:]
            - sums[box_height:, :-box_width]
            + sums[:-box_height, :-box_width]
        )
        rows, columns = np.nonzero(taken_pixels == 0)
        if len(rows):
            place = rng.integers(len(rows))
            return int(columns[place]), int(rows[place]), box_width, box_height
        if box_width <= _SMALLEST_SIDE and box_height <= _SMALLEST_SIDE:
            raise InputError(f"no room for an adversarial box on an image of {width} x {height} pixels")
        box_width, box_height = box_width // 2, box_height // 2


def draw_regions(image: Image.Image, boxes: Sequence[Box]) -> Image.Image:
    """Return a copy of an image with red boxes. Their numbers R1, R2, ... are in the upper left corners.

    Example:
        >>> drawn = draw_regions(Image.new("RGB", (60, 60)), [(10, 10, 30, 30)])
        >>> drawn.getpixel((10, 25))
        (255, 0, 0)
    """
    drawn = image.convert("RGB")
    canvas = ImageDraw.Draw(drawn)
    line_width = max(1, round(min(drawn.size) / 200))
    font = ImageFont.load_default(max(10, round(min(drawn.size) / 20)))
    for number, (x, y, w, h) in enumerate(boxes, 1):
        canvas.rectangle((x, y, x + w - 1, y + h - 1), outline=(255, 0, 0), width=line_width)
        label = f"R{number}"
        corner = (x + line_width, y + line_width)
        canvas.rectangle(canvas.textbbox(corner, label, font=font), fill=(255, 255, 255))
        canvas.text(corner, label, fill=(255, 0, 0), font=font)
    return drawn
