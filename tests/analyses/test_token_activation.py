"""Token activation maps against plain loops over the logits of the whole vocabulary."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import xarray as xr

import mmprobe as mp
from mmprobe.analyses.regions import to_grids
from mmprobe.analyses.token_activation import (
    Logits,
    activation_maps,
    joint_minmax,
    rank_gaussian,
    token_activation,
)
from mmprobe.errors import InputError, NotCaptured
from mmprobe.samples import Sample
from mmprobe.viz import plot


def slow_filter(grid: list[list[float]]) -> list[list[float]]:
    """The rank-Gaussian filter, window by window."""
    height, width = len(grid), len(grid[0])

    def inside(index: int, size: int) -> int:
        if min(height, width) == 1:
            return min(max(index, 0), size - 1)
        return -index if index < 0 else 2 * (size - 1) - index if index >= size else index

    out = [[0.0] * width for _ in range(height)]
    for y in range(height):
        for x in range(width):
            nine = sorted(
                grid[inside(y + down, height)][inside(x + across, width)]
                for down in (-1, 0, 1)
                for across in (-1, 0, 1)
            )
            mean = sum(nine) / 9
            if mean <= 0:
                continue
            sigma = math.sqrt(sum((value - mean) ** 2 for value in nine) / 9) / mean
            if sigma < 1e-12:
                out[y][x] = nine[4]
                continue
            weights = [math.exp(-((i - 4) ** 2) / (2 * sigma**2)) for i in range(9)]
            out[y][x] = sum(w * value for w, value in zip(weights, nine, strict=True)) / sum(weights)
    return out


def slow_maps(z: np.ndarray, ids: list[int], users: list[int], visual: list[int], prompt: int, grids: list):
    """The maps of TAM (Li et al., 2025), token by token, from logits z [position, class]."""
    z = np.maximum(z, 0)
    generated = ids[prompt:]
    raw = {("u", i): z[visual, ids[position]] for i, position in enumerate(users)}
    raw |= {("g", s): z[visual, token] for s, token in enumerate(generated)}
    tam = []
    for s, c in enumerate(generated):
        before = [("u", i) for i in range(len(users))] + [("g", i) for i in range(s)]

        def id_of(key):
            return ids[users[key[1]]] if key[0] == "u" else generated[key[1]]

        def score(key, c=c):
            return z[users[key[1]] if key[0] == "u" else prompt - 1 + key[1], c]

        others = [key for key in before if id_of(key) != c]
        total = sum(score(key) for key in others) + 1e-8
        context = sum((score(key) / total * raw[key] for key in others), np.zeros(len(visual)))
        square = float((context**2).sum())
        left = np.maximum(
            raw["g", s] - (float((raw["g", s] * context).sum()) / square if square else 0) * context, 0
        )
        everything = [*left, *(score(key) for key in before)]
        low, high = min(everything), max(everything)
        scaled = (left - low) / (high - low) if high > low else np.zeros(len(visual))
        maps, first = [], 0
        for height, width in grids:
            grid = scaled[first : first + height * width].reshape(height, width).tolist()
            maps.append(np.array(slow_filter(grid)).ravel())
            first += height * width
        tam.append(np.concatenate(maps))
    return np.array(tam), np.array([raw["g", s] for s in range(len(generated))])


def as_read(z: np.ndarray, ids: list[int], users: list[int], visual: list[int], prompt: int) -> Logits:
    """The same logits as a trace has them."""
    z, ids = np.maximum(z, 0), np.array(ids)
    generated, steps = ids[prompt:], len(ids) - prompt
    scores = z[prompt - 1 : prompt - 1 + steps][:, generated].T
    return Logits(
        user=z[visual][:, ids[users]].T,
        generated=z[visual][:, generated].T,
        user_scores=z[users][:, generated].T,
        generated_scores=np.where(np.tri(steps, steps, -1, dtype=bool), scores, 0),
        user_ids=ids[users],
        generated_ids=generated,
        prompt=prompt,
    )


CASES = {
    "plain": {"grids": [(3, 4)], "users": 4, "steps": 6, "vocabulary": 50, "shift": 0.0},
    "several images": {"grids": [(3, 3), (1, 4), (5, 2), (1, 1)], "users": 3, "steps": 5, "vocabulary": 50, "shift": 0.0},
    "repeated tokens": {"grids": [(2, 2)], "users": 5, "steps": 12, "vocabulary": 3, "shift": 0.0},
    "one class only": {"grids": [(2, 3)], "users": 2, "steps": 3, "vocabulary": 1, "shift": 1.0},
    "no user text": {"grids": [(2, 3)], "users": 0, "steps": 4, "vocabulary": 9, "shift": 0.0},
    "all logits below 0": {"grids": [(2, 2)], "users": 2, "steps": 3, "vocabulary": 9, "shift": -99.0},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_maps_equal_plain_loops(case, seed):
    rng, setting = np.random.default_rng(seed), CASES[case]
    cells = sum(height * width for height, width in setting["grids"])
    visual = list(range(1, 1 + cells))
    users = list(range(2 + cells, 2 + cells + setting["users"]))
    prompt = 3 + cells + setting["users"]
    ids = rng.integers(0, setting["vocabulary"], prompt + setting["steps"]).tolist()
    z = rng.normal(size=(len(ids), setting["vocabulary"])) + setting["shift"]
    tam, raw = activation_maps(as_read(z, ids, users, visual, prompt), setting["grids"])
    slow_tam, slow_raw = slow_maps(z, ids, users, visual, prompt, setting["grids"])
    np.testing.assert_allclose(tam, slow_tam, atol=1e-12)
    np.testing.assert_allclose(raw, slow_raw, atol=1e-12)
    assert np.isfinite(tam).all() and (tam >= 0).all() and (tam <= 1).all()


def test_a_trace_gives_the_maps_of_the_models_own_logits(tiny_spd, image_paths, tmp_path):
    samples = [
        Sample(id=f"s{count}", images=image_paths[:count], question="Compare the pictures: what is in them?")
        for count in (1, 2)
    ]
    spec = mp.CaptureSpec(datasets=["tam/logit", "tam/prompt"], dtype="float32")
    run = mp.trace(tiny_spd, samples, tmp_path / "run", capture=spec, max_new_tokens=10)
    for sample in samples:
        trace = run[sample.id]
        inputs = tiny_spd.prepare(sample)
        prompt = inputs["input_ids"].shape[1]
        ids = torch.tensor(trace.tokens["id"].values)[None].long()
        more = ids.shape[1] - prompt
        inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if "mm_token_type_ids" in inputs:
            inputs["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, more))
        with torch.inference_mode():
            z = tiny_spd.hf(**inputs).logits[0].double().numpy()
        image, group = trace.tokens["image"].values, trace.tokens["group"].values
        grids = [tuple(grid) for grid in trace.images["grid"].values.tolist()]
        visual, users = np.flatnonzero(image >= 0).tolist(), np.flatnonzero(group == 3).tolist()
        tam, raw = slow_maps(z, ids[0].tolist(), users, visual, prompt, grids)
        ds = token_activation(trace)
        assert ds.tam.dims == ds.raw.dims == ("step", "image", "y", "x")
        assert ds.token.values.tolist() == trace.tokens["text"].values[prompt:].tolist()
        np.testing.assert_allclose(ds.raw.values, to_grids(raw, grids), atol=2e-4)
        np.testing.assert_allclose(ds.tam.values, to_grids(tam, grids), atol=1e-4)
        assert ds.tam.max() > 0.01


def test_a_sample_without_images_has_empty_maps(tiny_spd, tmp_path):
    run = mp.trace(tiny_spd, [Sample(id="a", question="Hello?")], tmp_path / "run", max_new_tokens=3)
    ds = token_activation(run["a"])
    assert ds.tam.shape == (3, 0, 0, 0)


def test_of_a_run_the_first_unfaithful_sample_is_shown(tiny_spd, image_paths, tmp_path):
    samples = [
        Sample(id=name, images=image_paths[:1], question="What?", faithful=name != "b") for name in "abc"
    ]
    run = mp.trace(tiny_spd, samples, tmp_path / "run", max_new_tokens=3)
    assert token_activation(run).attrs["sample"] == "b"
    assert token_activation(run, "c").attrs["sample"] == "c"
    with pytest.raises(InputError, match="no finished sample 'd'"):
        token_activation(run, "d")
    bare = mp.CaptureSpec(datasets=["attention/mass"])
    without = mp.trace(tiny_spd, samples[:1], tmp_path / "bare", capture=bare, max_new_tokens=3)
    with pytest.raises(NotCaptured, match="tam/logit"):
        token_activation(without)


def test_rank_gaussian_by_hand():
    nine = np.arange(1.0, 10.0)  # mean 5, population deviation sqrt(60 / 9)
    sigma = math.sqrt(60 / 9) / 5
    weights = np.exp(-((np.arange(9) - 4) ** 2) / (2 * sigma**2))
    by_hand = (weights * nine).sum() / weights.sum()
    shuffled = np.random.default_rng(0).permutation(nine).reshape(3, 3)
    assert rank_gaussian(shuffled)[1, 1] == pytest.approx(by_hand, abs=1e-12)
    assert by_hand == pytest.approx(5)  # symmetric around the median
    spike = np.zeros((3, 3))
    spike[1, 1] = 9.0  # mean 1, deviation sqrt(8): sigma is 2.83 ranks
    weights = np.exp(-((np.arange(9) - 4) ** 2) / 16)
    assert rank_gaussian(spike)[1, 1] == pytest.approx(9 * weights[8] / weights.sum(), abs=1e-12)


@pytest.mark.parametrize("value", [0.0, 1e-300, 1e-9, 0.1, 1.0, 3.7])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (4, 1), (2, 2), (6, 5)])
def test_a_constant_map_stays_as_it_is(value, shape):
    np.testing.assert_allclose(rank_gaussian(np.full(shape, value)), value, rtol=1e-12)


def test_nearly_constant_maps_are_finite():
    near = np.full((4, 4), 0.3)
    near[2, 2] += 1e-16
    assert np.isfinite(rank_gaussian(near)).all()


def test_scaling_all_logits_changes_nothing():
    rng = np.random.default_rng(1)
    ids, users, visual = rng.integers(0, 20, 20).tolist(), [10, 11], list(range(1, 10))
    z = rng.normal(size=(20, 20))
    one, two = (activation_maps(as_read(k * z, ids, users, visual, 13), [(3, 3)])[0] for k in (1, 7))
    np.testing.assert_allclose(
        one, two, atol=1e-7
    )  # the 1e-8 that is added to the sum of scores is not scaled


def test_joint_minmax_of_equal_values_is_0():
    assert joint_minmax(np.full(3, 2.0), np.full(2, 2.0)).tolist() == [0, 0, 0]


def test_logits_that_are_not_finite_are_refused(tiny_spd, image_paths, tmp_path):
    import h5py

    samples = [Sample(id="a", images=image_paths[:1], question="What?")]
    run = mp.trace(tiny_spd, samples, tmp_path / "run", max_new_tokens=3)
    with h5py.File(tmp_path / "run" / "samples" / "a.h5", "r+") as file:
        file["tam/prompt"][0, 0] = np.inf
    with pytest.raises(InputError, match="not finite"):
        token_activation(run["a"])


def test_every_map_is_drawn_in_square_cells():
    """Of two views with unlike grids, each map's rows and columns have one scale."""
    maps = np.full((2, 2, 4, 4), np.nan)
    maps[:, 0], maps[:, 1, :2, :3] = 0.5, 0.25
    ds = xr.Dataset(
        {name: (("step", "image", "y", "x"), maps) for name in ("tam", "raw")}
        | {"token": ("step", ["one", "two"])},
        attrs={"analysis": "token_activation", "sample": "a", "answer": "one two"},
    )
    figure = plot(ds)
    assert [heat.z.shape for heat in figure.data] == [(4, 4)] * 4 + [(2, 3)] * 4
    anchors = {
        heat.xaxis: figure.layout[heat.yaxis.replace("y", "yaxis")].scaleanchor for heat in figure.data
    }
    assert len(anchors) == 8
    assert all(x == anchor for x, anchor in anchors.items())


@pytest.mark.slow
def test_dozens_of_views_are_drawn():
    maps = np.random.default_rng(0).random((1, 34, 2, 2))
    ds = xr.Dataset(
        {name: (("step", "image", "y", "x"), maps) for name in ("tam", "raw")} | {"token": ("step", ["one"])},
        attrs={"analysis": "token_activation", "sample": "a", "answer": "one"},
    )
    assert len(plot(ds).data) == 68
