"""residual_drift, and the comparison of groups that analyses share, against numbers worked out by hand or the slow way."""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers import runs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import mmprobe as mp
from mmprobe.analyses import export
from mmprobe.analyses.residual_drift import residual_drift
from mmprobe.analyses.statistics import compare_groups, hedges_g, holm
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import NotCaptured
from mmprobe.viz.figures.residual_drift import panels

warnings.simplefilter("error")
LAYERS = [1, 4]


def write_run(folder: Path, traces: dict[str, tuple[np.ndarray, dict]], stream: str = "post") -> mp.Run:
    """Write a run of residual streams [step, layer, hidden] and fields of the samples."""
    arrays = {name: {f"residual/{stream}": values, **fields} for name, (values, fields) in traces.items()}
    return runs.write_run(folder, arrays, LAYERS)


def pair(
    name: str,
    same: np.ndarray,
    different: np.ndarray,
    faithful: tuple[bool | None, bool | None] = (None, None),
) -> dict[str, tuple[np.ndarray, dict]]:
    """The two samples of a pair, by id."""
    found = {}
    for polarity, states, is_ in zip(("same", "different"), (same, different), faithful, strict=True):
        found[f"{name}-{polarity}"] = (states, {"pair_id": name, "polarity": polarity, "faithful": is_})
    return found


def states(*steps: tuple[list[float], list[float]]) -> np.ndarray:
    """Steps of two layers and two hidden units."""
    return np.array(steps, float)


@pytest.fixture
def by_hand(tmp_path: Path) -> mp.Run:
    """Layer 1: means (1, 1) and (1, 0); the only shared step (2, 0) against (1, 0). Layer 4: opposite, (0, 1) and (0, -1)."""
    same = states(([2, 0], [0, 1]), ([0, 2], [0, 1]))
    different = states(([1, 0], [0, -1]))
    return write_run(tmp_path / "run", pair("p", same, different, (True, False)))


def test_cosines_by_hand(by_hand):
    ds = residual_drift(by_hand)
    assert ds.cosine.dims == ("pair", "layer")
    assert ds.cosine_mean.dims == ("faithful", "layer")
    np.testing.assert_allclose(ds.cosine.sel(pair="p"), [1 / np.sqrt(2), -1])
    np.testing.assert_allclose(ds.cosine_aligned.sel(pair="p"), [1, -1])
    assert ds.n_steps.sel(pair="p") == 1
    assert ds.layer.values.tolist() == LAYERS


def test_a_pair_is_unfaithful_if_either_answer_is(tmp_path):
    one = states(([1, 0], [0, 1]))
    answers = {
        "a": (True, True),
        "b": (True, False),
        "c": (False, None),
        "d": (None, True),
        "e": (None, None),
    }
    traces = {}
    for name, labels in answers.items():
        traces |= pair(name, one, one, labels)
    ds = residual_drift(write_run(tmp_path / "run", traces))
    np.testing.assert_array_equal(ds.pair_faithful, [1, 0, 0, np.nan, np.nan])
    assert ds.n.values.tolist() == [5, 1, 2]
    assert ds.faithful.values.tolist() == ["all", "faithful", "unfaithful"]


def test_against_the_slow_way_over_blocks(tmp_path):
    """Answers of more steps than are read at a time, of different lengths."""
    rng = np.random.default_rng(0)
    parts = {
        f"p{i}": [rng.normal(size=(steps, 2, 3)).astype("f2") for steps in sizes]
        for i, sizes in enumerate([(BLOCK_STEPS + 7, 2 * BLOCK_STEPS + 1), (3, BLOCK_STEPS), (5, 5)])
    }
    traces = {}
    for name, (same, different) in parts.items():
        traces |= pair(name, same, different)
    ds = residual_drift(write_run(tmp_path / "run", traces))

    def cosine(one, two):
        return one @ two / np.linalg.norm(one) / np.linalg.norm(two)

    for name, (same, different) in parts.items():
        same, different = same.astype(float), different.astype(float)
        for index, layer in enumerate(LAYERS):
            wanted = cosine(same[:, index].mean(0), different[:, index].mean(0))
            assert ds.cosine.sel(pair=name, layer=layer).item() == pytest.approx(wanted)
            steps = [cosine(*both) for both in zip(same[:, index], different[:, index], strict=False)]
            assert ds.cosine_aligned.sel(pair=name, layer=layer).item() == pytest.approx(np.mean(steps))
    np.testing.assert_allclose(ds.cosine_mean.sel(faithful="all"), ds.cosine.mean("pair"))
    low, high = ds.cosine_mean_low.sel(faithful="all"), ds.cosine_mean_high.sel(faithful="all")
    assert (low < ds.cosine_mean.sel(faithful="all")).all()
    assert (ds.cosine_mean.sel(faithful="all") < high).all()


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(0.25, 4), seed=st.integers(0, 99))
def test_scale_and_order_do_not_matter(tmp_path_factory, scale, seed):
    """Cosines stay if an answer's states are all scaled (to what half precision holds) or the answers change places."""
    rng, scale = np.random.default_rng(seed), 2.0 ** round(np.log2(scale))
    same, different = rng.normal(size=(4, 2, 3)).astype("f2"), rng.normal(size=(3, 2, 3)).astype("f2")
    folder = tmp_path_factory.mktemp("drift")
    plain, changed = (
        residual_drift(write_run(folder / name, pair("p", *answers)))
        for name, answers in (("plain", (same, different)), ("changed", (different * scale, same)))
    )
    for name in ("cosine", "cosine_aligned"):
        np.testing.assert_allclose(plain[name], changed[name], atol=1e-4)
        assert (np.abs(plain[name]) <= 1 + 1e-12).all()


