"""Numbers of samples that come one at a time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike


class Columns:
    """Arrays by name, float64 [row, ...], that grow by a row at a time, for the names that all rows have.

    A list of small arrays takes three times the memory, and leaves it in pieces. No row can be added while one of
    the arrays is in use.

    Example:
        >>> columns = Columns()
        >>> columns.append({"ratio": [0.5, 1.0], "n": 3})
        >>> columns.append({"ratio": [0.0, 0.5], "n": 4})
        >>> columns["ratio"].mean(0).tolist(), columns["n"].tolist()
        ([0.25, 0.75], [3.0, 4.0])
    """

    def __init__(self) -> None:
        self._numbers: dict[str, array[float]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column, float64 [row, ...]."""
        return np.frombuffer(self._numbers[name]).reshape(self._count, *self._shapes[name])

    def append(self, row: Mapping[str, ArrayLike]) -> None:
        """Add a row: a value for each name, of the same shape as in other rows.

        Raises:
            ValueError: a shape is not that of the first row.
            BufferError: one of the arrays is in use.
        """
        if not self._count:
            self._shapes = {name: np.shape(values) for name, values in row.items()}
            self._numbers = {name: array("d") for name in row}
        self._numbers = {name: numbers for name, numbers in self._numbers.items() if name in row}
        for name, numbers in self._numbers.items():
            values = np.asarray(row[name], float)
            if values.shape != self._shapes[name]:
                raise ValueError(
                    f"{name} has shape {values.shape}, and {self._shapes[name]} in the first row"
                )
            numbers.frombytes(values.tobytes())
        self._count += 1
