"""HDF5 files of traces: a `TraceWriter` writes one trace, whose file gets its name when it is complete, with a digest.

A trace contains many small data sets. Creating one through the high-level interface takes three times as long.

The digest follows the file's HDF5 data. HDF5 ignores bytes after its data, and cuts them off when it changes a file, so an
edited trace has no digest, rather than a wrong one. `verify`, `--resume`, `merge` and `pack` check it; reading is plain h5py.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from io import BufferedRandom, BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5ds, h5f, h5p, h5s, h5t, h5z
from xxhash import xxh3_64, xxh3_64_intdigest

from mmprobe.cache.schema import FORMAT_VERSION, VARIABLES
from mmprobe.errors import InputError
from mmprobe.files import NewFile, check_readable

CHUNK_BYTES = 2**20
_SPARE_BYTES = 2**20  # of the disk: for headers, and for what others write meanwhile
TEXT = h5py.string_dtype()
Filters = tuple[tuple[int, tuple[int, ...]], ...]  # for each filter its number and its options
Selection = tuple[Any, ...]  # for each dimension an index or a slice

_TEXT_TYPE = h5t.py_create(TEXT, logical=True)
_SCALAR = h5s.create(h5s.SCALAR)
CREATE_GROUPS = h5p.create(h5p.LINK_CREATE)
CREATE_GROUPS.set_create_intermediate_group(True)
_WHOLE_CHUNKS = h5p.create(h5p.DATASET_ACCESS)
_WHOLE_CHUNKS.set_chunk_cache(0, 0, 1)  # chunks that are written as a whole need no cache


def create_file(new: NewFile, metadata_bytes: int | None = None) -> h5py.File:
    """Make a new file an HDF5 file.

    Args:
        metadata_bytes: headers are put together in blocks of this size; None for HDF5's own.

    Raises:
        OSError: the disk is full, or the file cannot be made; nothing is left of it.
    """
    try:
        check_space(new)
        return h5py.File(
            new.part, "w", libver=("v110", "v110"), meta_block_size=metadata_bytes, locking=False
        )
    except OSError as error:
        new.discard()
        reason = os.strerror(error.errno) if error.errno else str(error)  # HDF5's own text has many lines
        raise OSError(error.errno, reason, str(new.file)) from None


def check_space(new: NewFile, count: int = 0) -> None:
    """Raise OSError unless the disk has room for so many more bytes: a write that fails within HDF5 ends the process."""
    if shutil.disk_usage(new.part.parent).free < count + _SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(new.file))


class DataSet:
    """A new data set of an HDF5 file.

    Args:
        file: the file to create it in.
        name: its path in the file.
        shape: its initial shape.
        dtype: its type in the file; `TEXT` for texts.
        chunk: the shape of its chunks; None to store it in one piece.
        can_grow: for each dimension whether it can grow; None if none can.
        filters: compression, from `compression_filters`.
    """

    def __init__(
        self,
        file: h5f.FileID,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
        chunk: tuple[int, ...] | None = None,
        can_grow: tuple[bool, ...] | None = None,
        filters: Filters = (),
    ):
        self.shape, self.dtype, self.chunk = shape, dtype, chunk
        limits = None
        if can_grow is not None:
            limits = tuple(h5s.UNLIMITED if grows else n for grows, n in zip(can_grow, shape, strict=True))
        space = _space(shape, limits)
        layout = _creation_properties(dtype, chunk, filters)
        rows_grow = can_grow is not None and any(can_grow[1:])
        access = None if rows_grow else _WHOLE_CHUNKS  # chunks of growing rows are written in parts
        self.id = h5d.create(file, name.encode(), _hdf5_type(dtype), space, layout, CREATE_GROUPS, access)

    def resize(self, shape: tuple[int, ...]) -> None:
        """Give the data set another shape."""
        if shape != self.shape:
            self.id.set_extent(shape)
            self.shape = shape

    def write(self, values: np.ndarray, selection: Selection | None = None) -> None:
        """Write values to a part of the data set, by default to all of it."""
        values = np.ascontiguousarray(values, self.dtype)
        if selection is None:
            self.id.write(h5s.ALL, h5s.ALL, values)
            return
        limits = bounds(selection, self.shape)
        counts = tuple(end - start for start, end in limits)
        if counts == self.shape:
            self.id.write(h5s.ALL, h5s.ALL, values.reshape(counts))
            return
        space = self.id.get_space()
        space.select_hyperslab(tuple(start for start, _ in limits), counts)
        self.id.write(_space(counts), space, values.reshape(counts))

    def chunk_bytes(self, selection: Selection | None, shape: tuple[int, ...]) -> int:
        """Return the size of the chunks that contain a part of the data set once it has this shape."""
        if self.chunk is None:
            return math.prod(shape) * self.dtype.itemsize
        limits = bounds(selection, shape) if selection is not None else [(0, size) for size in shape]
        n_chunks = math.prod(
            (end - 1) // chunk - start // chunk + 1
            for (start, end), chunk in zip(limits, self.chunk, strict=True)
        )
        return n_chunks * math.prod(self.chunk) * self.dtype.itemsize

    def is_too_narrow(self, values: np.ndarray) -> bool:
        """Return whether the data set is float16 and rounding to it loses more than float16's precision."""
        if self.dtype != np.float16 or values.dtype == np.float16:
            return False
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(lost_rows(values, values.astype(np.float16)).any())


