"""The logit lens against the hidden states of transformers, with the norm and unembedding written by hand."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
import xarray as xr

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError, NotApplicable, NotCaptured
from mmprobe.models import Model
from mmprobe.probes.logit_lens import RANGES, find_depth, logit_lens, logit_lens_run
from mmprobe.samples import Sample
from mmprobe.stats.intervals import QUANTITY, mean_interval
from mmprobe.viz.figures.logit_lens import panels

EXACT = mp.CaptureSpec(datasets=["residual/post"], dtype="float32")


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> list[Sample]:
    all_samples = mp.load_samples(make_pairs(tmp_path_factory.mktemp("lens") / "pairs", n=6, seed=3))
    return [
        sample.model_copy(update={"faithful": number % 2 == 0})
        for number, sample in enumerate(sample for sample in all_samples if sample.polarity)
    ]


@pytest.fixture(scope="module")
def run(tiny_spd, samples, tmp_path_factory) -> mp.Run:
    return mp.trace(
        tiny_spd, samples, tmp_path_factory.mktemp("lens") / "run", capture=EXACT, max_new_tokens=10
    )


def manual_logprobs(model: Model, trace: mp.Trace) -> np.ndarray:
    """Return log-probabilities [step, layer, vocabulary] in double precision, without the last layer."""
    inputs = model.prepare(trace.sample)
    ids = torch.from_numpy(trace.tokens["id"].values.astype(np.int64))[None]
    extra = ids.shape[1] - inputs["input_ids"].shape[1]
    extended = {"attention_mask": torch.ones_like(ids), "input_ids": ids}
    extended["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, extra))
    with torch.no_grad():
        states = model.hf(**inputs | extended, output_hidden_states=True).hidden_states
    queries = slice(ids.shape[1] - extra - 1, ids.shape[1] - 1)
    streams = torch.stack([state[0, queries] for state in states[1:-1]], 1).double().numpy()
    norm = model.hf.model.language_model.norm
    scale = np.sqrt((streams**2).mean(-1, keepdims=True) + norm.variance_epsilon)
    weight = model.hf.lm_head.weight.detach().double().numpy()
    logits = streams / scale * norm.weight.detach().double().numpy() @ weight.T
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("name", ["tiny_spd", "random_qwen"])
def test_every_layer_equals_the_hidden_states_of_transformers(name, samples, tmp_path, request):
    model = request.getfixturevalue(name)
    trace = mp.trace(model, samples[:1], tmp_path / "run", capture=EXACT, max_new_tokens=70)[samples[0].id]
    ds, expected = logit_lens(model, trace, top=3), manual_logprobs(model, trace)
    ids = trace.steps["id"].values
    generated = np.take_along_axis(expected, ids[:, None, None], -1)
    np.testing.assert_allclose(ds.logprob.values[:, :-1], generated[..., 0], atol=2e-4)
    np.testing.assert_array_equal(ds["rank"].values[:, :-1], (expected > generated + 1e-9).sum(-1))
    np.testing.assert_allclose(ds.entropy.values[:, :-1], -(np.exp(expected) * expected).sum(-1), atol=2e-4)
    best = np.argsort(-expected, -1)[..., :3]
    np.testing.assert_allclose(
        ds.top_logprob.values[:, :-1], np.take_along_axis(expected, best, -1), atol=2e-4
    )
    for step, layer in [(0, 0), (len(ids) - 1, 1)]:
        texts = [model.tokenizer.decode([token]) for token in best[step, layer].tolist()]
        shown = [
            re.sub("(<0x..>)+", "\N{REPLACEMENT CHARACTER}", text)
            for text in ds.top_token.values[step, layer]
        ]
        assert shown == texts
    assert ds.token.values.tolist() == trace.tokens["text"].values[-len(ids) :].tolist()


@pytest.mark.slow
def test_the_last_layer_equals_the_output(tiny_spd, run, samples, tmp_path):
    trace = run[run.ids[0]]
    ds = logit_lens(tiny_spd, trace)
    np.testing.assert_allclose(ds.logprob.values[:, -1], trace.steps["logprob"].values, atol=1e-4)
    np.testing.assert_allclose(ds.entropy.values[:, -1], trace.steps["entropy"].values, atol=1e-4)
    assert (ds["rank"].values[:, -1] == 0).all()  # greedy
    half = mp.trace(tiny_spd, samples[:1], tmp_path / "half", capture="full", max_new_tokens=10)
    rounded = logit_lens(tiny_spd, half[half.ids[0]])
    np.testing.assert_allclose(rounded.logprob.values[:, -1], trace.steps["logprob"].values, atol=0.02)
    assert not np.array_equal(rounded.logprob.values, ds.logprob.values)


def test_depth_by_a_plain_loop():
    rng = np.random.default_rng(0)
    rank, layers = rng.integers(0, 2, (200, 5)), np.array([0, 2, 3, 7, 9])
    for row, depth in zip(rank, find_depth(rank, layers), strict=True):
        expected = next((layers[i] for i in range(5) if not row[i:].any()), np.nan)
        np.testing.assert_equal(depth, float(expected))


def test_some_layers_of_the_model(tiny_spd, run, samples, tmp_path):
    some = EXACT.model_copy(update={"layers": [1, 4]})
    trace = mp.trace(tiny_spd, samples[:1], tmp_path / "run", capture=some, max_new_tokens=10)[samples[0].id]
    ds, all_layers = logit_lens(tiny_spd, trace), logit_lens(tiny_spd, run[samples[0].id])
    assert ds.layer.values.tolist() == [1, 4]
    np.testing.assert_allclose(ds.logprob.values, all_layers.logprob.sel(layer=[1, 4]).values, atol=1e-5)
    assert set(ds.depth.values[~np.isnan(ds.depth.values)]) <= {1.0, 4.0}


def test_a_run_is_the_mean_of_its_answers(tiny_spd, run):
    ds = logit_lens_run(tiny_spd, run)
    answers = {name: logit_lens(tiny_spd, run[name]) for name in run.ids}
    for name, answer in answers.items():
        of_sample = ds.sel(sample=name)
        np.testing.assert_allclose(of_sample.logprob, answer.logprob.mean("step"), atol=1e-6)
        np.testing.assert_allclose(of_sample.entropy, answer.entropy.mean("step"), atol=1e-6)
        np.testing.assert_allclose(of_sample.first_share, (answer["rank"] == 0).mean("step"), atol=1e-6)
    faithful = [answer.logprob.mean("step") for name, answer in answers.items() if run.faithful(name)]
    mean = ds.logprob_by_label.sel(label="faithful")
    np.testing.assert_allclose(mean, np.mean(faithful, 0), atol=1e-6)
    assert (ds.logprob_by_label_low.values <= ds.logprob_by_label.values).all()
    assert ds.n_label.values.tolist() == [12, 6, 6]
    unfaithful = ds.logprob_by_label.sel(label="unfaithful")
    np.testing.assert_allclose(ds.difference.sel(measure="logprob"), unfaithful - mean, atol=1e-9)


def test_an_interval_of_a_log_probability_is_not_above_0():
    """Few answers, of which one is nearly certain: Student's interval alone would reach +13 nat."""
    values = np.array([-0.01, -4.0, -13.0])
    assert mean_interval(values, None, QUANTITY)[1] > 5
    low, high = mean_interval(values, None, RANGES["logprob"])
    assert low == mean_interval(values, None, QUANTITY)[0] and values.mean() < high <= 0


