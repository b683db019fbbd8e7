"""Commands that are killed, that meet a full disk, or that get places of thousands of parts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.command_line import run_in_process
from helpers.killing import kill_after, run_at_once
from helpers.small_disk import fill_disk, mount_disk

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.traces.shards import merge_shards

LIMITS = ("--limit", "2", "--max-new-tokens", "2")
ASKING = {
    "bench": ("bench", "mme", "--model", "tiny-spd", *LIMITS),
    "compare": ("compare", "--benchmarks", "mme", "--model", "tiny-spd", *LIMITS),
    "diagnose": ("diagnose", "--model", "tiny-spd", *LIMITS),
    "filter": ("data", "filter", "--voters", "tiny-spd", *LIMITS),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("data") / "pairs", 1, 5)


def trace(data: Path, out: Path, *options: object) -> int:
    call = ("trace", "--model", "tiny-spd", "--data", data, "--out", out, "--limit", 4, *options)
    return run_in_process(*call, "--max-new-tokens", 2, "--device", "cpu").code


@pytest.mark.stress
@pytest.mark.parametrize("command", ASKING)
@pytest.mark.parametrize("free", [0, 6000, 40_000])
def test_a_full_disk_is_one_line_and_the_call_is_continued(command, free, data, tmp_path):
    with mount_disk(tmp_path / "disk", 8_000_000) as disk:
        call = [*ASKING[command], "--data", data, "--out", disk / "out", "--device", "cpu"]
        filler = fill_disk(disk, free)
        done = run_in_process(*call)
        lines = done.stderr.splitlines()
        assert done.code in (0, 1), done.stderr
        assert all(line.startswith("mmprobe: ") for line in lines), done.stderr
        assert done.code == 0 or "No space left" in done.stderr
        assert free or done.code == 1
        assert not list(disk.glob("**/*.part"))
        filler.unlink()
        resumed = run_in_process(*call, "--resume")
        assert resumed.code == 0, resumed.stderr


@pytest.mark.stress
def test_a_merge_that_is_killed_is_made_again(data, tmp_path, monkeypatch):
    monkeypatch.setattr("mmprobe.traces.shards.merge_if_last", lambda out: None)
    assert trace(data, tmp_path / "whole") == 0
    for shard in ("1/2", "2/2"):
        assert trace(data, tmp_path / "shards", "--shard", shard) == 0
    rng, killed = np.random.default_rng(4), 0
    for attempt in range(12):
        out = Path(shutil.copytree(tmp_path / "shards", tmp_path / f"out{attempt}"))
        killed += kill_after(lambda out=out: merge_shards(out), rng.uniform(0, 0.06))
        if (out / "shards").exists():
            merge_shards(out)
        assert mp.verify(out) == [] and mp.open_run(out).ids == mp.open_run(tmp_path / "whole").ids
    assert killed


@pytest.mark.stress
def test_two_merges_agree(data, tmp_path, monkeypatch):
    monkeypatch.setattr("mmprobe.traces.shards.merge_if_last", lambda out: None)
    for shard in ("1/2", "2/2"):
        assert trace(data, tmp_path / "out", "--shard", shard) == 0
    errors = run_at_once([lambda: merge_shards(tmp_path / "out")] * 2, [0, 0.005])
    assert None in errors and mp.verify(tmp_path / "out") == []


@pytest.mark.stress
@pytest.mark.parametrize("command", ["analyze", "report"])
def test_an_analysis_or_a_report_that_is_killed_leaves_whole_files(command, data, tmp_path):
    assert trace(data, tmp_path / "run") == 0
    (tmp_path / "out").mkdir()
    place = tmp_path / "out" if command == "analyze" else tmp_path / "out" / "report.html"

    def call() -> None:
        assert run_in_process(command, tmp_path / "run", "--out", place).code == 0

    call()
    rng, killed = np.random.default_rng(5), 0
    for _ in range(6):
        killed += kill_after(call, rng.uniform(0, 1.5))
        for file in tmp_path.glob("out/*.nc"):
            xr.load_dataset(file, engine="h5netcdf")
        for file in tmp_path.glob("out/*.json"):
            json.loads(file.read_text())
        for file in tmp_path.glob("out/*.html"):
            assert file.read_text().rstrip().endswith("</html>")
    call()
    assert killed and not list(tmp_path.glob("out/*.part")), "a later call removes what a killed one left"
