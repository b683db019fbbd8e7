"""Pearson correlations of metrics, and of kinds of hallucination (arXiv:2505.24238, section 6.1)."""

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
from mmprobe.samples import regular_file

MODEL_METRICS = ("accuracy", "f_step", "f_claim", "lhs")


@dataclass(frozen=True)
class Correlations:
    """Pearson correlations of all pairs of columns. Matrices are [column][column], with None if undefined.

    Attributes:
        names: names of the columns.
        r: the correlations; 1 on the diagonal.
        low, high: 95 % interval by Fisher's transformation; needs four cases or more.
        p: two-sided p value of no correlation; None on the diagonal.
        p_holm: p values corrected by Holm's rule over all pairs of columns.
        n: number of cases with values in both columns.
    """

    names: tuple[str, ...]
    r: list[list[float | None]]
    low: list[list[float | None]]
    high: list[list[float | None]]
    p: list[list[float | None]]
    p_holm: list[list[float | None]]
    n: list[list[int]]


def correlate_models(folders: Sequence[str | Path], metrics: Sequence[str] = MODEL_METRICS) -> Correlations:
    """Correlate metrics over models (table 5). Each result folder is one case.

    Args:
        folders: result folders of `mmprobe bench mirage` or `mmprobe score mirage`, one per model.
        metrics: names of metrics in `results.json`. A metric that a folder does not define is None there.

    Raises:
        InputError: a folder holds no results of MIRAGE, a folder is given twice, or no folder has a metric.

    Example:
        >>> correlate_models(["results/one", "results/two", "results/three"]).r           # doctest: +SKIP
    """
    if len({Path(folder).absolute() for folder in folders}) < len(folders):
        raise InputError("a result folder is given twice; each model is one case")
    rows = [_read_folder(Path(folder))[0] for folder in folders]
    for name in metrics:
        if rows and not any(name in row for row in rows):
            raise InputError(f"metric {name!r}: none of the folders has it; see 'metrics' in results.json")
    return correlate({name: [row.get(name) for row in rows] for name in metrics})


def correlate_kinds(folder: str | Path) -> Correlations:
    """Correlate the kinds of hallucination over the questions of one model (figures 5 and 7).

    Args:
        folder: result folder of `mmprobe bench mirage` or `mmprobe score mirage`, with a model as judge.

    Raises:
        InputError: the folder holds no results of MIRAGE, or no judge labelled hallucinations.

    Example:
        >>> correlate_kinds("results/judged").p_holm                                      # doctest: +SKIP
    """
    _, records = _read_folder(Path(folder))
    verdicts = [record.get("hallucinations") for record in records]
    if not any(isinstance(verdict, dict) for verdict in verdicts):
        raise InputError(
            f"{folder}: holds no kinds of hallucination; score the answers with a judge model:PROVIDER/MODEL"
        )
    columns: dict[str, list[bool | None]] = {
        kind: [verdict.get(kind) if isinstance(verdict, dict) else None for verdict in verdicts]
        for kind in KINDS
    }
    return correlate(columns)


def correlate(columns: Mapping[str, Sequence[float | bool | None]]) -> Correlations:
    """Return the Pearson correlations of all pairs of columns, as in table 5 and figures 5 and 7.

    Args:
        columns: values by name, one value per case; None if unknown. A case is for example a model, a topic
            or a question.

    Raises:
        InputError: the columns have different lengths.

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
    statistics = np.full((4, size, size), math.nan)  # r, low, high, p
    n = np.zeros((size, size), int)
    for i in range(size):
        for j in range(i, size):
            both = np.isfinite(table[i]) & np.isfinite(table[j])
            n[i, j] = n[j, i] = int(both.sum())
            statistics[:, i, j] = statistics[:, j, i] = _pearson(table[i][both], table[j][both], i == j)
    r, low, high, p = (_nan_to_none(matrix) for matrix in statistics)
    return Correlations(names, r, low, high, p, _nan_to_none(_correct_pairs(statistics[3])), n.tolist())


def _pearson(x: np.ndarray, y: np.ndarray, is_diagonal: bool) -> tuple[float, float, float, float]:
    """Return r, low, high, and p; NaN if a column is constant or there are fewer than three cases."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan, math.nan, math.nan, math.nan
    if is_diagonal:
        return 1.0, math.nan, math.nan, math.nan
    result = pearsonr(x, y)
    low, high = result.confidence_interval(CONFIDENCE) if len(x) > 3 else (math.nan, math.nan)
    return float(result.statistic), float(low), float(high), float(result.pvalue)


def _correct_pairs(p: np.ndarray) -> np.ndarray:
    """Correct the p values of the pairs of columns by Holm's rule."""
    corrected = np.full_like(p, np.nan)
    rows, columns = np.nonzero(np.triu(np.isfinite(p), 1))
    if len(rows):
        corrected[rows, columns] = corrected[columns, rows] = holm(p[rows, columns])
    return corrected


def _nan_to_none(array: np.ndarray) -> list[list[float | None]]:
    return [[float(value) if math.isfinite(value) else None for value in row] for row in array]


def _read_folder(folder: Path) -> tuple[dict[str, float | None], list[dict[str, Any]]]:
    """Read the values of the metrics, and the records, of a result folder."""
    file = folder / "results.json"
    try:
        content = json.loads(regular_file(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{file}: not a JSON file that can be read; name a result folder") from None
    metrics = content.get("metrics") if isinstance(content, dict) else None
    if not isinstance(metrics, dict) or content.get("benchmark") != "mirage":
        raise InputError(f"{file}: holds no results of MIRAGE")
    values = {str(name): _metric_value(metric) for name, metric in metrics.items()}
    records = [record for _, record in json_lines(folder / "samples.jsonl") if isinstance(record, dict)]
    return values, records


def _metric_value(metric: Any) -> float | None:
    value = metric.get("value") if isinstance(metric, dict) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
