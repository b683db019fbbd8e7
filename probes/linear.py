"""Linear probes: which labels can be read off the residual stream, layer by layer (Alain & Bengio 2016)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from tqdm import tqdm

from mmprobe.analyses.held_out import shuffle_within_folds
from mmprobe.cache import Run
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import InputError, NotApplicable
from mmprobe.probes.cross_validation import (
    MEASURES,
    Split,
    add_measures,
    held_out,
    measures_of,
    split_samples,
    with_interval,
)
from mmprobe.probes.targets import Target, labels_of, large_classes, name_of
from mmprobe.samples import Sample

Stream = Literal["pre", "mid", "post"]
MINIMUM = 20  # samples that each class needs, ours
SHUFFLES = 50  # of the labels, for the chance level, ours


def linear_probe(
    run: Run,
    target: Target = "faithful",
    stream: Stream = "post",
    reduce: Literal["mean", "last", "first"] = "mean",
    folds: int = 5,
    seed: int = 0,
    minimum: int = MINIMUM,
) -> xr.Dataset:
    """How well a linear model reads a label off each layer's residual stream, in samples it was not fitted on.

    An answer is one vector a layer; standardised, it goes into a logistic regression (L2, C = 0.01, classes
    weighted to count the same, all ours). Samples that share a picture or a `pair_id` are in one fold. A label
    that can be read off is there in a linear form; that the model uses it does not follow. The mean and the
    last step hold what the answer has said already, the first step only the prompt.

    Args:
        run: traces with `residual/STREAM`.
        target: `faithful`; or `presence_of(thing)`; or `difference_type`, the type of the differences that a sample's metadata name,
            `none` where they name none (several types, or fewer than two pictures: not used); or a
            function from a trace to a label, None for a sample that is not to be used.
        stream: `pre`, `mid` or `post`: before the layer, after its attention, after the layer.
        reduce: how the steps become one vector: their `mean`, the `first` or the `last`.
        folds: of the cross-validation, stratified by label; ours, the default is 5.
        seed: of the folds, resamples and shuffles.
        minimum: samples that each class needs, and never fewer than folds; ours, the default is 20. Smaller
            classes are left out.

    Returns:
        A data set with dimensions `layer`, `class`.

        - accuracy (layer): share of samples whose class is called the likeliest; `majority` is what calling
          the largest class always would give, which a model of classes that count the same need not reach
        - balanced_accuracy (layer): mean over classes of the share that is found; chance is 1 / classes
        - auc (layer): area under the ROC curve, a class against the rest, mean over classes; chance is 0.5
        - each with _low, _high; with _shuffled, mean over 50 shuffles of the labels, made as in
          `predict_unfaithful` and the same in every layer; and with _p, the share of shuffles that do as
          well, (k + 1) / (shuffles + 1), of that layer alone
        - auc_p_max (layer): share of shuffles whose AUC does as well in any layer, which corrects for the
          number of layers (Westfall & Young 1993, single step)
        - n, n_pictures, n_class (class): numbers of samples, and of sets of pictures

        Intervals are 95 % percentile bootstraps over sets of pictures, which are drawn with all their
        samples; models are not fitted anew. attrs["left_out"] names samples with a value that is not finite,
        attrs["classes_left_out"] classes under the minimum; n_left_out counts the former.

    Raises:
        InputError: the run is empty, or an argument is not one of those above.
        NotCaptured: the stream was not captured.
        NotApplicable: fewer than two classes reach the minimum, or there are too few sets of pictures.

    Example:
        >>> ds = linear_probe(run, "difference_type", reduce="last")         # doctest: +SKIP
        >>> ds.auc.sel(layer=5).item(), ds.auc_p_max.sel(layer=5).item()     # doctest: +SKIP
    """
    if reduce not in _REDUCTIONS:
        raise InputError(f"reduce {reduce!r}: choose {', '.join(_REDUCTIONS)}")
    labels, path, needed = labels_of(run, target), _path(stream), _needed(minimum, folds)
    every_class = {str(label) for label in labels.values()}
    classes = large_classes(run, labels, target, needed)
    found = _collect(run, [name for name in labels if labels[name] in classes], path, _REDUCTIONS[reduce])
    labels = {name: labels[name] for name in found.names}
    classes = large_classes(run, labels, target, needed, found.left_out)
    split, rng = _split(run, found, labels, classes, folds, seed), np.random.default_rng(seed)
    shuffles = [shuffle_within_folds(split.truth, split.groups, split.fold, rng) for _ in range(SHUFFLES)]
    scores, chance = [], []
    for layer in tqdm(range(len(found.layers)), desc="linear_probe", unit="layer", disable=None):
        vectors = found.vectors[split.rows, layer]
        told, *by_chance = held_out(vectors, [split.truth, *shuffles], split.fold)
        scores.append(with_interval(told, split))
        chance.append([measures_of(odds, y)[:, 0] for odds, y in zip(by_chance, shuffles, strict=True)])
    out = xr.Dataset(coords={"layer": found.layers, "class": [str(name) for name in classes]})
    add_measures(out, np.array(scores), np.array(chance))
    counts = np.bincount(split.truth)
    out["n_class"], out["majority"] = ("class", counts), ((), counts.max() / counts.sum())
    out["n"], out["n_pictures"] = ((), int(counts.sum())), ((), split.drawn.shape[1])
    out.attrs = _about(run, "linear_probe", target, stream, folds, seed) | {
        "samples": int(counts.sum()),
        "reduce": reduce,
        "shuffles": SHUFFLES,
        "classes_left_out": ", ".join(sorted(every_class - set(out["class"].values.tolist()))),
        "left_out": ", ".join(found.left_out),
        "n_left_out": len(found.left_out),
    }
    return out


def linear_probe_by_step(
    run: Run,
    target: Target = "faithful",
    layers: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    stream: Stream = "post",
    folds: int = 5,
    seed: int = 0,
    minimum: int = MINIMUM,
) -> xr.Dataset:
    """How well a label can be read off the residual stream of single steps: `linear_probe` by step.

    Args:
        run, target, stream, folds, seed, minimum: as in `linear_probe`.
        layers: None for all that were captured.
        steps: from 0; None for 0, 1, 2, 4, 8, ... up to the longest answer.

    Returns:
        A data set with dimensions `layer`, `step`, `class`.

        - auc (layer, step), with _low, _high: as in `linear_probe`, over the samples that reach the step
        - n (step), n_class (step, class): how many those are. AUC is NaN where a class has fewer than the
          minimum, or too few sets of pictures. Samples that reach a late step are others than those of the first.

        attrs["left_out"] names samples that have at one of the steps a value that is not finite, and are not
        in the numbers of that step; n_left_out counts them.

    Raises:
        InputError, NotCaptured, NotApplicable: as in `linear_probe`.

    Example:
        >>> linear_probe_by_step(run, layers=[5]).auc.values        # doctest: +SKIP
    """
    labels, path, needed = labels_of(run, target), _path(stream), _needed(minimum, folds)
    classes = large_classes(run, labels, target, needed)
    captured = run[run.ids[0]].array(path)["layer"].values
    wanted = captured if layers is None else np.array(layers)
    if not np.isin(wanted, captured).all():
        raise InputError(f"{run.path}: layers {wanted.tolist()}: {path} has layers {captured.tolist()}")
    if steps is None:
        longest = max(run[name].array(path).shape[0] for name in labels)
        steps = [0, *(2**power for power in range((longest - 1).bit_length()))]
    shape = (len(wanted), len(steps))
    auc, counts = np.full((3, *shape), np.nan), np.zeros((len(steps), len(classes)), int)
    left_out: set[str] = set()
    refused: NotApplicable | None = None
    for number, step in enumerate(tqdm(steps, desc="linear_probe_by_step", unit="step", disable=None)):
        found = _collect(run, labels, path, _at(step), wanted)
        left_out |= set(found.left_out)
        counts[number] = [sum(labels[name] == label for name in found.names) for label in classes]
        if counts[number].min() < needed:
            continue
        try:
            split = _split(run, found, labels, classes, folds, seed)
        except NotApplicable as error:  # too few pictures reach this step; others may do
            refused = error
            continue
        for layer in range(len(wanted)):
            (told,) = held_out(found.vectors[split.rows, layer], [split.truth], split.fold)
            auc[:, layer, number] = with_interval(told, split)[:, MEASURES.index("auc")]
    if refused and np.isnan(auc).all():
        raise refused
    out = xr.Dataset(coords={"layer": wanted, "step": list(steps), "class": [str(name) for name in classes]})
    for end, values in zip(("", "_low", "_high"), auc, strict=True):
        out["auc" + end] = (("layer", "step"), values)
    out["n"], out["n_class"] = ("step", counts.sum(1)), (("step", "class"), counts)
    out.attrs = _about(run, "linear_probe_by_step", target, stream, folds, seed) | {
        "samples": int(counts.sum(1).max()),
        "left_out": ", ".join(sorted(left_out)),
        "n_left_out": len(left_out),
    }
    return out


def _about(run: Run, name: str, target: Target, stream: str, folds: int, seed: int) -> dict[str, Any]:
    return {
        "analysis": name,
        "about": "How well a linear model reads a label off the residual stream, in samples it was not fitted on.",
        "run": str(run.path),
        "model": run.config["model"]["name"],
        "target": name_of(target),
        "stream": stream,
        "folds": folds,
        "seed": seed,
    }


def _path(stream: str) -> str:
    if stream not in ("pre", "mid", "post"):
        raise InputError(f"stream {stream!r}: choose pre, mid, post")
    return f"residual/{stream}"


def _needed(minimum: int, folds: int) -> int:
    """Samples that each class needs."""
    if minimum < 2 or folds < 2:
        raise InputError(f"minimum {minimum} and folds {folds} must be 2 or more")
    return max(minimum, folds)


class _Collected(NamedTuple):
    """Vectors float32 [sample, layer, hidden] of the samples that have one, whose values are finite."""

    names: list[str]
    samples: list[Sample]
    vectors: np.ndarray
    layers: np.ndarray
    left_out: list[str]


def _collect(
    run: Run,
    names: Iterable[str],
    path: str,
    reduce: Callable[[xr.DataArray], np.ndarray | None],
    layers: np.ndarray | None = None,
) -> _Collected:
    kept, samples, vectors, left_out = [], [], [], []
    for name in names:
        trace = run[name]
        streams = trace.array(path)
        vector = reduce(streams if layers is None else streams.sel(layer=layers))
        if vector is None:
            continue
        if not np.isfinite(vector).all():
            left_out.append(name)
            continue
        kept.append(name)
        samples.append(trace.sample)
        vectors.append(vector.astype("f4"))
    layers = streams["layer"].values if layers is None else layers
    return _Collected(kept, samples, np.array(vectors), layers, left_out)


def _mean(streams: xr.DataArray) -> np.ndarray:
    """Mean over the steps of [step, layer, hidden]; NaN of none."""
    total = np.zeros(streams.shape[1:])
    for start in range(0, len(streams), BLOCK_STEPS):
        total += streams[start : start + BLOCK_STEPS].values.sum(0, dtype=float)
    return total / len(streams) if len(streams) else np.full_like(total, np.nan)


def _at(step: int) -> Callable[[xr.DataArray], np.ndarray | None]:
    """The vector of a step, None where the answer does not reach it."""
    return lambda streams: streams[step].values if -len(streams) <= step < len(streams) else None


_REDUCTIONS: dict[str, Callable[[xr.DataArray], np.ndarray | None]] = {
    "mean": _mean,
    "last": _at(-1),
    "first": _at(0),
}


def _split(
    run: Run,
    found: _Collected,
    labels: Mapping[str, Hashable],
    classes: list[Hashable],
    folds: int,
    seed: int,
) -> Split:
    own = [labels[name] for name in found.names]
    return split_samples(found.samples, own, classes, folds, seed, str(run.path))
