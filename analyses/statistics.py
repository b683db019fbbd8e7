"""Intervals that every analysis shares."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95


def bootstrap_interval(
    values: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray] = lambda chosen: np.nanmean(chosen, axis=0),
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap over samples.

    Args:
        values: [sample, ...].
        statistic: of a resample [sample, ...]; default is the mean over samples.
        resamples, confidence, seed: ours, documented defaults 2000, 0.95, 0.

    Returns:
        Low and high end, of the statistic's shape; NaN for fewer than two samples, which carry no
        information about their spread.

    Example:
        >>> low, high = bootstrap_interval(np.array([1.0, 2.0, 3.0]))
        >>> bool(1 <= low < 2 < high <= 3)
        True
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        nothing = np.full(np.shape(statistic(values)) if len(values) else values.shape[1:], np.nan)
        return nothing, nothing.copy()
    rng = np.random.default_rng(seed)
    drawn = [statistic(values[rng.integers(len(values), size=len(values))]) for _ in range(resamples)]
    tail = 50 * (1 - confidence)
    low, high = np.nanpercentile(np.array(drawn), [tail, 100 - tail], axis=0)
    return low, high
