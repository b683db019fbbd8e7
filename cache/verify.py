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

from mmprobe.cache.hdf5 import check_digest, digest_matches
from mmprobe.cache.run import Run, hash_config, open_run
from mmprobe.cache.schema import DIM_SIZES, GROUP_NAMES, OF_VIDEOS, SPANS, VARIABLES, WHOLE_GROUPS
from mmprobe.cache.trace import Trace, open_file, remedy
from mmprobe.errors import InputError, option
from mmprobe.ledger import FINGERPRINT, find_change

MASS_TOLERANCE = 1e-3
VIEWS = ("images/grid", "images/source", "tokens/image", "tokens/group")


def verify(path: str | Path) -> list[str]:
    """Read every byte of a run's traces and return the problems, one line each.

    It compares each file with its digest, and checks it against the trace format. The
    model, capture and settings of `run.json` must be those that the traces were made with. Attention rows must sum
    to 1, a trace must belong to its sample, and each sample must have a trace or be listed as a failure.

    Raises:
        InputError: `path` is not a run.

    Example:
        >>> verify("runs/demo")                                     # doctest: +SKIP
        []
    """
    path = Path(path)
    if path.is_file() and h5py.is_hdf5(path) and not digest_matches(path):
        return [f"{path}: damaged (its digest differs or is missing); pack it again"]
    run = open_run(path)
    damaged = [] if run.packed else [pack for pack in run.packs if not digest_matches(pack)]
    run.packs = [pack for pack in run.packs if pack not in damaged]  # the traces of the others are missing
    problems = [
        f"{pack}: damaged (its digest differs or is missing); {remedy(pack)}" for pack in damaged
    ] + _missing_samples(run)
    names = tqdm(run.ids, desc="verify", unit="trace", disable=None)
    for place, together in groupby(names, run.pack_of):
        with open_file(place) if place is not None else nullcontext() as opened:
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


def check_trace(trace: Trace, config: Mapping[str, Any], opened: h5py.File | None = None) -> list[str]:
    """Return the problems of one trace.

    Args:
        config: `run.json` of the run that it must belong to.
        opened: the packed file that the trace is in, where it is open already.

    Raises:
        InputError: the trace cannot be read.
    """
    if trace.group == "/":
        check_digest(trace.file)
    again = f"delete it and trace again with {option('resume')}"
    with trace.keep_open(opened), trace._open() as root:
        problems = list(_format_problems(trace, root))
        if trace.run_hash not in (None, hash_config(config)):
            problems.append("was traced with another model, capture or settings than run.json says")
        if change := find_change(config.get(FINGERPRINT), {"model": trace.fingerprint or None}):
            problems.append(f"{change} changed between this trace and run.json; {again}")
        if trace.images_changed:
            problems.append(f"its images changed since it was traced; {again}")
        if lost := [name for name in _required(trace, config) if name not in trace.captured]:
            problems.append(f"lacks {', '.join(lost)}; {again}")
        for name in {"attention/mass", "prompt/attention_mass"} & set(trace.captured):
            values = trace.array(name).values
            if values.size:
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


def _format_problems(trace: Trace, root: h5py.Group) -> Iterator[str]:
    """Yield what differs from the trace format: types, shapes, and what `images` and `tokens` say of the same tokens.

    The visual tokens of a prompt show the cells of all views, view by view. Tokens that end a row or a tile show
    no cell. In families with cross-attention no token does, and `visual` still counts the cells of all views.
    """
    sizes: dict[str, int] = {}
    for path in trace.captured:
        variable, data = VARIABLES[path], root[path]
        dtypes = {"f2": ("f2", "f4"), "str": (object,)}.get(variable.dtype, (variable.dtype,))
        if data.dtype not in [np.dtype(each) for each in dtypes] or data.ndim != len(variable.dims):
            yield f"{path} has another type or other dimensions"
            return
        for dim, size in zip(variable.dims, data.shape, strict=True):
            known = sizes.setdefault(dim, len(root[dim]) if dim in root else size)
            if size != known or size not in DIM_SIZES.get(dim, (size,)):
                yield f"{path} has {size} along {dim}, not {known}"
                return
    if "ffn/active" in trace.captured:
        trace.count_neurons()
    values = {path: root[path][...] for path in VIEWS if path in root}
    grid, shown = values.get("images/grid"), values.get("tokens/image", np.zeros(0))
    if grid is not None:
        if (grid < 1).any():
            yield "images/grid contains a view without visual tokens"
            return
        cells = grid.astype("f8").prod(1)  # integers could overflow
        visual = shown[shown != -1]
        if sizes.get("visual", cells.sum()) != cells.sum():
            yield f"images/grid has {cells.sum():,.0f} cells for {sizes['visual']:,} visual tokens"
        elif len(visual) and not (
            len(visual) == cells.sum()
            and np.array_equal(visual, np.repeat(np.arange(len(cells)), cells.astype("i8")))
        ):
            yield "tokens/image does not count the cells of images/grid"
    if (values.get("tokens/group", np.zeros(0)) >= len(GROUP_NAMES)).any():
        yield f"tokens/group contains a number over {len(GROUP_NAMES) - 1}"
    source = values.get("images/source", np.zeros(0))
    n_pictures = len(trace.sample.images)
    if not trace.sample.videos and not ((source >= 0) & (source < n_pictures)).all():
        yield f"images/source names an image that is not among the sample's {n_pictures}"
