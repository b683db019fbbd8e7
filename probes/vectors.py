"""One vector of the residual stream for each answer, by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import xarray as xr

from mmprobe.cache import Run
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import InputError
from mmprobe.samples import Sample


def stream_path(stream: str) -> str:
    """Return the data set of a residual stream: `pre`, `mid` or `post`."""
    if stream not in ("pre", "mid", "post"):
        raise InputError(f"stream {stream!r}: choose pre, mid, post")
    return f"residual/{stream}"


class Vectors(NamedTuple):
    """Vectors float32 [sample, layer, hidden] of samples with finite values; `left_out` names the others."""

    names: list[str]
    samples: list[Sample]
    vectors: np.ndarray
    layers: np.ndarray
    left_out: list[str]


def read_vectors(
    run: Run,
    names: Iterable[str],
    path: str,
    reduce: Callable[[xr.DataArray], np.ndarray | None],
    layers: np.ndarray | None = None,
) -> Vectors:
    """Return one vector a sample and layer, without samples whose reduction is None.

    Args:
        names: ids of the samples.
        path: data set of the stream, such as `residual/post`.
        reduce: function from a stream [step, layer, hidden] to a vector [layer, hidden] or None.
        layers: layers to read; None for all.
    """
    kept_names: list[str] = []
    samples: list[Sample] = []
    vectors: list[np.ndarray] = []
    left_out: list[str] = []
    for name in names:
        trace = run[name]
        streams = trace.array(path)
        vector = reduce(streams if layers is None else streams.sel(layer=layers))
        if vector is None:
            continue
        if not np.isfinite(vector).all():
            left_out.append(name)
            continue
        kept_names.append(name)
        samples.append(trace.sample)
        vectors.append(vector.astype("f4"))
    layers = streams["layer"].values if layers is None else layers
    return Vectors(kept_names, samples, np.array(vectors), layers, left_out)


def mean_over_steps(streams: xr.DataArray) -> np.ndarray:
    """Return the mean over the steps of [step, layer, hidden]; NaN without steps."""
    total = np.zeros(streams.shape[1:])
    for start in range(0, len(streams), BLOCK_STEPS):
        total += streams[start : start + BLOCK_STEPS].values.sum(0, dtype=float)
    return total / len(streams) if len(streams) else np.full_like(total, np.nan)


def step_reader(step: int) -> Callable[[xr.DataArray], np.ndarray | None]:
    """Return a function that reads the vector of a step, or None if the answer is shorter."""
    return lambda streams: streams[step].values if -len(streams) <= step < len(streams) else None


REDUCTIONS: dict[str, Callable[[xr.DataArray], np.ndarray | None]] = {
    "mean": mean_over_steps,
    "last": step_reader(-1),
    "first": step_reader(0),
}
