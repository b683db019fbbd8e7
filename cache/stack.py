"""One data set of many traces, as one array."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core.indexing import (
    ExplicitIndexer,
    IndexingSupport,
    LazilyIndexedArray,
    MemoryCachedArray,
    explicit_indexing_adapter,
)

from mmprobe.cache.check import add_groups
from mmprobe.cache.packs import PackedFile
from mmprobe.cache.schema import GROUP_NAMES, VARIABLES
from mmprobe.cache.trace import LABELLED, label_array

if TYPE_CHECKING:
    from mmprobe.cache.run import Run


class _Block(NamedTuple):
    """One data set of some traces.

    Attributes:
        rows: their places in the run.
        values: [trace, ...], with NaN beyond the end of a trace.
        shapes: the shape of each trace's own values.
        coordinates: the labels of the dimensions that have the same ones in all these traces.
    """

    rows: list[int]
    values: np.ndarray
    shapes: list[tuple[int, ...]]
    coordinates: dict[str, tuple[Any, ...]]


def stack_traces(run: Run, path: str) -> xr.DataArray:
    """Return the array that `Run.stack` describes."""
    if not run.ids:
        return xr.DataArray(np.zeros(0), dims="sample", coords={"sample": run.ids})
    rows_of: dict[Path | None, list[int]] = {}  # by packed file; None for traces with their own files
    for row, name in enumerate(run.ids):
        rows_of.setdefault(None if run.span else run.pack_of(name), []).append(row)
    parts = [_read_part(run, pack, rows, path) for pack, rows in rows_of.items()]
    variable = VARIABLES[path]
    coords: dict[str, Any] = {"sample": np.array(run.ids)}
    for dim in variable.dims:
        labels = {part.coordinates.get(dim) for part in parts}
        if len(labels) == 1 and (same := labels.pop()) is not None:
            coords[dim] = label_array(dim, same)
    if "step" in variable.dims:
        shapes = dict(pair for part in parts for pair in zip(part.rows, part.shapes, strict=True))
        axis = variable.dims.index("step")
        texts = _StepTokens(run, [shapes[row][axis] for row in range(len(run))])
        lazy: Any = MemoryCachedArray(LazilyIndexedArray(texts))
        coords["step_token"] = xr.Variable(("sample", "step"), lazy)
    attributes = {"long_name": variable.long_name, "units": variable.units}
    return xr.DataArray(_join(parts), coords, ("sample", *variable.dims), path.rpartition("/")[2], attributes)


def _read_part(run: Run, pack: Path | None, rows: list[int], path: str) -> _Block:
    """Read the traces of one packed file, or those that have their own files."""
    names = [run.ids[row] for row in rows]
    if pack is not None:
        with run.open_pack(pack) as packed:
            if (known := packed.shapes(names, path)) is not None:
                shapes = list(map(tuple, known.tolist()))
                values = _read_packed(packed, names, path, shapes)
                if "group" in VARIABLES[path].dims:
                    values = add_groups(values)
                    shapes = [(*shape[:-1], len(GROUP_NAMES)) for shape in shapes]
                return _Block(
                    rows,
                    values,
                    shapes,
                    packed.common_coordinates(names, path),
                )
    arrays = []
    for _, trace in run.stream("stack", names):
        arrays.append(trace.array(path).load())
    shapes = [array.shape for array in arrays]
    coordinates = {
        str(dim): tuple(coord.values.tolist())
        for dim, coord in arrays[0].coords.items()
        if dim in LABELLED and all(coord.equals(array.coords.get(dim)) for array in arrays)
    }
    return _Block(rows, _fill((array.values for array in arrays), shapes), shapes, coordinates)


def _read_packed(
    packed: PackedFile, names: list[str], path: str, shapes: list[tuple[int, ...]]
) -> np.ndarray:
    try:
        arrays = packed.read_many(names, path)
    except OSError as error:
        raise packed.damage_error(error) from None
    return _as_floats(arrays) if isinstance(arrays, np.ndarray) else _fill(arrays, shapes)


def _as_floats(values: np.ndarray) -> np.ndarray:
    """Return numbers in a type that has NaN and at least 32 bits; texts as they are."""
    is_text = values.dtype.kind == "O"
    return values if is_text else values.astype(np.result_type(values.dtype, np.float32), copy=False)


def _fill(arrays: Iterable[np.ndarray], shapes: list[tuple[int, ...]]) -> np.ndarray:
    """Return the arrays in one, with NaN, or empty text, where an array is smaller than the largest."""
    values: np.ndarray = np.zeros(0)
    sizes = np.max(shapes, axis=0).tolist()
    for row, array in enumerate(arrays):
        if not row:
            values = np.empty((len(shapes), *sizes), _as_floats(array[:0]).dtype)
            values[...] = "" if values.dtype == object else np.nan
        values[row][tuple(map(slice, array.shape))] = array
    return values


def _join(parts: list[_Block]) -> np.ndarray:
    """Return the values of all parts, in the order of the run."""
    if len(parts) == 1:
        return parts[0].values
    arrays = dict(pair for part in parts for pair in zip(part.rows, part.values, strict=True))
    return _fill((arrays[row] for row in sorted(arrays)), [arrays[row].shape for row in sorted(arrays)])


class _StepTokens(BackendArray):
    """The text of each step's token [sample, step], read when it is used.

    Args:
        lengths: number of steps of each trace.
    """

    def __init__(self, run: Run, lengths: list[int]):
        self.run, self.lengths = run, lengths
        self.shape, self.dtype = (len(lengths), max(lengths)), np.dtype(object)

    def __deepcopy__(self, _: dict) -> _StepTokens:
        return self  # xarray copies new coordinates deeply, and here that would copy the run

    def __getitem__(self, key: ExplicitIndexer) -> Any:
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        rows = np.atleast_1d(np.arange(len(self.lengths))[key[0]])
        values = np.full((len(rows), self.shape[1]), "", object)
        traces = self.run.stream("texts", [self.run.ids[row] for row in rows])
        for row, target, (_, trace) in zip(rows, values, traces, strict=True):
            if trace.kept_steps is None:
                texts = trace.array("tokens/text").values
                target[: self.lengths[row]] = texts[len(texts) - self.lengths[row] :]
            else:
                target[: self.lengths[row]] = trace.step_texts
        return values[slice(None) if isinstance(key[0], slice) else 0, key[1]]