def lost_rows(values: Any, rounded: Any) -> Any:
    """Return which rows [..., value] rounding to float16 changes by more than its precision, 2^-11 of their size.

    It does where a finite value is too large, and where the row's values are so small that they become 0 or keep few
    bits: under 6e-5. Few small values among larger ones change the row by less. Infinities and NaN are left out.

    Args:
        values: a float32 array or tensor.
        rounded: the same in float16.

    Returns:
        bool [...].

    Example:
        >>> rows = np.array([[1.0, 1e-9], [2e-9, 1e-9]], np.float32)
        >>> lost_rows(rows, rows.astype(np.float16)).tolist()
        [False, True]
    """
    unknown = values - values != 0
    lost, size = abs(rounded - values), abs(values)
    lost[unknown] = size[unknown] = 0
    return lost.sum(-1) > 2.0**-11 * size.sum(-1)


@lru_cache
def _hdf5_type(dtype: np.dtype) -> h5t.TypeID:
    """Return the type in the file that stores a numpy type."""
    return h5t.py_create(dtype, logical=True)


@lru_cache
def _space(shape: tuple[int, ...], limits: tuple[int, ...] | None = None) -> h5s.SpaceID:
    """Return the extent of a data set, or of all values of an array; nobody selects a part of it."""
    return h5s.create_simple(shape, limits)


@lru_cache
def _creation_properties(dtype: np.dtype, chunk: tuple[int, ...] | None, filters: Filters) -> h5p.PropDCID:
    properties = h5p.create(h5p.DATASET_CREATE)
    if chunk is not None:
        properties.set_chunk(chunk)
        for code, options in filters:
            properties.set_filter(code, h5z.FLAG_OPTIONAL, options)
    if dtype.kind == "f":
        properties.set_fill_value(np.array(np.nan, dtype))
    return properties


