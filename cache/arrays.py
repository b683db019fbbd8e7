"""Arrays of traces: read when they are used, and stacked over traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import xarray as xr
from h5py import h5d, h5s
from xarray.backends import BackendArray
from xarray.core.indexing import ExplicitIndexer, IndexingSupport, explicit_indexing_adapter

from mmprobe.cache.check import CheckedGroup
from mmprobe.errors import InputError

if TYPE_CHECKING:
    from mmprobe.cache.trace import Trace

LABELLED = {"layer", "head", "group"}  # dimensions with coordinates


class StoredArray(BackendArray):
    """One data set on disk, read when it is indexed; if it is damaged, this raises InputError.

    Args:
        file: path of the file, for messages.
        open_root: opens the trace.
        path: path of the data set in the trace.
        data, dtype: the data set, and its numpy type.
    """

    def __init__(
        self,
        file: Path,
        open_root: Callable[[], AbstractContextManager[CheckedGroup]],
        path: str,
        data: h5d.DatasetID,
        dtype: np.dtype,
    ):
        self.file, self.open_root, self.path = file, open_root, path
        self.shape, self.dtype = data.shape, dtype

    def __getitem__(self, key: ExplicitIndexer) -> Any:
        if all(isinstance(part, slice) and part == slice(None) for part in key.tuple):
            return self._read_all()
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.OUTER_1VECTOR, self._read)

    def _read_all(self) -> np.ndarray:
        """Return all values, with a third of the calls that `_read` needs."""
        values = np.empty(self.shape, self.dtype)
        with self.open_root() as root:
            self._open(root).read(h5s.ALL, h5s.ALL, values)
            if self.dtype == object:
                values[...] = [text.decode() for text in values]
        return values

    def _open(self, root: CheckedGroup) -> h5d.DatasetID:
        """Return the data set. HDF5 would write past the end of an array if the shape had changed."""
        data, dtype = root.dataset(self.path) or (None, None)
        if data is None or data.shape != self.shape or dtype != self.dtype:
            raise InputError(f"{self.file}: was changed while {self.path} was in use; open it again")
        return data

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        with self.open_root() as root:
            data = h5py.Dataset(self._open(root))
            return data.asstr()[key] if self.dtype == object else data[key]


def empty_array(root: CheckedGroup, dims: tuple[str, ...]) -> xr.DataArray:
    """Return an array with the coordinates of these dimensions. Copying one is five times as fast."""
    coordinates = tuple((dim, tuple(root.coordinate(dim))) for dim in dims if dim in LABELLED)
    return _make_array(coordinates).copy(deep=False)


@lru_cache(64)  # most traces of a run have the same coordinates, which take longer to make than to read
def _make_array(coordinates: tuple[tuple[str, tuple[Any, ...]], ...]) -> xr.DataArray:
    arrays = {dim: np.array(values, str if dim == "group" else np.int32) for dim, values in coordinates}
    return xr.DataArray(np.zeros([len(values) for values in arrays.values()]), arrays)


def stack_traces(traces: Iterable[Trace], path: str) -> xr.DataArray:
    """Return the array that `Run.stack` describes."""
    names, arrays, tokens = [], [], []
    for trace in traces:
        names.append(trace.id)
        arrays.append(trace.array(path).load())
        if "step" in arrays[-1].dims:
            tokens.append(_step_tokens(trace))
    if not arrays:
        return xr.DataArray(np.zeros(0), dims="sample", coords={"sample": names})
    first = arrays[0]
    sizes = tuple(np.max([array.shape for array in arrays], axis=0).tolist())
    is_text = first.dtype.kind == "O"
    dtype = first.dtype if is_text else np.result_type(first.dtype, np.float32)
    values = np.full((len(arrays), *sizes), "" if is_text else np.nan, dtype)
    for place, array in zip(values, arrays, strict=True):
        place[tuple(map(slice, array.shape))] = array.values
    coords = {
        dim: coord
        for dim, coord in first.coords.items()
        if all(coord.equals(array.coords.get(dim)) for array in arrays)
    }
    stacked = xr.DataArray(values, coords, ("sample", *first.dims), first.name, first.attrs)
    stacked = stacked.assign_coords(sample=names)
    if tokens:
        length = stacked.sizes["step"]
        padded = [texts + [""] * (length - len(texts)) for texts in tokens]
        stacked = stacked.assign_coords(step_token=(("sample", "step"), padded))
    return stacked


def _step_tokens(trace: Trace) -> list[str]:
    """Return the text of the token of each step."""
    texts = trace.tokens["text"].values
    return [str(text) for text in texts[len(texts) - trace.steps.sizes["step"] :]]
