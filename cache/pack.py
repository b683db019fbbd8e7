"""Pack a run into one file, or some of its traces into a file of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
from tqdm import tqdm

from mmprobe.cache.checksums import append_checksums, open_checked
from mmprobe.cache.hdf5 import create_file
from mmprobe.cache.run import open_run
from mmprobe.cache.schema import DIMS, FORMAT_VERSION, TEXT_ATTRIBUTES, VARIABLES
from mmprobe.cache.trace import Trace
from mmprobe.cache.verify import check_checksums
from mmprobe.errors import InputError
from mmprobe.lock import lock_file

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
    file, space = create_file(part)
    with file, closing(space):
        samples = file.create_group("samples")
        for trace in traces:
            if trace.group == "/":
                check_checksums(trace.file)
            with trace.keep_open():
                trace.check()
                space.reserve(_most_bytes(trace))
            try:
                with open_checked(trace.file) as source:
                    _copy_trace(source[trace.group], samples.create_group(trace.id))
            except (OSError, RuntimeError) as error:
                raise trace.damage_error(error) from None
        file.attrs["mmprobe_format"] = FORMAT_VERSION
        for name, content in texts.items():
            text = json.dumps(content)
            space.reserve(len(text))
            file.attrs[name] = text
    with open(part, "r+b") as written:
        append_checksums(written)
        os.fsync(written.fileno())


def _most_bytes(trace: Trace) -> int:
    """Return an upper limit of the bytes that a trace takes in a packed file."""
    if trace.group == "/":
        return trace.file.stat().st_size + _TRACE_BYTES
    return (
        2 * sum(trace.array(path).nbytes for path in trace.captured) + _TEXT_BYTES
    )  # chunks are filled in part


def _copy_trace(source: h5py.Group, target: h5py.Group) -> None:
    """Copy a trace, and attach its dimension scales again: HDF5 does not copy references to another file."""
    for name in ("mmprobe_format", *TEXT_ATTRIBUTES):
        if name in source.attrs:
            target.attrs[name] = source.attrs[name]
    present: set[str] = set()
    source.visit(present.add)
    for name in (*DIMS, *VARIABLES):
        if name in present:
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
