"""Arrays of traces, which are read when they are used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core.indexing import ExplicitIndexer, IndexingSupport, explicit_indexing_adapter

from mmprobe.cache.packs.packed_trace import TraceGroup
from mmprobe.errors import InputError

LABELLED = {"layer", "head", "group"}  # dimensions with coordinates


class StoredArray(BackendArray):
    """One data set on disk, read when it is indexed; if it is damaged, this raises InputError.

    Args:
        file: path of the file, for messages.
        open_root: opens the trace.
        path: path of the data set in the trace.
        shape, dtype: of the data set.
    """

    def __init__(
        self,
        file: Path,
        open_root: Callable[[], AbstractContextManager[TraceGroup]],
        path: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
    ):
        self.file, self.open_root, self.path = file, open_root, path
        self.shape, self.dtype = shape, dtype

    def __getitem__(self, key: ExplicitIndexer) -> Any:
        if all(isinstance(part, slice) and part == slice(None) for part in key.tuple):
            return self._read()
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.OUTER_1VECTOR, self._read)

    def _read(self, key: tuple[Any, ...] | None = None) -> np.ndarray:
        """Return the values, or a part. HDF5 would write past an array's end if the shape had changed."""
        with self.open_root() as root:
            if root.describe(self.path) != (self.shape, self.dtype):
                raise InputError(f"{self.file}: was changed while {self.path} was in use; open it again")
            return root.read(self.path, key)


def empty_array(root: TraceGroup, dims: tuple[str, ...]) -> xr.DataArray:
    """Return an array with the coordinates of these dimensions. Copying one is five times as fast."""
    coordinates = tuple((dim, tuple(root.coordinate(dim))) for dim in dims if dim in LABELLED)
    return _make_array(coordinates).copy(deep=False)


@lru_cache(64)  # most traces of a run have the same coordinates, which take longer to make than to read
def _make_array(coordinates: tuple[tuple[str, tuple[Any, ...]], ...]) -> xr.DataArray:
    arrays = {dim: label_array(dim, values) for dim, values in coordinates}
    return xr.DataArray(np.zeros([len(values) for values in arrays.values()]), arrays)


def label_array(dim: str, labels: tuple[Any, ...]) -> np.ndarray:
    """Return the coordinate of a dimension from its labels."""
    return np.array(labels, str if dim == "group" else np.int32)
