"""A linear model of labels, fitted on some folds and measured on the others."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from mmprobe.analyses.held_out import assign_folds, draw_groups, interval, picture_groups, quick, weighted_auc
from mmprobe.samples import Sample

STRENGTH = 0.01  # C of the logistic regression; small, a stream having more numbers than a run samples; ours
MEASURES = ("accuracy", "balanced_accuracy", "auc")


class Split(NamedTuple):
    """Which samples are used, and how they are divided: rows of the vectors, and of these the class, the set
    of pictures and the fold [sample]; and bootstrap resamples [resample, group]."""

    rows: np.ndarray
    truth: np.ndarray
    groups: np.ndarray
    fold: np.ndarray
    drawn: np.ndarray


def split_samples(
    samples: Sequence[Sample],
    labels: Sequence[Hashable],
    classes: list[Hashable],
    folds: int,
    seed: int,
    where: str,
) -> Split:
    """Divide the samples whose label is one of the classes.

    Args:
        labels: of each sample.
        where: they come from, for errors.
    """
    rows = np.array([row for row, label in enumerate(labels) if label in classes])
    truth = np.array([classes.index(labels[row]) for row in rows])
    groups = picture_groups([samples[row] for row in rows])
    fold = assign_folds(truth, groups, folds, seed, where)
    return Split(rows, truth, groups, fold, draw_groups(groups, seed))


def held_out(vectors: np.ndarray, labellings: Sequence[np.ndarray], fold: np.ndarray) -> np.ndarray:
    """Probabilities [labelling, sample, class], each by the model that was fitted on the other folds.

    An L2 penalty does not see rotations, so the fit is done where the training vectors lie: in at most as
    many dimensions as there are of them. It is the same fit, once rotated and then quick.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    found = np.empty((len(labellings), len(vectors), int(labellings[0].max()) + 1))
    for number in np.unique(fold):
        train = fold != number
        scaler = StandardScaler().fit(vectors[train].astype(float))
        scaled = scaler.transform(vectors.astype(float))
        if scaled.shape[1] > train.sum():
            scaled = scaled @ np.linalg.svd(scaled[train], full_matrices=False)[2].T
        for probabilities, labels in zip(found, labellings, strict=True):
            model = LogisticRegression(C=STRENGTH, class_weight="balanced", max_iter=1000)
            with quick():
                model.fit(scaled[train], labels[train])
                probabilities[~train] = model.predict_proba(scaled[~train])
    return found


def measures_of(
    probabilities: np.ndarray, truth: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """`MEASURES` [measure, resample] of probabilities [sample, class]; NaN for resamples without a class.

    Args:
        weights: [resample, sample], how often each sample counts; None for one resample of all samples once.
    """
    weights = np.ones((1, len(truth))) if weights is None else weights
    right = probabilities.argmax(1) == truth
    classes = [truth == number for number in range(probabilities.shape[1])]
    with np.errstate(invalid="ignore"):
        recalls = [weights @ (right & mine) / (weights @ mine) for mine in classes]
    aucs = [weighted_auc(score, mine, weights) for score, mine in zip(probabilities.T, classes, strict=True)]
    return np.array([weights @ right / weights.sum(1), np.mean(recalls, 0), np.mean(aucs, 0)])


def with_interval(probabilities: np.ndarray, split: Split) -> np.ndarray:
    """`MEASURES` and their intervals: [value-low-high, measure]."""
    ends = interval(
        lambda weights: measures_of(probabilities, split.truth, weights), split.drawn, split.groups
    )
    return np.stack([measures_of(probabilities, split.truth)[:, 0], *ends])


def add_measures(out: xr.Dataset, scores: np.ndarray, chance: np.ndarray) -> None:
    """Add the measures: scores [layer, value-low-high, measure], chance [layer, shuffle, measure]."""
    for number, name in enumerate(MEASURES):
        for end, values in zip(("", "_low", "_high"), scores[..., number].T, strict=True):
            out[name + end] = ("layer", values)
        out[f"{name}_shuffled"] = ("layer", chance[..., number].mean(1))
        out[f"{name}_p"] = ("layer", _p(chance[..., number], scores[:, 0, number]))
        if name == "auc":
            largest = np.broadcast_to(chance[..., number].max(0), chance.shape[:2])
            out["auc_p_max"] = ("layer", _p(largest, scores[:, 0, number]))


def _p(chance: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Share of the shuffles [layer, shuffle] that do as well as what was found [layer]."""
    return ((chance >= found[:, None]).sum(1) + 1) / (chance.shape[1] + 1)
