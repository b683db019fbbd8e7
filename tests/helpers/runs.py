"""Write traces and runs of given arrays, without a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mmprobe.cache import Run, TraceWriter, open_run
from mmprobe.cache.hdf5 import append_digest
from mmprobe.cache.schema import FORMAT_VERSION, GROUP_NAMES, VARIABLES
from mmprobe.cache.trace import add_groups
from mmprobe.samples import Sample

PROMPT = {"tokens/text": ["?"], "tokens/group": [GROUP_NAMES.index("user")]}
"""A prompt without marks, for traces whose answers are read."""


def write_trace(
    path: Path,
    trace: Mapping[str, Any],
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    answer: str = "",
) -> None:
    """Write one trace.

    Args:
        trace: arrays by the name of their data set, such as `attention/mass`, and fields of the sample, such
            as `faithful`. The sample's id is the name of the file. Token groups that an array lacks are 0.
        layers, heads: their numbers; the default counts from 0.
    """
    arrays = {name: np.asarray(values) for name, values in trace.items() if "/" in name}
    for name, values in arrays.items():
        arrays[name] = add_groups(values) if "group" in VARIABLES[name].dims else values
    fields = {name: value for name, value in trace.items() if "/" not in name}
    sample = Sample.model_validate({"id": path.stem, "question": "?", **fields})
    attributes = {"sample": sample.model_dump_json(), "answer": answer}
    if "ffn/gate_sum" in arrays:
        attributes["neurons"] = str(arrays["ffn/gate_sum"].shape[1])
    sizes = {
        dim: size
        for name, values in arrays.items()
        for dim, size in zip(VARIABLES[name].dims, values.shape, strict=True)
    }
    labels = {"layer": layers, "head": heads, "group": GROUP_NAMES}
    coordinates = {
        dim: np.array(range(sizes[dim]) if values is None else values)
        for dim, values in labels.items()
        if dim in sizes
    }
    with TraceWriter(path, coordinates, attributes) as writer:
        for name, values in arrays.items():
            writer.write(name, values)


def edit_trace(file: Path, edit: Callable[[h5py.File], object]) -> None:
    """Change a file of traces through h5py, which cuts off its digest, and write a new one."""
    with h5py.File(file, "r+") as opened:
        edit(opened)
    with file.open("r+b") as stream:
        append_digest(stream)


def write_run(
    folder: Path,
    traces: Mapping[str, Mapping[str, Any]],
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    answer: str | Mapping[str, str] = "",
    **config: Any,
) -> Run:
    """Write a run and open it.

    Args:
        traces: by sample id, as `write_trace` takes them.
        answer: of all samples, or by sample id.
        config: keys of run.json, such as `order`.
    """
    (folder / "samples").mkdir(parents=True)
    for name, trace in traces.items():
        text = answer if isinstance(answer, str) else answer[name]
        write_trace(folder / "samples" / f"{name}.h5", trace, layers, heads, text)
    config = {"format": FORMAT_VERSION, "order": list(traces), "model": {"name": "hand"}} | config
    (folder / "run.json").write_text(json.dumps(config), encoding="utf-8")
    return open_run(folder)
