"""Find a sample's regions among its visual tokens, and draw random regions of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mmprobe.cache import Trace
from mmprobe.samples import Region


class Patch(NamedTuple):
    """Cells of a view that a region covers: rows `top` to `bottom` - 1, columns `left` to `right` - 1."""

    view: int
    top: int
    bottom: int
    left: int
    right: int


def find_patches(trace: Trace, regions: Sequence[Region] | None = None) -> list[Patch]:
    """Return the cells that each region covers; the regions are by default all those of the sample.

    A region covers the cells whose centres lie in it, and at least one row and one column. A region that
    several views show gives several patches; a region that no view shows gives none.

    Example:
        >>> find_patches(run["0001"])                               # doctest: +SKIP
        [Patch(view=1, top=2, bottom=3, left=0, right=1)]
    """
    source, box, grid = (trace.array(f"images/{name}").values for name in ("source", "box", "grid"))
    patches = []
    for region in trace.sample.regions if regions is None else regions:
        for view in np.flatnonzero(source == region.image):
            left, top, width, height = box[view]
            rows, columns = grid[view]
            x, y, wide, high = region.box
            across = _cells((x - left) / width * columns, (x + wide - left) / width * columns, int(columns))
            down = _cells((y - top) / height * rows, (y + high - top) / height * rows, int(rows))
            if across and down:
                patches.append(Patch(int(view), *down, *across))
    return patches


def _cells(low: float, high: float, count: int) -> tuple[int, int] | None:
    """Return the first and last + 1 of the cells whose centres lie in [low, high).

    If there is none, return the cell that holds the middle; None if the range lies outside all `count` cells.
    """
    if high <= 0 or low >= count:
        return None
    first, last = int(np.ceil(max(low, 0) - 0.5)), int(np.ceil(min(high, count) - 0.5))
    if first >= last:
        first = min(int((max(low, 0) + min(high, count)) / 2), count - 1)
        last = first + 1
    return first, last


def mask_patches(patches: list[Patch], grids: list[tuple[int, int]]) -> np.ndarray:
    """Return a mask bool [visual] of the patches' cells, view by view and row by row.

    Example:
        >>> mask_patches([Patch(1, 0, 1, 1, 2)], [(1, 1), (2, 2)]).tolist()
        [False, False, True, False, False]
    """
    views = [np.zeros(grid, bool) for grid in grids]
    for patch in patches:
        views[patch.view][patch.top : patch.bottom, patch.left : patch.right] = True
    return np.concatenate([view.ravel() for view in views]) if views else np.zeros(0, bool)


def random_masks(
    patches: list[Patch], grids: list[tuple[int, int]], draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw masks bool [draw, visual] with each patch at a random place.

    A patch keeps its size and its view. All places on the view are equally likely.

    Example:
        >>> random_masks([Patch(0, 0, 1, 0, 1)], [(2, 2)], 3, np.random.default_rng(0)).sum(1).tolist()
        [1, 1, 1]
    """
    views = [np.zeros((draws, rows, columns), bool) for rows, columns in grids]
    for view, top, bottom, left, right in patches:
        down, across = (
            _random_spans(size, count, draws, rng)
            for size, count in zip((bottom - top, right - left), grids[view], strict=True)
        )
        views[view] |= down[:, :, None] & across[:, None, :]
    return np.concatenate([view.reshape(draws, -1) for view in views], axis=1)


def _random_spans(size: int, count: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draw masks bool [draw, cell] of `size` neighbouring cells among `count`."""
    first = rng.integers(count - size + 1, size=(draws, 1))
    cells = np.arange(count)
    return (first <= cells) & (cells < first + size)
