"""Pack a run into one file."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import h5py
from tqdm import tqdm

from mmprobe.cache.checksums import append_checksums
from mmprobe.cache.hdf5 import create_file
from mmprobe.cache.run import Run, open_run
from mmprobe.cache.schema import DIMS, FORMAT_VERSION, TEXT_ATTRIBUTES, VARIABLES
from mmprobe.cache.verify import check_checksums
from mmprobe.errors import InputError
from mmprobe.lock import lock_file

_TRACE_BYTES = 2**14  # a trace's headers can be larger in the packed file


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
            _write(run, part)
            os.replace(part, out)
        finally:
            part.unlink(missing_ok=True)
    return out


def _write(run: Run, part: Path) -> None:
    """Copy the traces to a new file, sync it and append its checksums."""
    file, space = create_file(part)
    with file, closing(space):
        samples = file.create_group("samples")
        for name in tqdm(run.ids, desc="pack", unit="trace", disable=None):
            trace = run[name]
            check_checksums(trace.file)
            trace.check()
            space.reserve(trace.file.stat().st_size + _TRACE_BYTES)
            try:
                with h5py.File(trace.file, "r") as source:
                    _copy_trace(source, samples.create_group(name))
            except (OSError, RuntimeError) as error:
                raise trace.damage_error(error) from None
        labels = [{"id": name, "faithful": faithful} for name, faithful in run.labels.items()]
        texts = {"run": run.config, "failures": run.failures, "labels": labels}
        file.attrs["mmprobe_format"] = FORMAT_VERSION
        for name, content in texts.items():
            text = json.dumps(content)
            space.reserve(len(text))
            file.attrs[name] = text
    with open(part, "r+b") as written:
        append_checksums(written)
        os.fsync(written.fileno())


def _copy_trace(source: h5py.File, target: h5py.Group) -> None:
    """Copy a trace, and attach its dimension scales again: HDF5 does not copy references to another file."""
    for name in ("mmprobe_format", *TEXT_ATTRIBUTES):
        if name in source.attrs:
            target.attrs[name] = source.attrs[name]
    for name in (*DIMS, *VARIABLES):
        if name in source:
            source.copy(name, target, name=name, without_attrs=True)
    for dim in DIMS:
        if dim in target:
            target[dim].make_scale(dim)
    for name, variable in VARIABLES.items():
        if name in target:
            target[name].attrs.update({"long_name": variable.long_name, "units": variable.units})
            for axis, dim in enumerate(variable.dims):
                target[name].dims[axis].attach_scale(target[dim])
