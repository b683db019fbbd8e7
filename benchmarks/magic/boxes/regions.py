"""Numbered boxes on a picture: those that matter to a question, and adversarial ones (paper 001, 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from mmprobe.errors import InputError

Box = tuple[int, int, int, int]
"""x, y, width, height in pixels, as in `mmprobe.samples.Region`."""

THRESHOLD = 0.5
MINIMUM_AREA = 0.002
OVERLAP = 0.5
ADVERSARIAL = 3
_SIDES = (0.1, 0.3)  # of a box made at random, as shares of the picture's sides
_SMALLEST = 4  # pixels


class Marked(NamedTuple):
    """A box, whether it matters to the question, and where it comes from."""

    box: Box
    relevant: bool
    source: Literal["object", "saliency", "distractor", "random"]


def saliency_boxes(
    saliency: np.ndarray,
    size: tuple[int, int],
    threshold: float = THRESHOLD,
    minimum_area: float = MINIMUM_AREA,
    clean: int = 1,
) -> list[Box]:
    """Boxes around what people looked at: binarise, clean, and take connected components (algorithm 1).

    Args:
        saliency: [y, x], 0 or more, of any resolution; it is brought to the picture's by linear interpolation
            and divided by its largest value.
        size: the picture's width and height.
        threshold: what is above it is salient; the paper gives no value, ours is 0.5.
        minimum_area: share of the picture that a component fills at least; ours is 0.002.
        clean: times that holes and then specks are taken away by a 3 x 3 square; ours is 1, 0 leaves it out.

    Returns:
        One box a component (cells that touch by an edge or corner), from top to bottom.

    Raises:
        InputError: the map is empty, negative or not finite.

    Example:
        >>> spot = np.zeros((10, 20))
        >>> spot[2:6, 4:10] = 1
        >>> saliency_boxes(spot, (20, 10))
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
    salient = saliency / saliency.max() > threshold
    if clean:
        padded = np.pad(salient, clean, mode="edge")
        padded = ndimage.binary_closing(padded, np.ones((3, 3)), clean) | padded  # closing alone erodes edges
        padded = ndimage.binary_opening(padded, np.ones((3, 3)), clean)
        salient = padded[clean:-clean, clean:-clean]
    labels, _ = ndimage.label(salient, structure=np.ones((3, 3)))
    areas = np.bincount(labels.ravel())[1:]
    return [
        (int(x.start), int(y.start), int(x.stop - x.start), int(y.stop - y.start))
        for (y, x), area in zip(ndimage.find_objects(labels), areas, strict=True)
        if area >= minimum_area * width * height
    ]


def intersection(one: Box, two: Box) -> int:
    """Pixels in both boxes.

    Example:
        >>> intersection((0, 0, 4, 4), (2, 3, 4, 4))
        2
    """
    width = min(one[0] + one[2], two[0] + two[2]) - max(one[0], two[0])
    height = min(one[1] + one[3], two[1] + two[3]) - max(one[1], two[1])
    return max(width, 0) * max(height, 0)


def prune_overlap(
    boxes: Sequence[Marked], threshold: float = OVERLAP, rule: Literal["coverage", "iou"] = "coverage"
) -> list[Marked]:
    """Leave out boxes that overlap one before them.

    The paper names the rules but neither the threshold nor which box stays; ours are 0.5 and the earlier one.

    Args:
        boxes: those to be kept first come first.
        threshold: overlap above it is too much.
        rule: overlap is the intersection's share of the smaller box, or of the union.

    Example:
        >>> whole = Marked((0, 0, 10, 10), True, "object")
        >>> len(prune_overlap([whole, Marked((1, 1, 3, 3), True, "saliency")]))
        1
    """
    kept: list[Marked] = []
    for marked in boxes:
        if all(_overlap(marked.box, other.box, rule) <= threshold for other in kept):
            kept.append(marked)
    return kept


def _overlap(one: Box, two: Box, rule: Literal["coverage", "iou"]) -> float:
    common = intersection(one, two)
    areas = one[2] * one[3], two[2] * two[3]
    return common / (min(areas) if rule == "coverage" else sum(areas) - common)


def adversarial_boxes(
    candidates: Sequence[Box],
    relevant: Sequence[Box],
    size: tuple[int, int],
    seed: int,
    count: int = ADVERSARIAL,
    areas: tuple[float, float] = (MINIMUM_AREA, 0.25),
) -> list[Marked]:
    """Boxes that touch neither a relevant one nor each other: drawn of the candidates, topped up at random.

    A box made up has sides of 0.1 to 0.3 of the picture's, ours, and any free place is as likely; where
    none is free its sides are halved.

    Args:
        candidates: objects that matter to other questions about the picture.
        relevant: the boxes that they must not overlap, by a single pixel.
        size: the picture's width and height.
        seed: of the draws.
        count: how many, 3 in the paper.
        areas: least and largest share of the picture that a candidate fills; ours.

    Raises:
        InputError: no room is left on the picture.

    Example:
        >>> found = adversarial_boxes([(50, 50, 10, 10)], [(0, 0, 40, 40)], (100, 100), seed=0)
        >>> [marked.source for marked in found], any(intersection(m.box, (0, 0, 40, 40)) for m in found)
        (['distractor', 'random', 'random'], False)
    """
    rng = np.random.default_rng(seed)
    width, height = size
    taken = list(relevant)
    found: list[Marked] = []
    fitting = [box for box in candidates if areas[0] <= box[2] * box[3] / (width * height) <= areas[1]]
    for index in rng.permutation(len(fitting)):
        box = fitting[index]
        if len(found) < count and not any(intersection(box, other) for other in taken):
            found.append(Marked(box, False, "distractor"))
            taken.append(box)
    while len(found) < count:
        box = _free_box(taken, size, rng)
        found.append(Marked(box, False, "random"))
        taken.append(box)
    return found


