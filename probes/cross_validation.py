"""Cross-validation of a linear model of labels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from mmprobe.samples import Sample, image_sets
from mmprobe.stats.auc import auc_without_groups, weighted_auc
from mmprobe.stats.estimate import Estimate, stack_estimates
from mmprobe.stats.folds import assign_folds, skip_checks
from mmprobe.stats.intervals import degrees_of_freedom, jackknife_interval

PENALTY_C = 0.01  # C of the logistic regression; small, as there are more dimensions than samples; our choice
MEASURES = ("accuracy", "balanced_accuracy", "auc")


class Split(NamedTuple):
    """The samples of a probe and their folds.

    Attributes:
        rows: [sample], rows of the vectors.
        truth: [sample], index of the class.
        groups: [sample], index of the image set.
        fold: [sample], index of the fold.
    """

    rows: np.ndarray
    truth: np.ndarray
    groups: np.ndarray
    fold: np.ndarray


def split_samples(
    samples: Sequence[Sample],
    labels: Sequence[Hashable],
    classes: list[Hashable],
    folds: int,
    seed: int,
    source: str,
) -> Split:
    """Assign folds to the samples whose label is one of the classes.

    Args:
        labels: label of each sample.
        source: name of the run, for error messages.
    """
    rows = np.array([row for row, label in enumerate(labels) if label in classes])
    truth = np.array([classes.index(labels[row]) for row in rows])
    groups = image_sets([samples[row] for row in rows])
    fold = assign_folds(truth, groups, folds, seed, source)
    return Split(rows, truth, groups, fold)


def predict_held_out(vectors: np.ndarray, labellings: Sequence[np.ndarray], fold: np.ndarray) -> np.ndarray:
    """Return probabilities [labelling, sample, class], each from a model fitted on the other folds.

    An L2 penalty is invariant to rotation. The vectors are rotated into the span of the training vectors,
    which has at most as many dimensions as there are training samples. The fit is the same and faster.

    Args:
        vectors: [sample, hidden].
        labellings: index of the class [sample]; the true labels and shuffles of them.
        fold: [sample].
    """
    probabilities = np.empty((len(labellings), len(vectors), int(labellings[0].max()) + 1))
    for number in np.unique(fold):
        train = fold != number
        own = [labels[train] for labels in labellings]
        probabilities[:, ~train] = predict_others(vectors[train], own, vectors[~train])
    return probabilities


def predict_others(train: np.ndarray, labellings: Sequence[np.ndarray], others: np.ndarray) -> np.ndarray:
    """Return probabilities [labelling, other, class] of other vectors, from a model fitted on some.

    Args:
        train: [sample, hidden].
        labellings: index of the class [sample], from 0 without gaps.
        others: [other, hidden].
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(train.astype(float))
    scaled, held_out = scaler.transform(train.astype(float)), scaler.transform(others.astype(float))
    if scaled.shape[1] > len(scaled):
        rotation = np.linalg.svd(scaled, full_matrices=False)[2].T
        scaled, held_out = scaled @ rotation, held_out @ rotation
    probabilities = []
    for labels in labellings:
        model = LogisticRegression(C=PENALTY_C, class_weight="balanced", max_iter=1000)
        with skip_checks():
            probabilities.append(model.fit(scaled, labels).predict_proba(held_out))
    return np.array(probabilities)


def fit_weights(vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the weights [class, hidden] of the model that is fitted to all samples, for vectors as they are.

    A larger dot product with a class' weights means that the class is likelier. Of two classes, the weights of the
    first are those of the second with the other sign.

    Args:
        vectors: [sample, hidden].
        labels: index of the class [sample].
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(vectors.astype(float))
    scaled = scaler.transform(vectors.astype(float))
    rotation = np.linalg.svd(scaled, full_matrices=False)[2].T if scaled.shape[1] > len(scaled) else None
    model = LogisticRegression(C=PENALTY_C, class_weight="balanced", max_iter=1000)
    with skip_checks():
        model.fit(scaled if rotation is None else scaled @ rotation, labels)
    weights = model.coef_ if rotation is None else model.coef_ @ rotation.T
    weights = np.concatenate([-weights, weights]) if len(weights) == 1 else weights
    return weights / scaler.scale_


def compute_measures(
    probabilities: np.ndarray, truth: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return `MEASURES` [measure, resample] of probabilities [sample, class]; NaN without a class.

    Args:
        weights: [resample, sample], how often each sample counts; None to count all samples once.
    """
    weights = np.ones((1, len(truth))) if weights is None else weights
    correct = probabilities.argmax(1) == truth
    classes = [truth == number for number in range(probabilities.shape[1])]
    with np.errstate(invalid="ignore"):
        recalls = [weights @ (correct & members) / (weights @ members) for members in classes]
    aucs = [
        weighted_auc(score, members, weights) for score, members in zip(probabilities.T, classes, strict=True)
    ]
    return np.array([weights @ correct / weights.sum(1), np.mean(recalls, 0), np.mean(aucs, 0)])


def measures_with_interval(probabilities: np.ndarray, split: Split) -> Estimate[np.ndarray]:
    """Return `MEASURES` with their intervals, [measure]."""
    number = np.unique(split.groups, return_inverse=True)[1]
    values = compute_measures(probabilities, split.truth)[:, 0]
    without = measures_without_groups(probabilities, split.truth, number)
    freedom = degrees_of_freedom(np.bincount(number))
    low, high = jackknife_interval(values, without, (0.0, 1.0), freedom)
    return Estimate(values, low, high, len(split.truth), int(number.max()) + 1)


def measures_without_groups(probabilities: np.ndarray, truth: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return `MEASURES` without each group of samples, [group, measure]; NaN without a class.

    Args:
        probabilities: [sample, class].
        groups: int [sample], from 0 without gaps.
    """

    def count(chosen: np.ndarray) -> np.ndarray:
        return np.asarray(chosen.sum() - np.bincount(groups, chosen))

    correct = probabilities.argmax(1) == truth
    classes = [truth == number for number in range(probabilities.shape[1])]
    with np.errstate(invalid="ignore"):
        recalls = [count(correct & members) / count(members) for members in classes]
    aucs = [
        auc_without_groups(score, members, groups)
        for score, members in zip(probabilities.T, classes, strict=True)
    ]
    return np.stack([count(correct) / count(truth >= 0), np.mean(recalls, 0), np.mean(aucs, 0)], -1)


def add_measures(out: xr.Dataset, scores: Sequence[Estimate[np.ndarray]], chance: np.ndarray) -> None:
    """Add the measures to a data set.

    Args:
        scores: of each layer, [measure].
        chance: [layer, shuffle, measure], with shuffled labels.
    """
    stacked = stack_estimates(scores)
    for number, name in enumerate(MEASURES):
        out.update(stacked[:, number].variables(name, "layer"))
        out[f"{name}_shuffled"] = ("layer", chance[..., number].mean(1))
        out[f"{name}_p"] = ("layer", _shuffle_p(chance[..., number], stacked.value[:, number]))
        if name == "auc":
            largest = np.broadcast_to(chance[..., number].max(0), chance.shape[:2])
            out["auc_p_max"] = ("layer", _shuffle_p(largest, stacked.value[:, number]))


def _shuffle_p(chance: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the share of shuffles [layer, shuffle] with at least the score [layer] of the true labels."""
    return ((chance >= scores[:, None]).sum(1) + 1) / (chance.shape[1] + 1)
