"""Intervals and comparisons of groups that every analysis shares.

Samples are taken as independent. Several questions about the same pictures are not, quite: their intervals
are then too narrow and their p values too small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmprobe.errors import InputError

RESAMPLES = 2000
CONFIDENCE = 0.95
PERMUTATIONS = 9999
MINIMUM = 5  # samples that each group of a comparison needs, ours
LABELS = ("all", "faithful", "unfaithful")
_BLOCK = 100  # permutations or resamples in memory at a time


def bootstrap_mean(
    values: np.ndarray, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap interval of the mean over samples.

    Args:
        values: [sample, ...], without NaN.
        resamples, confidence, seed: ours; the defaults are 2000, 0.95 and 0.

    Returns:
        Low and high end [...]; NaN for fewer than two samples, which tell nothing of their spread.

    Example:
        >>> low, high = bootstrap_mean(np.array([1.0, 2.0, 3.0]))
        >>> bool(1 <= low < 2 < high <= 3)
        True
    """
    count = len(values)
    if count < 2:
        nothing = np.full(values.shape[1:], np.nan)
        return nothing, nothing.copy()
    means = resampled_means(values, resamples, np.random.default_rng(seed))
    tail = 50 * (1 - confidence)
    low, high = np.percentile(means, [tail, 100 - tail], axis=0)
    return low, high


