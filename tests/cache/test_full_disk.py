"""A disk that fills up is one error: no crash, no half-written file, nothing finished is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.command_line import assert_fails, run_in_process
from helpers.small_disk import call_in_child, fill_disk, mount_disk

from mmprobe.analyses import export
from mmprobe.cache import open_run, pack, verify

FREE = [0, 4096, 20_000, 70_000, 150_000, 300_000, 600_000, 900_000]
FULL = ("OSError: [Errno 28] No space left on device", "OSError: [Errno 27] File too large")


def read_names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")} - {"filler"}


@pytest.fixture
def dataset() -> xr.Dataset:
    rng = np.random.default_rng(0)
    values = xr.DataArray(rng.normal(size=(40, 25, 30)), dims=("sample", "layer", "group"))
    return xr.Dataset({"mass": values}, attrs={"analysis": "attention_decay"})


@pytest.mark.slow
def test_an_analysis_on_a_full_disk(dataset, tmp_path):
    with mount_disk(tmp_path / "disk", 8_000_000) as disk:
        for free in FREE:
            filler = fill_disk(disk, free)
            result = call_in_child(lambda: export(dataset, disk / "out"))
            assert result.startswith(FULL), (free, result)
            assert not read_names(disk) - {"out"}
            filler.unlink()
        files = export(dataset, disk / "out")
        contents = [file.read_bytes() for file in files]
        fill_disk(disk, 100_000)
        assert call_in_child(lambda: export(dataset, disk / "out")).startswith(FULL)
        assert [file.read_bytes() for file in files] == contents
        xr.testing.assert_identical(xr.load_dataset(files[0], engine="h5netcdf"), dataset)


@pytest.mark.slow
def test_an_analysis_larger_than_a_file_may_be(dataset, tmp_path):
    for largest in FREE[1:4]:
        result = call_in_child(lambda: export(dataset, tmp_path / "out"), largest)
        assert result.startswith(FULL), (largest, result)
        assert read_names(tmp_path) == {"out"}


@pytest.fixture
def run(make_run) -> Path:
    return make_run(names=tuple(f"s{index}" for index in range(12)))


@pytest.mark.slow
def test_a_pack_on_a_full_disk(run, tmp_path):
    size = sum(path.stat().st_size for path in (run / "samples").iterdir())
    with mount_disk(tmp_path / "disk", 2 * size + 8_000_000) as disk:
        for free in [*FREE, *np.linspace(1e6, size, 8, dtype=int).tolist()]:
            filler = fill_disk(disk, free)
            result = call_in_child(lambda: pack(run, disk / "run.h5"))
            assert result.startswith(FULL), (free, result)
            assert not read_names(disk)
            filler.unlink()
        assert verify(pack(run, disk / "run.h5")) == []
        assert open_run(disk / "run.h5").ids == open_run(run).ids


@pytest.mark.slow
def test_commands_on_a_full_disk_print_one_line(run, tmp_path):
    commands = [
        ("pack", run, "--out", tmp_path / "disk" / "run.h5"),
        ("analyze", run, "--only", "attention-decay", "--out", tmp_path / "disk" / "out"),
    ]
    with mount_disk(tmp_path / "disk", 2_000_000) as disk:
        fill_disk(disk, 4096)
        for command in commands:
            assert_fails(run_in_process(*command), f"{disk}/", code=1)
        assert not read_names(disk) - {"out"}
