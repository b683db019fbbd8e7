"""Pack a run into one file, or some of its traces into a file of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s
from tqdm import tqdm

from mmprobe.cache.checksums import append_checksums, open_checked
from mmprobe.cache.hdf5 import CREATE_GROUPS, ReservedSpace, create_file, hdf5_type
from mmprobe.cache.packs.packed_file import INDEXED, IndexWriter
from mmprobe.cache.run import open_run
from mmprobe.cache.schema import DIMS, FORMAT_VERSION, TEXT_ATTRIBUTES, VARIABLES
from mmprobe.cache.trace import Trace
from mmprobe.cache.verify import check_checksums
from mmprobe.errors import InputError
from mmprobe.lock import lock_file

_TOGETHER = 1000  # traces whose data sets of one name lie beside each other
SMALL_BYTES = 2**24  # of a data set that is stored in one piece
_METADATA_BYTES = 2**18  # headers are kept together, so that they do not lie between the numbers
_IN_ONE_PIECE = h5p.create(h5p.DATASET_CREATE)
_IN_ONE_PIECE.set_alloc_time(h5d.ALLOC_TIME_EARLY)
_IN_ONE_PIECE.set_fill_time(h5d.FILL_TIME_NEVER)
_TRACE_BYTES = 2**14  # a trace's headers can be larger in the packed file
_TEXT_BYTES = 2**18  # headers and texts of a trace that is packed already


def pack(path: str | Path, out: str | Path) -> Path:
    """Copy a run to one HDF5 file, which `open_run` reads like the folder. Traces are under `/samples/<id>`.

    Raises:
        InputError: `out` exists, another process is packing into it, `path` is not a run's folder, or a trace is
            damaged.
        OSError: the disk is full; `out` is not there then.

    Example:
        >>> pack("runs/demo", "demo.h5")                            # doctest: +SKIP
        PosixPath('demo.h5')
    """
    run, out = open_run(path), Path(out)
    if run.packed:
        raise InputError(f"{path}: is packed already; give the run's folder")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder; make it first")
    with lock_file(out, "packing into it"):
        if out.exists():
            raise InputError(f"{out}: exists; choose another file for out")
        part = out.with_name(out.name + ".part")
        try:
            labels = [{"id": name, "faithful": faithful} for name, faithful in run.labels.items()]
            texts = {"run": run.config, "failures": run.failures, "labels": labels}
            _write(tqdm(run, "pack", len(run), unit="trace", disable=None), texts, part)
            os.replace(part, out)
        finally:
            part.unlink(missing_ok=True)
    return out


def join_traces(traces: Iterable[Trace], out: Path) -> None:
    """Copy traces into one file, which appears, or replaces an earlier one, when it is whole.

    Raises:
        InputError: a trace is damaged.
        OSError: the disk is full.

    Example:
        >>> join_traces(open_run("runs/demo"), Path("runs/demo/packs/000001.h5"))      # doctest: +SKIP
    """
    part = out.with_name(out.name + ".part")
    try:
        _write(traces, {}, part)
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def _write(traces: Iterable[Trace], texts: Mapping[str, Any], part: Path) -> None:
    """Copy traces and texts about them to a new file, sync it and append its checksums."""
    file, space = create_file(part, _METADATA_BYTES)
    with file, closing(space):
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
    with open(part, "r+b") as written:
        append_checksums(written)
        os.fsync(written.fileno())


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
    except (OSError, RuntimeError) as error:
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