def bounds(selection: Selection, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the start and the end of a selection along each dimension."""
    return [
        (index, index + 1)
        if isinstance(index, int)
        else (index.start or 0, size if index.stop is None else index.stop)
        for index, size in zip(selection, shape, strict=True)
    ]


def chunk_shape(block: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the shape of the chunks for a data set that is written in blocks of this shape.

    It is the block's shape, cut along its first dimensions if the block is larger than `CHUNK_BYTES`. A block
    is a whole number of chunks, unless that would make a chunk smaller than half of the possible size.

    Example:
        >>> chunk_shape((64, 12, 8, 578), 2)
        (8, 12, 8, 578)
    """
    chunk = [min(max(size, 1), CHUNK_BYTES) for size in block]
    for axis in range(len(chunk)):
        row_bytes = itemsize * math.prod(chunk[axis + 1 :])
        if row_bytes * chunk[axis] <= CHUNK_BYTES:
            break
        most = max(CHUNK_BYTES // row_bytes, 1)
        divisors = (size for size in range(most, most // 2, -1) if chunk[axis] % size == 0)
        chunk[axis] = next(divisors, most)
    return tuple(chunk)


def _write_attribute(target: h5d.DatasetID | h5f.FileID, name: str, text: str) -> None:
    """Write a new text attribute of a data set or a file."""
    attribute = h5a.create(target, name.encode(), _TEXT_TYPE, _SCALAR)
    attribute.write(np.array(text, TEXT))


def compression_filters(compression: str) -> Filters:
    """Return the HDF5 filters of a compression: `none`, `blosc2` or `zstd`.

    Raises:
        InputError: hdf5plugin is not installed.

    Example:
        >>> compression_filters("none")
        ()
    """
    if compression == "none":
        return ()
    try:
        import hdf5plugin
    except ImportError:
        raise InputError(
            f"compression {compression}: hdf5plugin is missing; "
            "install it with: pip install 'mmprobe[compression]'"
        ) from None
    plugin = {
        "blosc2": hdf5plugin.Blosc2(cname="zstd", clevel=5, filters=2),
        "zstd": hdf5plugin.Zstd(clevel=3),
    }[compression]
    return ((plugin["compression"], tuple(plugin["compression_opts"])),)


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
        self.file = create_file(self.new, _METADATA_BYTES)
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
            _write_attribute(self.file.id, name, text)

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
        data = self._widen_where_narrow(name, values)
        grown = tuple(map(max, data.shape, shape))
        check_space(self.new, data.chunk_bytes(selection, grown))
        data.resize(grown)
        data.write(values, selection)

    def write(self, name: str, values: np.ndarray) -> None:
        """Write a whole data set."""
        shape = np.shape(values)
        if VARIABLES[name].dtype == "str":
            self._create(name, shape, None)
            check_space(self.new, sum(16 + 4 * len(text) for text in values))
            self.datasets[name].write(np.asarray(values, object))
        else:
            self._create(name, shape, shape if all(shape) else None)
            data = self._widen_where_narrow(name, values)
            check_space(self.new, data.chunk_bytes(None, shape))
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
        _write_attribute(data.id, "long_name", variable.long_name)
        _write_attribute(data.id, "units", variable.units)
        return data

    def _widen_where_narrow(self, name: str, values: np.ndarray) -> DataSet:
        """Return the data set; it is copied to float32 first if float16 is too narrow for the values."""
        data = self.datasets[name]
        if not data.is_too_narrow(values):
            return data
        old_name = f"{name} as float16"
        self.file.move(name, old_name)
        can_grow = tuple(limit is None for limit in self.file[old_name].maxshape)
        data = self._create(name, data.shape, data.chunk, can_grow, widened=True)
        check_space(self.new, data.chunk_bytes(None, data.shape))
        for part in self.file[old_name].iter_chunks():
            data.write(self.file[old_name][part], part)
        del self.file[old_name]
        return data

    def _write_scale(self, name: str, values: np.ndarray) -> None:
        stored = values.astype(object) if values.dtype.kind in "UO" else values.astype("i4")
        check_space(self.new, stored.nbytes)
        dtype = TEXT if stored.dtype == object else stored.dtype
        scale = self.scales[name] = DataSet(self.file.id, name, stored.shape, dtype)
        scale.write(stored)
        h5ds.set_scale(scale.id, name.encode())

    def _commit(self) -> None:
        self._attach_scales()
        self.file.flush()
        self.datasets.clear()  # HDF5 keeps a file open as long as one of its data sets
        self.scales.clear()
        self.file.close()
        append_digest(self.new.stream)
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


_READ_BYTES = 2**20
_FOOTER = struct.Struct("<16sQQ")  # mark, number of bytes before it, their digest
_MARK = b"mmprobe xxh3 all"
_PAGES_MARK, _PAGE_BYTES = (
    b"mmprobe xxh3 64K",
    2**16,
)  # of earlier versions: a digest of each page, and one of these


def append_digest(file: BufferedRandom) -> None:
    """Write a digest of a file's bytes after its end."""
    file.seek(0)
    digest = xxh3_64()
    while piece := file.read(_READ_BYTES):
        digest.update(piece)
    file.write(_FOOTER.pack(_MARK, file.tell(), digest.intdigest()))
    file.flush()


def digest_matches(path: Path) -> bool:
    """Return whether a file can be read, has a digest, and its bytes are those that were written."""
    with suppress(OSError), open(check_readable(path), "rb") as file:
        end = max(file.seek(0, os.SEEK_END) - _FOOTER.size, 0)
        file.seek(end)
        footer = file.read()
        if len(footer) != _FOOTER.size:
            return False
        mark, size, expected = _FOOTER.unpack(footer)
        file.seek(0)
        if mark == _PAGES_MARK and size <= end:
            digests = b"".join(
                struct.pack("<Q", xxh3_64_intdigest(page)) for page in _pieces(file, size, _PAGE_BYTES)
            )
            return digests == file.read(end - size) and xxh3_64_intdigest(digests) == expected
        digest = xxh3_64()
        for piece in _pieces(file, end, _READ_BYTES):
            digest.update(piece)
        return (mark, size, expected) == (_MARK, end, digest.intdigest())
    return False


def _pieces(file: BufferedReader, size: int, piece_bytes: int) -> Iterator[bytes]:
    """Yield the next bytes of a file in pieces."""
    for start in range(0, size, piece_bytes):
        yield file.read(min(piece_bytes, size - start))


def check_digest(path: Path) -> None:
    """Raise InputError unless `digest_matches`."""
    if not digest_matches(path):
        raise InputError(
            f"{path}: damaged, or changed since it was written (its digest differs or is missing); "
            "delete it and make it again"
        )
