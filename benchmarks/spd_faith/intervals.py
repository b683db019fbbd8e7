"""Many numbers of the same samples with their intervals, from one set of bootstrap draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mmprobe.analyses.statistics import CONFIDENCE, RESAMPLES
from mmprobe.benchmarks.core.results import Direction, Metric, of_samples, parts_of

_BLOCK = 250  # resamples in memory at a time


@dataclass(frozen=True)
class Number:
    """A number made of sums over samples.

    Attributes:
        of: from sums [..., column] to the number [...]; NaN where it is undefined.
        columns: which columns of all it is made of, in the order that `of` has them.
        scored: the samples that it rests on, bool [sample].
        asked: how many samples were asked for it.
        direction, range: as of a `Metric`.
    """

    of: Callable[[np.ndarray], np.ndarray]
    columns: Sequence[int]
    scored: np.ndarray
    asked: int
    direction: Direction
    range: tuple[float | None, float | None] = (0.0, 1.0)


def measure(
    columns: np.ndarray, ids: Sequence[str], numbers: Mapping[str, Number], seed: int = 0
) -> dict[str, Metric]:
    """What `results.count_metric` computes, for many numbers at the cost of one.

    Samples are drawn with replacement, whether a number rests on them or not; draws where a number is undefined
    are left out of its interval.

    Args:
        columns: what is summed, [sample, column]; 0 where a sample has nothing to add.
        ids: of the samples.
        numbers: by name.
        seed: of the draws.

    Example:
        >>> from mmprobe.benchmarks.core.results import ratio
        >>> first = np.array([True, True, False, False])
        >>> half = Number(ratio, columns=[0, 1], scored=first, asked=4, direction="higher")
        >>> metric = measure(np.array([[1.0, 1], [0, 1], [0, 0], [0, 0]]), "abcd", {"half": half})["half"]
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
        metrics = {name: _metric(number, columns, drawn) for name, number in numbers.items()}
    return of_samples(metrics, ids)


def _metric(number: Number, columns: np.ndarray, drawn: np.ndarray) -> Metric:
    """A number of the samples' [sample, column], with the interval that the drawn sums [resample, column] give."""
    mine = columns[:, number.columns]
    value = float(number.of(mine.sum(0)))
    low = high = math.nan
    n = int(number.scored.sum())
    if n > 1:
        values = np.asarray(number.of(drawn[:, number.columns]), float)
        values = values[np.isfinite(values)]
        if len(values):
            tail = 50 * (1 - CONFIDENCE)
            low, high = np.percentile(values, [tail, 100 - tail])
    told = [float(one) if math.isfinite(one) else None for one in (value, low, high)]
    coverage = n / number.asked if number.asked else None
    parts = parts_of(mine[number.scored], number.scored, number.of)
    return Metric(told[0], n, coverage, told[1], told[2], number.direction, number.range, parts)
