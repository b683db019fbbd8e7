"""Rank models before and after B-Clean (arXiv:2603.21687, section 7.9, step 4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from scipy.stats import rankdata

from mmprobe.benchmarks.core.results import Direction, Metric, mean_metric
from mmprobe.stats.intervals import percentile_interval


def rank_changes(
    ids: Sequence[str], correct_with: Mapping[str, Sequence[bool | None]], kept: Collection[str]
) -> dict[str, dict[str, Metric]]:
    """Return accuracy and rank of each model on the whole set and on the cleaned one, and the rank's change.

    Rank 1 is the best, and models with equal accuracy share their mean rank. A rank is undefined if no question
    was kept, or a model has no scored question. All models share the resampled questions of the 95 % intervals,
    and both ranks of a change do. `correct_with` is by model whether it answered each question rightly with its
    image; None if not scored.

    Example:
        >>> correct = {"m": [True, True, False], "n": [False, False, True]}
        >>> change = rank_changes(["a", "b", "c"], correct, {"c"})["m"]
        >>> [change[name].value for name in ("rank_before", "rank_after", "rank_change")]
        [1.0, 2.0, 1.0]
    """
    is_kept = np.array([name in kept for name in ids], bool)
    rows = [[np.nan if v is None else float(v) for v in correct] for correct in correct_with.values()]
    table = np.array(rows, float).reshape(len(correct_with), len(ids))
    inside = table[:, is_kept]

    def change(weights: np.ndarray) -> np.ndarray:
        return _weighted_ranks(inside, weights[:, is_kept]) - _weighted_ranks(table, weights)

    before = _with_intervals(lambda weights: _weighted_ranks(table, weights), len(ids))
    after = _with_intervals(lambda weights: _weighted_ranks(inside, weights), inside.shape[1])
    changes = _with_intervals(change, len(ids))
    size = float(len(table))
    metrics = {}
    for index, model in enumerate(correct_with):
        whole, cleaned = _accuracy(table[index]), _accuracy(inside[index])
        metrics[model] = {
            "accuracy_before": whole,
            "accuracy_after": cleaned,
            "rank_before": _rank_metric(before[index], whole, "lower", (1.0, size)),
            "rank_after": _rank_metric(after[index], cleaned, "lower", (1.0, size)),
            "rank_change": _rank_metric(changes[index], cleaned, "neither", (1.0 - size, size - 1.0)),
        }
    return metrics


def _accuracy(correct: np.ndarray) -> Metric:
    return mean_metric([None if np.isnan(value) else float(value) for value in correct], "higher")


def _rank_metric(
    row: Sequence[float | None], accuracy: Metric, direction: Direction, limits: tuple[float, float]
) -> Metric:
    value, low, high = row
    n = accuracy.n if value is not None else 0
    return Metric(value, low, high, n, coverage=accuracy.coverage, direction=direction, range=limits)


def _with_intervals(compute: Callable[[np.ndarray], np.ndarray], n: int) -> list[list[float | None]]:
    """Return [model][value, low, high] of numbers [model, resample] that weights [resample, question] give."""
    values = compute(np.ones((1, n)))[:, 0]
    nothing = np.full_like(values, np.nan)
    ends = (
        percentile_interval(compute, None, n) if n > 1 and np.isfinite(values).any() else (nothing, nothing)
    )
    rows = np.stack([values, *ends], 1).tolist()
    return [[number if np.isfinite(number) else None for number in row] for row in rows]


def _weighted_ranks(table: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the ranks [model, resample]; NaN where a model has no scored question.

    Args:
        table: [model, question], NaN if not scored.
        weights: [resample, question].
    """
    scored = np.isfinite(table)
    with np.errstate(invalid="ignore"):
        means = (np.where(scored, table, 0) @ weights.T) / (scored @ weights.T)
    ranks = rankdata(-np.round(means, 12), axis=0)
    return np.where(np.isfinite(means).all(0), ranks, np.nan)
