"""Exported files: no text is a formula in a spreadsheet, and one process at a time writes them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.command_line import assert_fails, run_in_process
from helpers.runs import write_run

from mmprobe.analyses import export
from mmprobe.errors import InputError
from mmprobe.ledger import lock_file, lock_folder

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


def test_large_variables_are_whole(tmp_path: Path) -> None:
    """Text is made of some 10,000 numbers at a time, along the first dimension, whose length is not a multiple of that."""
    values = np.random.default_rng(0).normal(size=(3001, 4, 3))
    values[2499:2503, 1] = np.nan
    dataset = xr.Dataset(
        {
            "slope": (("sample", "layer", "group"), values),
            "wide": (("layer", "sample"), np.arange(12004).reshape(4, 3001)),
            "nothing": (("sample", "empty"), np.zeros((3001, 0))),
        },
        {"sample": [f"s{number}" for number in range(3001)], "layer": range(4)},
        {"analysis": "made_up"},
    )
    _, table, text = export(dataset, tmp_path)
    rows = pd.read_csv(table, dtype=str)
    slopes = rows[rows.variable == "slope"]
    assert slopes["sample"].tolist() == np.repeat(dataset["sample"].values, 12).tolist()
    np.testing.assert_array_equal(slopes["value"].astype(float), values.ravel())
    assert rows[rows.variable == "wide"]["value"].tolist() == [str(number) for number in range(12004)]
    read = xr.Dataset.from_dict(json.loads(text.read_text(encoding="utf-8")))
    xr.testing.assert_equal(read.drop_vars("nothing").astype(float), dataset.drop_vars("nothing"))
    assert read["nothing"].shape == (3001, 0)


def test_two_exports_of_one_analysis_exclude_each_other(tmp_path: Path) -> None:
    dataset = xr.Dataset({"mass": ("layer", [0.5])}, attrs={"analysis": "made_up"})
    with (
        lock_file(tmp_path / "made_up", "exporting it"),
        pytest.raises(InputError, match="made_up: process"),
    ):
        export(dataset, tmp_path)
    assert len(export(dataset, tmp_path)) == len(list(tmp_path.iterdir())) == 3


def test_a_second_analyze_is_refused(tmp_path: Path) -> None:
    mass = np.full((2, 1, 1, 6), 1 / 6, "f4")
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
