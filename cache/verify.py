"""Check that the traces of a run are complete, undamaged and consistent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from mmprobe.cache.hdf5 import check_checksums, checksums_match
from mmprobe.cache.run import Run, hash_config, open_run
from mmprobe.cache.schema import OF_VIDEOS, SPANS, VARIABLES, WHOLE_GROUPS
from mmprobe.cache.trace import INDEX, PackedFile, Trace
from mmprobe.errors import InputError, option
from mmprobe.ledger import FINGERPRINT, find_change

MASS_TOLERANCE = 1e-3


def verify(path: str | Path) -> list[str]:
    """Read every byte of a run's traces and return the problems, one line each.

    It compares the checksums of each file, checks it against the trace format, and then reads every data set. The
    model, capture and settings of `run.json` must be those that the traces were made with. Attention rows must sum
    to 1, a trace must belong to its sample, and each sample must have a trace or be listed as a failure.

    Raises:
        InputError: `path` is not a run.

    Example:
        >>> verify("runs/demo")                                     # doctest: +SKIP
        []
    """
    path = Path(path)
    if path.is_file() and h5py.is_hdf5(path) and not checksums_match(path):
        return [f"{path}: damaged (its checksums differ); pack it again"]
    run = open_run(path)
    problems = _missing_samples(run)
    for pack in run.packs:
        with run.open_pack(pack) as packed:
            try:
                problems += [
                    f"{name}: the {INDEX} of {pack} names another place for {data}; {packed.remedy}"
                    for name, data in packed.contradictions().items()
                ]
            except InputError as error:
                problems.append(str(error))
    names = tqdm(run.ids, desc="verify", unit="trace", disable=None)
    for place, together in groupby(names, run.pack_of):
        with run.open_pack(place) if place is not None else nullcontext() as opened:
            for name in together:
                try:
                    problems += [
                        f"{name}: {problem}" for problem in check_trace(run[name], run.config, opened)
                    ]
                except InputError as error:
                    problems.append(f"{name}: {error}")
    return problems


def _missing_samples(run: Run) -> list[str]:
    known = {*run.ids, *(failure.get("id") for failure in run.failures)}
    return [
        f"{name}: not traced; trace again with {option('resume')}"
        for name in run.config["order"]
        if name not in known
    ]


def find_changed_images(run: Iterable[Trace]) -> Iterator[str]:
    """Yield the ids of traces whose images differ from those that the model saw. Damaged traces are left out."""
    for trace in run:
        with suppress(InputError):
            if trace.images_changed:
                yield trace.id


def check_trace(trace: Trace, config: Mapping[str, Any], opened: PackedFile | None = None) -> list[str]:
    """Return the problems of one trace.

    Args:
        config: `run.json` of the run that it must belong to.
        opened: the packed file that the trace is in, where it is open already.

    Raises:
        InputError: the trace cannot be read.
    """
    if trace.group == "/":
        check_checksums(trace.file)
    problems, again = [], f"delete it and trace again with {option('resume')}"
    with trace.keep_open(opened), trace._open() as root:
        trace.check()
        if trace.run_hash not in (None, hash_config(config)):
            problems.append("was traced with another model, capture or settings than run.json says")
        if change := find_change(config.get(FINGERPRINT), {"model": trace.fingerprint or None}):
            problems.append(f"{change} changed between this trace and run.json; {again}")
        if trace.images_changed:
            problems.append(f"its images changed since it was traced; {again}")
        if lost := [name for name in _required(trace, config) if name not in trace.captured]:
            problems.append(f"lacks {', '.join(lost)}; {again}")
        for name in trace.captured:
            try:
                values = root.read(name)
            except (OSError, RuntimeError) as error:
                if "plugin" in str(error):
                    raise trace.damage_error(error) from None
                problems.append(f"{name}: damaged ({str(error).splitlines()[0]})")
                continue
            if name in ("attention/mass", "prompt/attention_mass") and values.size:
                ran = ~np.isnan(values).all((0, 2, 3))  # cross-attention layers do not run without images
                deviation = np.abs(values[:, ran].sum(-1) - 1).max(initial=0)
                if not deviation <= MASS_TOLERANCE:
                    problems.append(f"{name}: rows should sum to 1 but are off by up to {deviation:.2g}")
    return problems


def _required(trace: Trace, config: Mapping[str, Any]) -> list[str]:
    """Return the data sets that a trace must have: those of every trace, and those that its run captured.

    What other programs or earlier versions made, without a fingerprint, may have less.
    """
    if not trace.fingerprint:
        return []
    capture = config.get("capture") or {}
    chosen = [] if capture.get("positions") == "prompt" else capture.get("datasets") or []
    whole = [name for name in VARIABLES if name.partition("/")[0] in WHOLE_GROUPS]
    return [
        *(name for name in whole if name not in (SPANS, *OF_VIDEOS)),
        *(name for name in VARIABLES if name in chosen),
    ]
