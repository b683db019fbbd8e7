"""neuron_activation against cases by hand and plain loops."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers import runs
from hypothesis import given, settings
from hypothesis import strategies as st

import mmprobe as mp
from mmprobe.analyses.neuron_activation import cohens_h, neuron_activation
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import NotCaptured
from mmprobe.viz.figures.neuron_activation import panels

warnings.simplefilter("error")


def write_run(
    folder: Path,
    gates: dict[str, np.ndarray],
    faithful: Mapping[str, bool | None] = {},
    bits: bool = True,
    layers: list[int] | None = None,
) -> mp.Run:
    """Write a run of gates [step, layer, neuron], stored as their sums and as the bits of those above 0."""
    traces = {}
    for name, values in gates.items():
        traces[name] = {"faithful": faithful.get(name), "ffn/gate_sum": values.sum(0)}
        if bits:
            traces[name]["ffn/active"] = np.packbits(values > 0, axis=-1)
    return runs.write_run(folder, traces, layers)


@pytest.fixture
def by_hand(tmp_path: Path) -> mp.Run:
    """One layer, four neurons: by `sum` 0 and 3 are active, by `any` 0, 1 and 3, by `mean` 0 and 1."""
    gates = np.array([[[1, 0.1, -0.2, -0.1]], [[1, 0.1, -0.2, -0.1]], [[1, -0.25, -0.2, 3]]])
    return write_run(tmp_path / "run", {"a": gates})


def test_the_three_rules_by_hand(by_hand):
    ds = neuron_activation(by_hand)
    assert ds.ratio.dims == ("sample", "layer")
    assert ds.ratio.item() == 2 / 4
    assert ds.ratio_any.item() == 3 / 4
    assert ds.ratio_mean.item() == 2 / 4
    assert neuron_activation(by_hand, threshold=0.7).ratio_mean.item() == 1 / 4
    assert neuron_activation(by_hand, threshold=2 / 3).ratio_mean.item() == 1 / 4, "more than the threshold"
    assert ds.attrs["neurons"] == 4


def test_the_literal_reading_of_equation_20_leaves_out_the_last_prompt_token(tmp_path):
    """Two samples, two layers: neuron 0 is active in the prompt's last token only, neuron 1 only after it."""
    gates = np.tile(np.array([[1, -0.2, 1], [-0.2, 0.1, 1], [-0.2, 0.05, 1]])[:, None], (1, 2, 1))
    gates[:, 1, 2] = -0.1
    traces = {
        name: {"ffn/gate_sum": values.sum(0), "ffn/gate_first": values[0]}
        for name, values in (("a", gates), ("b", gates[:1]))
    }
    ds = neuron_activation(runs.write_run(tmp_path / "run", traces))
    np.testing.assert_allclose(ds.ratio, [[2 / 3, 1 / 3], [2 / 3, 1 / 3]])
    np.testing.assert_allclose(ds.ratio_tokens, [[2 / 3, 1 / 3], [0, 0]])  # an answer of one token has none
    assert "ratio_any" not in ds
    assert panels(ds)


def test_without_bits_only_the_papers_rule(tmp_path):
    ds = neuron_activation(write_run(tmp_path / "run", {"a": np.ones((2, 2, 3))}, bits=False))
    assert ds.ratio.values.tolist() == [[1, 1]]
    assert not [name for name in ds if str(name).endswith(("_any", "_mean")) or "_any_" in str(name)]
    assert "ratio_third" not in ds, "two layers have no thirds"


def patterns(folder: Path, active: dict[str, list[int]], faithful: dict[str, bool]) -> mp.Run:
    """One step, layers 2 and 5 of three neurons; the six numbers are 1 where the neuron is active."""
    gates = {name: np.where(np.reshape(on, (1, 2, 3)), 1.0, -0.2) for name, on in active.items()}
    return write_run(folder, gates, faithful, layers=[2, 5])


