"""Paired differences of a metric between two ways to answer the same samples, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mmprobe.analyses.statistics import CONFIDENCE, RESAMPLES
from mmprobe.benchmarks.core.results import Metric, Parts

_BLOCK = 250  # resamples in memory at a time


class Difference(NamedTuple):
    """A metric minus a baseline's, its interval, and the number of samples that both could score.

    Undefined numbers are NaN.
    """

    value: float
    low: float
    high: float
    n: int


_UNDEFINED = Difference(math.nan, math.nan, math.nan, 0)


def paired_difference(metric: Metric | None, baseline: Metric | None, seed: int = 0) -> Difference:
    """Return a metric minus a baseline over the samples of both, with a paired bootstrap interval.

    A resample draws samples with replacement, and both metrics are computed from the same draw. The result
    for a mean is the mean difference of the samples. The result for a number made of sums (F1, MME's score)
    is the difference of the two numbers.

    Args:
        metric, baseline: the same metric of two ways to answer the same questions. None where one lacks it.
        seed: seed of the resamples. Resamples where either metric is undefined are left out.

    Returns:
        The difference with a 95 % interval, from percentiles of 2000 resamples. All numbers are NaN and n is
        0 where a metric has no sample ids (see `results.with_ids`). The interval is NaN for fewer than two
        samples.

    Example:
        >>> from mmprobe.benchmarks.core.results import mean_metric, with_ids
        >>> first, second = (
        ...     with_ids({"m": mean_metric(values, "higher")}, "abc")["m"] for values in ([1, 1, 0], [0, 1, None])
        ... )
        >>> difference = paired_difference(first, second)
        >>> difference.value, difference.n
        (0.5, 2)
    """
    if metric is None or baseline is None or metric.parts is None or baseline.parts is None:
        return _UNDEFINED
    metric_rows, baseline_rows = _row_by_id(metric.parts), _row_by_id(baseline.parts)
    shared = [name for name in metric_rows if name in baseline_rows]
    if not shared:
        return _UNDEFINED
    # Samples with the same counts are drawn together: the distribution is the same, and it is quicker.
    pairs = [(metric_rows[name], baseline_rows[name]) for name in shared]
    kinds, times = np.unique(pairs, axis=0, return_counts=True)
    both = [(metric.parts, kinds[:, 0]), (baseline.parts, kinds[:, 1])]
    value = float(_differences(both, times))
    low = high = math.nan
    if len(shared) > 1:
        low, high = _interval(both, times, seed)
    return Difference(value if math.isfinite(value) else math.nan, low, high, len(shared))


def _interval(both: Sequence[tuple[Parts, np.ndarray]], times: np.ndarray, seed: int) -> tuple[float, float]:
    rng, n = np.random.default_rng(seed), int(times.sum())
    sizes = [min(_BLOCK, RESAMPLES - start) for start in range(0, RESAMPLES, _BLOCK)]
    values = np.concatenate([_differences(both, rng.multinomial(n, times / n, size)) for size in sizes])
    values = values[np.isfinite(values)]
    if not len(values):
        return math.nan, math.nan
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(values, [tail, 100 - tail]).tolist()
    return low, high


def _differences(both: Sequence[tuple[Parts, np.ndarray]], times: np.ndarray) -> np.ndarray:
    """Return the first metric minus the second, [...].

    Args:
        both: for each metric its parts, and the row of counts that each kind of sample has, [kind].
        times: how often each kind of sample was drawn, [..., kind].
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        first, second = (np.asarray(parts.combine(times @ parts.rows[rows]), float) for parts, rows in both)
    return first - second


def _row_by_id(parts: Parts) -> dict[str, int]:
    """Return the row of counts of each scored sample, by id."""
    return {name: row for name, row in zip(parts.ids or (), parts.index.tolist(), strict=False) if row >= 0}
