"""Every analysis has figures and exports, and gives one line if a run lacks its data.

Each analysis has its own fast tests; these need a full run.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import mmprobe as mp
from mmprobe.analyses import ANALYSES, analyze_all, export
from mmprobe.analyses.source import count_sets
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.viz import figures, plot

pytestmark = pytest.mark.slow
OF_IMAGES = [
    name for name in ANALYSES if name != "attention_by_frame"
]  # that of videos: tests/models/test_videos.py
# The fixture asks two questions about each of 20 pairs of images, and 6 of them without images, each in the set of its twin.
# What needs regions has those of 15 pairs; unfaithful answers that name a thing are to 8 pairs.
COUNTED = {name: 20 for name in OF_IMAGES if name != "token_activation"}  # which is of one answer
COUNTED |= dict.fromkeys(("localisation", "pointing_game", "attention_ratio"), 15)
COUNTED |= {"failure_modes": 8, "picture_absence": 3}


@pytest.fixture(scope="module")
def run(tiny_spd, tmp_path_factory) -> mp.Run:
    """Twenty pairs of opposite questions, with arbitrary labels so that both groups are large enough.

    Six of the questions are also asked without their images.
    """
    folder = tmp_path_factory.mktemp("all")
    samples = mp.load_samples(make_pairs(folder / "pairs", n=20, seed=3))
    selected = [
        sample.model_copy(update={"faithful": number // 2 % 2 == 0})
        for number, sample in enumerate(sample for sample in samples if sample.polarity)
    ]
    without_images = {"images": [], "regions": [], "pair_id": None, "polarity": None, "faithful": None}
    selected += [
        sample.model_copy(
            update=without_images | {"id": f"{sample.id}--absent", "metadata": {"with_picture": sample.id}}
        )
        for sample in selected[:6]
    ]
    return mp.trace(tiny_spd, selected, folder / "run", capture="full", max_new_tokens=12)


@pytest.fixture(scope="module")
def analysed(run) -> tuple[dict[str, xr.Dataset], dict[str, str]]:
    return analyze_all(run)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_every_analysis_has_figures_and_exports(run, analysed, name, tmp_path):
    ds = analysed[0][name]
    assert ds.attrs["analysis"] == name
    assert ds.attrs.get("sets") == COUNTED.get(name)
    if "sample" in ds.dims:
        assert count_sets(name, run, ds).attrs["sets"] == COUNTED[name]
    assert plot(ds).data
    for panel in figures(ds):
        assert panel.title
        assert panel.caption
        json.loads(panel.figure.to_json())
    netcdf, csv, as_json = export(ds, tmp_path / "out")
    xr.testing.assert_allclose(xr.load_dataset(netcdf, engine="h5netcdf"), ds)
    table = pd.read_csv(csv)
    assert set(table["variable"]) == set(ds.data_vars)
    assert len(table) == sum(array.size for array in ds.data_vars.values())
    assert set(json.loads(as_json.read_text())["data_vars"]) == set(ds.data_vars)


def test_all_apply_to_a_full_run_of_pairs(analysed):
    datasets, left_out = analysed
    assert list(datasets) == OF_IMAGES == [ds.attrs["analysis"] for ds in datasets.values()]
    assert (
        list(left_out) == ["attention_by_frame"] and "no sample has a video" in left_out["attention_by_frame"]
    )


def test_missing_data_is_one_line_and_the_other_analyses_go_on(tiny_spd, run, tmp_path: Path):
    unpaired = [sample.model_copy(update={"pair_id": None}) for sample in map(run.sample, run.ids[2:4])]
    full = mp.trace(tiny_spd, unpaired, tmp_path / "full", capture="full", max_new_tokens=4)
    datasets, left_out = analyze_all(full)
    missing = {"residual_drift", "picture_absence", "attention_by_frame", "predict_unfaithful"}
    assert list(datasets) == [name for name in ANALYSES if name not in missing]
    assert set(left_out) == missing and not any("\n" in why for why in left_out.values())
    assert "pair_id" in left_out["residual_drift"] and "with_picture" in left_out["picture_absence"]
    assert "20 of each are needed" in left_out["predict_unfaithful"]
    small = mp.trace(tiny_spd, unpaired, tmp_path / "small", max_new_tokens=4)
    assert any("residual/post was not captured" in line for line in analyze_all(small)[1].values())


def test_a_group_under_the_minimum_is_not_compared(run):
    few = ANALYSES["neuron_activation"](run, minimum=len(run))
    assert "note" in few.attrs
    assert np.isnan(few.difference).all()