def labelled_run(folder: Path, count: int, bad: str | None = None) -> mp.Run:
    """`count` faithful pairs whose answers agree, and as many unfaithful ones whose answers part in layer 4."""
    rng = np.random.default_rng(1)
    traces = {}
    for index in range(2 * count):
        faithful = index < count
        same = np.ones((3, 2, 4)) + 0.1 * rng.normal(size=(3, 2, 4))
        different = np.ones((2, 2, 4)) + 0.1 * rng.normal(size=(2, 2, 4))
        if not faithful:
            different[:, 1, :2] *= -1
        traces |= pair(f"p{index}", same, different, (True, faithful))
    if bad:
        traces[bad][0][0, 0, 0] = np.inf
    return write_run(folder, traces)


def test_groups_are_compared_layer_by_layer(tmp_path):
    ds = residual_drift(labelled_run(tmp_path / "run", 6))
    assert (ds.n_faithful, ds.n_unfaithful) == (6, 6)
    wanted = ds.cosine_mean.sel(faithful="unfaithful") - ds.cosine_mean.sel(faithful="faithful")
    np.testing.assert_allclose(ds.difference, wanted)
    assert ds.difference.sel(layer=4) < -0.5
    assert ds.p_holm.sel(layer=4) < 0.05 < ds.p_holm.sel(layer=1)
    assert ds.difference_high.sel(layer=4) < 0
    assert "note" not in ds.attrs


def test_small_groups_give_no_number_but_a_note(tmp_path):
    ds = residual_drift(labelled_run(tmp_path / "run", 4))
    assert "4 unfaithful and 4 faithful" in ds.attrs["note"]
    for name in ("difference", "difference_low", "difference_high", "effect", "p", "p_holm"):
        assert np.isnan(ds[name]).all()
    assert residual_drift(labelled_run(tmp_path / "again", 4), minimum=4).difference.notnull().all()


def test_a_value_that_is_not_finite_leaves_its_pair_out(tmp_path):
    ds = residual_drift(labelled_run(tmp_path / "run", 5, bad="p2-different"))
    assert (ds.attrs["left_out"], ds.attrs["n_left_out"]) == ("p2-different", 1)
    assert "p2" not in ds.pair
    assert ds.sizes["pair"] == ds.attrs["pairs"] == 9
    assert "1 (p2-different)" in panels(ds)[0].caption


def test_a_state_without_direction_leaves_its_pair_out(tmp_path):
    one, none = states(([1, 0], [0, 1])), states(([0, 0], [0, 1]))
    ds = residual_drift(write_run(tmp_path / "run", pair("a", one, none) | pair("b", one, one)))
    assert ds.pair.values.tolist() == ["b"]
    assert ds.attrs["left_out"] == "a-same, a-different"


def test_half_a_pair_is_named_and_other_samples_are_not_looked_at(tmp_path):
    one = states(([1, 0], [0, 1]))
    half = {"b-same": pair("b", one, one)["b-same"], "other": (one, {})}
    ds = residual_drift(write_run(tmp_path / "run", pair("a", one, one) | half))
    assert (ds.attrs["unpaired"], ds.attrs["n_unpaired"]) == ("b", 1)
    assert ds.pair.values.tolist() == ["a"]


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ({}, "no finished samples"),
        ({"a": (states(([1, 0], [0, 1])), {})}, "pair_id.*polarities"),
        (
            {n: (states(([1, 0], [0, 1])), {"pair_id": "p", "polarity": "same"}) for n in "ab"},
            "two samples with polarity 'same'",
        ),
        (pair("a", np.full((1, 2, 2), np.nan), np.ones((1, 2, 2))), "every pair"),
    ],
)
def test_runs_that_cannot_be_analysed_are_refused(tmp_path, traces, message):
    with pytest.raises(mp.InputError, match=message) as error:
        residual_drift(write_run(tmp_path / "run", traces))
    assert "\n" not in str(error.value)


def test_other_streams(tmp_path, by_hand):
    run = write_run(tmp_path / "mid", pair("p", states(([1, 0], [0, 1])), states(([0, 1], [0, 1]))), "mid")
    np.testing.assert_allclose(residual_drift(run, "mid").cosine, [[0, 1]], atol=1e-12)
    with pytest.raises(NotCaptured, match="residual/post"):
        residual_drift(run)
    with pytest.raises(mp.InputError, match="stream 'end': must be one of"):
        residual_drift(by_hand, "end")


