"""Metrics of the same pairs from one table of counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mmprobe.benchmarks.core.results import Combine, Direction, Metric, count_metric, summed_metric, with_ids


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


def sum_metrics(
    columns: np.ndarray, ids: Sequence[str], formulas: Mapping[str, MetricFormula]
) -> dict[str, Metric]:
    """Compute many metrics with their intervals, as `results.count_metric` does for one.

    Args:
        columns: the numbers to sum, [sample, column].
        ids: ids of the samples.
        formulas: formulas by metric name.

    Example:
        >>> from mmprobe.benchmarks.core.results import ratio
        >>> first = np.array([True, True, False, False])
        >>> half = MetricFormula(ratio, columns=[0, 1], scored=first, n_asked=4, direction="higher")
        >>> columns = np.array([[1.0, 1], [0, 1], [0, 0], [0, 0]])
        >>> metric = sum_metrics(columns, "abcd", {"half": half})["half"]
        >>> metric.value, metric.coverage
        (0.5, 0.5)
    """
    return with_ids({name: _compute_metric(formula, columns) for name, formula in formulas.items()}, ids)


def _compute_metric(formula: MetricFormula, columns: np.ndarray) -> Metric:
    counts = columns[formula.scored][:, formula.columns]
    if not len(counts):
        metric = count_metric([], formula.combine, formula.direction, formula.range)
    else:
        metric = summed_metric(counts, formula.scored, formula.combine, formula.direction, formula.range)
    return replace(metric, coverage=metric.n / formula.n_asked if formula.n_asked else None)
