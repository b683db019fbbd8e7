"""Packed files: traces joined into one HDF5 file, with an index of each trace's offsets in the file.

A trace in a packed file is read by the index, and through HDF5 where something is not in the index.
"""

from __future__ import annotations

import itertools
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
from h5py import h5d, h5g, h5p, h5s

from mmprobe.cache.check import CheckedGroup, list_names, open_group, open_hard_link
from mmprobe.cache.checksums import (
    CheckedFile,
    append_checksums,
    check_checksums,
    open_checked,
    open_with_pages,
    repeat_interrupt,
)
from mmprobe.cache.hdf5 import CREATE_GROUPS, ReservedSpace, create_file, hdf5_type
from mmprobe.cache.schema import DIM_SIZES, DIMS, FORMAT_VERSION, GROUP_NAMES, TEXT_ATTRIBUTES, VARIABLES
from mmprobe.errors import InputError, option
from mmprobe.files import NewFile

if TYPE_CHECKING:
    from mmprobe.cache.trace import Trace

PACKS = "packs"  # the folder of a run's traces that are joined already
INDEX = "index"  # the group of the offsets
INDEXED_DIMS = ("layer", "head")  # dimensions whose values are in the index, too
INDEXED = (*INDEXED_DIMS, *(name for name, variable in VARIABLES.items() if variable.dtype != "str"))
_NO_PLACE = -1  # the offset of numbers that are not in one piece
_UNREADABLE = (OSError, KeyError, RuntimeError, SystemError, ValueError)


def _dims(name: str) -> tuple[str, ...]:
    return (name,) if name in INDEXED_DIMS else VARIABLES[name].dims


