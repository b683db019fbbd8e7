"""COCO's segmentations, polygons and run lengths, as masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Mask = NDArray[np.bool_]
_SLACK = 2.0  # pixels that a polygon may reach over the picture's edge, ours; more is of another picture
_MOST_CORNERS = 10_000  # of a polygon, ours


class BadMask(ValueError):
    """Why a segmentation is no mask of its picture."""


def mask_of(segmentation: Any, height: int, width: int) -> Mask:
    """The pixels of one annotation: the union of its polygons, or its run lengths.

    Args:
        segmentation: COCO's field: a list of polygons [x, y, x, y, …] in pixels, or {"size": [height, width],
            "counts": run lengths down the columns, as a list or as COCO's compressed text}.
        height, width: of the picture.

    Returns:
        Booleans [height, width].

    Raises:
        BadMask: it is malformed, or reaches outside the picture.

    Example:
        >>> mask_of({"size": [2, 3], "counts": [1, 2, 3]}, 2, 3).astype(int)
        array([[0, 1, 0],
               [1, 0, 0]])
    """
    if isinstance(segmentation, dict):
        return _of_runs(segmentation, height, width)
    if isinstance(segmentation, list) and segmentation:
        return union(
            [_filled(_corners(one, height, width), height, width) for one in segmentation], (height, width)
        )
    raise BadMask("its segmentation is neither polygons nor run lengths")


def _filled(corners: NDArray[np.float64], height: int, width: int) -> Mask:
    """The pixels whose centre is inside a polygon: an odd number of its edges, [corner, 2], is left of it."""
    (x, y), (x_next, y_next) = corners.T, np.roll(corners, -1, 0).T
    centres = np.arange(height)[:, None] + 0.5
    row, edge = np.nonzero((y <= centres) != (y_next <= centres))  # [height, edge]: those that cross the row
    along = (row + 0.5 - y[edge]) / (y_next - y)[edge]
    crossed = x[edge] + along * (x_next - x)[edge]
    edges = np.zeros((height, width + 1), dtype=np.int32)
    np.add.at(edges, (row, np.clip(np.ceil(crossed - 0.5), 0, width).astype(int)), 1)
    return edges.cumsum(1)[:, :width] % 2 == 1


def _corners(polygon: Any, height: int, width: int) -> NDArray[np.float64]:
    if not isinstance(polygon, list) or not 6 <= len(polygon) <= 2 * _MOST_CORNERS or len(polygon) % 2:
        raise BadMask(f"a polygon has not 3 to {_MOST_CORNERS} corners of x and y")
    if not all(_number(value) for value in polygon):
        raise BadMask("a polygon holds what is no number")
    corners = np.array(polygon, dtype=np.float64).reshape(-1, 2)
    if corners.min() < -_SLACK or (corners > (width + _SLACK, height + _SLACK)).any():
        raise BadMask(f"its mask lies outside the picture, which has {width} x {height} pixels")
    return corners


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _of_runs(told: dict[str, Any], height: int, width: int) -> Mask:
    if told.get("size") != [height, width]:
        raise BadMask(f"its run lengths are of a picture of another size than {width} x {height}")
    counts = told.get("counts")
    if isinstance(counts, str):
        counts = _decompress(counts)
    elif not isinstance(counts, list) or not all(type(count) is int for count in counts):
        raise BadMask("its run lengths are neither whole numbers nor text")
    if any(count < 0 for count in counts) or sum(counts) != height * width:
        raise BadMask("its run lengths do not add up to the picture")
    flat = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return flat.reshape(width, height).T.copy()


def _decompress(text: str) -> list[int]:
    """Run lengths from COCO's text: six bits a letter, the lowest five of them digits; from the fourth run
    on, the difference from the run before the last one (maskApi.c of cocoapi)."""
    counts: list[int] = []
    value = shift = 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64 or shift > 40:
            raise BadMask("its compressed run lengths hold a letter that they cannot")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise BadMask("its compressed run lengths are cut off")
    return counts


def dilate(mask: Mask, pixels: int) -> Mask:
    """A mask grown by so many pixels on every side, in a square."""
    return ndimage.maximum_filter(mask, size=2 * pixels + 1, mode="constant") if pixels else mask


def box_of(mask: Mask) -> tuple[int, int, int, int]:
    """x, y, width and height in pixels of the smallest box around a mask that is not empty."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    x, y = int(columns[0]), int(rows[0])
    return x, y, int(columns[-1]) - x + 1, int(rows[-1]) - y + 1


def union(masks: Sequence[Mask], shape: tuple[int, int]) -> Mask:
    """All pixels that are in any of the masks."""
    found = np.zeros(shape, dtype=bool)
    for mask in masks:
        found |= mask
    return found


def shifted(mask: Mask, by: tuple[int, int]) -> Mask:
    """A mask moved by so many pixels to the right and down; what leaves the picture is lost."""
    found = np.zeros_like(mask)
    rows, columns = np.nonzero(mask)
    rows, columns = rows + by[1], columns + by[0]
    inside = (rows >= 0) & (rows < mask.shape[0]) & (columns >= 0) & (columns < mask.shape[1])
    found[rows[inside], columns[inside]] = True
    return found
