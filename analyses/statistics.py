"""Intervals that every analysis shares."""

from __future__ import annotations

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95


def bootstrap_mean(
    values: np.ndarray, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap interval of the mean over samples.

    Args:
        values: [sample, ...], without NaN.
        resamples, confidence, seed: ours; the defaults are 2000, 0.95 and 0.

    Returns:
        Low and high end [...]; NaN for fewer than two samples, which tell nothing of their spread.

    Example:
        >>> low, high = bootstrap_mean(np.array([1.0, 2.0, 3.0]))
        >>> bool(1 <= low < 2 < high <= 3)
        True
    """
    count = len(values)
    if count < 2:
        nothing = np.full(values.shape[1:], np.nan)
        return nothing, nothing.copy()
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    means = np.tensordot(drawn / count, values, axes=1)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(means, [tail, 100 - tail], axis=0)
    return low, high
