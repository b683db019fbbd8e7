"""Two one-sided tests: are the means of two groups of samples equal within a margin?"""

from __future__ import annotations

import numpy as np
from scipy.stats import t

from mmprobe.stats.compare import MINIMUM
from mmprobe.stats.estimate import Estimate
from mmprobe.stats.intervals import CONFIDENCE


def p_equivalent(
    values: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    margin: float,
    sets: np.ndarray,
    minimum: int = MINIMUM,
) -> np.ndarray:
    """Return p of the two one-sided tests that the means of two groups differ by less than a margin.

    A small p says that the difference is between -margin and margin (Schuirmann, 1987). The test is
    Welch's, with the standard error of sets of images in place of the one of samples. If each sample is its
    own set, it is Welch's exactly.

    Args:
        values: [sample, ...], finite in the two groups.
        first, second: bool [sample], without a sample in common.
        margin: above 0, in the unit of the values.
        sets: int [sample], the set of images of each sample.
        minimum: samples and sets of images that each group needs, else p is NaN; the default 5 is our choice.

    Returns:
        [...], the larger p of the two tests.

    Example:
        >>> first, values = np.arange(20) < 10, np.tile([0.0, 0.1], 10)
        >>> bool(p_equivalent(values, first, ~first, 0.2, np.arange(20)) < 0.001)
        True
    """
    difference, error, freedom = _measure_difference(values, first, second, sets, minimum)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = (margin - np.abs(difference)) / error  # of the nearer end of the margin
    return np.asarray(t.sf(distance, freedom))


def estimate_difference(
    values: np.ndarray, first: np.ndarray, second: np.ndarray, sets: np.ndarray, minimum: int = MINIMUM
) -> Estimate[np.ndarray]:
    """Return the difference of the means of two groups with its 95 % interval.

    The interval is between -margin and margin if and only if `p_equivalent` is below 0.025. The arguments
    are those of `p_equivalent`.

    Example:
        >>> first, values = np.arange(20) < 10, np.tile([0.0, 1.0], 10)
        >>> difference = estimate_difference(values, first, ~first, np.arange(20))
        >>> float(difference.value), round(float(difference.high), 3)
        (0.0, 0.495)
    """
    difference, error, freedom = _measure_difference(values, first, second, sets, minimum)
    width = t.ppf((1 + CONFIDENCE) / 2, freedom) * error
    either = np.asarray(first) | np.asarray(second)
    count = int(either.sum())
    return Estimate(difference, difference - width, difference + width, count, len(np.unique(sets[either])))


def _measure_difference(
    values: np.ndarray, first: np.ndarray, second: np.ndarray, sets: np.ndarray, minimum: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the difference of the means, its standard error over sets of images, and its degrees of freedom.

    A set adds the sum of its samples' parts in the difference, so questions about the same images are one
    observation, even if they occur in both groups.
    """
    values = np.asarray(values, float)
    unknown = np.full(values.shape[1:], np.nan)
    parts = np.zeros((2, int(sets.max(initial=0)) + 1, *values.shape[1:]))
    means, n_sets = [], []
    for part, mask in zip(parts, (first, second), strict=True):
        count = len(np.unique(sets[mask]))
        if min(mask.sum(), count) < max(2, minimum):
            return unknown, unknown, unknown
        mean = values[mask].mean(0)
        np.add.at(part, sets[mask], (values[mask] - mean) / mask.sum() * np.sqrt(count / (count - 1)))
        means.append(mean)
        n_sets.append(count)
    variances = (parts**2).sum(1)
    error = np.sqrt(((parts[0] - parts[1]) ** 2).sum(0))
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = variances.sum(0) ** 2 / sum(
            variance**2 / (count - 1) for variance, count in zip(variances, n_sets, strict=True)
        )
    freedom = np.where(np.isfinite(freedom), freedom, min(n_sets) - 1)
    return means[0] - means[1], error, freedom
