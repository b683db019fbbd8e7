"""Areas under the ROC curve, and their intervals over groups of samples."""

from __future__ import annotations

import numpy as np

from mmprobe.stats.estimate import Estimate
from mmprobe.stats.intervals import degrees_of_freedom, jackknife_interval


def weighted_auc(score: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the area under the ROC curve for several weightings of the samples; ties count half.

    Args:
        score: [sample].
        positive: bool [sample].
        weights: [resample, sample], how often each sample counts; None for one resample of all samples once.

    Returns:
        [resample]; NaN where a class has no weight.

    Example:
        >>> weighted_auc(np.array([1, 2, 2, 3]), np.array([False, True, False, True])).tolist()
        [0.875]
    """
    weights = np.ones((1, len(score))) if weights is None else weights
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.diff(score[order], prepend=-np.inf) > 0)
    above, below = (
        np.add.reduceat(np.where(mask, weights, 0)[:, order], starts, axis=1, dtype=float)
        for mask in (positive, ~positive)
    )
    with np.errstate(invalid="ignore"):
        won = (above * (below.cumsum(1) - below / 2)).sum(1)
        return won / (above.sum(1) * below.sum(1))


def auc_without_groups(score: np.ndarray, positive: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the area under the ROC curve without each group of samples; ties count half.

    `weighted_auc` with a weight of 0 for each group in turn gives the same in quadratic time.

    Args:
        score: [sample].
        positive: bool [sample].
        groups: int [sample], from 0 without gaps.

    Returns:
        [group]; NaN where a class has no other group.

    Example:
        >>> positive = np.array([False, True, False, True])
        >>> auc_without_groups(np.array([1, 2, 2, 3]), positive, np.array([0, 0, 1, 1])).tolist()
        [1.0, 1.0]
    """
    count = int(groups.max()) + 1

    def sum_by_group(values: np.ndarray) -> np.ndarray:
        return np.bincount(groups, values, count)

    won = _count_wins(score, positive)
    # ranks of (group, score): of the pairs of a class with the other, those within a group are left
    place = groups * len(score) + np.unique(score, return_inverse=True)[1]
    earlier = np.bincount(groups, ~positive, count).cumsum() - sum_by_group(~positive)
    within = sum_by_group(np.where(positive, _count_wins(place, positive) - earlier[groups], 0))
    left = won[positive].sum() - sum_by_group(won) + within
    n_positive, n_negative = (mask.sum() - sum_by_group(mask) for mask in (positive, ~positive))
    with np.errstate(invalid="ignore"):
        return np.asarray(left / (n_positive * n_negative))


def _count_wins(score: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Return in how many pairs with the other class each sample is, where the positive one is higher; ties are half."""
    from scipy.stats import rankdata

    lower = rankdata(score)
    for mask in (positive, ~positive):
        lower[mask] -= rankdata(score[mask])
    return np.where(positive, lower, positive.sum() - lower)


def estimate_auc_within(
    score: np.ndarray, positive: np.ndarray, strata: np.ndarray, groups: np.ndarray
) -> Estimate[float]:
    """Return the area under the ROC curve over pairs of samples of one stratum, with its interval; ties count half.

    A score that only tells the strata apart gives 0.5. NaN without such a pair.

    Args:
        score: [sample].
        positive: bool [sample].
        strata: [sample], such as the type of the question.
        groups: int [sample], such as the number of the set of images.

    Example:
        >>> strata = np.array([0, 0, 0, 1, 1, 1])
        >>> positive = np.array([False, False, True, False, True, True])
        >>> estimate_auc_within(strata, positive, strata, np.arange(6)).value
        0.5
    """
    number = np.unique(groups, return_inverse=True)[1]

    def count(keep: np.ndarray) -> tuple[float, float]:
        """Return the wins and the number of pairs of the samples that are kept."""
        won = pairs = 0.0
        for stratum in np.unique(strata):
            own = keep & (strata == stratum)
            of_stratum = float((own & positive).sum() * (own & ~positive).sum())
            if of_stratum:
                won += of_stratum * weighted_auc(score[own], positive[own])[0]
                pairs += of_stratum
        return won, pairs

    won, pairs = count(np.ones(len(score), bool))
    if not pairs:
        return Estimate(np.nan, np.nan, np.nan, len(score), int(number.max()) + 1)
    without = np.array([count(number != each) for each in range(int(number.max()) + 1)])
    with np.errstate(invalid="ignore"):
        shares = without[:, 0] / without[:, 1]
    low, high = jackknife_interval(
        np.asarray(won / pairs), shares, (0.0, 1.0), degrees_of_freedom(np.bincount(number))
    )
    return Estimate(float(won / pairs), float(low), float(high), len(score), int(number.max()) + 1)


def estimate_auc(score: np.ndarray, positive: np.ndarray, groups: np.ndarray) -> Estimate[float]:
    """Return the area under the ROC curve with its interval.

    Args:
        score: [sample].
        positive: bool [sample].
        groups: int [sample], such as the number of the set of images.

    Example:
        >>> print(estimate_auc(np.arange(6), np.arange(6) > 2, np.arange(6)))
        1.000 [0.610, 1.000]
    """
    number = np.unique(groups, return_inverse=True)[1]
    without = auc_without_groups(score, positive, number)
    freedom = degrees_of_freedom(np.bincount(number))
    value = weighted_auc(score, positive)[0]
    low, high = jackknife_interval(value, without, (0.0, 1.0), freedom)
    return Estimate(float(value), float(low), float(high), len(score), int(number.max()) + 1)
