"""Rank models before and after B-Clean (arXiv:2603.21687, section 7.9, step 4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from mmprobe.analyses.statistics import CONFIDENCE, RESAMPLES
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
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, RankChange]:
    """Return the accuracies and ranks of the models on the whole set and on the cleaned one.

    Args:
        ids: ids of the questions.
        correct_with: by model, whether it answered each question rightly with its image; None if not scored.
        kept: ids that B-Clean kept.
        resamples, seed: of the bootstrap over questions.

    Example:
        >>> correct = {"m": [True, True, False], "n": [False, False, True]}
        >>> change = rank_changes(["a", "b", "c"], correct, {"c"})["m"]
        >>> change.rank_before, change.rank_after, change.changed
        (1.0, 2.0, True)
    """
    is_kept = np.array([name in kept for name in ids], bool)
    rows = [[np.nan if v is None else float(v) for v in correct] for correct in correct_with.values()]
    table = np.array(rows, float).reshape(len(correct_with), len(ids))
    ranks_before = _rank_models(table, resamples, seed)
    ranks_after = _rank_models(table[:, is_kept], resamples, seed)
    change_intervals = _change_intervals(table, is_kept, resamples, seed)
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


def _rank_models(
    table: np.ndarray, resamples: int, seed: int
) -> list[tuple[float | None, tuple[float, float] | None]]:
    """Return the rank of each model and its interval, from [model, question] with NaN if not scored."""
    scored = np.isfinite(table)
    if not scored.any(1).all():
        return [(None, None)] * len(table)
    values = np.where(scored, table, 0)
    ranks = rankdata(-np.round(values.sum(1) / scored.sum(1), 12))
    count = table.shape[1]
    if count < 2:
        return [(float(rank), None) for rank in ranks]
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    with np.errstate(invalid="ignore"):
        means = (draws @ values.T) / (draws @ scored.T)
    means = means[np.isfinite(means).all(1)]
    resampled_ranks = rankdata(-np.round(means, 12), axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = ranks, ranks
    if len(resampled_ranks):
        low, high = np.percentile(resampled_ranks, [tail, 100 - tail], axis=0)
    return [(float(r), (float(lo), float(hi))) for r, lo, hi in zip(ranks, low, high, strict=True)]


def _change_intervals(
    table: np.ndarray, is_kept: np.ndarray, resamples: int, seed: int
) -> list[tuple[float, float] | None]:
    """Return the interval of each model's rank change, from [model, question] with NaN if not scored.

    Draws in which a model has no scored question are left out.
    """
    count = table.shape[1]
    if count < 2:
        return [None] * len(table)
    scored = np.isfinite(table)
    values = np.where(scored, table, 0)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    means = []
    with np.errstate(invalid="ignore"):
        for part in (np.ones(count, bool), is_kept):
            means.append((draws[:, part] @ values[:, part].T) / (draws[:, part] @ scored[:, part].T))
    usable = np.isfinite(means).all((0, 2))
    if not usable.any():
        return [None] * len(table)
    before, after = (rankdata(-np.round(mean[usable], 12), axis=1) for mean in means)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(after - before, [tail, 100 - tail], axis=0)
    return [(float(lo), float(hi)) for lo, hi in zip(low, high, strict=True)]
