"""B-Clean: a question set without what models answer blindly, and their ranks on it (paper 002, 7.9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from mmprobe.analyses.statistics import CONFIDENCE, RESAMPLES
from mmprobe.benchmarks.core.results import Metric, mean_metric
from mmprobe.errors import InputError


@dataclass(frozen=True)
class Cleaned:
    """What is left of a question set, and why the rest is gone.

    Attributes:
        kept: ids, in their order.
        compromised: ids that each model answered rightly without the picture.
        removed: share of the questions that are removed.
        removed_by_chance: share that as many models would remove who answer at random, each on its own.
        unscored: by model, questions without a verdict; they count as not answered.
    """

    kept: list[str]
    compromised: dict[str, list[str]]
    removed: Metric
    removed_by_chance: float | None
    unscored: dict[str, int]


def b_clean(
    ids: Sequence[str],
    right_without: Mapping[str, Sequence[bool | None]],
    options: Sequence[int | None],
    by_text_model: Collection[str] | None = None,
) -> Cleaned:
    """Remove each question that any candidate model answers rightly without its picture (steps 1 to 3).

    Args:
        ids: of the questions.
        right_without: by model, whether it answered each question rightly; None if it was not scored.
        options: how many each question has; None for an open one.
        by_text_model: ids that a model trained on text alone answers rightly, which go as well (step 3,
            optional); None without such a model.

    Raises:
        InputError: no model, or lists of different lengths, or an id twice.

    Example:
        >>> found = b_clean(["a", "b", "c"], {"m": [True, False, False], "n": [False, False, None]}, [4] * 3)
        >>> found.kept, found.unscored["n"], found.removed_by_chance
        (['b', 'c'], 1, 0.4375)
    """
    if not right_without:
        raise InputError("B-Clean needs the answers of one model at least")
    if len(set(ids)) < len(ids):
        raise InputError("an id is given twice; each question needs its own")
    for model, right in [*right_without.items(), ("options", options)]:
        if len(right) != len(ids):
            raise InputError(f"{model!r} has {len(right)} entries for {len(ids)} questions")
    compromised = {
        model: [name for name, is_right in zip(ids, right, strict=True) if is_right]
        for model, right in right_without.items()
    }
    gone = set(by_text_model or ()).union(*compromised.values())
    return Cleaned(
        kept=[name for name in ids if name not in gone],
        compromised=compromised,
        removed=mean_metric([float(name in gone) for name in ids], "neither"),
        removed_by_chance=chance_share(options, len(right_without) + (by_text_model is not None)),
        unscored={
            model: sum(is_right is None for is_right in right) for model, right in right_without.items()
        },
    )


def chance_share(options: Sequence[int | None], models: int) -> float | None:
    """Share of questions that one of n models gets right by blind chance: the mean of 1 - (1 - 1/k)^n.

    Args:
        options: k of each question; None for an open one, which chance leaves.

    Returns:
        None for no questions.

    Example:
        >>> round(chance_share([4], 3), 4)
        0.5781
    """
    shares = [1 - (1 - 1 / count) ** models if count else 0.0 for count in options]
    return float(np.mean(shares)) if shares else None


@dataclass(frozen=True)
class RankChange:
    """One model before and after cleaning; rank 1 is the best, equal accuracies share their mean rank.

    Attributes:
        before, after: accuracy with the pictures, on all questions and on the kept ones.
        rank_before, rank_after: None if nothing was kept, or a model has no scored question there.
        rank_before_interval, rank_after_interval: 95 %, by drawing the same questions anew for all.
        changed: whether the two ranks differ.
        change: rank after minus rank before; above 0, the model does worse on the cleaned set.
        change_interval: 95 %, both ranks of the same draws of all questions.
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
    right_with: Mapping[str, Sequence[bool | None]],
    kept: Collection[str],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, RankChange]:
    """Accuracies and ranks of the models on the whole set and on the cleaned one (step 4).

    Args:
        ids: of the questions.
        right_with: by model, whether it answered each question rightly with its picture; None if not scored.
        kept: ids that B-Clean kept.
        resamples, seed: of the bootstrap over questions.

    Example:
        >>> right = {"m": [True, True, False], "n": [False, False, True]}
        >>> change = rank_changes(["a", "b", "c"], right, {"c"})["m"]
        >>> change.rank_before, change.rank_after, change.changed
        (1.0, 2.0, True)
    """
    inside = np.array([name in kept for name in ids], bool)
    table = np.array(
        [[np.nan if v is None else float(v) for v in right] for right in right_with.values()], float
    ).reshape(len(right_with), len(ids))
    parts = [table, table[:, inside]]
    ranks = [_ranks(part, resamples, seed) for part in parts]
    intervals = _change_intervals(table, inside, resamples, seed)
    found = {}
    for index, model in enumerate(right_with):
        accuracy = [
            mean_metric([None if np.isnan(v) else float(v) for v in part[index]], "higher") for part in parts
        ]
        (first, first_interval), (last, last_interval) = (each[index] for each in ranks)
        changed = None if first is None or last is None else first != last
        change = None if first is None or last is None else last - first
        found[model] = RankChange(
            accuracy[0],
            accuracy[1],
            first,
            last,
            first_interval,
            last_interval,
            changed,
            change,
            None if change is None else intervals[index],
        )
    return found


def _change_intervals(
    table: np.ndarray, inside: np.ndarray, resamples: int, seed: int
) -> list[tuple[float, float] | None]:
    """Of each model, the interval of its rank on the kept questions minus that on all; [model, question] of NaN, 0, 1.

    Draws in which a model has no scored question left are left out.
    """
    count = table.shape[1]
    if count < 2:
        return [None] * len(table)
    scored = np.isfinite(table)
    values = np.where(scored, table, 0)
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    means = []
    with np.errstate(invalid="ignore"):
        for part in (np.ones(count, bool), inside):
            means.append((drawn[:, part] @ values[:, part].T) / (drawn[:, part] @ scored[:, part].T))
    usable = np.isfinite(means).all((0, 2))
    if not usable.any():
        return [None] * len(table)
    before, after = (rankdata(-np.round(mean[usable], 12), axis=1) for mean in means)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(after - before, [tail, 100 - tail], axis=0)
    return [(float(one), float(two)) for one, two in zip(low, high, strict=True)]


def _ranks(
    right: np.ndarray, resamples: int, seed: int
) -> list[tuple[float | None, tuple[float, float] | None]]:
    """Rank and its interval of each model, of [model, question] with NaN for what was not scored."""
    scored = np.isfinite(right)
    if not scored.any(1).all():
        return [(None, None)] * len(right)
    values = np.where(scored, right, 0)
    ranks = rankdata(-np.round(values.sum(1) / scored.sum(1), 12))
    count = right.shape[1]
    if count < 2:
        return [(float(rank), None) for rank in ranks]
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    with np.errstate(invalid="ignore"):
        means = (drawn @ values.T) / (drawn @ scored.T)
    means = means[np.isfinite(means).all(1)]
    again = rankdata(-np.round(means, 12), axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(again, [tail, 100 - tail], axis=0) if len(again) else (ranks, ranks)
    return [(float(r), (float(lo), float(hi))) for r, lo, hi in zip(ranks, low, high, strict=True)]
