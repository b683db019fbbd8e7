"""What linear probes and directions learn from: a vector of the residual stream and a label for each answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.contents import list_objects, read_objects
from mmprobe.errors import InputError, NotApplicable
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


def _mean_over_steps(streams: xr.DataArray) -> np.ndarray:
    """Return the mean over the steps of [step, layer, hidden]; NaN without steps."""
    total = np.zeros(streams.shape[1:])
    for start in range(0, len(streams), BLOCK_STEPS):
        total += streams[start : start + BLOCK_STEPS].values.sum(0, dtype=float)
    return total / len(streams) if len(streams) else np.full_like(total, np.nan)


def step_reader(step: int) -> Callable[[xr.DataArray], np.ndarray | None]:
    """Return a function that reads the vector of a step, or None if the answer is shorter."""
    return lambda streams: streams[step].values if -len(streams) <= step < len(streams) else None


REDUCTIONS: dict[str, Callable[[xr.DataArray], np.ndarray | None]] = {
    "mean": _mean_over_steps,
    "last": step_reader(-1),
    "first": step_reader(0),
}


SampleLabels = Mapping[str, Hashable] | pd.Series | np.ndarray | Sequence[Hashable]
"""Labels of samples: by id, or in the order of the run."""

Target = Literal["faithful", "difference_type"] | Callable[[Trace], Hashable | None] | SampleLabels


def object_presence(name: str) -> Callable[[Trace], str | None]:
    """Return a target for `linear_probe`: `present` if any image of a sample shows an object, else `absent`.

    The objects are those that the sample's `metadata.objects` declares (`mmprobe.contents`). A sample without it is not used.

    Args:
        name: one word, or several consecutive words, of an object's colour, name and place, such as `red star`.

    Example:
        >>> ds = linear_probe(run, object_presence("star"), reduce="first")      # doctest: +SKIP
    """

    def presence(trace: Trace) -> str | None:
        if not read_objects(trace.sample) or not trace.sample.images:
            return None
        texts = [
            " ".join(filter(None, (each.colour, each.name, each.place)))
            for each in list_objects(trace.sample)
        ]
        return "present" if any(f" {name} ".lower() in f" {text} ".lower() for text in texts) else "absent"

    presence.__name__ = f"presence of {name}"
    return presence


def _difference_type(trace: Trace) -> str | None:
    differences = trace.sample.metadata.get("differences")
    if not isinstance(differences, list) or len(trace.sample.images) < 2:  # it may be a number
        return None
    types = {str(change.get("type", "")) if isinstance(change, dict) else "" for change in differences}
    return None if len(types) > 1 or "" in types else next(iter(types), "none")


def read_labels(run: Run, target: Target) -> dict[str, Hashable]:
    """Return the label of each sample that has one, by id, sorted.

    Raises:
        InputError: the run is empty; or the labels are of other samples, or as many as there are not.
    """
    if not len(run):
        raise InputError(f"{run.path}: has no finished samples")
    if not isinstance(target, str) and not callable(target):
        return _given_labels(run, target)
    if target == "faithful":
        faithful = {name: run.faithful(name) for name in sorted(run.ids)}
        words = {True: "faithful", False: "unfaithful"}
        return {name: words[label] for name, label in faithful.items() if label is not None}
    label_trace = _difference_type if target == "difference_type" else target
    if not callable(label_trace):
        raise InputError(f"target {target!r}: choose faithful, difference_type or a function of a trace")
    labels = {name: label_trace(run[name]) for name in sorted(run.ids)}
    return {name: label for name, label in labels.items() if label is not None}


def _given_labels(run: Run, labels: SampleLabels) -> dict[str, Hashable]:
    if isinstance(labels, Mapping | pd.Series):
        by_id = {str(name): label for name, label in labels.items()}
        if unknown := [name for name in by_id if name not in run]:
            raise InputError(f"labels: the run has no sample {unknown[0]!r}; give labels by sample id")
    elif isinstance(labels, np.ndarray | Sequence):
        values = list(labels)
        if len(values) != len(run):
            raise InputError(
                f"labels: there are {len(values)}, and the run has {len(run)} samples; give them by id"
            )
        by_id = dict(zip(run.ids, values, strict=True))
    else:
        raise InputError(
            f"target {labels!r}: choose faithful, difference_type, a function of a trace, or labels"
        )
    known = pd.Series(by_id, dtype=object).dropna()
    return {name: known[name] for name in sorted(known.index)}


def select_classes(
    run: Run, labels: Mapping[str, Hashable], target: Target | str, minimum: int, left_out: Sequence[str] = ()
) -> list[Hashable]:
    """Return the classes with at least `minimum` samples, sorted.

    Args:
        target: what the labels are, for the error message.
        left_out: samples with non-finite values, for the error message.

    Raises:
        NotApplicable: fewer than two classes have enough samples.
    """
    values = list(labels.values())
    counts = {label: values.count(label) for label in sorted(set(values), key=str)}
    large = [label for label, count in counts.items() if count >= minimum]
    if len(large) < 2:
        sizes = ", ".join(f"{count} {label}" for label, count in counts.items()) or "no samples"
        sizes += f" and {len(left_out)} with non-finite values" if left_out else ""
        source = {
            "faithful": "labels come from `faithful` in the samples file or from labels.jsonl in the run's folder",
            "difference_type": "types come from `metadata.differences` in the samples file",
        }.get(target_name(target), "labels come from the given function")
        raise NotApplicable(
            f"{run.path}: {target_name(target)} gives {sizes}; two classes of {minimum} samples are needed; {source}"
        )
    return large


def target_name(target: Target | str) -> str:
    """Return the name of a target, for attributes and messages."""
    if isinstance(target, str):
        return target
    return getattr(target, "__name__", type(target).__name__) if callable(target) else "given labels"
