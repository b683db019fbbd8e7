"""Pearson's correlations of metrics over models, and of kinds of hallucination (paper 000, section 6.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import pearsonr

from mmprobe.analyses.statistics import CONFIDENCE, holm
from mmprobe.errors import InputError


@dataclass(frozen=True)
class Correlations:
    """Pearson's correlation of each column with each; matrices [column][column], None where undefined.

    Attributes:
        r: 1 on the diagonal.
        low, high: 95 % interval by Fisher's transformation; for four cases or more.
        p: two-sided, of no correlation; None on the diagonal.
        p_holm: by Holm's rule over all pairs of columns.
        n: cases that have both.
    """

    names: tuple[str, ...]
    r: list[list[float | None]]
    low: list[list[float | None]]
    high: list[list[float | None]]
    p: list[list[float | None]]
    p_holm: list[list[float | None]]
    n: list[list[int]]


def correlations(columns: Mapping[str, Sequence[float | bool | None]]) -> Correlations:
    """Pearson's correlations with p values, as in table 5 and figures 5 and 7 of paper 000.

    A case is whatever the columns are measured on: a model (accuracy, F_step, F_claim and LHS over models), a
    topic or a question (the kinds of hallucination).

    Args:
        columns: by name, one number a case; None where it is not known.

    Raises:
        InputError: columns have different lengths.

    Example:
        >>> found = correlations({"a": [1, 2, 3, 4], "b": [2, 4, 6, 9]})
        >>> round(found.r[0][1], 4), found.n[0][1]
        (0.9944, 4)
    """
    if len({len(column) for column in columns.values()}) > 1:
        raise InputError("columns of a correlation matrix have different lengths")
    names = tuple(columns)
    table = [np.array([math.nan if v is None else float(v) for v in columns[name]]) for name in names]
    size = len(names)
    numbers = np.full((4, size, size), math.nan)
    n = np.zeros((size, size), int)
    for i in range(size):
        for j in range(i, size):
            both = np.isfinite(table[i]) & np.isfinite(table[j])
            n[i, j] = n[j, i] = int(both.sum())
            numbers[:, i, j] = numbers[:, j, i] = _pearson(table[i][both], table[j][both], i == j)
    r, low, high, p = (_matrix(part) for part in numbers)
    return Correlations(names, r, low, high, p, _matrix(_holm_of_pairs(numbers[3])), n.tolist())


def _pearson(one: np.ndarray, two: np.ndarray, same: bool) -> tuple[float, float, float, float]:
    """r, low, high, p; NaN where a column is constant or has fewer than three cases."""
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(two) == 0:
        return math.nan, math.nan, math.nan, math.nan
    if same:
        return 1.0, math.nan, math.nan, math.nan
    found = pearsonr(one, two)
    low, high = found.confidence_interval(CONFIDENCE) if len(one) > 3 else (math.nan, math.nan)
    return float(found.statistic), float(low), float(high), float(found.pvalue)


def _holm_of_pairs(p: np.ndarray) -> np.ndarray:
    adjusted = np.full_like(p, np.nan)
    rows, columns = np.nonzero(np.triu(np.isfinite(p), 1))
    if len(rows):
        adjusted[rows, columns] = adjusted[columns, rows] = holm(p[rows, columns])
    return adjusted


def _matrix(array: np.ndarray) -> list[list[float | None]]:
    return [[float(value) if math.isfinite(value) else None for value in row] for row in array]
