"""Linear probes: predict labels from the residual stream of each layer (Alain & Bengio, 2016)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import xarray as xr
from tqdm import tqdm

from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable
from mmprobe.probes.cross_validation import (
    MEASURES,
    Split,
    add_measures,
    compute_measures,
    fit_weights,
    measures_with_interval,
    predict_held_out,
    split_samples,
)
from mmprobe.probes.labelled_vectors import (
    REDUCTIONS,
    Target,
    Vectors,
    read_labels,
    read_vectors,
    select_classes,
    step_reader,
    stream_path,
    target_name,
)
from mmprobe.samples import image_sets
from mmprobe.stats.estimate import Estimate
from mmprobe.stats.folds import shuffle_within_folds

Stream = Literal["pre", "mid", "post"]
MINIMUM = 20  # samples of each class; our choice
SHUFFLES = 50  # of the labels, for the chance level; our choice


def linear_probe(
    run: Run,
    target: Target = "faithful",
    stream: Stream = "post",
    reduce: Literal["mean", "last", "first"] = "mean",
    folds: int = 5,
    seed: int = 0,
    minimum: int = MINIMUM,
) -> xr.Dataset:
    """Return how well a linear model predicts a label from the residual stream, by layer.

    Each answer is one standardised vector per layer. A logistic regression (L2, C = 0.01, balanced class
    weights; our choices) is fitted and cross-validated. Samples with a common image or `pair_id` are in one
    fold. A high score means that the label is linearly present, not that the model uses it. The mean and the
    last step contain what the answer has already said. The first step contains only the prompt.

    Args:
        run: traces with `residual/STREAM`.
        target: `faithful`, `object_presence(name)`, `difference_type`, a function from a trace to a label, or
            the labels: a dictionary or pandas Series by sample id, or an array in the order of the run. None is
            no label. `difference_type` is the type of the differences in a sample's
            metadata, or `none` without differences. It skips samples with several types or fewer than two
            images.
        stream: `pre`, `mid` or `post`: before the layer, after its attention, after the layer.
        reduce: how the steps become one vector: `mean`, `first` or `last`.
        folds: number of folds, stratified by label; our choice, the default is 5.
        seed: seed of folds, resamples and shuffles.
        minimum: samples of each class, at least the number of folds; our choice, the default is 20. Smaller
            classes are excluded.

    Returns:
        A data set with dimensions `layer`, `class`, `hidden`.

        - accuracy (layer): share of samples with the right class; `majority` is the accuracy of always
          predicting the largest class, which a model with balanced class weights may not reach
        - balanced_accuracy (layer): mean over classes of the recall; chance is 1 / classes
        - auc (layer): area under the ROC curve, one class against the rest, mean over classes; chance is 0.5
        - NAME_low, NAME_high of each measure; NAME_shuffled, mean over 50 shuffles of the labels, made as in
          `predict_unfaithful` and the same in every layer; NAME_p, share of shuffles with at least the same
          score, (k + 1) / (shuffles + 1), for that layer alone
        - auc_p_max (layer): share of shuffles that reach the AUC in any layer, which corrects for the number
          of layers (Westfall & Young 1993, single step)
        - coef (layer, class, hidden): weights of the model that is fitted to all samples: a direction of the
          residual stream for each class
        - n, n_pictures, n_class (class): numbers of samples, image sets, and samples of each class

        Intervals are 95 % intervals over sets of images (`stats.intervals`). Models are not refitted.
        attrs["left_out"] names samples with non-finite values, and n_left_out counts them.
        attrs["classes_left_out"] names classes below the minimum.

    Raises:
        InputError: the run is empty, or an argument is invalid.
        NotCaptured: the stream was not captured.
        NotApplicable: fewer than two classes reach the minimum, or there are too few image sets.

    Example:
        >>> ds = linear_probe(run, "difference_type", reduce="last")         # doctest: +SKIP
        >>> ds.auc.sel(layer=5).item(), ds.auc_p_max.sel(layer=5).item()     # doctest: +SKIP
    """
    if reduce not in REDUCTIONS:
        raise InputError(f"reduce {reduce!r}: choose {', '.join(REDUCTIONS)}")
    labels = read_labels(run, target)
    path = stream_path(stream)
    minimum = _check_minimum(minimum, folds)
    all_classes = {str(label) for label in labels.values()}
    classes = select_classes(run, labels, target, minimum)
    names = [name for name in labels if labels[name] in classes]
    data = read_vectors(run, names, path, REDUCTIONS[reduce])
    labels = {name: labels[name] for name in data.names}
    classes = select_classes(run, labels, target, minimum, data.left_out)
    split = _split(run, data, labels, classes, folds, seed)
    rng = np.random.default_rng(seed)
    shuffles = [shuffle_within_folds(split.truth, split.groups, split.fold, rng) for _ in range(SHUFFLES)]
    scores, chance, weights = [], [], []
    for layer in tqdm(range(len(data.layers)), desc="linear_probe", unit="layer", disable=None):
        vectors = data.vectors[split.rows, layer]
        probabilities, *by_shuffle = predict_held_out(vectors, [split.truth, *shuffles], split.fold)
        scores.append(measures_with_interval(probabilities, split))
        weights.append(fit_weights(vectors, split.truth))
        chance.append(
            [compute_measures(p, truth)[:, 0] for p, truth in zip(by_shuffle, shuffles, strict=True)]
        )
    out = xr.Dataset(coords={"layer": data.layers, "class": [str(name) for name in classes]})
    add_measures(out, scores, np.array(chance))
    out["coef"] = (("layer", "class", "hidden"), np.array(weights))
    counts = np.bincount(split.truth)
    out["n_class"] = ("class", counts)
    out["majority"] = ((), counts.max() / counts.sum())
    out["n"] = ((), int(counts.sum()))
    out["n_pictures"] = ((), len(np.unique(split.groups)))
    out.attrs = _base_attrs(run, "linear_probe", target, stream, folds, seed) | {
        "samples": int(counts.sum()),
        "sets": len(np.unique(split.groups)),
        "reduce": reduce,
        "shuffles": SHUFFLES,
        "classes_left_out": ", ".join(sorted(all_classes - set(out["class"].values.tolist()))),
        "left_out": ", ".join(data.left_out),
        "n_left_out": len(data.left_out),
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
    """Return how well a linear model predicts a label from the residual stream of single steps.

    Args:
        run, target, stream, folds, seed, minimum: as in `linear_probe`.
        layers: captured layers; None for all.
        steps: steps from 0; None for 0, 1, 2, 4, 8, ... up to the longest answer.

    Returns:
        A data set with dimensions `layer`, `step`, `class`.

        - auc (layer, step), with _low, _high: as in `linear_probe`, over the samples that reach the step. NaN
          if a class has fewer samples than the minimum, or too few image sets
        - n (step), n_class (step, class): numbers of samples. Late steps have fewer samples than early ones,
          so their AUCs are of different samples

        attrs["left_out"] names samples with non-finite values at a step. They are excluded from that step,
        and n_left_out counts them.

    Raises:
        InputError, NotCaptured, NotApplicable: as in `linear_probe`.

    Example:
        >>> linear_probe_by_step(run, layers=[5]).auc.values        # doctest: +SKIP
    """
    labels = read_labels(run, target)
    path = stream_path(stream)
    minimum = _check_minimum(minimum, folds)
    classes = select_classes(run, labels, target, minimum)
    captured = run[run.ids[0]].array(path)["layer"].values
    selected = captured if layers is None else np.array(layers)
    if not np.isin(selected, captured).all():
        raise InputError(f"{run.path}: layers {selected.tolist()}: {path} has layers {captured.tolist()}")
    if steps is None:
        longest = max(run[name].array(path).shape[0] for name in labels)
        steps = [0, *(2**power for power in range((longest - 1).bit_length()))]
    auc = np.full((3, len(selected), len(steps)), np.nan)
    counts = np.zeros((len(steps), len(classes)), int)
    left_out: set[str] = set()
    error: NotApplicable | None = None
    for number, step in enumerate(tqdm(steps, desc="linear_probe_by_step", unit="step", disable=None)):
        data = read_vectors(run, labels, path, step_reader(step), selected)
        left_out |= set(data.left_out)
        counts[number] = [sum(labels[name] == label for name in data.names) for label in classes]
        if counts[number].min() < minimum:
            continue
        try:
            split = _split(run, data, labels, classes, folds, seed)
        except NotApplicable as too_few:  # other steps may have enough image sets
            error = too_few
            continue
        for layer in range(len(selected)):
            (probabilities,) = predict_held_out(data.vectors[split.rows, layer], [split.truth], split.fold)
            own = measures_with_interval(probabilities, split)[MEASURES.index("auc")]
            auc[:, layer, number] = own.value, own.low, own.high
    if error and np.isnan(auc).all():
        raise error
    out = xr.Dataset(
        coords={"layer": selected, "step": list(steps), "class": [str(name) for name in classes]}
    )
    out.update(Estimate(*auc).variables("auc", ("layer", "step")))
    out["n"] = ("step", counts.sum(1))
    out["n_class"] = (("step", "class"), counts)
    out.attrs = _base_attrs(run, "linear_probe_by_step", target, stream, folds, seed) | {
        "samples": int(counts.sum(1).max()),
        "sets": len(np.unique(image_sets([run.sample(name) for name in labels]))),
        "left_out": ", ".join(sorted(left_out)),
        "n_left_out": len(left_out),
    }
    return out


def _base_attrs(run: Run, name: str, target: Target, stream: str, folds: int, seed: int) -> dict[str, Any]:
    return {
        "analysis": name,
        "about": "How well a linear model predicts a label from the residual stream, with cross-validation.",
        "run": str(run.path),
        "model": run.config["model"]["name"],
        "target": target_name(target),
        "stream": stream,
        "folds": folds,
        "seed": seed,
    }


def _check_minimum(minimum: int, folds: int) -> int:
    """Return the number of samples that each class needs."""
    if minimum < 2 or folds < 2:
        raise InputError(f"minimum {minimum} and folds {folds} must be 2 or more")
    return max(minimum, folds)


def _split(
    run: Run,
    data: Vectors,
    labels: Mapping[str, Hashable],
    classes: list[Hashable],
    folds: int,
    seed: int,
) -> Split:
    sample_labels = [labels[name] for name in data.names]
    return split_samples(data.samples, sample_labels, classes, folds, seed, str(run.path))
