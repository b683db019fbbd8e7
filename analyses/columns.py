"""Numbers of samples that come one at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

_FIRST = 256  # rows that there is room for at first


class Columns:
    """Arrays by name that grow by a row at a time. There are columns for the names that all rows have.

    A list of small arrays takes three times the memory, and leaves it in pieces.

    Example:
        >>> columns = Columns()
        >>> columns.append({"ratio": [0.5, 1.0], "n": 3})
        >>> columns.append({"ratio": [0.0, 0.5], "n": 4})
        >>> columns["ratio"].mean(0).tolist(), columns["n"].tolist()
        ([0.25, 0.75], [3, 4])
    """

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the rows of a column, [row, ...]."""
        return self._arrays[name][: self._count]

    def append(self, row: Mapping[str, ArrayLike]) -> None:
        """Add a row: a value for each name, of the same shape as in other rows.

        Raises:
            ValueError: a shape is not that of the first row.
        """
        if not self._count:
            firsts = {name: np.asarray(values) for name, values in row.items()}
            self._arrays = {
                name: np.empty((_FIRST, *first.shape), first.dtype) for name, first in firsts.items()
            }
        self._arrays = {name: array for name, array in self._arrays.items() if name in row}
        for name, array in self._arrays.items():
            values = np.asarray(row[name])
            if values.shape != array.shape[1:]:
                raise ValueError(f"{name} has shape {values.shape}, and {array.shape[1:]} in the first row")
            if self._count == len(array):
                array = np.concatenate([array, np.empty_like(array)])
            array[self._count] = values
            self._arrays[name] = array
        self._count += 1
