"""Directions and erasers on planted residual streams, and dose and response on the embedded model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from helpers import runs
from sklearn.linear_model import LogisticRegression

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError, NotApplicable
from mmprobe.interventions import generate, load_method
from mmprobe.interventions.methods.steer import _SteerState
from mmprobe.stats.intervals import mean_interval
from mmprobe.viz.figures import figures

HIDDEN, LAYERS = 6, [1, 4]
PLANTED = np.array([0.0, 2.0, 0.0, -1.0, 0.0, 0.0])


def write_planted(folder: Path, n: int = 60, n_classes: int = 2) -> mp.Run:
    """Write answers of 3 steps. In layer 4 the classes lie apart along `PLANTED`. Two answers share an image."""
    rng = np.random.default_rng(0)
    traces = {}
    for i in range(n):
        stream = 0.5 * rng.normal(size=(3, len(LAYERS), HIDDEN))
        stream[:, 1] += (i % n_classes) * PLANTED
        traces[f"s{i:03}"] = {
            "residual/post": stream,
            "images": [f"{i // 2}.png"],
            "metadata": {"class": "abc"[i % n_classes]},
        }
    return runs.write_run(folder, traces, LAYERS)


def read_class(trace: mp.Trace) -> str:
    return trace.sample.metadata["class"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> mp.Run:
    return write_planted(tmp_path_factory.mktemp("planted") / "run")


def read_vectors(run: mp.Run, layer: int) -> np.ndarray:
    names = sorted(run.ids)
    return np.array([run[name].residual_post.sel(layer=layer).values.mean(0, dtype=float) for name in names])


@pytest.mark.slow
@pytest.mark.parametrize("direction", [mp.probes.mean_difference, mp.probes.probe_direction])
def test_a_planted_direction_is_found_in_its_layer(run, direction):
    ds = direction(run, read_class)
    assert ds["direction"].dims == ("layer", "hidden") and ds["layer"].values.tolist() == LAYERS
    found = ds["direction"].sel(layer=4).values
    cosine = found @ PLANTED / np.linalg.norm(found) / np.linalg.norm(PLANTED)
    assert cosine > (0.95 if direction is mp.probes.mean_difference else 0.7)  # a probe weighs by variance
    assert (ds["n"].values.tolist(), ds["n_groups"].values.tolist()) == ([30, 30], [30, 30])
    vectors = read_vectors(run, 4)
    difference = vectors[1::2].mean(0) - vectors[::2].mean(0)
    read = vectors @ found
    assert read[1::2].min() > read[::2].max()
    np.testing.assert_allclose(np.linalg.norm(found), np.linalg.norm(difference), rtol=1e-5)
    if direction is mp.probes.mean_difference:
        np.testing.assert_allclose(found, difference, rtol=1e-4, atol=1e-6)


def test_a_random_direction_has_the_same_lengths_and_is_not_the_direction(run):
    ds = mp.probes.mean_difference(run, read_class)
    random = mp.probes.random_direction(ds, seed=3)
    for values, expected in zip(random["direction"].values, ds["direction"].values, strict=True):
        np.testing.assert_allclose(np.linalg.norm(values), np.linalg.norm(expected))
        assert abs(values @ expected) < 0.9 * np.linalg.norm(expected) ** 2
    assert not random["direction"].equals(mp.probes.random_direction(ds, seed=4)["direction"])


@pytest.mark.slow
def test_no_linear_probe_reads_what_the_eraser_took_out(tmp_path, tiny_spd):
    run = write_planted(tmp_path / "run", 90, n_classes=3)
    ds = mp.probes.concept_eraser(run, read_class)
    assert ds["class"].values.tolist() == ["a", "b", "c"]
    vectors, labels = read_vectors(run, 4), np.arange(90) % 3
    part = ds.sel(layer=4)
    erased = vectors - (vectors - part["mean"].values) @ part["right"].values @ part["left"].values.T
    readable = LogisticRegression(C=100).fit(vectors, labels).score(vectors, labels)
    left = LogisticRegression(C=100).fit(erased, labels).score(erased, labels)
    assert readable > 0.8 and left < 0.45
    # the method computes the same
    padded = {
        name: ds[name].pad(hidden=(0, 192 - HIDDEN), constant_values=0) for name in ("left", "right", "mean")
    }
    xr.Dataset(padded).to_netcdf(tmp_path / "eraser.nc", engine="h5netcdf")
    method = load_method("steer", direction=str(tmp_path / "eraser.nc"), action="remove")
    stream = torch.zeros(1, 90, 192)
    stream[0, :, :HIDDEN] = torch.from_numpy(vectors)
    stream = stream.transpose(0, 1)
    state = _SteerState(method, tiny_spd)
    changed = state.changes()["resid_post", 4](stream)[:, 0, :HIDDEN]
    np.testing.assert_allclose(changed, erased, atol=1e-5)


def test_errors_say_what_is_wrong(run, tmp_path):
    with pytest.raises(NotApplicable, match="two classes of 40 samples are needed"):
        mp.probes.mean_difference(run, read_class, minimum=40)
    three = write_planted(tmp_path / "run", 30, n_classes=3)
    with pytest.raises(InputError, match="classes a, b, c"):
        mp.probes.mean_difference(three, read_class)
    with pytest.raises(InputError, match="reduce 'median': choose mean"):
        mp.probes.mean_difference(run, read_class, reduce="median")


@pytest.mark.exhaustive
def test_a_direction_of_verdicts_moves_verdicts_and_a_random_one_less(tiny_spd, tmp_path):
    samples = mp.load_samples(make_pairs(tmp_path / "pairs", 24, seed=900_000))
    asked = [sample for sample in samples if sample.id.endswith("-same")]
    assert len(asked) == 24
    half = [*asked[:12], *(s for s in samples if s.id.endswith("-different"))][:24]
    run = mp.trace(tiny_spd, half, tmp_path / "run", capture="full", max_new_tokens=8, batch_size=8)
    direction = mp.probes.mean_difference(run, lambda trace: trace.answer[:2], "first")
    other = mp.probes.random_direction(direction)
    ds = mp.probes.dose_response(
        tiny_spd,
        asked[12:],
        {"verdict": direction, "random": other},
        lambda text: float(text.startswith("Yes")),
        scales=[-2, 0, 2],
        max_new_tokens=2,
    )
    assert ds["changed"].sel(scale=0).values.tolist() == [0, 0]
    verdict, random = ds["mean"].sel(direction="verdict"), ds["mean"].sel(direction="random")
    assert verdict.sel(scale=2) - verdict.sel(scale=-2) > random.sel(scale=2) - random.sel(scale=-2) + 0.3
    row = ds["value"].sel(direction="verdict", scale=2).values
    low, high = mean_interval(row, np.arange(12))
    assert (
        ds["mean_low"].sel(direction="verdict", scale=2),
        ds["mean_high"].sel(direction="verdict", scale=2),
    ) == (
        low,
        high,
    )
    assert len(figures(ds)) == 1
    direction.to_netcdf(tmp_path / "verdict.nc", engine="h5netcdf")
    answer = generate(
        tiny_spd, asked[12], "steer", direction=str(tmp_path / "verdict.nc"), scale=2, max_new_tokens=2
    )
    assert answer.text == ds["answer"].sel(direction="verdict", scale=2).values[0]