class IndexWriter:
    """Collects the offsets of each trace's numbers, and writes them into the file."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, array]] = {}  # by data set and trace

    def note(self, trace_id: str, name: str, data: h5d.DatasetID) -> None:
        """Note the offset of a data set, if it is stored in one piece."""
        offset = data.get_offset()
        if offset is not None:
            row = array("q", [offset, data.dtype.itemsize, *data.shape])
            self.rows.setdefault(name, {})[trace_id] = row

    @property
    def n_bytes(self) -> int:
        """The bytes that the index takes, at most."""
        n_traces = max(map(len, self.rows.values()), default=0)
        return sum(2**10 + 8 * (2 + len(_dims(name))) * n_traces for name in self.rows)

    def write(self, file: h5py.File) -> None:
        """Write a table for each data set, with a row for each trace, in the sorted order of their ids."""
        ids = sorted(list_names(open_group(file.id, "samples")))
        for name, rows in self.rows.items():
            missing = array("q", [_NO_PLACE] * (2 + len(_dims(name))))
            file[f"{INDEX}/{name}"] = np.array([rows.get(trace_id, missing) for trace_id in ids], "i8")


class PackedNames(NamedTuple):
    """The ids of the traces in a packed file.

    Attributes:
        names: the ids, in the order of the file.
        content: what tells the file from one that took its place since; None if nothing does.
    """

    names: list[str]
    content: int | None


class PackedFile:
    """An open file of packed traces.

    Args:
        path: its path.
        file: the open file.
        pages: the same file; what is read there is compared with the checksums.
        known: its names, if they have been read before. They are read again if the file is another one now.

    Raises:
        ValueError: the file has no traces.
    """

    def __init__(self, path: Path, file: h5py.File, pages: CheckedFile, known: PackedNames | None = None):
        self.path, self.file, self.pages = path, file, pages
        if known is not None and known.content is not None and known.content == pages.content:
            self.names = known.names
        else:
            self.names = list_names(open_group(file.id, "samples"))
        self.sizes: dict[str, np.ndarray] = {}  # of each dimension, by trace; 0 where it is not known yet
        self.tables: dict[str, np.ndarray | None] = {}

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The row of each trace in the index."""
        return {name: number for number, name in enumerate(sorted(self.names))}

    def table(self, name: str) -> np.ndarray | None:
        """Return where a data set is stored: for each trace the offset, the bytes of a number, the shape.

        None if the file does not say: it is older, or was changed since it was packed.

        Raises:
            InputError: the table contradicts the file or other tables.
        """
        if name not in self.tables:
            readable = name in INDEXED and self.pages.checksums
            self.tables[name] = table = self._read_table(name) if readable else None
            if table is not None:
                self._check_table(name, table)
        return self.tables[name]

    def _read_table(self, name: str) -> np.ndarray | None:
        parent = self.file.id
        *groups, leaf = (INDEX, *name.split("/"))
        try:
            for group in groups:
                if group.encode() not in parent:
                    return None
                parent = open_group(parent, group)
            if leaf.encode() not in parent:
                return None
            data = open_hard_link(parent, leaf)
        except ValueError as error:
            raise self.error(name, str(error)) from None
        shape = (len(self.names), 2 + len(_dims(name)))
        if data.shape != shape or not data.get_type().equal(hdf5_type(np.dtype("i8"))):
            raise self.error(name, "has another shape or type")
        if data.get_offset() is None or data.get_storage_size() != 8 * math.prod(shape):
            raise self.error(name, "is not in one piece")
        table = np.empty(shape, "i8")
        data.read(h5s.ALL, h5s.ALL, table)
        return table

    def _check_table(self, name: str, table: np.ndarray) -> None:
        present = table[:, 0] != _NO_PLACE
        offset, itemsize, *shape = table.T.astype("f8")  # integers could overflow
        n_bytes = itemsize * np.prod(shape, axis=0)
        dtypes = {self._dtype(name, wide).itemsize for wide in (False, True)}
        inside = (offset >= 0) & (table[:, 2:] >= 0).all(1) & (offset + n_bytes <= self.pages.size)
        if not (inside & np.isin(itemsize, list(dtypes)))[present].all():
            raise self.error(name, "names places that are not in the file")
        for dim, size in zip(_dims(name), table[:, 2:].T, strict=True):
            if dim in DIM_SIZES and not np.isin(size, DIM_SIZES[dim])[present].all():
                raise self.error(name, f"has a wrong size along {dim}")
            known = self.sizes.setdefault(dim, np.full(len(table), _NO_PLACE))
            if ((known != size) & present & (known != _NO_PLACE)).any():
                raise self.error(name, f"has another size along {dim} than other data sets")
            known[present] = size[present]

    def error(self, name: str, problem: str) -> InputError:
        """Return an error that names an entry of the index and its problem."""
        return InputError(f"{self.path}: {INDEX}/{name} {problem}; {self.remedy}")

    @property
    def remedy(self) -> str:
        """What to do about a damaged file, in words."""
        return _remedy(self.path)

    def damage_error(self, error: Exception) -> InputError:
        """Return an error that says why the file cannot be read, and what to do."""
        return _damage_error(self.path, error)

    def _dtype(self, name: str, wide: bool) -> np.dtype:
        stored = "i4" if name in INDEXED_DIMS else VARIABLES[name].dtype
        return np.dtype("f4" if stored == "f2" and wide else stored)

    def find(self, trace_id: str, name: str) -> tuple[int, tuple[int, ...], np.dtype] | None:
        """Return the offset, the shape and the type of a trace's data set; None if the index does not have it."""
        table = self.table(name)
        if table is None:
            return None
        offset, itemsize, *shape = table[self.numbers[trace_id]].tolist()
        return None if offset == _NO_PLACE else (offset, tuple(shape), self._dtype(name, itemsize == 4))

    def read(self, trace_id: str, name: str) -> np.ndarray:
        """Return the values of a data set that `find` finds.

        Raises:
            OSError: they are damaged.
        """
        found = self.find(trace_id, name)
        assert found is not None
        offset, shape, dtype = found
        values = np.empty(shape, dtype)
        self._fill(values, offset)
        return values

    def _fill(self, values: np.ndarray, offset: int) -> None:
        self.pages.seek(offset)
        self.pages.readinto(values.reshape(-1).view("u1").data)

    def _rows(self, ids: Sequence[str], name: str) -> np.ndarray | None:
        """Return the rows of traces in a table; None if a trace is not in it."""
        table = self.table(name)
        if table is None or not self.numbers.keys() >= set(ids):
            return None
        rows = table[[self.numbers[trace_id] for trace_id in ids]]
        return None if (rows[:, 0] == _NO_PLACE).any() else rows

    def shapes(self, ids: Sequence[str], name: str) -> np.ndarray | None:
        """Return the shapes [trace, dim] of a data set; None if the index lacks some of them, or of their labels."""
        labelled = [dim for dim in _dims(name) if dim in INDEXED_DIMS]
        rows = [self._rows(ids, each) for each in (name, *labelled)]
        return None if rows[0] is None or any(each is None for each in rows) else rows[0][:, 2:]

    def read_many(self, ids: Sequence[str], name: str) -> np.ndarray | list[np.ndarray]:
        """Return the values of a data set of many traces, which have `shapes`: in one array if the shapes are equal.

        Values that are adjacent in the file are read together.

        Raises:
            OSError: they are damaged.
        """
        rows = self._rows(ids, name)
        assert rows is not None
        offsets, n_bytes = rows[:, 0], rows[:, 1:].prod(1)
        places = np.cumsum([0, *n_bytes])
        memory = np.empty(places[-1], "u1")
        limits = np.flatnonzero(np.diff(offsets) != n_bytes[:-1]) + 1
        for first, last in itertools.pairwise([0, *limits, len(rows)]):
            self._fill(memory[places[first] : places[last]], int(offsets[first]))
        if (rows[:, 1:] == rows[0, 1:]).all():
            return memory.view(self._dtype(name, rows[0, 1] == 4)).reshape(len(rows), *rows[0, 2:])
        return [
            memory[place : place + size].view(self._dtype(name, row[1] == 4)).reshape(row[2:])
            for place, size, row in zip(places[:-1], n_bytes, rows, strict=True)
        ]

    def common_coordinates(self, ids: Sequence[str], name: str) -> dict[str, tuple[Any, ...]]:
        """Return the labels of a data set's dimensions, without those that differ between the traces."""
        common: dict[str, tuple[Any, ...]] = {"group": GROUP_NAMES} if "group" in _dims(name) else {}
        for dim in _dims(name):
            if dim in INDEXED_DIMS:
                labels = self.read_many(ids, dim)
                if isinstance(labels, np.ndarray) and (labels == labels[0]).all():
                    common[dim] = tuple(labels[0].tolist())
        return common

    def contradictions(self) -> dict[str, str]:
        """Return the traces whose rows of the index differ from their data sets, and the first of these."""
        found: dict[str, str] = {}
        indexed = [name for name in INDEXED if self.table(name) is not None]
        samples = open_group(self.file.id, "samples")
        for trace_id in self.names:
            places = {name: place for name in indexed if (place := self.find(trace_id, name)) is not None}
            stored = _stored_places(samples, trace_id, places)
            wrong = [name for name, place in places.items() if stored.get(name) != place]
            if wrong:
                found[trace_id] = wrong[0]
        return found


