"""A run that version 1 of the trace format wrote: five token groups, and no spans. It is stored as that version made it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import mmprobe as mp
from mmprobe.cache import Run, open_run, pack, verify
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.samples import Sample

STORED = Path(__file__).parent / "version_1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(STORED, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(params=["files", "packed"])
def run(request, folder: Path, tmp_path: Path) -> Run:
    if request.param == "packed":
        pack(folder, tmp_path / "run.h5")
        return open_run(tmp_path / "run.h5")
    return open_run(folder)


def test_attention_has_the_groups_of_today(run):
    mass = run["none"].attention_mass
    assert mass["group"].values.tolist() == list(GROUP_NAMES)
    assert mass.shape == (6, 8, 6, 6)
    np.testing.assert_allclose(mass.values.sum(-1), 1, atol=1e-5)
    assert not mass.sel(group="assistant").values.any()
    assert mass.sel(group="generated").values.any()


def test_a_part_is_that_of_the_whole(run):
    whole = run["none"].attention_mass.values
    part = open_run(run.path)["none"].attention_mass.isel(step=[0, 3], layer=2, group=slice(3, 6))
    np.testing.assert_array_equal(part.values, whole[[0, 3], 2, :, 3:])
    one = open_run(run.path)["none"].attention_mass.sel(group="assistant")
    np.testing.assert_array_equal(one.values, whole[..., 5])


def test_it_stacks_and_verifies(run):
    stacked = run.stack("attention/mass")
    assert stacked["group"].values.tolist() == list(GROUP_NAMES)
    np.testing.assert_array_equal(stacked.values[0], run["none"].attention_mass.values)
    assert verify(run.path) == []


def test_its_spans_are_read_from_its_tokens(run):
    trace = run["none"]
    assert "steps/span" not in trace.captured
    assert trace.spans.tolist() == [2] * 6
    xr.testing.assert_equal(trace.steps, trace.within("answer").steps)


def test_it_is_continued(tiny_spd, folder):
    """Its trace is kept, the new one has the format of today, and both are one run."""
    sample = open_run(folder).sample("none")
    before = (folder / "samples" / "none.h5").read_bytes()
    (folder / "run.json").write_text(
        (folder / "run.json").read_text().replace('"none"\n', '"none",\n  "new"\n')
    )
    messages = [
        {"role": "user", "content": "Is there a star?"},
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": "Are you sure?"},
    ]
    samples = [sample, Sample(id="new", messages=messages)]
    run = mp.trace(tiny_spd, samples, folder, max_new_tokens=6, resume=True)
    assert (folder / "samples" / "none.h5").read_bytes() == before
    mass = run.stack("attention/mass")
    assert mass.sel(sample="new", group="assistant").values.any()
    assert not np.nan_to_num(mass.sel(sample="none", group="assistant").values).any()
    assert mp.analyses.attention_decay(run).sizes["group"] == len(GROUP_NAMES)
