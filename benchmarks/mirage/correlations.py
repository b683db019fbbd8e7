"""Pearson correlations of metrics, and of kinds of hallucination (arXiv:2505.24238, section 6.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.stats import pearsonr

from mmprobe.analyses.intervals import CONFIDENCE
from mmprobe.analyses.statistics import PERMUTATIONS, holm
from mmprobe.benchmarks.core.jsonl import read_results, result_records
from mmprobe.benchmarks.mirage.data import TOPICS
from mmprobe.benchmarks.mirage.labels import KINDS
from mmprobe.errors import InputError

_BLOCK = 500  # permutations in memory at a time
MODEL_METRICS = ("accuracy", "f_step", "f_claim", "lhs")


@dataclass(frozen=True)
class Correlations:
    """Pearson correlations of all pairs of columns. Matrices are [column][column], with None if undefined.

    `low` and `high` are the 95 % interval by Fisher's transformation, for four independent cases or more; `p`
    is the two-sided p value of no correlation, `p_holm` the same corrected by Holm's rule over all pairs, and
    `p_permutation` that of 9999 shuffles of one column (within blocks, if there are any). `n` counts the
    cases with values in both columns.
    """

    names: tuple[str, ...]
    r: list[list[float | None]]
    low: list[list[float | None]]
    high: list[list[float | None]]
    p: list[list[float | None]]
    p_holm: list[list[float | None]]
    p_permutation: list[list[float | None]]
    n: list[list[int]]


def correlate_models(folders: Sequence[str | Path], metrics: Sequence[str] = MODEL_METRICS) -> Correlations:
    """Correlate metrics of results.json over models (table 5). Each result folder is one case.

    Raises InputError where a folder holds no results of MIRAGE or is given twice, or no folder has a metric.
    """
    results = [read_results(Path(folder), "mirage") for folder in _check_distinct(folders)]
    rows = [{name: metric.value for name, metric in each.metrics.items()} for each in results]
    for name in metrics:
        if rows and not any(name in row for row in rows):
            raise InputError(f"metric {name!r}: none of the folders has it; see 'metrics' in results.json")
    return correlate({name: [row.get(name) for row in rows] for name in metrics})


def correlate_kinds_over_topics(
    folders: Sequence[str | Path], cases: Literal["topics", "cells"] = "topics"
) -> Correlations:
    """Correlate the rates of the kinds of hallucination over topics (figures 5 and 7).

    A rate is the share of a model's judged answers with this kind, as `KIND_rate[topic=…]`. Each folder holds
    one answering model's results, judged by a model. `topics` takes each topic as a case, with its rate
    averaged over the folders: figure 7 for one folder, figure 5 for several (n = 7). `cells` takes each model
    and topic: cells of one model share its level, so Fisher's interval and `p` are too narrow there, and
    `p_permutation` shuffles within each model. Raises InputError where a folder holds no results of MIRAGE or
    no kinds, or is given twice.
    """
    tables = [_topic_rates(Path(folder)) for folder in _check_distinct(folders)]
    if cases == "topics":
        topics = [topic for topic in TOPICS if any(topic in table for table in tables)]
        rows = [
            {
                kind: float(np.mean([table[topic][kind] for table in tables if topic in table]))
                for kind in KINDS
            }
            for topic in topics
        ]
        return correlate({kind: [row[kind] for row in rows] for kind in KINDS})
    cells = [(model, rates) for model, table in enumerate(tables) for rates in table.values()]
    columns: dict[str, list[float]] = {kind: [rates[kind] for _, rates in cells] for kind in KINDS}
    return correlate(columns, [model for model, _ in cells])


def correlate_kinds_over_questions(folder: str | Path) -> Correlations:
    """Correlate the kinds of hallucination over one model's questions, ours. The paper correlates topics."""
    verdicts = [verdict for _, verdict in _kind_verdicts(Path(folder))]
    return correlate({kind: [verdict.get(kind) for verdict in verdicts] for kind in KINDS})


def _topic_rates(folder: Path) -> dict[str, dict[str, float]]:
    """Return the rate of each kind, by topic."""
    by_topic: dict[str, list[Mapping[str, Any]]] = {}
    for topic, verdict in _kind_verdicts(folder):
        by_topic.setdefault(topic, []).append(verdict)
    return {
        topic: {
            kind: sum(verdict.get(kind) is True for verdict in verdicts) / len(verdicts) for kind in KINDS
        }
        for topic, verdicts in by_topic.items()
    }


def _kind_verdicts(folder: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return topic and verdicts of each judged answer."""
    read_results(folder, "mirage")
    judged = [
        (str(record.get("topic")), record["hallucinations"])
        for _, record in result_records(folder)
        if isinstance(record.get("hallucinations"), dict)
    ]
    if not judged:
        raise InputError(
            f"{folder}: holds no kinds of hallucination; score the answers with a judge model:PROVIDER/MODEL"
        )
    return judged


def _check_distinct(folders: Sequence[str | Path]) -> Sequence[str | Path]:
    if len({Path(folder).absolute() for folder in folders}) < len(folders):
        raise InputError("a result folder is given twice; each model is one case")
    return folders


def correlate(
    columns: Mapping[str, Sequence[float | bool | None]], blocks: Sequence[int] = ()
) -> Correlations:
    """Return the Pearson correlations of all pairs of columns, as in table 5 and figures 5 and 7.

    Columns hold one value a case, None if unknown. The permutation test shuffles within the cases' `blocks`.
    Raises InputError for columns of different lengths.

    Example:
        >>> result = correlate({"a": [1, 2, 3, 4], "b": [2, 4, 6, 9]})
        >>> round(result.r[0][1], 4), result.n[0][1]
        (0.9944, 4)
    """
    if len({len(column) for column in columns.values()}) > 1:
        raise InputError("the columns to correlate have different lengths")
    names = tuple(columns)
    table = [np.array([math.nan if v is None else float(v) for v in columns[name]]) for name in names]
    size = len(names)
    groups = np.array(blocks or [0] * (len(table[0]) if table else 0))
    statistics = np.full((5, size, size), math.nan)  # r, low, high, p, p by permutation
    n = np.zeros((size, size), int)
    for i in range(size):
        for j in range(i, size):
            both = np.isfinite(table[i]) & np.isfinite(table[j])
            n[i, j] = n[j, i] = int(both.sum())
            pair = _pearson(table[i][both], table[j][both], groups[both], i == j)
            statistics[:, i, j] = statistics[:, j, i] = pair
    r, low, high, p, p_permutation = (_nan_to_none(matrix) for matrix in statistics)
    p_holm = _nan_to_none(_correct_pairs(statistics[3]))
    return Correlations(names, r, low, high, p, p_holm, p_permutation, n.tolist())


def _pearson(
    x: np.ndarray, y: np.ndarray, groups: np.ndarray, is_diagonal: bool
) -> tuple[float, float, float, float, float]:
    """Return r, low, high, p, and p by permutation; NaN for a constant column or fewer than three cases."""
    nan = math.nan
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


def _nan_to_none(array: np.ndarray) -> list[list[float | None]]:
    return [[float(value) if math.isfinite(value) else None for value in row] for row in array]