def _free_box(taken: Sequence[Box], size: tuple[int, int], rng: np.random.Generator) -> Box:
    """A box at random that overlaps none, every free place of its size being as likely."""
    width, height = size
    sums = np.zeros((height + 1, width + 1), int)
    for x, y, w, h in taken:
        sums[y + 1 : y + h + 1, x + 1 : x + w + 1] = 1
    sums = sums.cumsum(0).cumsum(1)
    wide, high = (int(side * rng.uniform(*_SIDES)) for side in size)
    while True:
        wide, high = max(wide, min(_SMALLEST, width)), max(high, min(_SMALLEST, height))
        inside = sums[high:, wide:] - sums[:-high, wide:] - sums[high:, :-wide] + sums[:-high, :-wide]
        rows, columns = np.nonzero(inside == 0)
        if len(rows):
            place = rng.integers(len(rows))
            return int(columns[place]), int(rows[place]), wide, high
        if wide <= _SMALLEST and high <= _SMALLEST:
            raise InputError(f"no room for an adversarial box on a picture of {width} x {height}")
        wide, high = wide // 2, high // 2


def mark_regions(
    size: tuple[int, int],
    objects: Sequence[Box],
    saliency: Sequence[np.ndarray],
    distractors: Sequence[Box],
    seed: int,
    threshold: float = THRESHOLD,
    minimum_area: float = MINIMUM_AREA,
    overlap: float = OVERLAP,
    count: int = ADVERSARIAL,
) -> list[Marked]:
    """All boxes of one question, in the order of their numbers R1, R2, ...

    Relevant ones are the annotated objects, then components of the saliency maps, those that overlap earlier
    ones left out. The order is drawn at random, ours, so that a number does not tell what a box is.

    Args:
        size: the picture's width and height.
        objects: annotated as relevant to the question.
        saliency: maps [y, x] of where people looked who answered rightly; AiR-D has three a question.
        distractors: objects relevant to other questions.
        seed: of the adversarial boxes and the order.
        threshold, minimum_area: of `saliency_boxes`.
        overlap: of `prune_overlap`, by coverage.
        count: adversarial boxes.

    Raises:
        InputError: a box reaches beyond the picture, nothing is relevant, or no room is left.

    Example:
        >>> found = mark_regions((100, 100), [(0, 0, 40, 40)], [], [], seed=1)
        >>> sum(marked.relevant for marked in found), len(found)
        (1, 4)
    """
    for box in (*objects, *distractors):
        check_box(box, size)
    hot = [box for one in saliency for box in saliency_boxes(one, size, threshold, minimum_area)]
    merged = [Marked(box, True, "object") for box in objects] + [Marked(box, True, "saliency") for box in hot]
    relevant = prune_overlap(merged, overlap)
    if not relevant:
        raise InputError("no relevant box: no object is annotated and no saliency map is above the threshold")
    found = relevant + adversarial_boxes(distractors, [m.box for m in relevant], size, seed, count)
    return [found[index] for index in np.random.default_rng((seed, 1)).permutation(len(found))]


def check_box(box: Box, size: tuple[int, int]) -> None:
    """Raise InputError unless a box has an area and lies on a picture of this width and height.

    Example:
        >>> check_box((0, 0, 4, 4), (4, 4))
    """
    x, y, w, h = box
    if min(x, y) < 0 or min(w, h) < 1 or x + w > size[0] or y + h > size[1]:
        raise InputError(f"box {list(box)} does not lie on the picture of {size[0]} x {size[1]} pixels")


def draw_regions(image: Image.Image, boxes: Sequence[Box]) -> Image.Image:
    """A copy of a picture with red boxes, numbered R1, R2, ... in their upper left corners.

    Example:
        >>> drawn = draw_regions(Image.new("RGB", (60, 60)), [(10, 10, 30, 30)])
        >>> drawn.getpixel((10, 25))
        (255, 0, 0)
    """
    drawn = image.convert("RGB")
    pen = ImageDraw.Draw(drawn)
    line = max(1, round(min(drawn.size) / 200))
    font = ImageFont.load_default(max(10, round(min(drawn.size) / 20)))
    for number, (x, y, w, h) in enumerate(boxes, 1):
        pen.rectangle((x, y, x + w - 1, y + h - 1), outline=(255, 0, 0), width=line)
        name = f"R{number}"
        frame = pen.textbbox((x + line, y + line), name, font=font)
        pen.rectangle(frame, fill=(255, 255, 255))
        pen.text((x + line, y + line), name, fill=(255, 0, 0), font=font)
    return drawn
