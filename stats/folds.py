"""Cross-validation of classifiers: folds and shuffles that keep sets of images together.

The folds are scikit-learn's. It is imported when a fold is made.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np

from mmprobe.errors import NotApplicable


def assign_folds(
    labels: np.ndarray,
    groups: np.ndarray,
    folds: int,
    seed: int,
    where: str,
    strata: np.ndarray | None = None,
) -> np.ndarray:
    """Return the fold that holds out each sample, int [sample].

    A group is in one fold. The labels are spread evenly over the folds, and those of each stratum are where they can be.

    Args:
        where: start of the error message, such as the path of the run.
        strata: [sample], such as the type of the question; a label that fewer samples of a stratum have than there are folds
            is spread with the label's largest stratum.

    Raises:
        NotApplicable: there are fewer groups than folds, or all samples of a label fall into one fold.

    Example:
        >>> labels, groups = np.tile([0, 1], 6), np.repeat(np.arange(6), 2)
        >>> np.bincount(assign_folds(labels, groups, 3, 0, "run")).tolist()
        [4, 4, 4]
    """
    from sklearn.model_selection import StratifiedGroupKFold

    n_groups = len(np.unique(groups))
    if n_groups < folds:
        raise NotApplicable(
            f"{where}: the labelled samples are over {n_groups} sets of images, {folds} folds need {folds}; "
            "trace samples of other images, or give fewer folds"
        )
    fold = np.zeros(len(labels), int)
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    for number, (_, held_out) in enumerate(splitter.split(labels, _join(labels, strata, folds), groups)):
        fold[held_out] = number
    for number in range(folds):
        if len(np.unique(labels[fold != number])) < len(np.unique(labels)):
            raise NotApplicable(
                f"{where}: all samples of a class share too few images to be divided into folds; "
                "trace samples of other images"
            )
    return fold


def _join(labels: np.ndarray, strata: np.ndarray | None, folds: int) -> np.ndarray:
    """Return the label and the stratum of each sample as one class, int [sample]; rare ones join the label's largest."""
    if strata is None:
        return labels
    classes = np.empty(len(labels), int)
    stratum = np.unique(strata, return_inverse=True)[1]
    for label in np.unique(labels):
        own = labels == label
        counts = np.bincount(stratum[own], minlength=stratum.max() + 1)
        joined = np.where(counts[stratum[own]] >= folds, stratum[own], counts.argmax())
        classes[own] = joined if counts.max() >= folds else 0
        classes[own] += (stratum.max() + 1) * np.searchsorted(np.unique(labels), label)
    return classes


def shuffle_within_folds(
    labels: np.ndarray, groups: np.ndarray, fold: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the labels shuffled within each fold, mostly in blocks of a group.

    The groups of a fold are shuffled, and the samples of each group. The labels in that order are given to
    the fold's samples group by group. So groups with one label keep one label if all groups have the same
    size.

    Example:
        >>> labels, groups = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])
        >>> shuffled = shuffle_within_folds(labels, groups, np.zeros(4, int), np.random.default_rng(0))
        >>> bool(shuffled[0] == shuffled[1] and shuffled[2] == shuffled[3])
        True
    """
    shuffled = labels.copy()
    for number in np.unique(fold):
        members = np.flatnonzero(fold == number)
        place = rng.permutation(groups.max() + 1)[groups[members]]
        drawn = members[np.lexsort((rng.random(len(members)), place))]
        shuffled[members[np.argsort(groups[members], kind="stable")]] = labels[drawn]
    return shuffled


def skip_checks() -> AbstractContextManager[None]:
    """Skip scikit-learn's checks of its arguments, which take as long as a small fit."""
    from sklearn import config_context

    return config_context(assume_finite=True, skip_parameter_validation=True)
