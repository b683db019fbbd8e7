"""Overlap of attention and activation, and of both with regions."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.planted import SIDE, peak, planted_run
from scipy.stats import spearmanr

from mmprobe.analyses import attention_vs_activation
from mmprobe.analyses.attention_vs_activation import MEASURES, mask_share, rank_correlation, top_cells
from mmprobe.analyses.regions import Patch, find_patches, mask_patches, random_masks
from mmprobe.errors import InputError, NotCaptured


def test_measures_by_hand(tmp_path):
    attention = np.zeros((1, SIDE * SIDE))
    attention[0, [0, 1, 2, 3]] = [0.4, 0.3, 0.2, 0.1]
    run = planted_run(tmp_path / "r", [{"attention": attention, "raw": peak(0, 0, steps=1), "cell": (0, 0)}])
    ds = attention_vs_activation(run, top=3 / 16, draws=4000)
    assert ds.region_mass_attention.item() == pytest.approx(0.4, abs=1e-3)
    assert ds.random_mass_attention.item() == pytest.approx(1 / 16, abs=0.01)
    assert ds.region_mass_lift_attention.item() == pytest.approx(0.4 - 1 / 16, abs=0.01)
    assert ds.pointing_attention.item() == 1
    assert ds.random_pointing_attention.item() == pytest.approx(1 / 16, abs=0.02)
    # the filter spreads the peak to its neighbours: of the three top cells only those in the corner agree
    assert 0 < ds.iou.item() < 1


def test_identical_maps_overlap_wholly():
    maps = np.random.default_rng(0).random((5, 30))
    cells = top_cells(maps, 0.2)
    assert (cells.sum(1) == 6).all()
    np.testing.assert_allclose(rank_correlation(maps, maps), 1)
    np.testing.assert_allclose(rank_correlation(maps, 3 * maps + 1), 1)  # invariant to scaling


def test_rank_correlation_is_spearmans():
    rng = np.random.default_rng(1)
    one, two = rng.integers(0, 6, (2, 20, 15)).astype(float)  # with ties
    expected = [spearmanr(a, b).statistic for a, b in zip(one, two, strict=True)]
    np.testing.assert_allclose(rank_correlation(one, two), expected, atol=1e-12)
    assert np.isnan(rank_correlation(np.ones((1, 4)), np.arange(4.0)[None])).all()


def test_top_cells_take_no_zeros_and_all_of_equal_ones():
    assert top_cells(np.array([[0.0, 0.0, 0.0, 2.0]]), 0.5).sum() == 1
    assert top_cells(np.array([[1.0, 1.0, 1.0, 2.0]]), 0.5).sum() == 4
    assert mask_share(np.zeros((1, 4)), np.ones((1, 4), bool)).tolist() == [
        [pytest.approx(np.nan, nan_ok=True)]
    ]


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((0, 0, 10, 10), (0, 1, 0, 1)),
        ((0, 0, 40, 40), (0, 4, 0, 4)),
        ((11, 2, 3, 3), (0, 1, 1, 2)),  # smaller than a patch, and contains no centre
        ((6, 6, 8, 8), (1, 2, 1, 2)),  # on four patches, its middle at their corner
        ((30, 30, 99, 99), (3, 4, 3, 4)),  # over the edge
    ],
)
def test_regions_in_cells(tmp_path, box, expected):
    run = planted_run(tmp_path / "r", [{"attention": peak(0, 0), "raw": peak(0, 0), "cell": (0, 0)}])
    trace = run[run.ids[0]]
    region = trace.sample.regions[0].model_copy(update={"box": box})
    trace.sample = trace.sample.model_copy(update={"regions": [region]})
    assert find_patches(trace) == [Patch(0, *expected)]


def test_a_region_outside_the_image_is_no_patch(tmp_path):
    run = planted_run(tmp_path / "r", [{"attention": peak(0, 0), "raw": peak(0, 0), "cell": (SIDE, 0)}])
    assert find_patches(run[run.ids[0]]) == []
    ds = attention_vs_activation(run)
    assert (
        np.isnan(ds.region_mass_attention).all() and ds.n.sel(measure="pointing_attention", label="all") == 0
    )


def test_random_places_keep_size_and_reach_everywhere_alike():
    patches, grids = [Patch(0, 0, 2, 0, 1), Patch(1, 0, 1, 0, 1)], [(3, 3), (2, 2)]
    masks = random_masks(patches, grids, 6000, np.random.default_rng(0))
    assert (masks[:, :9].sum(1) == 2).all() and (masks[:, 9:].sum(1) == 1).all()
    np.testing.assert_allclose(masks[:, 9:].mean(0), 1 / 4, atol=0.03)
    np.testing.assert_allclose(masks[:, :9].mean(0).reshape(3, 3), np.repeat([[1 / 6], [1 / 3], [1 / 6]], 3, 1), atol=0.03)  # fmt: skip
    assert mask_patches(patches, grids).sum() == 3


def test_labels_are_compared_and_bad_samples_are_named(tmp_path):
    rng = np.random.default_rng(2)

    def plant(faithful: bool) -> dict:
        row, column = (int(index) for index in rng.integers(0, SIDE, 2))
        attended = (row, column) if faithful else ((row + 2) % SIDE, column)
        noise = rng.random((3, SIDE * SIDE)) * 0.05
        return {
            "attention": peak(*attended) + noise,
            "raw": peak(row, column),
            "cell": (row, column),
            "faithful": faithful,
        }

    samples = [plant(number % 2 == 0) for number in range(16)]
    samples[3]["attention"] = np.full((3, SIDE * SIDE), np.nan)
    ds = attention_vs_activation(planted_run(tmp_path / "r", samples))
    assert ds.attrs["left_out"] == "s003" and ds.attrs["n_left_out"] == 1
    pointing = ds.sel(measure="pointing_attention")
    assert pointing["mean"].sel(label="faithful") == 1 and pointing["mean"].sel(label="unfaithful") == 0
    assert pointing["difference"] == -1 and pointing["p"] < 0.01 and pointing["p_holm"] >= pointing["p"]
    assert pointing["n"].values.tolist() == [15, 8, 7]
    few = attention_vs_activation(planted_run(tmp_path / "few", samples[:3]))
    assert np.isnan(few.difference).all() and "not compared" in few.attrs["note"]


def test_means_of_samples_are_those_of_their_steps(tmp_path):
    rng = np.random.default_rng(3)

    def plant(steps: int, cell: tuple[int, int] | None) -> dict:
        attention, raw = rng.random((2, steps, SIDE * SIDE))
        raw[0] = 0  # an activation map without a number
        return {"attention": attention, "raw": raw, "cell": cell, "faithful": bool(steps % 2)}

    cells = [(0, 0), (2, 1), None, (3, 3)]
    run = planted_run(tmp_path / "r", [plant(3 + number % 5, cells[number % 4]) for number in range(12)])
    ds = attention_vs_activation(run)
    assert ds.sizes["step"] == 7
    for measure in MEASURES:
        of_sample = ds[f"{measure}_of_sample"]
        np.testing.assert_allclose(of_sample, ds[measure].mean("step"), rtol=1e-14)
        mean = of_sample.mean().item()
        assert ds["mean"].sel(measure=measure, label="all").item() == pytest.approx(mean, rel=1e-14)
    assert np.isnan(ds.region_mass_attention_of_sample).sum() == 3  # those without a region
    assert np.isnan(ds.iou.sel(step=0)).all() and not np.isnan(ds.iou_of_sample).any()


def test_without_steps_all_else_is_the_same(tmp_path):
    rng = np.random.default_rng(4)
    samples = [
        {
            "attention": rng.random((2 + number % 3, SIDE * SIDE)),
            "raw": rng.random((2 + number % 3, SIDE * SIDE)),
            "cell": (number % 4, 0),
            "faithful": number < 7,
        }
        for number in range(14)
    ]
    run = planted_run(tmp_path / "r", samples)
    whole, means = attention_vs_activation(run), attention_vs_activation(run, by_step=False)
    assert set(whole) - set(means) == set(MEASURES) and "step" not in means.dims
    assert means.identical(whole.drop_vars([*MEASURES, "step"]))


def test_bad_arguments_are_refused(tmp_path):
    run = planted_run(tmp_path / "r", [{"attention": peak(0, 0), "raw": peak(0, 0), "cell": (0, 0)}])
    with pytest.raises(InputError, match="top 1.5"):
        attention_vs_activation(run, top=1.5)
    with pytest.raises(NotCaptured, match="layer 9 was not captured"):
        attention_vs_activation(run, layers=[9])
