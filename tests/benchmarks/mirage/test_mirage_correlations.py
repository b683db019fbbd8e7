"""Correlations over result folders, compared with hand-computed values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import linregress

from mmprobe.benchmarks.core.results import mean_metric, write_results
from mmprobe.benchmarks.mirage.correlations import correlate_kinds, correlate_models
from mmprobe.benchmarks.mirage.labels import KINDS
from mmprobe.errors import InputError


def write_folder(path: Path, numbers: dict[str, float | None], records: list[dict] | None = None) -> Path:
    metrics = {
        name: mean_metric([] if value is None else [value], "higher") for name, value in numbers.items()
    }
    write_results(path, "mirage", metrics, records or [{"id": "1", "hallucinations": None}])
    return path


def test_correlate_models(tmp_path):
    accuracy, f_step, lhs = [0.2, 0.4, 0.5, 0.9], [0.3, 0.2, 0.6, 0.7], [0.1, None, 0.2, 0.6]
    folders = [
        write_folder(tmp_path / str(at), {"accuracy": a, "f_step": f, "lhs": score})
        for at, (a, f, score) in enumerate(zip(accuracy, f_step, lhs, strict=True))
    ]
    result = correlate_models(folders, ("accuracy", "f_step", "lhs"))
    reference = linregress(accuracy, f_step)
    assert result.r[0][1] == pytest.approx(reference.rvalue) and result.p[0][1] == pytest.approx(
        reference.pvalue
    )
    assert result.n == [[4, 4, 3], [4, 4, 3], [3, 3, 3]]
    assert result.r[0][2] == pytest.approx(np.corrcoef([0.2, 0.5, 0.9], [0.1, 0.2, 0.6])[0, 1])
    with pytest.raises(InputError, match="f_claim"):
        correlate_models(folders)
    with pytest.raises(InputError, match="twice"):
        correlate_models([folders[0], str(folders[0])], ("accuracy",))


def test_correlate_kinds(tmp_path):
    spatial, logical = [1, 1, 0, 0, 1], [1, 0, 0, 0, 1]
    records = [
        {
            "id": str(at),
            "hallucinations": dict.fromkeys(KINDS, False) | {"spatial": bool(s), "logical": bool(x)},
        }
        for at, (s, x) in enumerate(zip(spatial, logical, strict=True))
    ]
    result = correlate_kinds(write_folder(tmp_path, {}, [*records, {"id": "9", "hallucinations": None}]))
    assert result.names == KINDS
    assert result.r[0][1] == pytest.approx(np.corrcoef(spatial, logical)[0, 1])
    assert result.n[0][1] == 5 and result.r[0][2] is None, "a kind that never occurs has no correlation"


def test_folders_without_results(tmp_path):
    with pytest.raises(InputError, match="with a judge"):
        correlate_kinds(write_folder(tmp_path / "rules", {"accuracy": 1.0}))
    with pytest.raises(InputError, match="results.json"):
        correlate_models([tmp_path / "gone"])
    other = tmp_path / "other"
    write_results(other, "pope", {"accuracy": mean_metric([1.0], "higher")}, [])
    with pytest.raises(InputError, match="no results of MIRAGE"):
        correlate_models([other])
    (other / "results.json").write_text(json.dumps([1]))
    with pytest.raises(InputError, match="no results of MIRAGE"):
        correlate_models([other])
