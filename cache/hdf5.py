"""One data set of a file that is being written, through the lower level of h5py.

A trace is many small data sets; through the upper level, making one takes three times as long as HDF5 needs.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5p, h5s, h5t, h5z

from mmprobe.errors import InputError

CHUNK_BYTES = 2**20
TEXT = h5py.string_dtype()
Where = tuple[Any, ...]  # for each dimension an index or a slice

_TEXT_TYPE = h5t.py_create(TEXT, logical=True)
_SCALAR = h5s.create(h5s.SCALAR)
_WITH_GROUPS = h5p.create(h5p.LINK_CREATE)
_WITH_GROUPS.set_create_intermediate_group(True)
_WHOLE_CHUNKS = h5p.create(h5p.DATASET_ACCESS)
_WHOLE_CHUNKS.set_chunk_cache(0, 0, 1)  # what is written as a whole need not be copied first


class DataSet:
    """A new data set.

    Args:
        file: it is made in.
        name: its path.
        shape: its present shape.
        dtype: how it is stored; `TEXT` for texts.
        chunk: shape of the blocks that it is stored by; None for one piece.
        growing: for each dimension whether it can grow; None if none can.
        filters: from `filters`.
    """

    def __init__(
        self,
        file: h5f.FileID,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
        chunk: tuple[int, ...] | None = None,
        growing: tuple[bool, ...] | None = None,
        filters: tuple[tuple[int, tuple[int, ...]], ...] = (),
    ):
        self.shape, self.dtype, self.chunk = shape, dtype, chunk
        limits = None
        if growing is not None:
            limits = tuple(h5s.UNLIMITED if grows else n for grows, n in zip(growing, shape, strict=True))
        space, layout = h5s.create_simple(shape, limits), _layout(dtype, chunk, filters)
        long_rows = growing is not None and any(growing[1:])  # their chunks are written in parts
        access = None if long_rows else _WHOLE_CHUNKS
        self.id = h5d.create(file, name.encode(), _kind(dtype), space, layout, _WITH_GROUPS, access)

    def resize(self, shape: tuple[int, ...]) -> None:
        if shape != self.shape:
            self.id.set_extent(shape)
            self.shape = shape

    def fill(self, values: np.ndarray, where: Where | None = None) -> None:
        """Write values into a part of the data set, by default all of it."""
        values = np.ascontiguousarray(values, self.dtype)
        if where is None:
            self.id.write(h5s.ALL, h5s.ALL, values)
            return
        edges = bounds(where, self.shape)
        counts = tuple(last - first for first, last in edges)
        place = self.id.get_space()
        place.select_hyperslab(tuple(first for first, _ in edges), counts)
        self.id.write(h5s.create_simple(counts), place, values.reshape(counts))

    def bytes_touched(self, where: Where | None, shape: tuple[int, ...]) -> int:
        """Bytes on the disk of the chunks that a part of it lies in, once it has this shape."""
        if self.chunk is None:
            return math.prod(shape) * self.dtype.itemsize
        edges = bounds(where, shape) if where is not None else [(0, size) for size in shape]
        touched = math.prod(
            (last - 1) // chunk - first // chunk + 1
            for (first, last), chunk in zip(edges, self.chunk, strict=True)
        )
        return touched * math.prod(self.chunk) * self.dtype.itemsize

    def overflows(self, values: np.ndarray) -> bool:
        """Whether it is stored in float16 and a finite value is too large for that."""
        if self.dtype != np.float16 or values.dtype == np.float16:
            return False
        most = np.finfo(np.float16).max
        large = (values > most) | (values < -most)
        return bool(large.any() and np.isfinite(values[large]).any())


@lru_cache
def _kind(dtype: np.dtype) -> h5t.TypeID:
    return h5t.py_create(dtype, logical=True)


@lru_cache
def _layout(
    dtype: np.dtype, chunk: tuple[int, ...] | None, filters: tuple[tuple[int, tuple[int, ...]], ...]
) -> h5p.PropDCID:
    layout = h5p.create(h5p.DATASET_CREATE)
    if chunk is not None:
        layout.set_chunk(chunk)
        for code, options in filters:
            layout.set_filter(code, h5z.FLAG_OPTIONAL, options)
    if dtype.kind == "f":
        layout.set_fill_value(np.array(np.nan, dtype))
    return layout


def bounds(where: Where, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """First and last + 1 of a part, for each dimension."""
    return [
        (index, index + 1)
        if isinstance(index, int)
        else (index.start or 0, size if index.stop is None else index.stop)
        for index, size in zip(where, shape, strict=True)
    ]


def chunk_of(block: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """A block's shape, with less of its first dimensions if it is larger than a chunk should be; a whole number of
    chunks is a block if that makes them no smaller than half of what they may be."""
    chunk = [min(max(size, 1), CHUNK_BYTES) for size in block]
    for axis in range(len(chunk)):
        rest = itemsize * math.prod(chunk[axis + 1 :])
        if rest * chunk[axis] <= CHUNK_BYTES:
            break
        most = max(CHUNK_BYTES // rest, 1)
        even = (size for size in range(most, most // 2, -1) if chunk[axis] % size == 0)
        chunk[axis] = next(even, most)
    return tuple(chunk)


def set_text(owner: h5d.DatasetID | h5f.FileID, name: str, text: str) -> None:
    """Give a data set or a file a new attribute."""
    attribute = h5a.create(owner, name.encode(), _TEXT_TYPE, _SCALAR)
    attribute.write(np.array(text, TEXT))


def filters(compression: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """HDF5's filters, each a number and its options, that compress floating-point data sets.

    Raises:
        InputError: hdf5plugin is not installed.

    Example:
        >>> filters("none")
        ()
    """
    if compression == "none":
        return ()
    try:
        import hdf5plugin
    except ImportError:
        raise InputError(
            f"compression {compression}: hdf5plugin is missing; install it with: pip install 'mmprobe[compression]'"
        ) from None
    chosen = {
        "blosc2": hdf5plugin.Blosc2(cname="zstd", clevel=5, filters=2),
        "zstd": hdf5plugin.Zstd(clevel=3),
    }[compression]
    return ((chosen["compression"], tuple(chosen["compression_opts"])),)
