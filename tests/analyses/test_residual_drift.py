"""residual_drift against cases by hand and plain loops."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers import runs
from hypothesis import given, settings
from hypothesis import strategies as st

import mmprobe as mp
from mmprobe.analyses.residual_drift import residual_drift
from mmprobe.benchmarks.answers.yes_no import read_yes_no
from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.errors import NotCaptured
from mmprobe.viz.figures.residual_drift import panels

warnings.simplefilter("error")
LAYERS = [1, 4]


def write_run(
    folder: Path,
    traces: dict[str, tuple[np.ndarray, dict]],
    stream: str = "post",
    answer: str | dict[str, str] = "",
) -> mp.Run:
    """Write a run of residual streams [step, layer, hidden] and fields of the samples."""
    arrays = {
        name: {f"residual/{stream}": values, **runs.PROMPT, **fields}
        for name, (values, fields) in traces.items()
    }
    return runs.write_run(folder, arrays, LAYERS, answer=answer)


def pair(
    name: str,
    same: np.ndarray,
    different: np.ndarray,
    faithful: tuple[bool | None, bool | None] = (None, None),
) -> dict[str, tuple[np.ndarray, dict]]:
    """Return the two samples of a pair, by id."""
    samples = {}
    for polarity, states, label in zip(("same", "different"), (same, different), faithful, strict=True):
        samples[f"{name}-{polarity}"] = (states, {"pair_id": name, "polarity": polarity, "faithful": label})
    return samples


def states(*steps: tuple[list[float], list[float]]) -> np.ndarray:
    """Return states of two layers and two hidden units."""
    return np.array(steps, float)


@pytest.fixture
def by_hand(tmp_path: Path) -> mp.Run:
    """One pair with one shared step.

    Layer 1: means (1, 1) and (1, 0), first step (2, 0) and (1, 0). Layer 4: opposite, (0, 1) and (0, -1).
    """
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


def test_a_contradiction_is_twice_yes_or_twice_no_whatever_the_statements_are(tmp_path):
    """The paper's groups and those by faithful answers: a false statement need not contradict the other."""
    answers = {
        "a": ("Yes. Nothing changed.", "No. Nothing changed."),
        "b": ("no", "Yes. The ring moved."),
        "c": ("Yes.", "Yes, they differ."),
        "d": ("No. The ring moved.", "No."),
        "e": ("I cannot tell.", "Yes."),
    }
    rng, traces, texts = np.random.default_rng(0), {}, {}
    for name, pair_answers in answers.items():
        traces |= pair(name, *rng.normal(size=(2, 3, 2, 4)), (name not in "bc", True))
        texts |= dict(zip((f"{name}-same", f"{name}-different"), pair_answers, strict=True))
    ds = residual_drift(write_run(tmp_path / "run", traces, answer=texts), minimum=2)
    np.testing.assert_array_equal(ds.pair_contradictory, [0, 0, 1, 1, np.nan])
    np.testing.assert_array_equal(ds.pair_faithful, [1, 0, 0, 1, 1])
    assert ds.consistency.values.tolist() == ["consistent", "contradictory"]
    assert ds.n_consistency.values.tolist() == [2, 2] and (ds.n_both_yes, ds.n_both_no) == (1, 1)
    consistent, contradictory = ds.cosine[:2].mean("pair"), ds.cosine[2:4].mean("pair")
    np.testing.assert_allclose(ds.cosine_by_consistency, [consistent, contradictory])
    np.testing.assert_allclose(ds.difference_contradictory, contradictory - consistent)
    captions = " ".join(panel.caption for panel in panels(ds))
    assert "2 contradictory (1 yes and yes, 1 no and no) and 2 consistent" in captions
    few = residual_drift(write_run(tmp_path / "few", traces, answer=texts))
    assert "2 contradictory and 2 consistent" in few.attrs["note_contradictory"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Yes", True),
        ("**No.** They differ", False),
        ("YES\nNothing", True),
        ("'no', since", False),
        ("No image is attached.", None),
        ("Yes or no? Hard to say.", None),
        ("Nothing changed.", None),
        ("Yesterday.", None),
        ("", None),
        ("The answer is no.", False),
        ("Yes, maybe.", None),
        ("<answer>Yes</answer>", True),
        ("No. Wait, yes.", True),
    ],
)
def test_pairs_are_told_by_the_one_reader_of_yes_and_no(tmp_path, answer, expected):
    """Figure 8a's pairs are contradictory by the same reading as CR."""
    traces = pair("p", np.ones((2, 2, 3), "f2"), np.ones((2, 2, 3), "f2"))
    assert read_yes_no(answer) == {True: "yes", False: "no", None: None}[expected]
    names = list(traces)
    ds = residual_drift(write_run(tmp_path / "run", traces, answer={names[0]: answer, names[1]: "Yes."}))
    contradictory = float(ds.pair_contradictory[0])
    assert np.isnan(contradictory) if expected is None else contradictory == expected


