"""Bootstrap intervals of many metrics over the same samples, from one set of draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mmprobe.analyses.statistics import CONFIDENCE, RESAMPLES
from mmprobe.benchmarks.core.results import Combine, Direction, Metric, make_parts, with_ids

_BLOCK = 250  # resamples in memory at a time


@dataclass(frozen=True)
class MetricFormula:
    """A metric that is computed from sums over samples.

    Attributes:
        combine: computes the metric [...] from sums [..., column]. NaN where it is undefined.
        columns: the columns that `combine` takes, in its order.
        scored: whether the metric is defined for each sample, bool [sample].
        n_asked: number of samples that the metric was asked for.
        direction, range: see `Metric`.
    """

    combine: Combine
    columns: Sequence[int]
    scored: np.ndarray
    n_asked: int
    direction: Direction
    range: tuple[float | None, float | None] = (0.0, 1.0)


def bootstrap_metrics(
    columns: np.ndarray, ids: Sequence[str], formulas: Mapping[str, MetricFormula], seed: int = 0
) -> dict[str, Metric]:
    """Compute many metrics with their intervals, as `results.count_metric` does for one.

    All samples are drawn with replacement, also those that a metric is not defined for. Draws where a metric
    is undefined are left out of its interval.

    Args:
        columns: the numbers to sum, [sample, column]. A sample that adds nothing has 0.
        ids: ids of the samples.
        formulas: formulas by metric name.
        seed: seed of the draws.

    Example:
        >>> from mmprobe.benchmarks.core.results import ratio
        >>> first = np.array([True, True, False, False])
        >>> half = MetricFormula(ratio, columns=[0, 1], scored=first, n_asked=4, direction="higher")
        >>> columns = np.array([[1.0, 1], [0, 1], [0, 0], [0, 0]])
        >>> metric = bootstrap_metrics(columns, "abcd", {"half": half})["half"]
        >>> metric.value, metric.coverage
        (0.5, 0.5)
    """
    n_samples = len(columns)
    # Samples with equal rows are drawn together. That gives the same distribution and is fast.
    rows, counts = np.unique(columns, axis=0, return_counts=True)
    rng = np.random.default_rng(seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        blocks = [
            rng.multinomial(n_samples, counts / n_samples, size=min(_BLOCK, RESAMPLES - start)) @ rows
            for start in range(0, RESAMPLES if n_samples else 0, _BLOCK)
        ]
        drawn_sums = np.concatenate(blocks) if blocks else np.zeros((0, columns.shape[1]))
        metrics = {name: _compute_metric(formula, columns, drawn_sums) for name, formula in formulas.items()}
    return with_ids(metrics, ids)


def _compute_metric(formula: MetricFormula, columns: np.ndarray, drawn_sums: np.ndarray) -> Metric:
    """Compute one metric and its interval from columns [sample, column] and drawn sums [resample, column]."""
    counts = columns[:, formula.columns]
    value = float(formula.combine(counts.sum(0)))
    low = high = math.nan
    n_scored = int(formula.scored.sum())
    if n_scored > 1:
        drawn = np.asarray(formula.combine(drawn_sums[:, formula.columns]), float)
        drawn = drawn[np.isfinite(drawn)]
        if len(drawn):
            tail = 50 * (1 - CONFIDENCE)
            low, high = np.percentile(drawn, [tail, 100 - tail])
    return Metric(
        value=_finite(value),
        n=n_scored,
        coverage=n_scored / formula.n_asked if formula.n_asked else None,
        low=_finite(low),
        high=_finite(high),
        direction=formula.direction,
        range=formula.range,
        parts=make_parts(counts[formula.scored], formula.scored, formula.combine),
    )


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None
