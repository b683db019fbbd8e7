"""Pearson correlations of metrics, and of kinds of hallucination (arXiv:2505.24238, section 6.1)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import pearsonr

from mmprobe.benchmarks.mirage.data import TOPICS
from mmprobe.benchmarks.mirage.labels import KINDS
from mmprobe.errors import InputError
from mmprobe.files import read_results, result_records
from mmprobe.stats.compare import PERMUTATIONS, holm
from mmprobe.stats.intervals import CONFIDENCE

_BLOCK = 500  # permutations in memory at a time
MODEL_METRICS = ("accuracy", "f_step", "f_claim", "lhs")


def correlate_models(folders: Sequence[str | Path], metrics: Sequence[str] = MODEL_METRICS) -> xr.Dataset:
    """Correlate metrics of results.json over models (table 5). Each result folder is one case.

    `unread` (column) counts the answers of all models that nobody could read; results.json bounds what each metric would be
    with them, but no such bound of a correlation is short of -1 to 1. Raises InputError where a folder contains no results of
    MIRAGE or is given twice, or no folder has a metric.
    """
    results = [read_results(Path(folder), "mirage") for folder in _check_distinct(folders)]
    rows = [{name: metric.value for name, metric in each.metrics.items()} for each in results]
    for name in metrics:
        if rows and not any(name in row for row in rows):
            raise InputError(f"metric {name!r}: none of the folders has it; see 'metrics' in results.json")
    unread = {
        name: sum(each.metrics[name].unread or 0 for each in results if name in each.metrics)
        for name in metrics
    }
    return _count_unread(correlate({name: [row.get(name) for row in rows] for name in metrics}), unread)


def _count_unread(ds: xr.Dataset, unread: Mapping[str, float]) -> xr.Dataset:
    ds["unread"] = ("column", [int(unread[name]) for name in ds["column"].values])
    ds["unread"].attrs["long_name"] = "answers that nobody could read or judge"
    return ds


def correlate_kinds_over_topics(
    folders: Sequence[str | Path], cases: Literal["topics", "cells"] = "topics"
) -> xr.Dataset:
    """Correlate the rates of the kinds of hallucination over topics (figures 5 and 7).

    A rate is the share of a model's judged answers with this kind, as `KIND_rate[topic=…]`. Each folder contains
    one answering model's results, judged by a model. `topics` takes each topic as a case, with its rate
    averaged over the folders: figure 7 for one folder, figure 5 for several (n = 7). `cells` takes each model
    and topic: cells of one model share its level, so Fisher's interval and `p` are too narrow there, and
    `p_permutation` shuffles within each model. `unread` counts the answers without a judgement, which are left out. Raises InputError where a folder contains no results of MIRAGE or
    no kinds, or is given twice.
    """
    read = [_kind_verdicts(Path(folder)) for folder in _check_distinct(folders)]
    tables, unread = (
        [table for table, _ in read],
        dict.fromkeys(map(str, KINDS), sum(without for _, without in read)),
    )
    # A kind without a verdict was not found.
    by_model = pd.concat([(table == 1).groupby(level=0).mean() for table in tables], keys=range(len(tables)))
    if cases == "topics":
        rates = by_model.groupby(level=1).mean()
        rates = rates.reindex([topic for topic in TOPICS if topic in rates.index])
        return _count_unread(correlate(rates), unread)
    return _count_unread(correlate(by_model, by_model.index.get_level_values(0).tolist()), unread)


def correlate_kinds_over_questions(folder: str | Path) -> xr.Dataset:
    """Correlate the kinds of hallucination over one model's questions, our choice. The paper correlates topics."""
    table, without = _kind_verdicts(Path(folder))
    return _count_unread(correlate(table), dict.fromkeys(map(str, KINDS), without))


def _kind_verdicts(folder: Path) -> tuple[pd.DataFrame, int]:
    """Return the verdict on each kind in each judged answer, with its topic as index, and how many answers have none.

    NaN is a kind without a verdict.
    """
    read_results(folder, "mirage")
    records = [record for _, record in result_records(folder)]
    judged = [
        (str(record.get("topic")), record["hallucinations"])
        for record in records
        if isinstance(record.get("hallucinations"), dict)
    ]
    if not judged:
        raise InputError(
            f"{folder}: contains no kinds of hallucination; score the answers with a judge model:PROVIDER/MODEL"
        )
    rows = [[verdict.get(kind) for kind in KINDS] for _, verdict in judged]
    table = pd.DataFrame(rows, [topic for topic, _ in judged], KINDS, dtype=float)
    return table, len(records) - len(judged)


