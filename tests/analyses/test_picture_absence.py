"""picture_absence against cases by hand and plain loops, and on runs that lack something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runs import write_run

import mmprobe as mp
from mmprobe.analyses.picture_absence import picture_absence
from mmprobe.cache.schema import BLOCK_STEPS, GROUP_NAMES
from mmprobe.errors import InputError, NotApplicable, NotCaptured
from mmprobe.viz.figures.picture_absence import panels

LAYERS = [1, 4]


def make_trace(states: Any, entropy: Any = None, mass: Any = None) -> dict[str, Any]:
    """Return a trace: states [step, layer, hidden], entropy [step], mass [step, layer, head, group]."""
    trace = {"residual/post": states, "steps/entropy": np.ones(len(states)) if entropy is None else entropy}
    return trace if mass is None else trace | {"attention/mass": mass}


def with_image(name: str, *arrays: Any) -> dict[str, dict[str, Any]]:
    return {name: make_trace(*arrays) | {"images": [f"{name}.png"]}}


def without_image(name: str, *arrays: Any) -> dict[str, dict[str, Any]]:
    return {f"{name}--absent": make_trace(*arrays) | {"metadata": {"with_picture": name}}}


def make_run(folder: Path, *traces: dict[str, dict[str, Any]]) -> mp.Run:
    return write_run(folder, {name: trace for one in traces for name, trace in one.items()}, LAYERS)


def mass(visual: float) -> np.ndarray:
    """Return attention of one step, two layers and two heads: on average `visual` goes to the images."""
    row = np.zeros((1, 2, 2, len(GROUP_NAMES)))
    row[..., GROUP_NAMES.index("visual")] = [[visual, visual], [visual + 0.1, visual - 0.1]]
    row[..., GROUP_NAMES.index("user")] = 1 - row.sum(-1)
    return row


def test_numbers_by_hand(tmp_path):
    # layer 1: first (1, 0) against (0, 2); layer 4: first (1, 1) against (3, 3)
    attention = np.repeat(mass(0.6), 2, 0)
    ds = picture_absence(
        make_run(
            tmp_path / "run",
            with_image("q", [[[1, 0], [1, 1]], [[1, 0], [1, -1]]], [0.5, 9], attention),
            without_image("q", [[[0, 2], [3, 3]]], [1.25], mass(0.0).clip(0)),
        )
    )
    assert ds.pair.values.tolist() == ["q"] and ds.layer.values.tolist() == LAYERS and int(ds.n) == 1
    np.testing.assert_allclose(ds.distance_first.sel(pair="q"), [1, 0], atol=1e-12)
    np.testing.assert_allclose(ds.norm_first.sel(pair="q"), [1, 2])
    # over the answers: (1, 0) against (0, 2), and (1, 0) against (3, 3)
    np.testing.assert_allclose(ds.distance_answer.sel(pair="q"), [1, 1 - np.sqrt(0.5)])
    np.testing.assert_allclose(ds.norm_answer.sel(pair="q"), [1, np.sqrt(18) - 1])
    assert ds.entropy.sel(pair="q").values.tolist() == [0.5, 1.25]
    assert float(ds.entropy_difference) == 0.75
    np.testing.assert_allclose(ds["mass"].sel(picture="present", group="visual"), 0.6, rtol=1e-6)
    np.testing.assert_allclose(
        ds.mass_difference.sel(group="visual"),
        ds["mass"].sel(group="visual")[1] - ds["mass"].sel(group="visual")[0],
    )
    assert ds.distance_others.isnull().all() and np.isnan(float(ds.entropy_difference_low))
    assert "Without minus with images: +0.750 nat." in panels(ds)[-1].caption


def test_against_plain_loops(tmp_path):
    """Five pairs in random order, some with answers longer than a block."""
    rng = np.random.default_rng(0)
    lengths = [(BLOCK_STEPS + 3, 2), (1, 2 * BLOCK_STEPS), (4, 4), (7, 1), (2, 3)]
    data = {
        f"q{i}": [rng.normal(size=(steps, 2, 3)).astype("f2") for steps in both]
        for i, both in enumerate(lengths)
    }
    traces = [without_image(name, absent) for name, (_, absent) in data.items()]
    traces += [with_image(name, present) for name, (present, _) in reversed(data.items())]
    ds = picture_absence(make_run(tmp_path / "run", *traces))

    def distance(one: np.ndarray, two: np.ndarray) -> float:
        return float(1 - one @ two / np.linalg.norm(one) / np.linalg.norm(two))

    names = ds.pair.values.tolist()
    assert sorted(names) == sorted(data)
    for place, name in enumerate(names):
        one, two = (np.asarray(states, float) for states in data[name])
        other = np.asarray(data[names[(place + 2) % 5]][0], float)
        for index, layer in enumerate(LAYERS):
            here = ds.sel(pair=name, layer=layer)
            assert float(here.distance_first) == pytest.approx(distance(one[0, index], two[0, index]))
            answer_distance = distance(one[:, index].mean(0), two[:, index].mean(0))
            assert float(here.distance_answer) == pytest.approx(answer_distance)
            size = np.linalg.norm(two[0, index]) / np.linalg.norm(one[0, index]) - 1
            assert float(here.norm_first) == pytest.approx(size)
            assert float(here.distance_others) == pytest.approx(distance(one[0, index], other[0, index]))
    np.testing.assert_allclose(ds.distance_first_mean, ds.distance_first.mean("pair"))
    assert (ds.distance_first_mean_low <= ds.distance_first_mean).all()
    assert (ds.distance_first_mean <= ds.distance_first_mean_high).all()
    assert "mass" not in ds and [panel.title for panel in panels(ds)]


def test_what_does_not_pair_and_what_is_not_finite_is_named(tmp_path):
    good, bad = [[[1, 0], [1, 1]]], [[[1, 0], [np.inf, 1]]]
    ds = picture_absence(
        make_run(
            tmp_path / "run",
            with_image("a", good),
            without_image("a", good),
            with_image("b", good),
            without_image("b", bad),
            with_image("c", good),
            without_image("c", [[[0, 0], [1, 1]]]),  # no length, no direction
            without_image("gone", good),
            {"again": make_trace(good) | {"metadata": {"with_picture": "a"}}},
            {"none": make_trace(good)},
        )
    )
    assert ds.pair.values.tolist() == ["a"]
    assert ds.attrs["left_out"] == "b, c" and ds.attrs["n_left_out"] == 2
    assert ds.attrs["unpaired"] == "gone--absent, again" and ds.attrs["n_unpaired"] == 2
    assert "2 (b, c)" in panels(ds)[0].caption


def test_runs_that_it_does_not_apply_to(tmp_path):
    good, bad = [[[1, 0], [1, 1]]], [[[np.nan, 0], [1, 1]]]
    with pytest.raises(InputError, match="no finished samples"):
        picture_absence(make_run(tmp_path / "empty"))
    with pytest.raises(NotApplicable, match="with_picture"):
        picture_absence(make_run(tmp_path / "alone", with_image("a", good), {"b": make_trace(good)}))
    with pytest.raises(NotApplicable, match="not finite"):
        picture_absence(make_run(tmp_path / "bad", with_image("a", good), without_image("a", bad)))
    traces = with_image("a", good) | without_image("a", good)
    for trace in traces.values():
        del trace["residual/post"]
    with pytest.raises(NotCaptured):
        picture_absence(make_run(tmp_path / "small", traces))
