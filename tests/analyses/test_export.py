"""Exported files: no text is a formula in a spreadsheet, and one process at a time writes them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.command_line import assert_fails, run_in_process
from helpers.runs import write_run

from mmprobe.analyses import export
from mmprobe.errors import InputError
from mmprobe.lock import lock_file, lock_folder

TEXTS = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "＝1", "'=1", "a=1", "-"]


def test_no_cell_of_text_is_a_formula(tmp_path: Path) -> None:
    dataset = xr.Dataset(
        {"mass": ("word", np.linspace(-1, 1, len(TEXTS))), "mode": ("word", TEXTS)},
        {"word": TEXTS},
        {"analysis": "made_up"},
    )
    _, file, _ = export(dataset, tmp_path)
    with open(file, newline="", encoding="utf-8") as content:
        rows = list(csv.DictReader(content))
    words = [f"'{text}" for text in TEXTS[:7]] + TEXTS[7:9] + ["'-"]
    assert [row["word"] for row in rows] == words * 2
    assert [float(row["value"]) for row in rows[: len(TEXTS)]] == list(dataset["mass"].values)
    assert [row["value"] for row in rows[len(TEXTS) :]] == words


def test_variables_of_other_dimensions_stand_in_one_table(tmp_path: Path) -> None:
    dataset = xr.Dataset(
        {
            "n": ((), 3),
            "share": (("sample", "layer"), [[0.25, np.nan], [1.0, 0.5]]),
            "count": ("layer", [7, 8]),
        },
        {"sample": ["a", "b"], "layer": [1, 4], "depth": ("layer", [0.5, 2.0])},
        {"analysis": "made_up", "note": 'a "data_vars": {} in a text'},
    )
    _, table, text = export(dataset, tmp_path)
    assert table.read_text(encoding="utf-8").splitlines() == [
        "variable,sample,layer,depth,value",
        "n,,,,3",
        "share,a,1,0.5,0.25",
        "share,a,4,2.0,",
        "share,b,1,0.5,1.0",
        "share,b,4,2.0,0.5",
        "count,,1,0.5,7",
        "count,,4,2.0,8",
    ]
    expected = dataset.to_dict()
    expected["data_vars"]["share"]["data"][0][1] = None
    assert json.loads(text.read_text(encoding="utf-8")) == json.loads(json.dumps(expected))


def test_two_exports_of_one_analysis_exclude_each_other(tmp_path: Path) -> None:
    dataset = xr.Dataset({"mass": ("layer", [0.5])}, attrs={"analysis": "made_up"})
    with (
        lock_file(tmp_path / "made_up", "exporting it"),
        pytest.raises(InputError, match="made_up: process .* is exporting it"),
    ):
        export(dataset, tmp_path)
    assert len(export(dataset, tmp_path)) == len(list(tmp_path.iterdir())) == 3


def test_a_second_analyze_is_refused(tmp_path: Path) -> None:
    mass = np.full((2, 1, 1, 5), 0.2, "f4")
    write_run(tmp_path / "run", {"a": {"attention/mass": mass, "tokens/group": np.arange(5)}})
    call = ("analyze", tmp_path / "run", "--only", "attention-decay")
    with lock_folder(tmp_path / "run" / "analyses", "analysing into it"):
        assert_fails(run_in_process(*call), "analyses: process")
    done = run_in_process(*call)
    assert done.code == 0, done.stderr
    assert len(list((tmp_path / "run" / "analyses").iterdir())) == 3


def test_an_analysis_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"a": {"steps/id": [1, 2]}})
    call = ("analyze", tmp_path / "run", "--only", "attention-decay", "--out", tmp_path / "new" / "out")
    assert_fails(run_in_process(*call), "attention/mass was not captured")
    assert not (tmp_path / "new").exists()