def _stored_places(samples: h5g.GroupID, trace_id: str, names: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Return offset, shape and dtype of a trace's data sets as HDF5 has them; skip links and groups."""
    places: dict[str, tuple[Any, ...]] = {}
    with suppress(ValueError):  # a link, or not a group
        groups = {"": open_group(samples, trace_id)}
        for name in names:
            group, _, leaf = name.rpartition("/")
            with suppress(ValueError, TypeError):  # a link, a group, or a type that numpy lacks
                if group not in groups:
                    groups[group] = open_group(groups[""], group)
                data = open_hard_link(groups[group], leaf)
                places[name] = data.get_offset(), data.shape, data.dtype
    return places


@contextmanager
def open_packed(path: Path, known: PackedNames | None = None) -> Iterator[PackedFile]:
    """Open a packed file; if it cannot be opened, this raises InputError."""
    with ExitStack() as stack:
        try:
            packed = PackedFile(path, *stack.enter_context(open_with_pages(path)), known)
        except InputError:
            raise
        except _UNREADABLE as error:
            raise _damage_error(path, error) from None
        yield packed


def packed_names(path: Path) -> PackedNames:
    """Return the ids of the traces in a packed file.

    Raises:
        InputError: it cannot be read.
    """
    with open_packed(path) as packed:
        return PackedNames(packed.names, packed.pages.content)


def _damage_error(path: Path, error: Exception) -> InputError:
    repeat_interrupt(error)
    return InputError(f"{path}: damaged ({str(error).splitlines()[0]}); {_remedy(path)}")


def _remedy(path: Path) -> str:
    return f"trace again with {option('resume')}" if path.parent.name == PACKS else "pack it again"


class PackedTrace:
    """What `CheckedGroup` is to a trace's own file. HDF5's group is opened when something is not in the index.

    Args:
        packed: the open file.
        group: path of the trace's group in it.
        sample_id: id of the sample that the trace must belong to.
    """

    def __init__(self, packed: PackedFile, group: str, sample_id: str):
        self.packed, self.group, self.sample_id = packed, group, sample_id

    @cached_property
    def checked(self) -> CheckedGroup:
        """The group as HDF5 reads it."""
        return CheckedGroup(self.packed.path, self.packed.file, self.group, self.sample_id)

    def describe(self, path: str) -> tuple[tuple[int, ...], np.dtype] | None:
        """Return the shape and the numpy type of a data set; None if the trace does not have it."""
        found = self.packed.find(self.sample_id, path)
        return self.checked.describe(path) if found is None else found[1:]

    def read(self, path: str, key: tuple[Any, ...] | None = None) -> np.ndarray:
        """Return the values of a data set that the trace has, or a part of them."""
        if self.packed.find(self.sample_id, path) is None:
            return self.checked.read(path, key)
        values = self.packed.read(self.sample_id, path)
        return values if key is None else values[key]

    def coordinate(self, dim: str) -> list[int] | list[str]:
        """Return the values of a dimension, such as the captured layers."""
        if dim == "group":
            return list(GROUP_NAMES)
        if dim not in INDEXED_DIMS or self.packed.find(self.sample_id, dim) is None:
            return self.checked.coordinate(dim)
        return self.packed.read(self.sample_id, dim).tolist()

    def error(self, name: str, problem: str) -> InputError:
        """Return an error that names the file, an entry and its problem."""
        return self.checked.error(name, problem)

    def __getattr__(self, name: str) -> Any:  # what the index does not know
        return getattr(self.checked, name)


TraceGroup = CheckedGroup | PackedTrace


_TOGETHER = 1000  # traces whose data sets of one name are adjacent
SMALL_BYTES = 2**24  # of a data set that is stored in one piece
_METADATA_BYTES = 2**18  # headers are kept together, so that they do not separate the numbers
_IN_ONE_PIECE = h5p.create(h5p.DATASET_CREATE)
_IN_ONE_PIECE.set_alloc_time(h5d.ALLOC_TIME_EARLY)
_IN_ONE_PIECE.set_fill_time(h5d.FILL_TIME_NEVER)
_TRACE_BYTES = 2**14  # a trace's headers can be larger in the packed file
_TEXT_BYTES = 2**18  # headers and texts of a trace that is packed already


def join_traces(traces: Iterable[Trace], out: Path) -> None:
    """Copy traces into one file, which appears, or replaces an earlier one, when it is whole.

    Raises:
        InputError: a trace is damaged.
        OSError: the disk is full.

    Example:
        >>> join_traces(open_run("runs/demo"), Path("runs/demo/packs/000001.h5"))      # doctest: +SKIP
    """
    write_pack(traces, {}, out)


def write_pack(traces: Iterable[Trace], texts: Mapping[str, Any], out: Path) -> None:
    """Copy traces and texts about them to a file, which appears with its checksums when it is whole."""
    with NewFile(out) as new:
        new.remove_left()
        _write_traces(traces, texts, new)
        append_checksums(new.stream)
        new.sync()
        new.place()


def _write_traces(traces: Iterable[Trace], texts: Mapping[str, Any], new: NewFile) -> None:
    file, space = create_file(new, _METADATA_BYTES)
    with file:
        samples, index, left = file.create_group("samples"), IndexWriter(), iter(traces)
        while together := list(islice(left, _TOGETHER)):
            _copy_traces(together, samples, index, space)
        space.reserve(index.n_bytes)
        index.write(file)
        file.attrs["mmprobe_format"] = FORMAT_VERSION
        for name, content in texts.items():
            text = json.dumps(content)
            space.reserve(len(text))
            file.attrs[name] = text


def _copy_traces(traces: list[Trace], samples: h5py.Group, index: IndexWriter, space: ReservedSpace) -> None:
    """Copy traces, and put the small data sets of one name beside each other, so that they are read in one go."""
    small = {}
    for trace in traces:
        if trace.group == "/":
            check_checksums(trace.file)
        with trace.keep_open():
            trace.check()
            space.reserve(_most_bytes(trace))
        with _open_source(trace) as source:
            small[trace.id] = _small_datasets(source)
        samples.create_group(trace.id)
    for name in INDEXED:
        for trace_id, datasets in small.items():
            if name in datasets:
                shape, dtype = datasets[name]
                path = f"{trace_id}/{name}".encode()
                h5d.create(
                    samples.id, path, hdf5_type(dtype), h5s.create_simple(shape), _IN_ONE_PIECE, CREATE_GROUPS
                )
    for trace in traces:
        with _open_source(trace) as source:
            _copy_trace(source, samples[trace.id], small[trace.id])
        for name in INDEXED:
            if (data := samples.get(f"{trace.id}/{name}")) is not None:
                index.note(trace.id, name, data.id)


@contextmanager
def _open_source(trace: Trace) -> Iterator[h5py.Group]:
    """Open the group of a trace; errors within the block name its file."""
    try:
        with open_checked(trace.file) as file:
            yield file[trace.group]
    except (OSError, RuntimeError, SystemError) as error:
        raise trace.damage_error(error) from None


def _most_bytes(trace: Trace) -> int:
    """Return an upper limit of the bytes that a trace takes in a packed file."""
    if trace.group == "/":
        return trace.file.stat().st_size + _TRACE_BYTES
    return (
        2 * sum(trace.array(path).nbytes for path in trace.captured) + _TEXT_BYTES
    )  # chunks are filled in part


def _small_datasets(source: h5py.Group) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Return the shape and the type of the data sets that are stored in one piece: small ones, as they are."""
    small = {}
    for name in INDEXED:
        data = source.get(name)
        if data is None or data.id.get_create_plist().get_nfilters():
            continue
        if 0 < data.nbytes <= min(SMALL_BYTES, data.id.get_storage_size()):
            small[name] = data.shape, data.dtype
    return small


def _copy_trace(source: h5py.Group, target: h5py.Group, small: Iterable[str]) -> None:
    """Copy a trace, and attach its dimension scales again: HDF5 does not copy references to another file.

    Args:
        small: data sets that the target has already, without values.
    """
    for name in ("mmprobe_format", *TEXT_ATTRIBUTES):
        if name in source.attrs:
            target.attrs[name] = source.attrs[name]
    present: set[str] = set()
    source.visit(present.add)
    for name in (*DIMS, *VARIABLES):
        if name in small:
            target[name].id.write(h5s.ALL, h5s.ALL, source[name][...])
        elif name in present:
            source.copy(name, target, name=name, without_attrs=True)
    scales = {dim: target[dim] for dim in DIMS if dim in present}
    for dim, scale in scales.items():
        scale.make_scale(dim)
    for name, variable in VARIABLES.items():
        if name in present:
            data = target[name]
            data.attrs.update({"long_name": variable.long_name, "units": variable.units})
            for axis, dim in enumerate(variable.dims):
                data.dims[axis].attach_scale(scales[dim])