def resampled_means(values: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Means [resample, ...] of as many samples as there are, drawn with replacement from [sample, ...].

    Example:
        >>> resampled_means(np.ones((5, 3)), 10, np.random.default_rng(0)).shape
        (10, 3)
    """
    count, means = len(values), []
    for start in range(0, resamples, _BLOCK):
        block = min(_BLOCK, resamples - start)
        drawn = rng.integers(count, size=(block, count)) + count * np.arange(block)[:, None]
        times = np.bincount(drawn.ravel(), minlength=block * count).reshape(block, count)
        means.append(np.tensordot(times / count, values, axes=1))
    return np.concatenate(means)


@dataclass(frozen=True)
class Comparison:
    """Two groups compared: arrays of the shape of a sample's values, all NaN if a group is too small."""

    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    effect: np.ndarray
    p: np.ndarray
    p_holm: np.ndarray
    n_first: int
    n_second: int
    note: str


def compare_groups(
    values: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    minimum: int = MINIMUM,
    names: tuple[str, str] = ("first", "second"),
    resamples: int = RESAMPLES,
    permutations: int = PERMUTATIONS,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Comparison:
    """Difference of the means of two groups of samples, with what is needed to judge it.

    - difference: mean of the first group minus mean of the second, in the unit of the values.
    - low, high: percentile bootstrap, both groups drawn anew and apart.
    - effect: Hedges' g, the difference in pooled standard deviations (n - 1) times 1 - 3 / (4 (n1 + n2 - 2) -
      1); NaN where no value differs from its group's mean.
    - p: two-sided permutation test of the difference, (k + 1) / (permutations + 1), k the shuffles of the
      labels whose difference is as large; the same shuffles for every number of a sample.
    - p_holm: p by Holm's step-down rule over the last axis (the layers); p itself if a sample is one number.

    Args:
        values: [sample, ...], finite in the two groups.
        first, second: bool [sample], without a sample in common.
        minimum: size that both groups need, 2 or more; below it all numbers are NaN and `note` says why.
        names: what the note calls the groups.
        resamples, permutations, confidence, seed: ours; the defaults are 2000, 9999, 0.95 and 0.

    Raises:
        InputError: minimum is under 2.
        ValueError: a value is not finite, or a sample is in both groups.

    Example:
        >>> high, low = np.arange(20) < 10, np.arange(20) >= 10
        >>> found = compare_groups(np.where(high, 3.0, 1.0) + np.tile([0.0, 1.0], 10), high, low)
        >>> float(found.difference), bool(found.p < 0.001), found.n_first
        (2.0, True, 10)
    """
    first, second = np.asarray(first, bool), np.asarray(second, bool)
    if minimum < 2:
        raise InputError(f"minimum is {minimum}; a comparison needs 2 samples of each group at least")
    if (first & second).any():
        raise ValueError("a sample is in both groups")
    one, two = np.asarray(values, float)[first], np.asarray(values, float)[second]
    if not (np.isfinite(one).all() and np.isfinite(two).all()):
        raise ValueError("values of the groups must be finite")
    if min(len(one), len(two)) < minimum:
        nan = np.full((6, *one.shape[1:]), np.nan)
        found = f"{len(one)} {names[0]} and {len(two)} {names[1]}"
        note = f"{found}: not compared, {minimum} of each are needed"
        return Comparison(nan[0], nan[1], nan[2], nan[3], nan[4], nan[5], len(one), len(two), note)
    difference = np.asarray(one.mean(0) - two.mean(0))
    low, high = _bootstrap_difference(one, two, resamples, confidence, seed)
    p = _permutation_p(one, two, permutations, seed)
    return Comparison(
        difference, low, high, hedges_g(one, two), p, holm(p), n_first=len(one), n_second=len(two), note=""
    )


def _bootstrap_difference(
    one: np.ndarray, two: np.ndarray, resamples: int, confidence: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    means = [resampled_means(part, resamples, rng) for part in (one, two)]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(means[0] - means[1], [tail, 100 - tail], axis=0)
    return low, high


def _permutation_p(one: np.ndarray, two: np.ndarray, permutations: int, seed: int) -> np.ndarray:
    """p [...] of a difference of means as far from 0, either way, as the observed one."""
    joined = np.concatenate([one, two])
    joined = joined - joined.mean(0)
    scale = np.abs(joined).max(0)
    weights = np.repeat([1 / len(one), -1 / len(two)], [len(one), len(two)])
    observed = np.abs(np.tensordot(weights, joined, 1)) - 1e-10 * scale  # equal but for rounding is as large
    rng, larger = np.random.default_rng(seed), np.zeros(joined.shape[1:], int)
    for start in range(0, permutations, _BLOCK):
        drawn = rng.permuted(np.tile(weights, (min(_BLOCK, permutations - start), 1)), axis=1)
        larger += (np.abs(np.tensordot(drawn, joined, 1)) >= observed).sum(0)
    return (larger + 1) / (permutations + 1)


def hedges_g(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Standardised difference of means of [sample, ...], for small samples; NaN where nothing varies.

    Example:
        >>> round(float(hedges_g(np.array([2.0, 3.0, 4.0]), np.array([1.0, 2.0, 3.0]))), 6)
        0.8
    """
    freedom = len(one) + len(two) - 2
    spread = np.sqrt(((len(one) - 1) * one.var(0, ddof=1) + (len(two) - 1) * two.var(0, ddof=1)) / freedom)
    varies = spread > 1e-12 * np.maximum(np.abs(one).max(0), np.abs(two).max(0))
    g = np.full(spread.shape, np.nan)
    np.divide(one.mean(0) - two.mean(0), spread, out=g, where=varies)
    return g * (1 - 3 / (4 * freedom - 1))


def holm(p: np.ndarray) -> np.ndarray:
    """p values [..., test] by Holm's rule over the last axis; a single one stays as it is.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
        [0.03, 0.06, 0.06]
    """
    p = np.asarray(p, float)
    if not p.ndim:
        return p
    order = np.argsort(p, axis=-1)
    factor = p.shape[-1] - np.arange(p.shape[-1])
    stepped = np.maximum.accumulate(np.take_along_axis(p, order, -1) * factor, axis=-1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(stepped, 1), -1)
    return adjusted


def by_label(faithful: Sequence[bool | None]) -> dict[str, np.ndarray]:
    """Which samples have each label: bool [sample] by all, faithful, unfaithful; without a label only all.

    Example:
        >>> [int(mine.sum()) for mine in by_label([True, None, False, False]).values()]
        [4, 1, 2]
    """
    members = [[True] * len(faithful), [is_ is True for is_ in faithful], [is_ is False for is_ in faithful]]
    return {label: np.array(mine, bool) for label, mine in zip(LABELS, members, strict=True)}


def means_by_label(
    name: str, values: np.ndarray, members: Mapping[str, np.ndarray], dims: tuple[str, ...]
) -> dict[str, Any]:
    """Variables `name`, `name_low`, `name_high`: means over each label's samples, with intervals.

    Args:
        values: [sample, ...], without NaN.
        members: by label, bool [sample].
        dims: of the variables; the first is the label's.

    Example:
        >>> members = by_label([True, False])
        >>> found = means_by_label("x", np.array([[1.0], [3.0]]), members, ("label", "layer"))
        >>> found["x"][1].tolist()
        [[2.0], [1.0], [3.0]]
    """
    parts = [values[mine] for mine in members.values()]
    nothing = np.full(values.shape[1:], np.nan)
    intervals = [bootstrap_mean(part) for part in parts]
    return {
        name: (dims, np.array([part.mean(0) if len(part) else nothing for part in parts])),
        f"{name}_low": (dims, np.array([low for low, _ in intervals])),
        f"{name}_high": (dims, np.array([high for _, high in intervals])),
    }


def unfaithful_minus_faithful(
    values: np.ndarray,
    members: Mapping[str, np.ndarray],
    dims: tuple[str, ...],
    minimum: int = MINIMUM,
    suffix: str = "",
) -> tuple[dict[str, Any], str]:
    """Unfaithful minus faithful samples, by `compare_groups`: variables of a data set, and the note.

    The variables are `difference`, `difference_low`, `difference_high`, `effect`, `p` and `p_holm`.

    Args:
        values: [sample, ...], finite.
        members: as `by_label` gives them.
        dims: of the variables, those of `values` without the sample.
        suffix: put behind `difference`, `effect`, `p` and `p_holm`.

    Example:
        >>> members = by_label([True, False, None])
        >>> unfaithful_minus_faithful(np.zeros((3, 2)), members, ("layer",))[1]
        '1 unfaithful and 1 faithful: not compared, 5 of each are needed'
    """
    names = ("unfaithful", "faithful")
    found = compare_groups(values, members["unfaithful"], members["faithful"], minimum, names)
    variables = {
        f"difference{suffix}": found.difference,
        f"difference{suffix}_low": found.low,
        f"difference{suffix}_high": found.high,
        f"effect{suffix}": found.effect,
        f"p{suffix}": found.p,
        f"p_holm{suffix}": found.p_holm,
    }
    return {name: (dims, array) for name, array in variables.items()}, found.note