@pytest.fixture
def two_groups(tmp_path: Path) -> mp.Run:
    """Two unfaithful and two faithful samples.

    Neuron 0 of layer 2 is active in 2 unfaithful and 0 faithful samples, neuron 1 of layer 5 in 1 and 2.
    """
    active = {
        "f1": [0, 0, 1, 0, 1, 0],
        "f2": [0, 0, 1, 0, 1, 0],
        "u1": [1, 0, 1, 0, 1, 0],
        "u2": [1, 0, 1, 0, 0, 0],
    }
    return patterns(tmp_path / "run", active, {name: name[0] == "f" for name in active})


def test_difference_by_hand(two_groups):
    ds = neuron_activation(two_groups, minimum=2)
    np.testing.assert_allclose(ds.ratio_by_label.sel(label="faithful"), [1 / 3, 1 / 3])
    np.testing.assert_allclose(ds.ratio_by_label.sel(label="unfaithful"), [2 / 3, 1 / 6])
    np.testing.assert_allclose(ds.difference, [1 / 3, -1 / 6])
    assert ds.difference.dims == ("layer",)
    assert (ds.n_faithful, ds.n_unfaithful) == (2, 2)


def test_most_different_neurons_by_hand(two_groups):
    ds = neuron_activation(two_groups, minimum=2, top=2)
    assert ds["rank"].values.tolist() == [1, 2]
    assert ds.top_layer.values.tolist() == [2, 5]
    assert ds.top_neuron.values.tolist() == [0, 1]
    assert ds.top_unfaithful.values.tolist() == [1, 0.5]
    assert ds.top_faithful.values.tolist() == [0, 1]
    assert ds.top_difference.values.tolist() == [1, -0.5]
    np.testing.assert_allclose(ds.top_h, [np.pi, -np.pi / 2])
    assert neuron_activation(two_groups, minimum=2, top=50).sizes["rank"] == 6


def test_cohens_h_by_hand():
    np.testing.assert_allclose(
        cohens_h(np.array([1, 0.75, 0]), np.array([0, 0.25, 0])), [np.pi, np.pi / 3, 0]
    )


def test_small_groups_give_no_number_but_a_note(two_groups):
    ds = neuron_activation(two_groups)
    assert "2 unfaithful and 2 faithful" in ds.attrs["note"]
    for name in (
        "difference",
        "difference_low",
        "difference_high",
        "effect",
        "p",
        "p_holm",
        "difference_any",
    ):
        assert np.isnan(ds[name]).all()
    assert not [name for name in ds if str(name).startswith("top_")]
    assert ds.ratio_by_label.notnull().all()


def labelled_run(folder: Path, count: int, layers: int = 4) -> mp.Run:
    """`count` samples of each label, of different lengths; unfaithful ones fire more in the last layer."""
    rng = np.random.default_rng(0)
    gates, faithful = {}, {f"s{i}": i % 2 == 0 for i in range(2 * count)}
    for name, label in faithful.items():
        gates[name] = rng.normal(-0.1, 1, (int(rng.integers(1, 2 * BLOCK_STEPS)), layers, 11))
        gates[name][:, -1] += 0 if label else 0.2
    return write_run(folder, gates, faithful)


def test_against_plain_loops(tmp_path):
    run = labelled_run(tmp_path / "run", 6)
    ds = neuron_activation(run, threshold=0.45, top=44)
    by_sum = {}
    for name in run.ids:
        trace = run[name]
        fires = trace.ffn_active.values
        by_sum[name] = trace.ffn_gate_sum.values > 0
        np.testing.assert_allclose(ds.ratio.sel(sample=name), by_sum[name].mean(1))
        np.testing.assert_allclose(ds.ratio_any.sel(sample=name), fires.any(0).mean(1))
        np.testing.assert_allclose(ds.ratio_mean.sel(sample=name), (fires.mean(0) > 0.45).mean(1))
    faithful = np.array([run.faithful(name) for name in run.ids])
    for suffix in ("", "_any", "_mean"):
        values = ds[f"ratio{suffix}"].values
        expected = values[~faithful].mean(0) - values[faithful].mean(0)
        np.testing.assert_allclose(ds[f"difference{suffix}"], expected, atol=1e-12)
        assert (ds[f"difference{suffix}_low"] <= ds[f"difference{suffix}_high"]).all()
    assert ds.p_holm.sel(layer=3) < 0.05
    for rank in range(44):
        layer, neuron = int(ds.top_layer[rank]), int(ds.top_neuron[rank])
        active = np.array([by_sum[name][layer, neuron] for name in run.ids])
        assert ds.top_faithful[rank].item() == pytest.approx(active[faithful].mean())
        assert ds.top_unfaithful[rank].item() == pytest.approx(active[~faithful].mean())
    sizes = np.abs(ds.top_difference.values)
    assert (np.diff(sizes) <= 1e-12).all()
    assert len(set(zip(ds.top_layer.values.tolist(), ds.top_neuron.values.tolist(), strict=True))) == 44


