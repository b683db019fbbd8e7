"""Decode COCO's segmentations, polygons or run lengths, into masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Mask = NDArray[np.bool_]
_MAX_OVERHANG = 2.0  # pixels of a polygon outside the image, our choice; more belongs to another image
_MAX_CORNERS = 10_000  # of a polygon, our choice


class BadMask(ValueError):
    """The reason why a segmentation does not give a mask of its image."""


def decode_mask(segmentation: Any, height: int, width: int) -> Mask:
    """Return the mask of one annotation, bool [height, width]: polygons, or run lengths.

    `segmentation` is a list of polygons [x, y, x, y, …] in pixels, or {"size": [height, width], "counts": run
    lengths down the columns, as a list or as COCO's compressed text}. Raises BadMask where it is malformed,
    or is outside the image.

    Example:
        >>> decode_mask({"size": [2, 3], "counts": [1, 2, 3]}, 2, 3).astype(int)
        array([[0, 1, 0],
               [1, 0, 0]])
    """
    if isinstance(segmentation, dict):
        return _decode_runs(segmentation, height, width)
    if isinstance(segmentation, list) and segmentation:
        masks = [_fill(_parse_corners(polygon, height, width), height, width) for polygon in segmentation]
        return union(masks, (height, width))
    raise BadMask("its segmentation is neither polygons nor run lengths")


def _fill(corners: NDArray[np.float64], height: int, width: int) -> Mask:
    """Return the pixels whose centre is inside a polygon [corner, 2]: an odd number of edges is left of it."""
    (x, y), (x_next, y_next) = corners.T, np.roll(corners, -1, 0).T
    centres = np.arange(height)[:, None] + 0.5
    row, edge = np.nonzero((y <= centres) != (y_next <= centres))  # the edges that cross each row
    fraction = (row + 0.5 - y[edge]) / (y_next - y)[edge]
    crossed = x[edge] + fraction * (x_next - x)[edge]
    edges = np.zeros((height, width + 1), dtype=np.int32)
    np.add.at(edges, (row, np.clip(np.ceil(crossed - 0.5), 0, width).astype(int)), 1)
    return edges.cumsum(1)[:, :width] % 2 == 1


def _parse_corners(polygon: Any, height: int, width: int) -> NDArray[np.float64]:
    if not isinstance(polygon, list) or not 6 <= len(polygon) <= 2 * _MAX_CORNERS or len(polygon) % 2:
        raise BadMask(f"a polygon must have 3 to {_MAX_CORNERS} corners of x and y")
    if not all(_is_number(value) for value in polygon):
        raise BadMask("a polygon holds a value that is not a number")
    corners = np.array(polygon, dtype=np.float64).reshape(-1, 2)
    if corners.min() < -_MAX_OVERHANG or (corners > (width + _MAX_OVERHANG, height + _MAX_OVERHANG)).any():
        raise BadMask(f"its mask lies outside the image, which has {width} x {height} pixels")
    return corners


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _decode_runs(segmentation: dict[str, Any], height: int, width: int) -> Mask:
    if segmentation.get("size") != [height, width]:
        raise BadMask(f"its run lengths belong to an image of another size than {width} x {height}")
    counts = segmentation.get("counts")
    if isinstance(counts, str):
        counts = _decompress(counts)
    elif not isinstance(counts, list) or not all(type(count) is int for count in counts):
        raise BadMask("its run lengths are neither whole numbers nor text")
    if any(count < 0 for count in counts) or sum(counts) != height * width:
        raise BadMask("its run lengths do not add up to the image")
    flat = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return flat.reshape(width, height).T.copy()


def _decompress(text: str) -> list[int]:
    """Return the run lengths of COCO's compressed text (maskApi.c of cocoapi).

    Each letter contains six bits: five bits of the number, and one bit that says whether the number continues.
    From the fourth run, the number is the difference from the run two places before.
    """
    counts: list[int] = []
    value = shift = 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64 or shift > 40:
            raise BadMask("its compressed run lengths hold an invalid letter")
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


def encode_mask(mask: Mask) -> dict[str, Any]:
    """Return a mask as COCO's compressed run lengths, which `decode_mask` reads.

    Example:
        >>> encode_mask(np.array([[0, 1, 0], [1, 0, 0]], bool))
        {'size': [2, 3], 'counts': '123'}
    """
    flat = mask.T.ravel()
    edges = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff(np.concatenate([[0] if flat.size and flat[0] else [], [0], edges, [flat.size]])).astype(
        int
    )
    differences = [
        count - (counts[place - 2] if place > 2 else 0) for place, count in enumerate(counts.tolist())
    ]
    return {"size": list(mask.shape), "counts": "".join(map(_compress, differences))}


def _compress(value: int) -> str:
    """Return a number as letters of five bits, the lowest first; the sixth bit says that more follow."""
    letters = ""
    while True:
        bits, value = value & 31, value >> 5
        is_last = value == (-1 if bits & 16 else 0)
        letters += chr((bits if is_last else bits | 32) + 48)
        if is_last:
            return letters


def dilate(mask: Mask, pixels: int) -> Mask:
    """Return a mask grown by `pixels` pixels on every side, in a square."""
    return ndimage.maximum_filter(mask, size=2 * pixels + 1, mode="constant") if pixels else mask


def bounding_box(mask: Mask) -> tuple[int, int, int, int]:
    """Return x, y, width and height in pixels of the smallest box around a mask that is not empty."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    x, y = int(columns[0]), int(rows[0])
    return x, y, int(columns[-1]) - x + 1, int(rows[-1]) - y + 1


def union(masks: Sequence[Mask], shape: tuple[int, int]) -> Mask:
    """Return the pixels that are in any of the masks."""
    combined = np.zeros(shape, dtype=bool)
    for mask in masks:
        combined |= mask
    return combined


def shift_mask(mask: Mask, shift: tuple[int, int]) -> Mask:
    """Return a mask moved right and down by `shift` pixels. Parts outside the image are cut off."""
    shifted = np.zeros_like(mask)
    rows, columns = np.nonzero(mask)
    rows, columns = rows + shift[1], columns + shift[0]
    inside = (rows >= 0) & (rows < mask.shape[0]) & (columns >= 0) & (columns < mask.shape[1])
    shifted[rows[inside], columns[inside]] = True
    return shifted
