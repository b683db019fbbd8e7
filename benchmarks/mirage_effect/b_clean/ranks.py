"""Rank models before and after B-Clean (arXiv:2603.21687, section 7.9, step 4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from mmprobe.analyses.intervals import percentile_interval
from mmprobe.benchmarks.core.results import Metric, mean_metric


@dataclass(frozen=True)
class RankChange:
    """The accuracy and rank of one model before and after cleaning.

    Rank 1 is the best. Models with equal accuracy share their mean rank.

    Attributes:
        before, after: accuracy with the images, on all questions and on the kept ones.
        rank_before, rank_after: None if no question was kept, or a model has no scored question there.
        rank_before_interval, rank_after_interval: 95 % intervals. All models share the resampled questions.
        changed: whether the two ranks differ.
        change: rank after minus rank before. Above 0, the model is worse on the cleaned set.
        change_interval: 95 % interval, with both ranks from the same resampled questions.
    """

    before: Metric
    after: Metric
    rank_before: float | None
    rank_after: float | None
    rank_before_interval: tuple[float, float] | None
    rank_after_interval: tuple[float, float] | None
    changed: bool | None
    change: float | None
    change_interval: tuple[float, float] | None


def rank_changes(
    ids: Sequence[str],
    correct_with: Mapping[str, Sequence[bool | None]],
    kept: Collection[str],
) -> dict[str, RankChange]:
    """Return the accuracies and ranks of the models on the whole set and on the cleaned one.

    Args:
        ids: ids of the questions.
        correct_with: by model, whether it answered each question rightly with its image; None if not scored.
        kept: ids that B-Clean kept.

    Example:
        >>> correct = {"m": [True, True, False], "n": [False, False, True]}
        >>> change = rank_changes(["a", "b", "c"], correct, {"c"})["m"]
        >>> change.rank_before, change.rank_after, change.changed
        (1.0, 2.0, True)
    """
    is_kept = np.array([name in kept for name in ids], bool)
    rows = [[np.nan if v is None else float(v) for v in correct] for correct in correct_with.values()]
    table = np.array(rows, float).reshape(len(correct_with), len(ids))
    ranks_before = _rank_models(table)
    ranks_after = _rank_models(table[:, is_kept])
    change_intervals = _change_intervals(table, is_kept)
    changes = {}
    for index, model in enumerate(correct_with):
        before, before_interval = ranks_before[index]
        after, after_interval = ranks_after[index]
        change = None if before is None or after is None else after - before
        changes[model] = RankChange(
            before=_accuracy(table[index]),
            after=_accuracy(table[index, is_kept]),
            rank_before=before,
            rank_after=after,
            rank_before_interval=before_interval,
            rank_after_interval=after_interval,
            changed=None if change is None else before != after,
            change=change,
            change_interval=None if change is None else change_intervals[index],
        )
    return changes


def _accuracy(correct: np.ndarray) -> Metric:
    return mean_metric([None if np.isnan(value) else float(value) for value in correct], "higher")


def _rank_models(table: np.ndarray) -> list[tuple[float | None, tuple[float, float] | None]]:
    """Return the rank of each model and its interval, from [model, question] with NaN if not scored."""
    if not np.isfinite(table).any(1).all():
        return [(None, None)] * len(table)
    count = table.shape[1]
    ranks = _weighted_ranks(table, np.ones((1, count)))[:, 0]
    if count < 2:
        return [(float(rank), None) for rank in ranks]
    low, high = percentile_interval(lambda weights: _weighted_ranks(table, weights), None, count)
    return [(float(r), (float(lo), float(hi))) for r, lo, hi in zip(ranks, low, high, strict=True)]


def _change_intervals(table: np.ndarray, is_kept: np.ndarray) -> list[tuple[float, float] | None]:
    """Return the interval of each model's rank change, from [model, question] with NaN if not scored."""
    if table.shape[1] < 2:
        return [None] * len(table)

    def changes(weights: np.ndarray) -> np.ndarray:
        return _weighted_ranks(table[:, is_kept], weights[:, is_kept]) - _weighted_ranks(table, weights)

    low, high = percentile_interval(changes, None, table.shape[1])
    ends = zip(low.tolist(), high.tolist(), strict=True)
    return [(lo, hi) if np.isfinite(lo) else None for lo, hi in ends]


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
