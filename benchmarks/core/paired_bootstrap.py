"""Paired differences of a metric between two ways to answer the same samples, with intervals."""

from __future__ import annotations

import math

import numpy as np

from mmprobe.benchmarks.core.results import Metric, Parts
from mmprobe.stats.estimate import Estimate
from mmprobe.stats.intervals import jackknife_interval, sum_groups

_UNDEFINED = Estimate(math.nan, math.nan, math.nan)


def paired_difference(metric: Metric | None, baseline: Metric | None) -> Estimate[float]:
    """Return a metric minus a baseline over the samples of both, with a paired 95 % interval.

    Sets of images are drawn whole, for both metrics at once. The result for a mean is the mean difference of
    the samples; for a number made of sums (F1, MME's score) it is the difference of the two numbers. All
    numbers are NaN and n is 0 where a metric is None or has no sample ids (`results.with_ids`). The interval
    is NaN for fewer than two sets of images. A metric minus itself is 0, without width.

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
    rows, baseline_rows = _row_by_id(metric.parts), _row_by_id(baseline.parts)
    shared = [name for name in rows if name in baseline_rows]
    if not shared:
        return _UNDEFINED
    groups = _groups(metric.parts, shared)
    sums = sum_groups(metric.parts.rows[[rows[name] for name in shared]], groups)
    baseline_sums = sum_groups(baseline.parts.rows[[baseline_rows[name] for name in shared]], groups)
    counted = (sums != 0).any(1) | (baseline_sums != 0).any(1)
    both = (metric.parts, sums[counted]), (baseline.parts, baseline_sums[counted])
    with np.errstate(invalid="ignore", divide="ignore"):
        value, minus = (parts.combine(sums.sum(0)) for parts, sums in both)
        without, minus_without = (parts.combine(sums.sum(0) - sums) for parts, sums in both)
    difference = np.asarray(value - minus, float)
    if metric is baseline:
        return Estimate(0.0, 0.0, 0.0, len(shared)) if np.isfinite(difference) else _UNDEFINED
    smallest, largest = metric.range
    width = None if smallest is None or largest is None else largest - smallest
    ends = (None if width is None else -width, width)
    low, high = jackknife_interval(difference, np.asarray(without - minus_without, float), ends)
    finite = float(difference) if np.isfinite(difference) else math.nan
    return Estimate(finite, float(low), float(high), len(shared))


def _groups(parts: Parts, names: list[str]) -> np.ndarray | None:
    """Return the set of images of each of some samples; None where each is its own."""
    if parts.groups is None or parts.ids is None:
        return None
    group = dict(zip(parts.ids, parts.groups.tolist(), strict=True))
    return np.array([group[name] for name in names])


def _row_by_id(parts: Parts) -> dict[str, int]:
    """Return the row of counts of each scored sample, by id."""
    return {name: row for name, row in zip(parts.ids or (), parts.index.tolist(), strict=False) if row >= 0}