def _check_distinct(folders: Sequence[str | Path]) -> Sequence[str | Path]:
    if len({Path(folder).absolute() for folder in folders}) < len(folders):
        raise InputError("a result folder is given twice; each model is one case")
    return folders


def correlate(
    columns: Mapping[str, Sequence[float | bool | None]] | pd.DataFrame, blocks: Sequence[int] = ()
) -> xr.Dataset:
    """Return the Pearson correlations of all pairs of columns, as in table 5 and figures 5 and 7.

    Columns hold one value a case, None if unknown. Raises InputError for columns of different lengths.

    Returns:
        A data set with dimensions `column` and `other`, with NaN where a number is undefined:

        - r: 1 on the diagonal. low, high: its 95 % interval by Fisher's transformation, for four independent
          cases or more
        - p, p_holm: two-sided p value of no correlation, and the same corrected by Holm's rule over all pairs
        - p_permutation: that of 9999 shuffles of one column, within the cases' `blocks` if there are any
        - n: number of cases with values in both columns

    Example:
        >>> result = correlate({"a": [1, 2, 3, 4], "b": [2, 4, 6, 9]})
        >>> pair = result.sel(column="a", other="b")
        >>> round(pair.r.item(), 4), pair.n.item()
        (0.9944, 4)
    """
    if len({len(column) for _, column in columns.items()}) > 1:
        raise InputError("the columns to correlate have different lengths")
    table = pd.DataFrame(columns, dtype=float).to_numpy()
    groups = np.array(blocks or [0] * len(table))
    size = table.shape[1]
    numbers = np.full((6, size, size), np.nan)  # r, low, high, p, p by permutation, n
    for i, j in itertools.combinations_with_replacement(range(size), 2):
        both = np.isfinite(table[:, i]) & np.isfinite(table[:, j])
        row = (*_pearson(table[both, i], table[both, j], groups[both], i == j), both.sum())
        numbers[:, i, j] = numbers[:, j, i] = row
    names = ("r", "low", "high", "p", "p_permutation", "n")
    matrices = {name: (("column", "other"), matrix) for name, matrix in zip(names, numbers, strict=True)}
    matrices["n"] = (("column", "other"), numbers[5].astype(int))
    matrices["p_holm"] = (("column", "other"), _correct_pairs(numbers[3]))
    return xr.Dataset(matrices, coords={"column": list(columns), "other": list(columns)})


def _pearson(
    x: np.ndarray, y: np.ndarray, groups: np.ndarray, is_diagonal: bool
) -> tuple[float, float, float, float, float]:
    """Return r, low, high, p, and p by permutation; NaN for a constant column or fewer than three cases."""
    nan = np.nan
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return nan, nan, nan, nan, nan
    if is_diagonal:
        return 1.0, nan, nan, nan, nan
    result = pearsonr(x, y)
    low, high = result.confidence_interval(CONFIDENCE) if len(x) > 3 else (nan, nan)
    by_permutation = _permutation_p(x, y, groups)
    return float(result.statistic), float(low), float(high), float(result.pvalue), by_permutation


def _permutation_p(x: np.ndarray, y: np.ndarray, groups: np.ndarray, seed: int = 0) -> float:
    """Return the two-sided p of r: the share of shuffles of y within groups whose r is as far from their mean."""
    rng = np.random.default_rng(seed)
    centred = x - x.mean()
    products = np.empty(PERMUTATIONS)
    for start in range(0, PERMUTATIONS, _BLOCK):
        shuffled = np.tile(y, (min(_BLOCK, PERMUTATIONS - start), 1))
        for group in np.unique(groups):
            shuffled[:, groups == group] = rng.permuted(shuffled[:, groups == group], axis=1)
        products[start : start + len(shuffled)] = shuffled @ centred
    expected = sum(centred[groups == group].sum() * y[groups == group].mean() for group in np.unique(groups))
    scale = np.abs(centred).sum() * np.abs(y).max()
    as_far = np.abs(products - expected) >= abs(y @ centred - expected) - 1e-12 * scale
    return (int(as_far.sum()) + 1) / (PERMUTATIONS + 1)


def _correct_pairs(p: np.ndarray) -> np.ndarray:
    """Correct the p values of the pairs of columns by Holm's rule."""
    corrected = np.full_like(p, np.nan)
    rows, columns = np.nonzero(np.triu(np.isfinite(p), 1))
    if len(rows):
        corrected[rows, columns] = corrected[columns, rows] = holm(p[rows, columns])
    return corrected