@pytest.mark.parametrize("count", [1, 6])
def test_figures_and_files(tmp_path, count):
    ds = residual_drift(labelled_run(tmp_path / "run", count))
    found = panels(ds)
    assert len(found) == (3 if count == 6 else 2)
    for panel in found:
        assert panel.title
        assert panel.figure.data
        json.loads(panel.figure.to_json())
    assert f"n = {2 * count} pairs, {count} faithful and {count} unfaithful" in found[0].caption
    assert f"{2 * count} pairs" in found[1].caption
    if count == 6:
        assert "6 unfaithful and 6 faithful pairs" in found[2].caption
    netcdf, _, _ = export(ds, tmp_path / "out")
    xr.testing.assert_allclose(xr.load_dataset(netcdf, engine="h5netcdf"), ds)


# --- the comparison of groups


def groups(one: list[float] | np.ndarray, two: list[float] | np.ndarray) -> tuple[np.ndarray, ...]:
    mask = np.arange(len(one) + len(two)) < len(one)
    return np.concatenate([one, two]), mask, ~mask


def test_hedges_g_by_hand():
    """Means 3 and 2, pooled variance (2 * 1 + 1 * 2) / 3 = 4 / 3, factor 1 - 3 / (4 * 3 - 1) = 8 / 11."""
    g = hedges_g(np.array([2.0, 3.0, 4.0]), np.array([1.0, 3.0]))
    assert float(g) == pytest.approx(1 / np.sqrt(4 / 3) * 8 / 11)


def test_permutation_p_is_near_the_exact_one():
    values, first, second = groups([3.0, 5.0, 6.0, 8.0, 9.0], [1.0, 2.0, 3.0, 4.0, 7.0])
    observed = abs(values[:5].mean() - values[5:].mean())
    chosen = [list(pick) for pick in itertools.combinations(range(10), 5)]
    differences = [abs(values[pick].mean() - np.delete(values, pick).mean()) for pick in chosen]
    exact = np.mean(np.array(differences) >= observed - 1e-9)
    found = compare_groups(values, first, second)
    assert float(found.p) == pytest.approx(exact, abs=0.015)  # 3 standard errors of 9999 shuffles
    assert float(found.difference) == pytest.approx(2.8)


def test_permutation_p_agrees_with_scipy():
    rng = np.random.default_rng(3)
    one, two = rng.normal(0.4, 1, 30), rng.normal(0, 1, 25)
    found = compare_groups(*groups(one, two))
    assert float(found.p) == pytest.approx(stats.ttest_ind(one, two).pvalue, abs=0.02)


def test_groups_that_do_not_differ_have_p_1_and_no_effect_size():
    found = compare_groups(*groups([0.1] * 5, [0.1] * 7))
    assert (float(found.difference), float(found.p)) == (pytest.approx(0), 1.0)
    assert np.isnan(found.effect)


def test_p_is_never_0_and_seeds_repeat():
    values, first, second = groups(np.arange(20) + 100.0, np.arange(20.0))
    found = compare_groups(values, first, second, permutations=99)
    assert float(found.p) == 1 / 100
    again = compare_groups(values, first, second, permutations=99)
    assert (found.low, found.high) == (again.low, again.high)


def test_p_is_uniform_where_groups_are_alike():
    rng = np.random.default_rng(0)
    found = compare_groups(*groups(rng.normal(size=(12, 400)), rng.normal(size=(9, 400))), permutations=499)
    share = (found.p <= 0.1).mean()
    assert 0.055 <= share <= 0.145  # 3 standard errors of 400 tests
    assert (found.p_holm >= found.p).all()
    assert found.p_holm.shape == found.p.shape == found.effect.shape == (400,)


def test_the_interval_of_a_difference_covers_it():
    rng, hits = np.random.default_rng(0), 0
    for seed in range(200):
        found = compare_groups(
            *groups(rng.normal(1, 1, 40), rng.normal(0, 2, 30)), resamples=500, permutations=1, seed=seed
        )
        hits += bool(found.low <= 1 <= found.high)
    assert 178 <= hits <= 198


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.floats(0, 1), min_size=n, max_size=n), min_size=1)
    )
)
def test_holm_by_its_definition(rows):
    p = np.array(rows)
    found = holm(p)
    for row, adjusted in zip(p, found, strict=True):
        order = sorted(range(len(row)), key=lambda i: row[i])
        largest = 0.0
        for rank, index in enumerate(order):
            largest = max(largest, min(1.0, (len(row) - rank) * row[index]))
            assert adjusted[index] == pytest.approx(largest)


def test_what_cannot_be_compared_is_refused():
    values, first, second = groups([1.0] * 5, [2.0] * 5)
    for changed, message in (
        ({"minimum": 1}, "minimum 1"),
        ({"second": np.ones(10, bool)}, "both groups"),
        ({"values": np.where(first, np.nan, values)}, "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            compare_groups(**({"values": values, "first": first, "second": second} | changed))
