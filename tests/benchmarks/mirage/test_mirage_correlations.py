"""Correlations over result folders, compared with hand-computed values."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.command_line import assert_fails, read_result, run_in_process
from scipy.stats import linregress

from mmprobe.benchmarks.core.results import mean_metric, write_results
from mmprobe.benchmarks.mirage.correlations import (
    correlate,
    correlate_kinds_over_questions,
    correlate_kinds_over_topics,
    correlate_models,
)
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
    assert float(result.r[0, 1]) == pytest.approx(reference.rvalue) and float(
        result.p[0, 1]
    ) == pytest.approx(reference.pvalue)
    assert result.n.values.tolist() == [[4, 4, 3], [4, 4, 3], [3, 3, 3]]
    assert float(result.r[0, 2]) == pytest.approx(np.corrcoef([0.2, 0.5, 0.9], [0.1, 0.2, 0.6])[0, 1])
    with pytest.raises(InputError, match="f_claim"):
        correlate_models(folders)
    with pytest.raises(InputError, match="twice"):
        correlate_models([folders[0], str(folders[0])], ("accuracy",))


def test_correlate_kinds_over_questions(tmp_path):
    spatial, logical = [1, 1, 0, 0, 1], [1, 0, 0, 0, 1]
    records = [
        {
            "id": str(at),
            "hallucinations": dict.fromkeys(KINDS, False) | {"spatial": bool(s), "logical": bool(x)},
        }
        for at, (s, x) in enumerate(zip(spatial, logical, strict=True))
    ]
    folder = write_folder(tmp_path, {}, [*records, {"id": "9", "hallucinations": None}])
    result = correlate_kinds_over_questions(folder)
    assert tuple(result["column"].values) == KINDS
    assert float(result.r[0, 1]) == pytest.approx(np.corrcoef(spatial, logical)[0, 1])
    assert float(result.n[0, 1]) == 5 and np.isnan(result.r[0, 2]), (
        "a kind that never occurs has no correlation"
    )


# rates of spatial and logical by topic, in percent, of two models with 4 judged answers a topic
SPATIAL = {"algebra": (25, 50), "geometry": (75, 100), "logical": (50, 50), "spatial": (100, 75)}
LOGICAL = {"algebra": (50, 25), "geometry": (50, 75), "logical": (25, 25), "spatial": (75, 100)}


def judged_folder(path: Path, model: int) -> Path:
    records: list[dict] = []
    for topic in SPATIAL:
        for number in range(4):
            verdict = dict.fromkeys(KINDS, False)
            verdict["spatial"] = number < SPATIAL[topic][model] / 25
            verdict["logical"] = number < LOGICAL[topic][model] / 25
            records.append({"id": f"{topic}{number}", "topic": topic, "hallucinations": verdict})
        records.append({"id": f"{topic}9", "topic": topic, "hallucinations": None})
    return write_folder(path, {}, records)


def test_correlate_kinds_over_topics(tmp_path):
    """Questions of one topic are one case, not four: figures 5 and 7 have n = 7 topics."""
    folders = [judged_folder(tmp_path / str(model), model) for model in range(2)]
    spatial, logical = (np.array(list(rates.values()), float) for rates in (SPATIAL, LOGICAL))
    of_one = correlate_kinds_over_topics(folders[:1])
    reference = linregress(spatial[:, 0], logical[:, 0])
    assert float(of_one.n[0, 1]) == 4 and float(of_one.r[0, 1]) == pytest.approx(reference.rvalue)
    assert float(of_one.p[0, 1]) == pytest.approx(reference.pvalue)
    averaged = correlate_kinds_over_topics(folders)
    assert float(averaged.n[0, 1]) == 4
    assert averaged["unread"].values.tolist() == [8] * len(KINDS), "one answer of each topic and model"
    assert float(averaged.r[0, 1]) == pytest.approx(np.corrcoef(spatial.mean(1), logical.mean(1))[0, 1])
    cells = correlate_kinds_over_topics(folders, "cells")
    assert float(cells.n[0, 1]) == 8
    assert float(cells.r[0, 1]) == pytest.approx(np.corrcoef(spatial.ravel(), logical.ravel())[0, 1])
    over_questions = correlate_kinds_over_questions(folders[0])
    assert float(over_questions.n[0, 1]) == 16 and float(over_questions.r[0, 1]) != pytest.approx(
        float(of_one.r[0, 1])
    )
    with pytest.raises(InputError, match="twice"):
        correlate_kinds_over_topics([folders[0], folders[0]])


def test_permutations_within_blocks_against_all_of_them():
    """The shuffled p is near the exact one over every order within each block, and blocks matter."""
    x, y = [1.0, 2.0, 3.0, 4.0, 11.0, 12.0, 14.0], [2.0, 3.0, 1.0, 4.0, 12.0, 11.0, 13.0]
    blocks = [0, 0, 0, 0, 1, 1, 1]
    orders = [
        np.array([*first, *second])
        for first in itertools.permutations(range(4))
        for second in itertools.permutations(range(4, 7))
    ]
    r = np.array([np.corrcoef(x, np.array(y)[order])[0, 1] for order in orders])
    exact = np.mean(np.abs(r - r.mean()) >= abs(np.corrcoef(x, y)[0, 1] - r.mean()) - 1e-12)
    within = float(correlate({"x": x, "y": y}, blocks).p_permutation[0, 1])
    assert within == pytest.approx(exact, abs=0.02)
    together = float(correlate({"x": x, "y": y}).p_permutation[0, 1])
    assert together < 0.02 < within, "two levels alone make a correlation over all cases"


def test_folders_without_results(tmp_path):
    with pytest.raises(InputError, match="with a judge"):
        correlate_kinds_over_topics([write_folder(tmp_path / "rules", {"accuracy": 1.0})])
    with pytest.raises(InputError, match="results.json"):
        correlate_models([tmp_path / "gone"])
    other = tmp_path / "other"
    write_results(other, "pope", {"accuracy": mean_metric([1.0], "higher")}, [])
    with pytest.raises(InputError, match="no results of mirage"):
        correlate_models([other])
    (other / "results.json").write_text(json.dumps([1]))
    with pytest.raises(InputError, match="results.json"):
        correlate_models([other])


@pytest.mark.parametrize(
    "text",
    ["[" * 5000, '{"benchmark": "mirage", "metrics": {"f1": {"value": "0.5"}}}', '{"metrics": {}}', "[]"],
)
def test_results_of_another_form_are_refused_in_one_line(tmp_path, text):
    folder = write_folder(tmp_path / "a", {"accuracy": 0.5})
    (folder / "results.json").write_text(text)
    with pytest.raises(InputError, match=r"results\.json") as error:
        correlate_models([folder], ["accuracy"])
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"no results\.json"):
        correlate_models([tmp_path / "none"], ["accuracy"])


def test_the_command_correlates_models_and_kinds(tmp_path):
    folders = [judged_folder(tmp_path / str(model), model) for model in range(2)]
    result = read_result(
        run_in_process("data", "mirage-correlations", *folders, "--out", tmp_path / "out", "--json")
    )
    expected = correlate_kinds_over_topics(folders)
    pair = result["pairs"][0]
    assert (pair["column"], pair["other"], pair["n"]) == ("spatial", "logical", 4)
    assert pair["r"] == pytest.approx(float(expected.r[0, 1]))
    written = xr.load_dataset(tmp_path / "out" / "mirage_correlations.nc", engine="h5netcdf")
    assert written.attrs["over"] == "topics" and written.equals(expected)
    measured = {
        "accuracy": (0.2, 0.4, 0.9),
        "f_step": (0.3, 0.2, 0.7),
        "f_claim": (0.1, 0.1, 0.4),
        "lhs": (0, 0.2, 0.1),
    }
    models = [
        write_folder(tmp_path / f"m{at}", {name: values[at] for name, values in measured.items()})
        for at in range(3)
    ]
    over_models = ("data", "mirage-correlations", *models, "--over", "models", "--out", tmp_path / "models")
    result = read_result(run_in_process(*over_models, "--json"))
    assert len(result["pairs"]) == 6 and result["pairs"][0]["low"] is None
    assert result["pairs"][0]["r"] == pytest.approx(
        np.corrcoef(measured["accuracy"], measured["f_step"])[0, 1]
    )


def test_the_command_refuses_what_it_cannot_correlate(tmp_path):
    folders = [judged_folder(tmp_path / str(model), model) for model in range(2)]
    out = tmp_path / "out"
    several = ("data", "mirage-correlations", *folders, "--over", "questions", "--out", out)
    assert_fails(run_in_process(*several), "takes the folder of one model")
    assert_fails(
        run_in_process("data", "mirage-correlations", folders[0], "--out", folders[0]), "is read, too"
    )
    assert not out.exists()
