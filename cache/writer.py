"""Write one trace to an HDF5 file, which gets its name when it is complete."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np
from h5py import h5ds

from mmprobe.cache.hdf5 import (
    TEXT,
    DataSet,
    Selection,
    append_checksums,
    bounds,
    chunk_shape,
    compression_filters,
    create_file,
    write_attribute,
)
from mmprobe.cache.schema import FORMAT_VERSION, VARIABLES
from mmprobe.files import NewFile

_LARGE_BYTES = 2**24
_METADATA_BYTES = (
    2**14
)  # headers together: in HDF5's own blocks of 2 KB, flushing them takes five times as long
_GROWING_DIMS = {"step", "token"}  # their sizes are known only when the answer has ended


class TraceWriter:
    """Writes a trace step by step.

    The file has another name until the end of the `with` block. Then it is synced and renamed to `path`. If the
    block raises, the file is deleted.

    Args:
        path: the file to write, `<id>.h5`; the trace stores the sample's id.
        coordinates: the values of each dimension with coordinates, such as the captured layers for `layer`
            and the groups' names for `group`.
        attributes: texts about the whole trace, such as the sample and the answer.
        float16: whether the format's float16 data sets are stored in float16; otherwise they are float32.
        compression: `none`, `blosc2` or `zstd`; the latter two need hdf5plugin, for writing and for reading.

    Example:
        >>> import tempfile
        >>> with TraceWriter(Path(tempfile.mkdtemp()) / "a.h5", {"layer": np.arange(2)}) as writer:
        ...     writer.append("update/kl", np.zeros((3, 2), np.float32))
    """

    def __init__(
        self,
        path: Path,
        coordinates: Mapping[str, np.ndarray],
        attributes: Mapping[str, str] = {},
        float16: bool = True,
        compression: str = "none",
    ):
        self.path, self.float16 = path, float16
        self.filters = compression_filters(compression)
        self.new = NewFile(path)
        self.file, self.space = create_file(self.new, _METADATA_BYTES)
        self.file.attrs["mmprobe_format"] = FORMAT_VERSION
        self.scales: dict[str, DataSet] = {}
        self.datasets: dict[str, DataSet] = {}
        for name, values in coordinates.items():
            self._write_scale(name, np.asarray(values))
        self.set_attributes({"id": path.name.removesuffix(".h5"), **attributes})

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()

    def discard(self) -> None:
        """Close and delete the unfinished file."""
        self.file.close()
        self.new.discard()

    def commit(self) -> None:
        """Sync the file and rename it to its final name; delete it if that fails."""
        try:
            self._commit()
        finally:
            self.discard()

    def set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Write text attributes of the whole trace."""
        for name, text in attributes.items():
            write_attribute(self.file.id, name, text)

    def append(self, name: str, block: np.ndarray) -> None:
        """Append a block of steps to a data set whose first dimension is `step`.

        Rows of `token` grow with the answer; shorter rows end with NaN.
        """
        start, row_shape = 0, block.shape[1:]
        if name in self.datasets:
            start, *current = self.datasets[name].shape
            rows_grow = "token" in VARIABLES[name].dims
            row_shape = tuple(map(max, current, row_shape)) if rows_grow else tuple(current)
        selection = (slice(start, None), *map(slice, block.shape[1:]))
        self.write_part(name, block, selection, (start + len(block), *row_shape))

    def write_part(self, name: str, values: np.ndarray, selection: Selection, shape: tuple[int, ...]) -> None:
        """Write a part of a data set, so that the whole is never in memory.

        Args:
            selection: for each dimension an index or a slice.
            shape: the data set grows to this shape, or is created with it.
        """
        if name not in self.datasets:
            block = tuple(end - start for start, end in bounds(selection, shape))
            dims = VARIABLES[name].dims
            can_grow = tuple(dim in _GROWING_DIMS or not n for dim, n in zip(dims, shape, strict=True))
            self._create(name, shape, block, can_grow)
        data = self._widen_on_overflow(name, values)
        grown = tuple(map(max, data.shape, shape))
        self.space.reserve(data.chunk_bytes(selection, grown))
        data.resize(grown)
        data.write(values, selection)

    def write(self, name: str, values: np.ndarray) -> None:
        """Write a whole data set."""
        shape = np.shape(values)
        if VARIABLES[name].dtype == "str":
            self._create(name, shape, None)
            self.space.reserve(sum(16 + 4 * len(text) for text in values))
            self.datasets[name].write(np.asarray(values, object))
        else:
            self._create(name, shape, shape if all(shape) else None)
            data = self._widen_on_overflow(name, values)
            self.space.reserve(data.chunk_bytes(None, shape))
            data.write(values)

    def is_float16(self, name: str) -> bool:
        """Return whether a data set is float16, or will be when it is created."""
        if name in self.datasets:
            return self.datasets[name].dtype == np.float16
        return self.float16 and VARIABLES[name].dtype == "f2"

    def _create(
        self,
        name: str,
        shape: tuple[int, ...],
        block: tuple[int, ...] | None,
        can_grow: tuple[bool, ...] | None = None,
        widened: bool = False,
    ) -> DataSet:
        """Create a data set.

        Args:
            block: shape of the blocks that are written; chunks have about this shape.
            can_grow: for each dimension whether it can grow; None if none can.
            widened: whether a float16 data set is stored in float32.
        """
        variable = VARIABLES[name]
        if variable.dtype == "str":
            dtype = TEXT
        elif variable.dtype == "f2" and (widened or not self.float16):
            dtype = np.dtype("f4")
        else:
            dtype = np.dtype(variable.dtype)
        chunk = None if block is None else chunk_shape(block, dtype.itemsize)
        filters = self.filters if dtype.kind == "f" else ()
        data = self.datasets[name] = DataSet(self.file.id, name, shape, dtype, chunk, can_grow, filters)
        write_attribute(data.id, "long_name", variable.long_name)
        write_attribute(data.id, "units", variable.units)
        return data

    def _widen_on_overflow(self, name: str, values: np.ndarray) -> DataSet:
        """Return the data set; it is copied to float32 first if a value is too large for float16."""
        data = self.datasets[name]
        if not data.overflows(values):
            return data
        old_name = f"{name} as float16"
        self.file.move(name, old_name)
        can_grow = tuple(limit is None for limit in self.file[old_name].maxshape)
        data = self._create(name, data.shape, data.chunk, can_grow, widened=True)
        self.space.reserve(data.chunk_bytes(None, data.shape))
        for part in self.file[old_name].iter_chunks():
            data.write(self.file[old_name][part], part)
        del self.file[old_name]
        return data

    def _write_scale(self, name: str, values: np.ndarray) -> None:
        stored = values.astype(object) if values.dtype.kind in "UO" else values.astype("i4")
        self.space.reserve(stored.nbytes)
        dtype = TEXT if stored.dtype == object else stored.dtype
        scale = self.scales[name] = DataSet(self.file.id, name, stored.shape, dtype)
        scale.write(stored)
        h5ds.set_scale(scale.id, name.encode())

    def _commit(self) -> None:
        self._attach_scales()
        self.file.flush()
        size = self.file.id.get_filesize()
        self.datasets.clear()  # HDF5 keeps a file open as long as one of its data sets
        self.scales.clear()
        self.file.close()
        file = self.new.stream
        file.truncate(size)
        with ThreadPoolExecutor(1) as pool:
            if size > _LARGE_BYTES:  # sync the data while the checksums are computed
                synced = pool.submit(os.fsync, file.fileno())
                append_checksums(file)
                synced.result()
            else:
                append_checksums(file)
        self.new.sync()
        self.new.place()

    def _attach_scales(self) -> None:
        """Attach a scale to every dimension of every data set, and give all growing rows the same length."""
        lengths: dict[str, int] = {}
        for name, data in self.datasets.items():
            for dim, size in zip(VARIABLES[name].dims, data.shape, strict=True):
                lengths[dim] = max(size, lengths.get(dim, 0))
        for dim, size in lengths.items():
            if dim not in self.scales:
                self._write_scale(dim, np.arange(size))
        for name, data in self.datasets.items():
            dims = VARIABLES[name].dims
            shape = tuple(self.scales[dim].shape[0] for dim in dims)
            if {"step", "token"} <= set(dims):
                data.resize(shape)  # the answer's last token is never a query, so rows lack it
            elif data.shape != shape:
                raise ValueError(f"{name} has shape {data.shape}, its dimensions say {shape}")
            for axis, dim in enumerate(dims):
                h5ds.attach_scale(data.id, self.scales[dim].id, axis)
