"""The attention ratio, the ranking of heads, and sinks, on planted attention."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.planted import HEADS, LAYERS, SIDE, peak, planted_run

from mmprobe.analyses import attention_ratio
from mmprobe.analyses.attention_ratio import correlate_halves, ratio_on
from mmprobe.errors import NotApplicable
from mmprobe.viz import figures


def test_ratio_by_hand_at_any_scale():
    weights, mask = np.array([0.2, 0.1, 0.1, 0.0]), np.array([[True, True, False, False]])
    assert ratio_on(weights, mask).item() == pytest.approx(0.15 / 0.05)
    assert ratio_on(9 * weights, mask).item() == pytest.approx(3)
    order = [2, 0, 3, 1]
    assert ratio_on(weights[order], mask[:, order]).item() == pytest.approx(3)


def test_ratio_random_regions_and_border(tmp_path):
    samples = [
        {"attention": peak(1, 1, height=0.5, floor=0.1), "raw": peak(0, 0), "cell": (1, 1), "faithful": True},
        {
            "attention": peak(0, 0, height=0.1, floor=0.1),
            "raw": peak(0, 0),
            "cell": (1, 1),
            "faithful": False,
        },
    ]
    ds = attention_ratio(planted_run(tmp_path / "r", samples), draws=4000)
    np.testing.assert_allclose(ds.ratio.values, [[5, 5], [1, 1]], rtol=1e-3)
    np.testing.assert_allclose(ds.ratio_random.values[1], 1, rtol=1e-3)
    expected = (5 + 15 * 0.1 / (1.9 / 15)) / 16  # one place in sixteen is the peak
    np.testing.assert_allclose(ds.ratio_random.values[0], expected, rtol=0.1)
    assert ds.border_area == 0.75
    np.testing.assert_allclose(ds.border_share, np.mean([1.2 / 2.0, 0.75]), rtol=1e-3)
    assert "head_ratio" not in ds and "leading_share" not in ds and "not compared" in ds.attrs["note"]


def test_the_visual_head_is_found_and_stable(tmp_path):
    rng, samples = np.random.default_rng(0), []
    for _ in range(12):
        cell = tuple(map(int, rng.integers(0, SIDE, 2)))
        by_head = rng.uniform(0.9, 1.1, (3, LAYERS, HEADS, SIDE * SIDE)) * 0.02
        by_head[:, 0, 0] *= 1 + peak(*cell, floor=0.0)
        by_head[:, 1, 0] *= 1 + 3 * peak(*cell, floor=0.0)
        by_head[:, 1, 1] *= 1 + 7 * peak(*cell, floor=0.0)
        samples.append(
            {"attention": by_head.mean((1, 2)), "raw": peak(0, 0), "cell": cell, "by_head": by_head}
        )
    ds = attention_ratio(planted_run(tmp_path / "r", samples))
    assert list(zip(ds.head_layer.values.tolist(), ds.head_number.values.tolist(), strict=True)) == [
        (1, 1), (1, 0), (0, 0), (0, 1),
    ]  # fmt: skip
    assert ds.head_ratio.sel(layer=1, head=1).item() == pytest.approx(8, rel=0.05)
    assert ds.head_stability == pytest.approx(1)


def test_a_head_with_a_sink_keeps_its_ratio_and_costs_no_sample(tmp_path):
    """Its weights would be 0 in float16; in the second run, of an earlier version, they are."""
    by_head = np.full((3, LAYERS, HEADS, SIDE * SIDE), 0.02)
    by_head[:, 1, 0] = 1e-9 * peak(1, 1, height=3, floor=1)
    old = by_head.copy()
    old[:, 1, 0] = 0
    in_region = old.copy()
    in_region[:, 1, 0] = 1e-4 * peak(1, 1, floor=0)  # nothing elsewhere: a ratio without end
    sample = {"attention": peak(1, 1), "raw": peak(0, 0), "cell": (1, 1)}
    new = attention_ratio(planted_run(tmp_path / "new", [sample | {"by_head": by_head}] * 3))
    assert new.head_ratio.sel(layer=1, head=0).item() == pytest.approx(3, rel=1e-3)
    runs = [sample | {"by_head": each} for each in (by_head, old, in_region)]
    ds = attention_ratio(planted_run(tmp_path / "mixed", runs))
    assert ds.sizes["sample"] == 3 and ds.attrs["n_left_out"] == 0
    assert ds.n_head.values.tolist() == [[3, 3], [1, 3]]
    assert ds.head_ratio.sel(layer=1, head=0).item() == pytest.approx(3, rel=1e-3)
    np.testing.assert_allclose(ds.head_ratio.values[[0, 0, 1], [0, 1, 1]], 1, rtol=1e-3)
    none = attention_ratio(planted_run(tmp_path / "none", runs[1:2]))
    assert np.isnan(none.head_ratio.sel(layer=1, head=0)) and none.sizes["rank"] == 3
    assert "nan" not in " ".join(panel.caption for panel in figures(none))


def test_the_stability_of_noise_is_about_0(tmp_path):
    rng = np.random.default_rng(3)
    correlations = correlate_halves(rng.random((60, 48)), np.arange(60))
    assert abs(np.mean(correlations)) < 0.2
    assert correlate_halves(rng.random((4, 8)), np.zeros(4, int)) == []  # nothing to halve


def test_no_image_is_in_both_halves(tmp_path):
    """Three questions share images: two about a pair, one about its first image. Their heads rank alike."""
    rng, samples = np.random.default_rng(0), []
    for pair in range(8):
        by_head = rng.uniform(0.5, 2, (LAYERS, HEADS, 1)) ** peak(1, 1, steps=1, floor=0.0)[0]
        for images in (["a", "b"], ["a", "b"], ["a"]):
            samples.append(
                {
                    "attention": by_head.mean((0, 1))[None],
                    "by_head": by_head[None],
                    "raw": peak(0, 0, steps=1),
                    "cell": (1, 1),
                    "images": [f"{pair}{image}.png" for image in images],
                }
            )
    apart = attention_ratio(planted_run(tmp_path / "r", samples))
    alone = attention_ratio(planted_run(tmp_path / "alone", samples[::3]))
    assert apart.head_stability == pytest.approx(float(alone.head_stability))


def test_heads_over_one_set_of_images_have_no_stability(tmp_path):
    by_head = np.random.default_rng(0).random((3, LAYERS, HEADS, SIDE * SIDE))
    sample = {"attention": by_head.mean((1, 2)), "raw": peak(0, 0), "cell": (1, 1), "by_head": by_head}
    ds = attention_ratio(planted_run(tmp_path / "r", [sample]))
    assert np.isnan(ds.head_stability)
    (caption,) = (panel.caption for panel in figures(ds) if panel.title == "Visual heads")
    assert "layer.head" in caption and "nan" not in caption


def test_samples_without_regions_or_numbers(tmp_path):
    bare = {"attention": peak(0, 0), "raw": peak(0, 0)}
    lost = {"attention": np.full((3, SIDE * SIDE), np.nan), "raw": peak(0, 0), "cell": (0, 0)}
    good = bare | {"cell": (0, 0)}
    ds = attention_ratio(planted_run(tmp_path / "r", [bare, lost, good]))
    assert ds.sample.values.tolist() == ["s002"]
    assert ds.attrs["left_out"] == "s001" and ds.attrs["n_without_regions"] == 1
    with pytest.raises(NotApplicable, match="regions"):
        attention_ratio(planted_run(tmp_path / "n", [bare]))
