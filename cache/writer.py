"""Write one trace as an HDF5 file that appears only when it is whole."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import h5py
import numpy as np
from h5py import h5ds

from mmprobe.cache.checksums import seal
from mmprobe.cache.hdf5 import TEXT, DataSet, Where, bounds, chunk_of, filters, set_text
from mmprobe.cache.schema import FORMAT_VERSION, VARIABLES

_HEADER_BYTES = 2**18  # what HDF5 writes of its own: headers, indices, dimension scales
_ROOM_BYTES = 2**20  # taken on the disk at a time
_LARGE = 2**24
_FREE = {"step", "token"}  # dimensions whose length is known only when the answer has ended


class TraceWriter:
    """Writes `<path>.part` step by step; leaving the `with` block makes it durable and names it `path`.

    Nothing is left behind when the block is left by an exception.

    Args:
        path: the trace to write.
        coordinates: for each dimension its values (`layer` the captured layers, `group` their names, …);
            `step` and `token` are not among them.
        attributes: texts about the whole trace (sample, model, answer …).
        half: store the data sets that the format has in float16 so; False makes them float32.
        compression: `none`, `blosc2` or `zstd`; the latter two need hdf5plugin, to write and to read.

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
        half: bool = True,
        compression: str = "none",
    ):
        self.path, self.half = path, half
        self.filters = filters(compression)
        self.part = path.with_name(path.name + ".part")
        self.file = h5py.File(self.part, "w", libver=("v110", "v110"))
        self.room = _Room(self.part)
        self.file.attrs["mmprobe_format"] = FORMAT_VERSION
        self.scales: dict[str, DataSet] = {}
        self.data: dict[str, DataSet] = {}
        for name, values in coordinates.items():
            self._scale(name, np.asarray(values))
        self.set_attributes(attributes)

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
        """Leave nothing behind."""
        self.file.close()
        self.room.close()
        self.part.unlink(missing_ok=True)

    def commit(self) -> None:
        """Make the trace durable and give it its name; leave nothing behind if that fails."""
        try:
            self._commit()
        finally:
            self.discard()

    def set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Add texts about the whole trace."""
        for name, text in attributes.items():
            set_text(self.file.id, name, text)

    def append(self, name: str, block: np.ndarray) -> None:
        """Add a block of steps to a data set whose first dimension is `step`.

        For rows that grow with the answer, what lies beyond a row's end is NaN.
        """
        start, rest = 0, list(block.shape[1:])
        if name in self.data:
            start, *rest = self.data[name].shape
            if "token" in VARIABLES[name].dims:
                rest = [max(own, new) for own, new in zip(rest, block.shape[1:], strict=True)]
        self.put(name, block, (slice(start, None), *map(slice, block.shape[1:])), (start + len(block), *rest))

    def put(self, name: str, values: np.ndarray, where: Where, shape: tuple[int, ...]) -> None:
        """Fill a part of a data set that is to have this shape at least; it is made or grows if need be.

        A data set that comes layer by layer, block by block is written so, and never held as a whole.
        """
        if name not in self.data:
            block = tuple(last - first for first, last in bounds(where, shape))
            growing = tuple(dim in _FREE or not n for dim, n in zip(VARIABLES[name].dims, shape, strict=True))
            self._create(name, shape, block, growing)
        data = self._wide_enough(name, values)
        grown = tuple(map(max, data.shape, shape))
        self.room.promise(data.bytes_touched(where, grown))
        data.resize(grown)
        data.fill(values, where)

    def write(self, name: str, values: np.ndarray) -> None:
        """Write a whole data set at once."""
        shape = np.shape(values)
        if VARIABLES[name].dtype == "str":
            self._create(name, shape, None)
            self.room.promise(sum(16 + 4 * len(text) for text in values))
            self.data[name].fill(np.asarray(values, object))
        else:
            self._create(name, shape, shape if all(shape) else None)
            data = self._wide_enough(name, values)
            self.room.promise(data.bytes_touched(None, shape))
            data.fill(values)

    def halves(self, name: str) -> bool:
        """Whether a data set holds float16, or will when it is made."""
        if name in self.data:
            return self.data[name].dtype == np.float16
        return self.half and VARIABLES[name].dtype == "f2"

    def _create(
        self,
        name: str,
        shape: tuple[int, ...],
        block: tuple[int, ...] | None,
        growing: tuple[bool, ...] | None = None,
        dtype: str | None = None,
    ) -> DataSet:
        """Make a data set, stored in chunks of about the block that is written at a time."""
        variable = VARIABLES[name]
        single = variable.dtype == "f2" and not self.half
        stored = TEXT if variable.dtype == "str" else np.dtype(dtype or ("f4" if single else variable.dtype))
        chunk = None if block is None else chunk_of(block, stored.itemsize)
        chosen = self.filters if stored.kind == "f" else ()
        data = self.data[name] = DataSet(self.file.id, name, shape, stored, chunk, growing, chosen)
        set_text(data.id, "long_name", variable.long_name)
        set_text(data.id, "units", variable.units)
        return data

    def _wide_enough(self, name: str, values: np.ndarray) -> DataSet:
        """The data set, made float32 if it is float16 and a finite value would overflow it."""
        data = self.data[name]
        if not data.overflows(values):
            return data
        narrow = f"{name} as float16"
        self.file.move(name, narrow)
        growing = tuple(limit is None for limit in self.file[narrow].maxshape)
        data = self._create(name, data.shape, data.chunk, growing, "f4")
        self.room.promise(data.bytes_touched(None, data.shape))
        for part in self.file[narrow].iter_chunks():
            data.fill(self.file[narrow][part], part)
        del self.file[narrow]
        return data

    def _scale(self, name: str, values: np.ndarray) -> None:
        stored = values.astype(object) if values.dtype.kind in "UO" else values.astype("i4")
        self.room.promise(stored.nbytes)
        dtype = TEXT if stored.dtype == object else stored.dtype
        scale = self.scales[name] = DataSet(self.file.id, name, stored.shape, dtype)
        scale.fill(stored)
        h5ds.set_scale(scale.id, name.encode())

    def _commit(self) -> None:
        self._attach_scales()
        self.file.flush()
        size = self.file.id.get_filesize()
        self.data.clear()  # HDF5 keeps a file open as long as anything of it is
        self.scales.clear()
        self.file.close()
        with open(self.part, "r+b") as written, ThreadPoolExecutor(1) as beside:
            written.truncate(size)
            if size > _LARGE:  # to the disk while checksums are computed
                on_disk = beside.submit(os.fsync, written.fileno())
                seal(written)
                on_disk.result()
            else:
                seal(written)
            os.fsync(written.fileno())
        os.replace(self.part, self.path)

    def _attach_scales(self) -> None:
        """Give every dimension of every data set its scale, and rows that grow the length of the longest."""
        lengths: dict[str, int] = {}
        for name, data in self.data.items():
            for dim, size in zip(VARIABLES[name].dims, data.shape, strict=True):
                lengths[dim] = max(size, lengths.get(dim, 0))
        for dim, size in lengths.items():
            if dim not in self.scales:
                self._scale(dim, np.arange(size))
        for name, data in self.data.items():
            dims = VARIABLES[name].dims
            wanted = tuple(self.scales[dim].shape[0] for dim in dims)
            if {"step", "token"} <= set(dims):
                data.resize(wanted)  # rows grow with the answer, whose last token is never a query
            elif data.shape != wanted:
                raise ValueError(f"{name} has shape {data.shape}, its dimensions say {wanted}")
            for axis, dim in enumerate(dims):
                h5ds.attach_scale(data.id, self.scales[dim].id, axis)


class _Room:
    """Room on the disk, taken before HDF5 writes into it: a write that fails within HDF5 can crash the process."""

    def __init__(self, path: Path):
        self.path, self.file = path, os.open(path, os.O_RDWR)
        self.promised, self.taken = 0, 0
        self.promise(0)

    def promise(self, count: int) -> None:
        """Make sure that this many more bytes can be written.

        Raises:
            OSError: they cannot.
        """
        self.promised += count
        wanted = self.promised + _HEADER_BYTES
        if wanted > self.taken and hasattr(os, "posix_fallocate"):
            grown = wanted + _ROOM_BYTES
            try:
                os.posix_fallocate(self.file, self.taken, grown - self.taken)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            self.taken = grown

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