def test_thirds_by_hand(tmp_path):
    """Four layers with ratios 1, 1/2, 1/2 and 0: the first third contains two of them."""
    gates = np.full((1, 4, 2), -0.2)
    gates[0, 0], gates[0, 1, 0], gates[0, 2, 1] = 1, 1, 1
    ds = neuron_activation(write_run(tmp_path / "run", {"a": gates}))
    assert ds.third.values.tolist() == ["early", "middle", "deep"]
    assert ds.ratio_third.sel(sample="a").values.tolist() == [0.75, 0.5, 0]
    assert ds.ratio_third_by_label.sel(label="all").values.tolist() == [0.75, 0.5, 0]


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 999), st.sampled_from([np.nan, np.inf]))
def test_rules_are_bounded_and_a_sample_that_is_not_finite_is_named(tmp_path_factory, seed, bad):
    """The rule `any` counts at least the neurons of `mean` and of `sum`; all ratios lie in 0..1."""
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("neurons")
    gates = {name: rng.normal(size=(int(rng.integers(1, 5)), 3, 9)) for name in "abc"}
    clean = {name: gates[name] for name in "ac"}
    gates["b"][-1, rng.integers(3), rng.integers(9)] = bad
    ds = neuron_activation(write_run(folder / "bad", gates))
    assert (ds.attrs["left_out"], ds.attrs["n_left_out"], ds.attrs["samples"]) == ("b", 1, 2)
    xr.testing.assert_equal(ds, neuron_activation(write_run(folder / "clean", clean)))
    assert (ds.ratio_any >= ds.ratio_mean).all()
    assert (ds.ratio_any >= ds.ratio).all()
    assert (ds.ratio >= 0).all()
    assert (ds.ratio_any <= 1).all()


def test_runs_that_cannot_be_analysed_are_refused(tmp_path, by_hand):
    with pytest.raises(mp.InputError, match="no finished samples"):
        neuron_activation(write_run(tmp_path / "empty", {}))
    with pytest.raises(mp.InputError, match="every sample"):
        neuron_activation(write_run(tmp_path / "nan", {"a": np.full((1, 2, 3), np.nan)}))
    for wrong in ({"threshold": 1.0}, {"threshold": -0.1}, {"top": 0}):
        with pytest.raises(mp.InputError, match="must be"):
            neuron_activation(by_hand, **wrong)
    with pytest.raises(NotCaptured, match="ffn/gate_sum"):
        neuron_activation(runs.write_run(tmp_path / "less", {"a": {"steps/id": [0]}}))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 5])
def test_captions_count_what_is_shown(tmp_path, count):
    ds = neuron_activation(labelled_run(tmp_path / "run", count))
    plots = panels(ds)
    assert len(plots) == (4 if count == 5 else 2)
    for panel in (plots[0], plots[-1]):
        assert f"n = {2 * count} samples, {count} faithful and {count} unfaithful" in panel.caption
    if count == 5:
        assert "5 unfaithful and 5 faithful samples" in plots[1].caption
        assert "The 20 of 44 neurons" in plots[2].caption
        assert "n = 5 faithful and 5 unfaithful samples" in plots[2].caption
        assert "Unfaithful minus faithful: early" in plots[3].caption
    else:
        assert "not compared" in plots[0].caption
