"""Differences of metrics of the same samples, answered in two ways, with paired intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mmprobe.analyses.statistics import CONFIDENCE, RESAMPLES
from mmprobe.benchmarks.core.results import Metric, Parts

_BLOCK = 250  # resamples in memory at a time


class Difference(NamedTuple):
    """A metric of one minus that of another, NaN where it is undefined, and the samples that both could score."""

    value: float
    low: float
    high: float
    n: int


def paired_difference(mine: Metric | None, other: Metric | None, seed: int = 0) -> Difference:
    """One metric minus another, both recomputed from the samples that both have, with a paired bootstrap interval.

    A resample draws samples with replacement, and both metrics are computed from the same draw. For means that is the
    mean of the samples' differences; for numbers made of sums (F1, MME's score) it is the difference of these numbers.

    Args:
        mine, other: the same metric of two ways to answer the same questions; None where one lacks it.
        seed: of the draws. Those where either number is undefined are left out.

    Returns:
        All NaN and n = 0 where a metric does not say what its samples add to it (see `results.of_samples`), the
        interval NaN for fewer than two samples. Interval: 95 %, percentiles of 2000 draws.

    Example:
        >>> from mmprobe.benchmarks.core.results import mean_metric, of_samples
        >>> one, two = (of_samples({"m": mean_metric(v, "higher")}, "abc")["m"] for v in ([1, 1, 0], [0, 1, None]))
        >>> found = paired_difference(one, two)
        >>> found.value, found.n
        (0.5, 2)
    """
    nothing = Difference(math.nan, math.nan, math.nan, 0)
    if mine is None or other is None or mine.parts is None or other.parts is None:
        return nothing
    one, two = _kinds_by_id(mine.parts), _kinds_by_id(other.parts)
    shared = [name for name in one if name in two]
    if not shared:
        return nothing
    # Samples with the same counts are drawn together, which gives the same distribution and is quick.
    kinds, times = np.unique([(one[name], two[name]) for name in shared], axis=0, return_counts=True)
    both = [(mine.parts, kinds[:, 0]), (other.parts, kinds[:, 1])]
    value = float(_differences(both, times))
    low = high = math.nan
    if len(shared) > 1:
        rng, count = np.random.default_rng(seed), len(shared)
        blocks = [min(_BLOCK, RESAMPLES - start) for start in range(0, RESAMPLES, _BLOCK)]
        drawn = [_differences(both, rng.multinomial(count, times / count, size)) for size in blocks]
        known = np.concatenate(drawn)
        known = known[np.isfinite(known)]
        if len(known):
            tail = 50 * (1 - CONFIDENCE)
            low, high = np.percentile(known, [tail, 100 - tail]).tolist()
    return Difference(value if math.isfinite(value) else math.nan, low, high, len(shared))


def _differences(both: Sequence[tuple[Parts, np.ndarray]], times: np.ndarray) -> np.ndarray:
    """The first number minus the second [...], where pairs of kinds are there so many times [..., pair of kinds]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        first, second = (np.asarray(parts.of(times @ parts.kinds[kinds]), float) for parts, kinds in both)
    return first - second


def _kinds_by_id(parts: Parts) -> dict[str, int]:
    """The kind of each sample that was scored."""
    return {
        name: kind for name, kind in zip(parts.ids or (), parts.which.tolist(), strict=False) if kind >= 0
    }