def test_against_plain_loops_over_blocks(tmp_path):
    """Answers have different lengths, and more steps than are read at a time."""
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
            expected = cosine(same[:, index].mean(0), different[:, index].mean(0))
            assert ds.cosine.sel(pair=name, layer=layer).item() == pytest.approx(expected)
            steps = [cosine(*both) for both in zip(same[:, index], different[:, index], strict=False)]
            assert ds.cosine_aligned.sel(pair=name, layer=layer).item() == pytest.approx(np.mean(steps))
    np.testing.assert_allclose(ds.cosine_mean.sel(faithful="all"), ds.cosine.mean("pair"))
    low, high = ds.cosine_mean_low.sel(faithful="all"), ds.cosine_mean_high.sel(faithful="all")
    assert (low < ds.cosine_mean.sel(faithful="all")).all()
    assert (ds.cosine_mean.sel(faithful="all") < high).all()


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(0.25, 4), seed=st.integers(0, 99))
@pytest.mark.slow
def test_scale_and_order_do_not_matter(tmp_path_factory, scale, seed):
    """Cosines do not change if an answer's states are scaled or the two answers are swapped.

    The scales are powers of two, which half precision holds.
    """
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
    """Write `count` faithful pairs with similar answers and as many unfaithful ones that differ in layer 4."""
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
    expected = ds.cosine_mean.sel(faithful="unfaithful") - ds.cosine_mean.sel(faithful="faithful")
    np.testing.assert_allclose(ds.difference, expected)
    assert ds.difference.sel(layer=4) < -0.5
    assert ds.p_holm.sel(layer=4) < 0.05 < ds.p_holm.sel(layer=1)
    assert ds.difference_high.sel(layer=4) < 0
    assert "note" not in ds.attrs


def test_the_interval_of_a_cosine_ends_at_one(tmp_path):
    """Two pairs of equal states and one at a right angle: the mean is 2 / 3, and Student's t would go to 2.1."""
    ahead, aside = states(([1, 0], [1, 0])), states(([0, 1], [0, 1]))
    traces = pair("a", ahead, ahead) | pair("b", ahead, ahead) | pair("c", ahead, aside)
    ds = residual_drift(write_run(tmp_path, traces))
    row = ds.sel(faithful="all", layer=1)
    assert float(row.cosine_mean) == pytest.approx(2 / 3)
    assert float(row.cosine_mean_high) == 1 and float(row.cosine_mean_low) >= -1


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


def test_half_a_pair_is_named_and_other_samples_are_ignored(tmp_path):
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
    with pytest.raises(mp.InputError, match="stream 'end'"):
        residual_drift(by_hand, "end")


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 6])
def test_captions_count_what_is_shown(tmp_path, count):
    ds = residual_drift(labelled_run(tmp_path / "run", count))
    plots = panels(ds)
    assert len(plots) == (3 if count == 6 else 2)
    assert f"n = {2 * count} pairs, {count} faithful and {count} unfaithful" in plots[0].caption
    assert f"{2 * count} pairs" in plots[1].caption
    if count == 6:
        assert "6 unfaithful and 6 faithful pairs" in plots[2].caption
