"""Traces of answers that a method changes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.asking import answer_batch

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache.verify import check_trace
from mmprobe.errors import InputError
from mmprobe.interventions import load_method

TOKENS = 24


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs") / "p"
    samples = mp.load_samples(make_pairs(folder, n=2, seed=11, differences=(1, 3)))
    return [sample for sample in samples if sample.metadata["type"] in ("same", "steps")]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("sage", {"alpha": 0.5}), pytest.param("vcd", {"alpha": 2.0}, marks=pytest.mark.exhaustive)],
)
@pytest.mark.slow
def test_a_trace_holds_the_answer_that_the_method_gives(tiny_spd, samples, tmp_path, method, parameters):
    run = mp.trace(
        tiny_spd,
        samples,
        tmp_path / "run",
        capture="full",
        max_new_tokens=TOKENS,
        method=method,
        **parameters,
    )
    config = json.loads((tmp_path / "run" / "run.json").read_text())
    assert config["generate"]["methods"][method]["alpha"] == parameters["alpha"]
    for sample in samples:
        alone = mp.generate(tiny_spd, sample, method, max_new_tokens=TOKENS, **parameters)
        assert run[sample.id].steps["id"].values.tolist() == alone.token_ids


@pytest.mark.slow
def test_a_trace_shows_the_effect_of_the_method(tiny_spd, samples, tmp_path):
    """With alpha = 1, See doubles the odds of attention to the images in the first layer of the first step."""
    plain = mp.trace(tiny_spd, samples, tmp_path / "plain", max_new_tokens=TOKENS)
    only_see = {"alpha": 1.0, "analyze": False, "generate": False, "shallow": 1.0}
    changed = mp.trace(tiny_spd, samples, tmp_path / "see", max_new_tokens=TOKENS, method="sage", **only_see)
    for name in plain.ids:
        before, after = (
            run[name].attention_mass.sel(group="visual").isel(step=0, layer=0).values
            for run in (plain, changed)
        )
        np.testing.assert_allclose(after, 2 * before / (1 + before), rtol=1e-4)


def test_neutral_parameters_change_nothing(tiny_spd, samples, tmp_path):
    plain = mp.trace(tiny_spd, samples[:1], tmp_path / "plain", max_new_tokens=TOKENS)
    neutral = mp.trace(tiny_spd, samples[:1], tmp_path / "n", max_new_tokens=TOKENS, method="vcd", alpha=0.0)
    name = plain.ids[0]
    np.testing.assert_array_equal(plain[name].attention_mass, neutral[name].attention_mass)
    assert "methods" not in json.loads((tmp_path / "n" / "run.json").read_text())["generate"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "self-refine"}, "generates several answers"),
        ({"method": "opera"}, "generates several answers"),
        ({"method": "sage", "engine": "nnsight"}, "needs the native engine"),
        ({"method": "sagg"}, "sage"),
        ({"method": "sage", "eeta": 1}, "eta"),
    ],
)
def test_a_method_that_cannot_be_traced_is_refused_before_the_run(
    tiny_spd, samples, tmp_path, options, message
):
    with pytest.raises(InputError, match=message):
        mp.trace(tiny_spd, samples, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_trace_keeps_the_methods_own_reports(tiny_spd, samples, tmp_path):
    """Two methods act together on a batch of two; each trace has the reports that `generate` gives."""
    methods = [load_method("sage", alpha=0.5, tau=0.5, refresh=4), load_method("pai", alpha=0.1)]
    same = [sample for sample in samples if sample.metadata["type"] == "same"]
    run = mp.trace(tiny_spd, same, tmp_path / "run", max_new_tokens=8, method=methods, batch_size=2)
    answers = answer_batch(tiny_spd, same, methods, max_new_tokens=8)
    for sample, answer in zip(same, answers, strict=True):
        reports = run[sample.id].method_reports
        assert reports == json.loads(json.dumps(answer.diagnostics))
        sage, n_steps = reports["sage"], len(answer.token_ids)
        n_deep = tiny_spd.n_layers - round(tiny_spd.n_layers / 3)
        assert np.shape(sage["alphas"]) == (n_steps, n_deep)
        np.testing.assert_allclose(np.mean(sage["alphas"], 1), sage["alpha"], rtol=1e-5)
        assert [len(layers) / tiny_spd.n_layers for layers in sage["suppressed_layers"]] == pytest.approx(
            sage["suppressed"]
        )
        assert {step: len(tokens) for step, tokens in sage["occluded_tokens"].items()} == sage["occluded"]
        n_visual = int((run[sample.id].tokens["group"] == 2).sum())
        assert all(0 <= token < n_visual for tokens in sage["occluded_tokens"].values() for token in tokens)
        assert check_trace(run[sample.id], run.config) == []
    plain = mp.trace(tiny_spd, same[:1], tmp_path / "plain", max_new_tokens=4)
    assert plain[same[0].id].method_reports == {}
