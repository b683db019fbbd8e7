"""Write one trace as an HDF5 file that appears only when it is whole."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from mmprobe.cache.schema import FORMAT_VERSION, VARIABLES
from mmprobe.cache.seal import SEAL_BYTES, seal
from mmprobe.errors import InputError

_TEXT = h5py.string_dtype()
_CHUNK_BYTES = 2**20
_HEADER_BYTES = 2**18  # what HDF5 writes of its own: headers, indices, dimension scales
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
        self.file = h5py.File(self.part, "w", libver=("v110", "v110"), userblock_size=SEAL_BYTES)
        self.room = _Room(self.part)
        self.file.attrs["mmprobe_format"] = FORMAT_VERSION
        self.scales: dict[str, h5py.Dataset] = {}
        self.data: dict[str, h5py.Dataset] = {}  # looking one up in the file takes longer than filling it
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
        self.file.attrs.update(attributes)

    def append(self, name: str, block: np.ndarray) -> None:
        """Add a block of steps to a data set whose first dimension is `step`.

        For rows that grow with the answer, what lies beyond a row's end is NaN.
        """
        start = len(self.data[name]) if name in self.data else 0
        shape = [start + len(block), *block.shape[1:]]
        if start:
            shape[2:] = self.data[name].shape[2:]
            if "token" not in VARIABLES[name].dims:
                shape[1:] = self.data[name].shape[1:]
        self.put(name, block, (slice(start, None), *map(slice, block.shape[1:])), tuple(shape))

    def put(self, name: str, values: np.ndarray, where: tuple[Any, ...], shape: tuple[int, ...]) -> None:
        """Fill a part of a data set that is to have this shape at least; it is made or grows if need be.

        A data set that comes layer by layer, block by block is written so, and never held as a whole.
        """
        if name not in self.data:
            chunk = tuple(
                1 if isinstance(index, int) else (index.stop or size) - (index.start or 0)
                for index, size in zip(where, shape, strict=True)
            )
            self._create(name, shape, chunk)
        data = self._widened(name, values)
        self.room.promise(_on_disk(where, shape, data))
        if any(have < want for have, want in zip(data.shape, shape, strict=True)):
            data.resize(np.maximum(data.shape, shape))
        data[where] = values

    def write(self, name: str, values: np.ndarray) -> None:
        """Write a whole data set at once."""
        self._create(name, np.shape(values), np.shape(values), room_to_grow=False)
        if VARIABLES[name].dtype == "str":
            self.room.promise(sum(16 + 4 * len(text) for text in values))
            self.data[name][...] = np.asarray(values, object)
        else:
            data = self._widened(name, values)
            self.room.promise(_on_disk((slice(None),) * data.ndim, data.shape, data))
            data[...] = values

    def _widened(self, name: str, values: np.ndarray) -> h5py.Dataset:
        """The data set, made float32 if it is float16 and a finite value would overflow it."""
        data = self.data[name]
        if data.dtype != np.float16 or values.dtype == np.float16:
            return data
        if not (np.abs(values[np.isfinite(values)]) > np.finfo(np.float16).max).any():
            return data
        narrow = f"{name} as float16"
        self.file.move(name, narrow)
        data = self._create(name, data.shape, data.chunks, room_to_grow=None in data.maxshape, dtype="f4")
        self.room.promise(_on_disk((slice(None),) * data.ndim, data.shape, data))
        for block in self.file[narrow].iter_chunks():
            data[block] = self.file[narrow][block]
        del self.file[narrow]
        return data

    def _create(
        self,
        name: str,
        shape: tuple[int, ...],
        block: tuple[int, ...],
        room_to_grow: bool = True,
        dtype: str | None = None,
    ) -> h5py.Dataset:
        """Make a data set, stored in chunks of about the block that is written at a time."""
        variable = VARIABLES[name]
        single = variable.dtype == "f2" and not self.half
        stored = _TEXT if variable.dtype == "str" else np.dtype(dtype or ("f4" if single else variable.dtype))
        layout: dict[str, Any] = {}
        if variable.dtype != "str" and (room_to_grow or all(shape)):
            layout = {"chunks": _chunks(block, stored.itemsize), "fletcher32": True}
            if stored.kind == "f":
                layout |= self.filters
        if room_to_grow:
            growing = [
                None if dim in _FREE or not n else n for dim, n in zip(variable.dims, shape, strict=True)
            ]
            layout["maxshape"] = tuple(growing)
        fill = np.nan if stored.kind == "f" else None
        data = self.file.create_dataset(name, shape, stored, fillvalue=fill, **layout)
        data.attrs["long_name"] = variable.long_name
        data.attrs["units"] = variable.units
        self.data[name] = data
        return data

    def _scale(self, name: str, values: np.ndarray) -> None:
        stored = values.astype(object) if values.dtype.kind in "UO" else values.astype("i4")
        self.room.promise(stored.nbytes)
        scale = self.file.create_dataset(name, data=stored, dtype=_TEXT if stored.dtype == object else None)
        scale.make_scale(name)
        self.scales[name] = scale

    def _commit(self) -> None:
        lengths: dict[str, int] = {}
        shapes = {name: data.shape for name, data in self.data.items()}
        for name, shape in shapes.items():
            for dim, size in zip(VARIABLES[name].dims, shape, strict=True):
                lengths[dim] = max(size, lengths.get(dim, 0))
        for dim, size in lengths.items():
            if dim not in self.scales:
                self._scale(dim, np.arange(size))
        sizes = {dim: scale.size for dim, scale in self.scales.items()}
        for name, data in self.data.items():
            dims = VARIABLES[name].dims
            wanted = tuple(sizes[dim] for dim in dims)
            if {"step", "token"} <= set(dims):
                data.resize(wanted)  # rows grow with the answer, whose last token is never a query
            elif shapes[name] != wanted:
                raise ValueError(f"{name} has shape {shapes[name]}, its dimensions say {wanted}")
            for axis, dim in enumerate(dims):
                h5py.h5ds.attach_scale(data.id, self.scales[dim].id, axis)
        self.file.flush()
        size = self.file.id.get_filesize()
        self.file.close()
        with open(self.part, "r+b") as written:
            written.truncate(size)
            seal(written)
            os.fsync(written.fileno())
        os.replace(self.part, self.path)


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
            grown = wanted + _CHUNK_BYTES
            try:
                os.posix_fallocate(self.file, self.taken, grown - self.taken)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            self.taken = grown

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _on_disk(where: tuple[Any, ...], shape: tuple[int, ...], data: h5py.Dataset) -> int:
    """Bytes on the disk of the chunks that a part of a data set touches."""
    if not data.chunks:
        return math.prod(shape) * data.dtype.itemsize
    touched = 1
    for index, size, chunk in zip(where, shape, data.chunks, strict=True):
        first, last = (
            (index, index) if isinstance(index, int) else (index.start or 0, (index.stop or size) - 1)
        )
        touched *= last // chunk - first // chunk + 1
    return touched * math.prod(data.chunks) * data.dtype.itemsize


def _chunks(block: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """A block's shape, with less of its first dimensions if it is larger than a chunk should be."""
    chunk = [min(max(size, 1), _CHUNK_BYTES) for size in block]
    for axis in range(len(chunk)):
        rest = itemsize * math.prod(chunk[axis + 1 :])
        if rest * chunk[axis] <= _CHUNK_BYTES:
            break
        chunk[axis] = max(_CHUNK_BYTES // rest, 1)
    return tuple(chunk)


def filters(compression: str) -> dict[str, Any]:
    """Options of h5py that compress floating-point data sets.

    Raises:
        InputError: hdf5plugin is not installed.

    Example:
        >>> filters("none")
        {}
    """
    if compression == "none":
        return {}
    try:
        import hdf5plugin
    except ImportError:
        raise InputError(
            f"compression {compression}: hdf5plugin is missing; install it with: pip install 'mmprobe[compression]'"
        ) from None
    chosen = {
        "blosc2": hdf5plugin.Blosc2(cname="zstd", clevel=5, filters=2),
        "zstd": hdf5plugin.Zstd(clevel=3),
    }
    return dict(chosen[compression])
