"""sublayer_transitions against cases by hand and plain loops."""

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
from scipy.stats import ttest_ind

import mmprobe as mp
from mmprobe.analyses.sublayer_transitions import sublayer_transitions
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import NotCaptured
from mmprobe.stats.compare import compare_groups
from mmprobe.viz.figures.sublayer_transitions import panels

warnings.simplefilter("error")
MEASURES = ("cos_mha", "cos_ffn", "kl")
LAYERS = [0, 3]


def write_run(
    folder: Path,
    updates: dict[str, np.ndarray],
    faithful: Mapping[str, bool | None] = {},
    streams: Mapping[str, np.ndarray] = {},
) -> mp.Run:
    """Write a run.

    Args:
        updates: [measure, step, layer] by sample id.
        streams: [pre/mid/post, step, layer, hidden] of some samples.
    """
    names = [f"update/{measure}" for measure in MEASURES] + ["residual/pre", "residual/mid", "residual/post"]
    traces = {
        name: dict(zip(names, [*values, *streams.get(name, ())], strict=False))
        | {"faithful": faithful.get(name)}
        for name, values in updates.items()
    }
    return runs.write_run(folder, traces, LAYERS)


def random_updates(rng: np.random.Generator, steps: int, shift: float = 0.0) -> np.ndarray:
    values = rng.uniform(0, 0.5, (3, steps, 2))
    values[1, :, 1] += shift
    return values


@pytest.fixture
def by_hand(tmp_path: Path) -> mp.Run:
    """a, faithful: two steps; b, unfaithful: one."""
    a = np.array([[[0.8, 0.5], [0.4, 0.5]], [[0.1, 0.2], [0.3, 0.2]], [[1, 2], [3, 2]]])
    b = np.array([[[0.2, 0.1]], [[0.6, 0.4]], [[4, 8]]])
    return write_run(tmp_path / "run", {"a": a, "b": b}, {"a": True, "b": False})


def test_means_over_steps_then_samples_by_hand(by_hand):
    ds = sublayer_transitions(by_hand)
    for name in MEASURES:
        assert ds[name].dims == ("sample", "layer")
    np.testing.assert_allclose(ds.cos_mha, [[0.6, 0.5], [0.2, 0.1]], atol=1e-6)
    np.testing.assert_allclose(ds.cos_ffn, [[0.2, 0.2], [0.6, 0.4]], atol=1e-6)
    np.testing.assert_allclose(ds.kl, [[2, 2], [4, 8]], atol=1e-6)
    np.testing.assert_allclose(ds.kl_by_label, [[3, 5], [2, 2], [4, 8]], atol=1e-6)
    assert ds.n_label.values.tolist() == [2, 1, 1]
    assert ds.label.values.tolist() == ["all", "faithful", "unfaithful"]
    assert np.isnan(ds.kl_by_label_low.sel(label="faithful")).all(), "one sample has no spread"
    assert ds.layer.values.tolist() == LAYERS


def test_one_step_with_a_huge_conflict_rules_the_mean_and_not_the_median(tmp_path):
    """Answers of three to six steps whose KL is about 1 nat, but 400 nat at one step and layer."""
    rng = np.random.default_rng(0)
    updates = {name: random_updates(rng, steps) for name, steps in zip("abcd", (3, 4, 5, 6), strict=True)}
    for values in updates.values():
        values[2] += 1
    plain = sublayer_transitions(write_run(tmp_path / "plain", updates))
    updates["b"][2, 1, 0] = 400
    ds = sublayer_transitions(write_run(tmp_path / "run", updates))
    assert ds.kl.sel(sample="b", layer=0) > 100
    for name, values in updates.items():
        np.testing.assert_allclose(ds.kl_median.sel(sample=name), np.median(values[2], 0), rtol=1e-6)
    own = {"label": "all", "layer": 0}
    assert ds.kl_by_label.sel(own) > 20 * plain.kl_by_label.sel(own)
    assert float(ds.kl_median_by_label.sel(own)) == pytest.approx(
        float(plain.kl_median_by_label.sel(own)), abs=0.1
    )
    dotted = [line for line in panels(ds)[0].figure.data if line.line.dash == "dot"]
    assert len(dotted) == 1 and np.allclose(dotted[0].y, ds.kl_median_by_label.sel(label="all"))


