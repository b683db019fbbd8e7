"""Dictionaries that are trained: a planted one is found, health by hand, and the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.command_line import assert_fails, read_result, run_in_process

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.models.dictionaries import load_dictionary, save_dictionary
from mmprobe.probes.features.settings import DictionarySettings
from mmprobe.probes.features.train import GroupStates, begin, fit, share_batch

SIZE, PLANTED, ACTIVE = 16, 20, 2


def draw_part(rng: np.random.Generator, directions: np.ndarray, count: int) -> GroupStates:
    """States that are sums of two of the directions, with lengths from 1 to 2, around a mean."""
    lengths = np.zeros((count, PLANTED))
    for row in lengths:
        row[rng.choice(PLANTED, ACTIVE, replace=False)] = rng.uniform(1, 2, ACTIVE)
    states = (lengths @ directions + 3).astype(np.float32)
    return GroupStates(states, states.mean(0, dtype=float), float(states.var(0, dtype=float).sum()))


def test_planted_directions_are_found():
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    directions = rng.standard_normal((PLANTED, SIZE))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    parts = [draw_part(rng, directions, count) for count in (4000, 500)]
    begun = begin(("resid_post", 0), SIZE, 2 * PLANTED, ACTIVE, "made")
    settings = DictionarySettings(steps=1500, learning_rate=5e-3)
    trained = fit(begun, parts, share_batch([4000, 500], 256), settings)
    fresh = torch.from_numpy(draw_part(rng, directions, 500).states)
    found = trained.decode(trained.encode(fresh), fresh)
    variance = (fresh - fresh.mean(0)).pow(2).sum()
    assert 1 - float((found - fresh).pow(2).sum() / variance) > 0.9
    before = begun.decode(begun.encode(fresh), fresh)
    assert 1 - float((before - fresh).pow(2).sum() / variance) < 0.5
    cosines = (torch.from_numpy(directions).float() @ trained.weights["W_dec"].T).max(1).values
    assert (cosines > 0.95).float().mean() > 0.8
    assert float((trained.encode(fresh) > 0).sum(-1).max()) <= ACTIVE


@pytest.fixture(scope="module")
def run(tiny_spd, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    drawn = mp.load_samples(make_pairs(folder / "pairs", n=4, seed=21))
    samples = [sample for sample in drawn if sample.metadata["type"] in ("colour", "same")]
    return mp.trace(tiny_spd, samples, folder / "run", max_new_tokens=12, batch_size=8)


def read_eagerly(model, sample, ids: list[int], change=None) -> float:
    """Return the loss of an answer's tokens from transformers itself, with the stream after layer 3 changed."""
    inputs = dict(model.prepare(sample))
    length = inputs["input_ids"].shape[1]
    new = torch.tensor([ids])
    for name, value in inputs.items():
        if value.ndim == 2 and value.shape == (1, length):
            rest = new if name == "input_ids" else value[:, -1:].expand(1, len(ids))
            inputs[name] = torch.cat([value, rest.to(value.dtype)], 1)
    layer = model.family.decoder(model.hf).layers[3]
    handle = layer.register_forward_hook(
        lambda module, arguments, out: (
            out if change is None else (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)
        )
    )
    try:
        with torch.no_grad():
            logits = model.hf(**inputs).logits[0, length - 1 : -1].float()
    finally:
        handle.remove()
    return float(-logits.log_softmax(-1).gather(1, new.T).sum())


def test_the_loss_recovered_is_that_of_plain_hooks(tiny_spd, run):
    dictionary = load_dictionary("tiny-spd")
    ds = mp.probes.dictionary_health(tiny_spd, run, "tiny-spd")
    assert ds.n_sinks.values.tolist() == [0, 0, 0]
    count = 0
    sums = np.zeros(3)
    changes = (None, lambda x: dictionary.decode(dictionary.encode(x), x), torch.zeros_like)
    for trace in run:
        ids = trace.steps["id"].values.tolist()
        sums += [read_eagerly(tiny_spd, trace.sample, ids, change) for change in changes]
        count += len(ids)
    names = ("loss", "loss_reconstructed", "loss_ablated")
    np.testing.assert_allclose([ds[name].item() for name in names], sums / count, rtol=2e-3, atol=2e-3)
    expected = (sums[2] - sums[1]) / (sums[2] - sums[0])
    assert ds.loss_recovered.item() == pytest.approx(expected, abs=2e-3) and expected > 0.5
    assert ds.loss_recovered_low <= ds.loss_recovered <= ds.loss_recovered_high
    same = mp.probes.features_run(tiny_spd, run, "tiny-spd")
    for name in ("explained", "l0", "dead", "n_tokens"):
        np.testing.assert_allclose(ds[name], same[name], rtol=1e-6)
    assert ds.dead_everywhere <= ds.dead.min()


def test_a_dictionary_of_nothing_recovers_nothing(tiny_spd, run, tmp_path):
    """One that always writes its bias, zero, is the ablation."""
    known = load_dictionary("tiny-spd")
    zero = {name: 0 * value for name, value in known.weights.items()}
    folder = save_dictionary(replace(known, weights=zero), tmp_path / "zero")
    ds = mp.probes.dictionary_health(tiny_spd, run, str(folder))
    assert ds.loss_recovered.item() == pytest.approx(0, abs=1e-6)
    assert ds.dead_everywhere == 1 and (ds.explained <= 0).all()


@pytest.mark.slow
def test_the_command_writes_a_dictionary_that_loads(run, tmp_path):
    """The run's own model is read; a few steps explain more than none, and the folder is a dictionary of SAELens."""
    folder = tmp_path / "dictionary"
    command = ("train", "dictionary", "--run", run.path, "--layer", "3", "--features", "128", "--active", "8")
    result = read_result(run_in_process(*command, "--steps", "200", "--out", folder, "--json"))
    trained = load_dictionary(str(folder))
    assert (trained.architecture, trained.k, trained.reads) == ("topk", 8, ("resid_post", 3))
    assert (trained.n_features, trained.d_in) == (128, 192)
    assert result["health"]["explained"][1] > 0.8 and result["health"]["loss_recovered"] > 0
    assert {file.name for file in folder.iterdir()} >= {
        "cfg.json",
        "sae_weights.safetensors",
        "dictionary_health.nc",
    }
    assert_fails(run_in_process(*command, "--out", folder), "exists; choose another folder")
    rest = (*command[:4], "--out", tmp_path / "none")
    assert_fails(run_in_process(*rest, "--layer", "40"), "is of layer 40")
    assert_fails(run_in_process(*rest, "--layer", "3", "--hook", "hook_pattern"), "is not known")
    assert_fails(run_in_process(*rest, "--layer", "3", "--active", "9", "--features", "8"), "active 9")
    assert_fails(
        run_in_process("train", "dictionary", "--run", tmp_path, *command[4:], "--out", folder), "no run here"
    )
    assert not Path(tmp_path / "none").exists()
