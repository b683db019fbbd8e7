"""Pearson's correlations of metrics over models, and of kinds of hallucination (paper 000, section 6.1)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import pearsonr

from mmprobe.analyses.statistics import CONFIDENCE, holm
from mmprobe.benchmarks.core.jsonl import json_lines
from mmprobe.benchmarks.mirage.labels import KINDS
from mmprobe.errors import InputError

OVER_MODELS = ("accuracy", "f_step", "f_claim", "lhs")


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


def over_models(folders: Sequence[str | Path], metrics: Sequence[str] = OVER_MODELS) -> Correlations:
    """How metrics go together over models (table 5): one case a result folder.

    Args:
        folders: of `mmprobe bench mirage` or `mmprobe score mirage`, one a model.
        metrics: names of metrics in their `results.json`; one that a folder lacks, or has as undefined, is None.

    Raises:
        InputError: a folder holds no results of MIRAGE, a folder stands twice, or no folder has a metric.

    Example:
        >>> over_models(["results/one", "results/two", "results/three"]).r           # doctest: +SKIP
    """
    if len({Path(folder).absolute() for folder in folders}) < len(folders):
        raise InputError("a result folder is named twice; each model is one case")
    found = [_read(Path(folder))[0] for folder in folders]
    for name in metrics:
        if found and not any(name in one for one in found):
            raise InputError(f"metric {name!r}: none of the folders has it; see 'metrics' in results.json")
    return correlations({name: [one.get(name) for one in found] for name in metrics})


def over_types(folder: str | Path) -> Correlations:
    """How the kinds of hallucination go together over the questions of one model (figures 5 and 7).

    Args:
        folder: of `mmprobe bench mirage` or `mmprobe score mirage`, with a model as judge.

    Raises:
        InputError: the folder holds no results of MIRAGE, or no judge looked for hallucinations.

    Example:
        >>> over_types("results/judged").p_holm                                      # doctest: +SKIP
    """
    records = _read(Path(folder))[1]
    verdicts = [record.get("hallucinations") for record in records]
    if not any(isinstance(one, dict) for one in verdicts):
        raise InputError(
            f"{folder}: holds no kinds of hallucination; score the answers with --judge model:PROVIDER/MODEL"
        )
    columns: dict[str, list[bool | None]] = {
        kind: [one.get(kind) if isinstance(one, dict) else None for one in verdicts] for kind in KINDS
    }
    return correlations(columns)


def _read(folder: Path) -> tuple[dict[str, float | None], list[dict[str, Any]]]:
    """Values of the metrics, and the records, of a result folder."""
    file = folder / "results.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{file}: not a JSON file that can be read; name a result folder") from None
    metrics = content.get("metrics") if isinstance(content, dict) else None
    if not isinstance(metrics, dict) or content.get("benchmark") != "mirage":
        raise InputError(f"{file}: holds no results of MIRAGE")
    values = {str(name): _value(metric) for name, metric in metrics.items()}
    records = [record for _, record in json_lines(folder / "samples.jsonl") if isinstance(record, dict)]
    return values, records


def _value(metric: Any) -> float | None:
    value = metric.get("value") if isinstance(metric, dict) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
