"""Values by visual token on the grids of the views, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Grids = Sequence[tuple[int, int]]
"""Rows and columns of the visual tokens of each view."""


def split_grids(values: np.ndarray, grids: Grids) -> list[np.ndarray]:
    """Return the part of each view of values [..., visual], as [..., row, column].

    Example:
        >>> [part.tolist() for part in split_grids(np.array([1, 2, 3]), [(1, 2), (1, 1)])]
        [[[1, 2]], [[3]]]
    """
    ends = np.cumsum([rows * columns for rows, columns in grids])
    parts = np.split(values, ends[:-1], axis=-1) if len(ends) else []
    return [
        part.reshape(*values.shape[:-1], *grid)
        for part, grid in zip(parts, grids, strict=True)  # visual tokens are row by row
    ]


def to_grids(values: np.ndarray, grids: Grids) -> np.ndarray:
    """Return values [..., visual] as [..., view, row, column], with NaN beyond a view's own grid.

    Example:
        >>> to_grids(np.array([[1.0, 2.0, 3.0]]), [(1, 2), (1, 1)]).tolist()
        [[[[1.0, 2.0]], [[3.0, nan]]]]
    """
    height = max((rows for rows, _ in grids), default=0)
    width = max((columns for _, columns in grids), default=0)
    out = np.full((*values.shape[:-1], len(grids), height, width), np.nan, values.dtype)
    for view, part in enumerate(split_grids(values, grids)):
        out[..., view, : part.shape[-2], : part.shape[-1]] = part
    return out
