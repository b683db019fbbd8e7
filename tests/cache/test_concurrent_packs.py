"""Calls that pack into one file at the same time, and calls of `pack` and `analyze` that are killed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.killing import kill_after, run_at_once

from mmprobe.analyses import attention_decay, export
from mmprobe.cache import open_run, pack, verify

PAIRS = 12
KILLS = 12


@pytest.fixture
def run(make_run) -> Path:
    return make_run(names=tuple(f"s{index}" for index in range(10)))


@pytest.mark.stress
def test_two_calls_that_pack_into_one_file_leave_one_sound_file(run, tmp_path):
    rng = np.random.default_rng(4)
    for pair in range(PAIRS):
        out = tmp_path / f"packs{pair}" / "run.h5"
        out.parent.mkdir()
        errors = run_at_once([lambda out=out: pack(run, out)] * 2, [0, rng.uniform(0, 0.1)])
        refusals = [error for error in errors if error is not None]
        assert len(refusals) == 1, refusals
        assert "packing into it" in refusals[0] or "run.h5: exists" in refusals[0]
        assert [path.name for path in out.parent.iterdir()] == ["run.h5"]
        assert verify(out) == [] and open_run(out).ids == open_run(run).ids


@pytest.mark.stress
def test_a_pack_that_is_killed_leaves_no_file_of_its_name_and_can_be_repeated(run, tmp_path):
    rng, killed = np.random.default_rng(5), 0
    out = tmp_path / "packs" / "run.h5"
    out.parent.mkdir()
    while killed < KILLS:
        if kill_after(lambda: pack(run, out), rng.uniform(0.005, 0.4)):
            killed += 1
        if out.exists():
            assert verify(out) == []
            out.unlink()
    assert verify(pack(run, out)) == []
    assert [path.name for path in out.parent.iterdir()] == ["run.h5"]


@pytest.mark.stress
def test_an_analysis_that_is_killed_leaves_whole_files_and_can_be_repeated(run, tmp_path):
    rng, killed = np.random.default_rng(6), 0
    dataset, out = attention_decay(open_run(run)), tmp_path / "out"
    rows = sum(values.size for values in dataset.data_vars.values())
    while killed < KILLS:
        killed += kill_after(lambda: export(attention_decay(open_run(run)), out), rng.uniform(0.005, 0.6))
        for file in [file for file in out.glob("*") if file.suffix not in (".part", ".lock")]:
            if file.suffix == ".nc":
                xr.testing.assert_identical(xr.load_dataset(file, engine="h5netcdf"), dataset)
            elif file.suffix == ".json":
                json.loads(file.read_text())
            else:
                assert file.read_text().count("\n") == rows + 1
            file.unlink()
    assert {file.name for file in export(dataset, out)} == {path.name for path in out.iterdir()}