def test_transitions_that_stay_the_same_are_equivalent_layer_by_layer(tmp_path):
    """Attention stays within .05 in layer 0 and not in layer 3; the FFN changes by half in layer 3."""
    rng = np.random.default_rng(0)
    updates = {f"s{i}": rng.uniform(0, 0.02, (3, 4, 2)) for i in range(24)}
    faithful = {name: number % 2 == 0 for number, name in enumerate(updates)}
    for name, values in updates.items():
        values[0, :, 1] += 0 if faithful[name] else 0.05
        values[1, :, 1] += 0 if faithful[name] else 0.5
    run = write_run(tmp_path / "run", updates, faithful)
    ds = sublayer_transitions(run, margin=0.05)
    assert ds.p_equivalent.dims == ("transition", "layer") and ds.transition.values.tolist() == list(
        MEASURES[:2]
    )
    p = ds.p_equivalent.values
    assert p[0, 0] < 0.001 and p[0, 1] > 0.05 and p[1, 0] < 0.001 and p[1, 1] > 0.999
    bad = np.array([not label for label in faithful.values()])
    two = [
        ttest_ind(
            ds.cos_mha.values[bad] + shift, ds.cos_mha.values[~bad], equal_var=False, alternative=side
        ).pvalue
        for shift, side in ((0.05, "greater"), (-0.05, "less"))
    ]
    np.testing.assert_allclose(p[0], np.max(two, 0))
    assert "equal within 0.05" in panels(ds)[-1].caption
    assert "attention: 0; the FFN: 0." in panels(ds)[-1].caption
    assert (sublayer_transitions(run, margin=0.5).p_equivalent.sel(transition="cos_mha") < 0.001).all()
    with pytest.raises(mp.InputError, match="margin 0"):
        sublayer_transitions(run, margin=0)


def test_a_step_is_the_mean_of_those_that_reach_it(by_hand):
    ds = sublayer_transitions(by_hand)
    assert ds.kl_by_step.dims == ("label", "layer", "step")
    np.testing.assert_allclose(ds.kl_by_step.sel(label="all", layer=0), [2.5, 3], atol=1e-6)
    np.testing.assert_allclose(ds.kl_by_step.sel(label="unfaithful", layer=3), [8, np.nan], atol=1e-6)
    assert ds.n_by_step.values.tolist() == [[2, 1], [1, 1], [1, 0]]


def test_update_lengths_by_hand(tmp_path):
    """Over two steps, attention adds vectors of length 5 and 0 in the first layer, the FFN of 1 and 2."""
    zero = np.zeros((2, 2, 2))
    mid, post = zero.copy(), zero.copy()
    mid[0, 0] = [3, 4]
    post[:, 0] = [[3, 5], [0, 2]]
    updates = np.zeros((3, 2, 2))
    ds = sublayer_transitions(write_run(tmp_path / "run", {"a": updates}, streams={"a": [zero, mid, post]}))
    np.testing.assert_allclose(ds.norm_mha, [[2.5, 0]])
    np.testing.assert_allclose(ds.norm_ffn, [[1.5, 0]])
    np.testing.assert_allclose(ds.norm_ffn_by_label.sel(label="all"), [1.5, 0])


@pytest.mark.parametrize("captured", [0, 2])
def test_lengths_are_absent_without_all_three_streams_of_every_sample(tmp_path, captured):
    updates, streams = {"a": np.zeros((3, 1, 2)), "b": np.zeros((3, 1, 2))}, np.zeros((3, 1, 2, 2))
    run = write_run(tmp_path / "run", updates, streams={"a": streams, "b": streams[:captured]})
    assert not [name for name in sublayer_transitions(run) if str(name).startswith("norm")]


def test_against_plain_loops(tmp_path):
    rng = np.random.default_rng(0)
    steps = {f"s{i}": int(rng.integers(1, 2 * BLOCK_STEPS)) for i in range(9)}
    updates = {name: random_updates(rng, count) for name, count in steps.items()}
    streams = {name: rng.normal(size=(3, count, 2, 4)).astype("f2") for name, count in steps.items()}
    ds = sublayer_transitions(write_run(tmp_path / "run", updates, streams=streams))
    for index, measure in enumerate(MEASURES):
        for step in (0, 5, max(steps.values()) - 1):
            reached = [values[index, step] for values in updates.values() if values.shape[1] > step]
            means = ds[f"{measure}_by_step"].sel(label="all", step=step)
            np.testing.assert_allclose(means, np.mean(reached, 0), rtol=1e-5)
            assert int(ds.n_by_step.sel(label="all", step=step)) == len(reached)
        means = [values[index].mean(0) for values in updates.values()]
        np.testing.assert_allclose(ds[f"{measure}_by_label"].sel(label="all"), np.mean(means, 0), rtol=1e-5)
    for name, (pre, mid, post) in streams.items():
        lengths = np.linalg.norm(mid.astype(float) - pre, axis=-1).mean(0)
        np.testing.assert_allclose(ds.norm_mha.sel(sample=name), lengths)
        lengths = np.linalg.norm(post.astype(float) - mid, axis=-1).mean(0)
        np.testing.assert_allclose(ds.norm_ffn.sel(sample=name), lengths)


