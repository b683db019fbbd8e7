"""The order of heads and layers in a trace does not change the results of any analysis."""

from __future__ import annotations

import re

import numpy as np
import pytest
import xarray as xr
from helpers.runs import write_run
from helpers.slow import first_fast

import mmprobe as mp
from mmprobe.analyses import ANALYSES
from mmprobe.cache.schema import GROUP_NAMES, VARIABLES

pytestmark = pytest.mark.slow

LAYERS, HEADS, STEPS, GRID, HIDDEN, NEURONS = [1, 4, 6, 9], [0, 2, 3], 4, (4, 4), 3, 16
ORDER = {"layer": [2, 0, 3, 1], "head": [1, 2, 0]}


def make_trace(rng: np.random.Generator, **fields) -> dict:
    """Return a trace of random arrays with every data set that an analysis reads; its answer contains a noun."""
    images = len(fields.get("images", ()))
    cells = images * GRID[0] * GRID[1]
    prompt = cells + 2
    groups = [0, *[2] * cells, 3, *[4] * STEPS]
    per_layer = (STEPS, len(LAYERS))
    mass = rng.dirichlet(np.ones(len(GROUP_NAMES)), (*per_layer, len(HEADS)))
    visual = rng.random((*per_layer, len(HEADS), cells))
    gates = rng.normal(size=(*per_layer, NEURONS))
    logit = rng.normal(2, 1, (STEPS, prompt + STEPS))
    logit[np.arange(prompt + STEPS) > prompt - 1 + np.arange(STEPS)[:, None]] = np.nan
    return fields | {
        "tokens/id": np.arange(prompt + STEPS),
        "tokens/group": groups,
        "tokens/image": [0 if group == 2 else -1 for group in groups],
        "tokens/text": [*["x"] * prompt, " star", " the", " star", "."],
        "images/grid": np.reshape([GRID] * images, (-1, 2)),
        "images/size": np.reshape([(40, 40)] * images, (-1, 2)),
        "images/source": np.arange(images),
        "images/box": np.reshape([(0, 0, 40, 40)] * images, (-1, 4)),
        "steps/id": np.arange(STEPS),
        "steps/logprob": -rng.random(STEPS),
        "steps/entropy": rng.random(STEPS),
        "attention/mass": mass,
        "attention/leading": mass[..., 0] / 2,
        "attention/visual": visual.mean(2),
        "attention/visual_head": visual,
        "residual/pre": rng.normal(size=(*per_layer, HIDDEN)),
        "residual/mid": rng.normal(size=(*per_layer, HIDDEN)),
        "residual/post": rng.normal(size=(*per_layer, HIDDEN)),
        "update/cos_mha": rng.normal(size=per_layer),
        "update/cos_ffn": rng.normal(size=per_layer),
        "update/kl": rng.random(per_layer),
        "ffn/gate_sum": gates.sum(0),
        "ffn/active": np.packbits(gates > 0, axis=-1),
        "tam/logit": logit,
        "tam/prompt": rng.normal(2, 1, (1, cells)),
    }


def permute(trace: dict, dim: str) -> dict:
    """Put the layers or heads of all arrays in another order."""
    return {
        name: np.take(values, ORDER[dim], VARIABLES[name].dims.index(dim))
        if "/" in name and dim in VARIABLES[name].dims
        else values
        for name, values in trace.items()
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, mp.Run]:
    """One run in the order of LAYERS and HEADS, and the same run in other orders."""
    rng, traces = np.random.default_rng(0), {}
    for number in range(44):
        column, row = divmod(number % 16, 4)
        fields = {
            "images": [f"{number // 2}.png"],
            "pair_id": str(number // 2),
            "polarity": ("same", "different")[number % 2],
            "faithful": number // 2 % 2 == 0,
            "regions": [{"image": 0, "box": [10 * column, 10 * row, 10, 10]}],
            "metadata": {"differences": [{"shape": "star"}]},
        }
        traces[f"s{number:02}"] = make_trace(rng, **fields)
    for number in range(4):
        traces[f"absent{number}"] = make_trace(rng, metadata={"with_picture": f"s{number:02}"})
    folder = tmp_path_factory.mktemp("permutations")
    runs = {"plain": write_run(folder / "plain", traces, LAYERS, HEADS)}
    for dim, order in ORDER.items():
        permuted = {name: permute(trace, dim) for name, trace in traces.items()}
        numbers = {"layer": LAYERS, "head": HEADS}
        numbers[dim] = [numbers[dim][index] for index in order]
        runs[dim] = write_run(folder / dim, permuted, numbers["layer"], numbers["head"])
    return runs


@pytest.fixture(scope="module", params=first_fast(name for name in ANALYSES if name != "attention_by_frame"))
def results(request, runs) -> dict[str, xr.Dataset]:
    return {order: ANALYSES[request.param](run) for order, run in runs.items()}


def without_depth(ds: xr.Dataset) -> xr.Dataset:
    """Drop comparisons of shallow and deep layers, and the ranking of neurons, whose ties are in layer order."""
    if "feature" in ds.dims:
        deep = ["visual_share_early", "visual_share_late", "residual_drift", "cos_ffn_late"]
        return ds[["value", "auc_feature"]].drop_sel(feature=deep)
    return ds[
        [name for name in ds if not re.search("early_suppression|system_excess|third|^top_", str(name))]
    ]


@pytest.mark.parametrize("dim", ORDER)
def test_the_order_of_layers_and_heads_does_not_matter(results, dim):
    """Results by layer or head are permuted with their layers or heads; all other results stay the same."""
    plain, permuted = results["plain"], results[dim]
    if dim == "layer":
        plain, permuted = without_depth(plain), without_depth(permuted)
    if dim in plain.dims:
        assert permuted[dim].values.tolist() == [int(plain[dim][index]) for index in ORDER[dim]]
        permuted = permuted.sortby(dim)
    xr.testing.assert_allclose(permuted, plain, rtol=1e-6)
