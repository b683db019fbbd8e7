"""Check that every trace of a run is whole and consistent."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from tqdm import tqdm

from mmprobe.cache.checksums import is_unbroken
from mmprobe.cache.run import Run, open_run
from mmprobe.cache.schema import VARIABLES
from mmprobe.cache.trace import Trace
from mmprobe.errors import InputError

MASS_TOLERANCE = 1e-3


def verify(path: str | Path) -> list[str]:
    """Read every byte of every trace of a run and name what is wrong, in one line each.

    The checksums of each file are compared first; then every data set is read, shapes are compared with the
    dimensions, attention rows must sum to 1, and samples must be there or among the failures.

    Raises:
        InputError: `path` is no run at all.

    Example:
        >>> verify("runs/demo")                                     # doctest: +SKIP
        []
    """
    path = Path(path)
    if path.is_file() and h5py.is_hdf5(path) and not is_unbroken(path):
        return [f"{path}: damaged (its checksums differ); pack it again"]
    run = open_run(path)
    problems = _missing(run)
    for name in tqdm(run.ids, desc="verify", unit="trace", disable=None):
        try:
            problems += [f"{name}: {problem}" for problem in check_trace(run[name])]
        except InputError as error:
            problems.append(f"{name}: {error}")
    return problems


def _missing(run: Run) -> list[str]:
    failed = {failure.get("id") for failure in run.failures}
    there = set(run.ids) | failed
    return [
        f"{name}: not traced; run again with --resume" for name in run.config["order"] if name not in there
    ]


def require_unbroken(path: Path) -> None:
    """Raise InputError unless a file is byte for byte as it was written."""
    try:
        unbroken = is_unbroken(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not unbroken:
        raise InputError(
            f"{path}: damaged, or changed since it was written (its checksums differ or are missing); delete it and make it again"
        )


def check_trace(trace: Trace) -> list[str]:
    """Problems of one trace; raises InputError where it cannot be read at all."""
    if trace._root == "/":
        require_unbroken(trace._file)
    problems = []
    captured = trace.captured
    sizes: dict[str, int] = {}
    with h5py.File(trace._file, "r") as file:
        root = file[trace._root]
        for name in captured:
            try:
                values = root[name][...]
            except (OSError, RuntimeError) as error:
                if "plugin" in str(error):
                    raise trace._damaged(error) from None
                problems.append(f"{name}: damaged ({str(error).splitlines()[0]})")
                continue
            if name not in VARIABLES:
                continue
            for dim, size in zip(VARIABLES[name].dims, values.shape, strict=True):
                if sizes.setdefault(dim, size) != size:
                    problems.append(f"{name}: {dim} is {size}, elsewhere {sizes[dim]}")
            if name in ("attention/mass", "prompt/attention_mass") and values.size:
                ran = ~np.isnan(values).all((0, 2, 3))  # a layer that attends to pictures may have none
                worst = np.abs(values[:, ran].sum(-1) - 1).max(initial=0)
                if not worst <= MASS_TOLERANCE:
                    problems.append(f"{name}: rows should sum to 1 but are off by up to {worst:.2g}")
    return problems
