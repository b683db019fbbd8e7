"""Many numbers of the same samples with their intervals, from one set of bootstrap draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mmprobe.analyses.statistics import CONFIDENCE, RESAMPLES
from mmprobe.benchmarks.results import Direction, Metric

_BLOCK = 250  # resamples in memory at a time


@dataclass(frozen=True)
class Number:
    """A number made of sums over samples.

    Attributes:
        of: from sums [..., column] to the number [...]; NaN where it is undefined.
        n: samples that it rests on.
        asked: samples that were asked for it.
        direction, range: as of a `Metric`.
    """

    of: Callable[[np.ndarray], np.ndarray]
    n: int
    asked: int
    direction: Direction
    range: tuple[float | None, float | None] = (0.0, 1.0)


def measure(columns: np.ndarray, numbers: Mapping[str, Number], seed: int = 0) -> dict[str, Metric]:
    """What `results.count_metric` computes, for many numbers at the cost of one.

    Samples are drawn with replacement, whether a number rests on them or not; draws where a number is undefined
    are left out of its interval.

    Args:
        columns: what is summed, [sample, column]; 0 where a sample has nothing to add.
        numbers: by name.
        seed: of the draws.

    Example:
        >>> half = Number(lambda sums: sums[..., 0] / sums[..., 1], n=2, asked=4, direction="higher")
        >>> metric = measure(np.array([[1.0, 1], [0, 1], [0, 0], [0, 0]]), {"half": half})["half"]
        >>> metric.value, metric.coverage
        (0.5, 0.5)
    """
    count = len(columns)
    # Samples that add the same are drawn together, which gives the same distribution and is quick.
    kinds, times = np.unique(columns, axis=0, return_counts=True)
    rng = np.random.default_rng(seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        sums = [
            rng.multinomial(count, times / count, size=min(_BLOCK, RESAMPLES - start)) @ kinds
            for start in range(0, RESAMPLES if count else 0, _BLOCK)
        ]
        drawn = np.concatenate(sums) if sums else np.zeros((0, columns.shape[1]))
        total = columns.sum(0)
        return {name: _metric(number, total, drawn) for name, number in numbers.items()}


def _metric(number: Number, total: np.ndarray, drawn: np.ndarray) -> Metric:
    value = float(number.of(total))
    low = high = math.nan
    if number.n > 1:
        values = np.asarray(number.of(drawn), float)
        values = values[np.isfinite(values)]
        if len(values):
            tail = 50 * (1 - CONFIDENCE)
            low, high = np.percentile(values, [tail, 100 - tail])
    told = [float(one) if math.isfinite(one) else None for one in (value, low, high)]
    coverage = number.n / number.asked if number.asked else None
    return Metric(told[0], number.n, coverage, told[1], told[2], number.direction, number.range)
