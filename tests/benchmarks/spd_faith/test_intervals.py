"""Metrics from one table equal the metrics that are computed alone."""

from __future__ import annotations

import numpy as np
import pytest

from mmprobe.benchmarks.core.results import count_metric, mean_metric, ratio
from mmprobe.benchmarks.spd_faith.intervals import MetricFormula, sum_metrics


def test_together_as_alone() -> None:
    counts = np.random.default_rng(0).integers(1, 9, (30, 3)).astype(float)
    ones = np.ones((30, 1))
    unscored = np.zeros((10, 4))
    first = np.arange(40) < 30
    metrics = sum_metrics(
        np.vstack([np.hstack([counts, ones]), unscored]),
        [str(number) for number in range(40)],
        {
            "ratio": MetricFormula(ratio, [0, 1], first, 30, "higher", (0, None)),
            "mean": MetricFormula(ratio, [2, 3], first, 40, "lower", (0, None)),
        },
    )
    alone = count_metric(counts.tolist(), lambda sums: sums[..., 0] / sums[..., 1], "higher", (0, None))
    together = metrics["ratio"]
    assert (together.value, together.n, together.coverage, together.range) == (
        alone.value,
        30,
        1.0,
        (0, None),
    )
    assert (together.low, together.high) == (pytest.approx(alone.low), pytest.approx(alone.high))
    mean = mean_metric([*counts[:, 2], *[None] * 10], "lower", (0, None))
    assert (metrics["mean"].n, metrics["mean"].coverage, metrics["mean"].direction) == (30, 0.75, "lower")
    assert metrics["mean"].value == pytest.approx(mean.value)
    assert (metrics["mean"].low, metrics["mean"].high) == (mean.low, mean.high)


def test_what_is_undefined_is_none() -> None:
    never = MetricFormula(ratio, [0, 1], np.zeros(3, bool), 3, "higher")
    metric = sum_metrics(np.zeros((3, 2)), "abc", {"never": never})["never"]
    assert (metric.value, metric.low, metric.high, metric.n, metric.coverage) == (None, None, None, 0, 0)
    nobody = MetricFormula(ratio, [0, 1], np.zeros(0, bool), 0, "higher")
    assert sum_metrics(np.zeros((0, 2)), "", {"nobody": nobody})["nobody"].coverage is None


def test_one_sample_tells_nothing_of_its_spread() -> None:
    formula = MetricFormula(ratio, [0, 1], np.ones(1, bool), 1, "higher")
    metric = sum_metrics(np.array([[1.0, 2.0]]), "a", {"one": formula})["one"]
    assert (metric.value, metric.low, metric.high) == (0.5, None, None)