def test_samples_with_non_finite_values_are_excluded(tiny_spd, samples, tmp_path):
    run = mp.trace(tiny_spd, samples[:3], tmp_path / "run", capture=EXACT, max_new_tokens=4)
    before = logit_lens_run(tiny_spd, run)
    with h5py.File(run.path / "samples" / f"{run.ids[1]}.h5", "r+") as file:
        file["residual/post"][0, 2, 5] = np.nan
    ds = logit_lens_run(tiny_spd, run)
    assert ds.attrs["left_out"] == run.ids[1] and ds.attrs["n_left_out"] == 1
    assert ds.sample.values.tolist() == [run.ids[0], run.ids[2]]
    xr.testing.assert_allclose(ds.logprob, before.logprob.isel(sample=[0, 2]))
    answer = logit_lens(tiny_spd, run[run.ids[1]])
    assert np.isnan(answer.logprob[0, 2]) and np.isfinite(answer.logprob[1:]).all()
    assert answer.top_token.values[0, 2].tolist() == [""] * 5 and np.isnan(answer["rank"][0, 2])


def test_scaled_logits_are_refused(tiny_spd, run):
    hf = copy.deepcopy(tiny_spd.hf)
    weight = hf.lm_head.weight
    hf.lm_head.forward = lambda states: torch.nn.functional.linear(states, weight) * 0.5
    with pytest.raises(NotApplicable, match="logits"):
        logit_lens(replace(tiny_spd, hf=hf), run[run.ids[0]])


def test_errors_are_one_line(tiny_spd, random_qwen, run, samples, tmp_path):
    trace = run[run.ids[0]]
    small = mp.trace(tiny_spd, samples[:1], tmp_path / "small", max_new_tokens=2)
    with pytest.raises(NotCaptured, match="residual/post was not captured"):
        logit_lens(tiny_spd, small[small.ids[0]])
    with pytest.raises(NotCaptured, match="residual/post was not captured"):
        logit_lens_run(tiny_spd, small)
    with pytest.raises(InputError, match="hidden or vocabulary size"):
        logit_lens(random_qwen, trace)
    hf = copy.deepcopy(tiny_spd.hf)
    hf.lm_head.weight = torch.nn.Parameter(hf.lm_head.weight.roll(1, 0))
    with pytest.raises(InputError, match="tiny-spd"):
        logit_lens_run(replace(tiny_spd, hf=hf), run)
    for top in (0, 10**6):
        with pytest.raises(InputError, match="top"):
            logit_lens(tiny_spd, trace, top=top)


def test_figures(tiny_spd, run):
    for ds, count in ((logit_lens(tiny_spd, run[run.ids[0]]), 1), (logit_lens_run(tiny_spd, run), 2)):
        shown = panels(ds)
        assert len(shown) == count
        for panel in shown:
            assert panel.title and "tiny-spd" in shown[0].caption
            json.loads(panel.figure.to_json())
