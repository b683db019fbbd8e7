"""How well two judges agree on the same samples."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from mmprobe.benchmarks.results import Metric, count_metric
from mmprobe.errors import InputError


def agreement(
    first: Sequence[Sequence[Hashable] | None], second: Sequence[Sequence[Hashable] | None]
) -> dict[str, Metric]:
    """Cohen's kappa of two judges, and the share of items that they label alike.

    kappa = (p_o - p_e) / (1 - p_e), with p_o the share labelled alike and p_e the share expected by chance from how
    often each judge gives each label (Cohen, 1960). Items are pooled over samples. Intervals are bootstrapped over
    samples, since the items of one sample are not independent.

    Args:
        first, second: each sample's labels, one an item, by the first and by the second judge; None where a judge
            left the sample unscored, which lowers the coverage.

    Returns:
        `kappa` (1 agreement, 0 as by chance; undefined where both judges always give one and the same label) and
        `agreement`; n counts samples.

    Raises:
        InputError: the judges do not have the same samples, or not the same number of items in one.

    Example:
        >>> found = agreement([["yes", "no"], ["no"], None], [["yes", "no"], ["yes"], ["no"]])
        >>> round(found["kappa"].value, 3), round(found["agreement"].value, 3), found["kappa"].n
        (0.4, 0.667, 2)
    """
    if len(first) != len(second):
        raise InputError(f"agreement: {len(first)} samples by one judge, {len(second)} by the other")
    for place, (one, two) in enumerate(zip(first, second, strict=True)):
        if one is not None and two is not None and len(one) != len(two):
            raise InputError(
                f"agreement: sample {place} (from 0) has {len(one)} labels by one judge, {len(two)} by the other"
            )
    given = (label for labels in (*first, *second) for label in labels or ())
    number = {label: place for place, label in enumerate(dict.fromkeys(given))} or {None: 0}
    tables = [_table(one, two, number) for one, two in zip(first, second, strict=True)]
    size = len(number)
    return {
        "kappa": count_metric(tables, lambda counts: _kappa(counts, size), "higher", (-1.0, 1.0)),
        "agreement": count_metric(tables, lambda counts: _alike(counts, size), "higher"),
    }


def _table(
    one: Sequence[Hashable] | None, two: Sequence[Hashable] | None, number: dict[Hashable, int]
) -> list[float] | None:
    """A sample's items by both labels, the first judge's in rows, flattened."""
    if one is None or two is None:
        return None
    counts = np.zeros((len(number), len(number)))
    for a, b in zip(one, two, strict=True):
        counts[number[a], number[b]] += 1
    return counts.ravel().tolist()


def _shares(counts: np.ndarray, size: int) -> np.ndarray:
    tables = counts.reshape(*counts.shape[:-1], size, size)
    total = tables.sum((-1, -2), keepdims=True)
    return tables / np.where(total > 0, total, np.nan)


def _alike(counts: np.ndarray, size: int) -> np.ndarray:
    return np.trace(_shares(counts, size), axis1=-2, axis2=-1)


def _kappa(counts: np.ndarray, size: int) -> np.ndarray:
    shares = _shares(counts, size)
    chance = (shares.sum(-1) * shares.sum(-2)).sum(-1)
    return (_alike(counts, size) - chance) / np.where(chance < 1 - 1e-12, 1 - chance, np.nan)