def labelled_run(folder: Path, count: int) -> mp.Run:
    """`count` samples of each label; the FFN's cosine in the last layer is .4 higher in unfaithful ones."""
    rng = np.random.default_rng(2)
    faithful = {f"s{i}": i % 2 == 0 for i in range(2 * count)}
    updates = {
        name: random_updates(rng, int(rng.integers(2, 6)), 0.0 if label else 0.4)
        for name, label in faithful.items()
    }
    return write_run(folder, updates | {"x": random_updates(rng, 3)}, faithful | {"x": None})


def test_groups_are_compared_for_each_measure_and_layer(tmp_path):
    ds = sublayer_transitions(labelled_run(tmp_path / "run", 8))
    assert ds.difference.dims == ds.p_holm.dims == ds.effect.dims == ("measure", "layer")
    for measure in MEASURES:
        means = ds[f"{measure}_by_label"]
        expected = means.sel(label="unfaithful") - means.sel(label="faithful")
        np.testing.assert_allclose(ds.difference.sel(measure=measure), expected)
        mask = np.arange(17) % 2 == 1
        slow = compare_groups(ds[measure].values, mask, ~mask & (np.arange(17) < 16))
        np.testing.assert_allclose(ds.p_holm.sel(measure=measure), slow.p_holm)
        np.testing.assert_allclose(ds.effect.sel(measure=measure), slow.effect)
    assert ds.p_holm.sel(measure="cos_ffn", layer=3) < 0.01
    assert ds.difference_low.sel(measure="cos_ffn", layer=3) > 0
    assert (ds.n_faithful, ds.n_unfaithful) == (8, 8)
    assert ds.n_label.values.tolist() == [17, 8, 8]


def test_small_groups_give_no_number_but_a_note(by_hand):
    ds = sublayer_transitions(by_hand)
    assert "1 unfaithful and 1 faithful" in ds.attrs["note"]
    for name in ("difference", "difference_low", "difference_high", "effect", "p", "p_holm"):
        assert np.isnan(ds[name]).all()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 999), bad=st.sampled_from([np.nan, np.inf, -np.inf]), of_stream=st.booleans())
@pytest.mark.slow
def test_a_sample_that_is_not_finite_changes_nothing_but_is_named(tmp_path_factory, seed, bad, of_stream):
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("bad")
    updates = {name: random_updates(rng, int(rng.integers(1, 4))) for name in "abc"}
    streams = {name: rng.normal(size=(3, values.shape[1], 2, 2)) for name, values in updates.items()}
    clean = {name: updates[name] for name in "ac"}
    (streams if of_stream else updates)["b"][rng.integers(3), -1, rng.integers(2)] = bad
    ds = sublayer_transitions(write_run(folder / "bad", updates, streams=streams))
    assert (ds.attrs["left_out"], ds.attrs["n_left_out"], ds.attrs["samples"]) == ("b", 1, 2)
    xr.testing.assert_allclose(ds, sublayer_transitions(write_run(folder / "clean", clean, streams=streams)))


def test_runs_that_cannot_be_analysed_are_refused(tmp_path):
    with pytest.raises(mp.InputError, match="no finished samples"):
        sublayer_transitions(write_run(tmp_path / "empty", {}))
    with pytest.raises(mp.InputError, match="every sample"):
        sublayer_transitions(write_run(tmp_path / "nan", {"a": np.full((3, 1, 2), np.nan)}))
    with pytest.raises(NotCaptured, match="update/kl"):
        sublayer_transitions(write_run(tmp_path / "less", {"a": np.zeros((0, 1, 2))}))


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.slow
def test_captions_count_what_is_shown(tmp_path, count):
    ds = sublayer_transitions(labelled_run(tmp_path / "run", count))
    plots = panels(ds)
    assert len(plots) == (3 if count == 5 else 2)
    assert f"n = {2 * count + 1} samples, {count} faithful and {count} unfaithful" in plots[0].caption
    assert f"n = {2 * count + 1} at the first" in plots[1].caption
    if count == 5:
        assert "5 unfaithful and 5 faithful samples" in plots[2].caption


def test_lengths_have_a_figure(tmp_path):
    run = write_run(tmp_path / "run", {"a": np.zeros((3, 1, 2))}, streams={"a": np.ones((3, 1, 2, 2))})
    plots = panels(sublayer_transitions(run))
    assert "Length" in plots[2].title
    assert "n = 1 sample." in plots[2].caption
