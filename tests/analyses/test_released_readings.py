"""What the released code of SPD-Faith Bench reads otherwise than the paper says, by parameter, against transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mmprobe as mp
from mmprobe.analyses.sublayer_transitions import _measure_updates
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError, NotCaptured
from mmprobe.probes import final_norm
from mmprobe.traces.capture import CaptureSpec


@pytest.fixture(scope="module")
def run(tiny_spd, tmp_path_factory):
    """Two pairs of opposite questions, with the residual stream at the prompt's tokens, too."""
    folder = tmp_path_factory.mktemp("released")
    make_pairs(folder / "pairs", 2, 5)
    samples = mp.load_samples(folder / "pairs" / "samples.jsonl")
    asked = [sample for sample in samples if sample.metadata["type"] in ("same", "different")]
    names = [f"residual/{name}" for name in ("pre", "mid", "post")]
    names += [f"update/{name}" for name in ("cos_mha", "cos_ffn", "kl")] + ["ffn/gate_sum"]
    capture = CaptureSpec(datasets=names, positions="all", dtype="float32")
    return mp.trace(tiny_spd, asked, folder / "run", capture=capture, max_new_tokens=4)


def hidden_states(model, trace):
    """Return transformers' states of the prompt and answer; the last one is that after the final norm."""
    inputs = model.prepare(trace.sample)
    ids = torch.from_numpy(trace.steps["id"].values[None, :-1].astype(np.int64))
    inputs["input_ids"] = torch.cat([inputs["input_ids"], ids], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        zeros = torch.zeros_like(ids).to(inputs["mm_token_type_ids"].dtype)
        inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], zeros], 1)
    with torch.inference_mode():
        out = model.hf(**inputs, output_hidden_states=True)
    return [state[0].numpy().astype(float) for state in out.hidden_states]


def test_drift_after_the_final_norm(run, tiny_spd):
    plain = mp.analyses.residual_drift(run)
    ds = mp.analyses.residual_drift(run, final_norm=final_norm(tiny_spd))
    assert (plain.attrs["final_norm"], ds.attrs["final_norm"]) == ("no", "yes")
    last = int(ds.layer[-1])
    np.testing.assert_array_equal(
        ds.cosine.sel(layer=slice(0, last - 1)), plain.cosine.sel(layer=slice(0, last - 1))
    )
    for pair in ds.pair.values:
        means = []
        for name in (name for name in run.ids if run.sample(name).pair_id == pair):
            trace = run[name]
            means.append(hidden_states(tiny_spd, trace)[-1][-len(trace.steps["id"]) :].mean(0))
        one, two = means
        expected = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
        assert ds.cosine.sel(pair=pair, layer=last).item() == pytest.approx(expected, abs=1e-4)
        assert plain.cosine.sel(pair=pair, layer=last).item() != pytest.approx(expected, abs=1e-4)
    with pytest.raises(InputError, match="stream post"):
        mp.analyses.residual_drift(run, stream="mid", final_norm=final_norm(tiny_spd))


def test_transitions_over_the_prompts_tokens(run, tiny_spd):
    ds = mp.analyses.sublayer_transitions(run, positions="prompt")
    answers = mp.analyses.sublayer_transitions(run)
    assert (ds.attrs["positions"], answers.attrs["positions"]) == ("prompt", "generated")
    name = run.ids[0]
    trace = run[name]
    n_prompt = len(trace.tokens["id"]) - len(trace.steps["id"])
    states = hidden_states(tiny_spd, trace)
    mid = trace.array("prompt/residual_mid").values.astype(float)
    assert mid.shape[0] == n_prompt
    for layer in (0, 3):
        pre, post = states[layer][:n_prompt], states[layer + 1][:n_prompt]
        cosines = [
            np.mean([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(one, two, strict=True)])
            for one, two in ((pre, mid[:, layer]), (mid[:, layer], post))
        ]
        found = ds.sel(sample=name, layer=layer)
        assert found.cos_mha.item() == pytest.approx(cosines[0], abs=1e-4)
        assert found.cos_ffn.item() == pytest.approx(cosines[1], abs=1e-4)
        softmax = [
            np.exp(values - values.max(-1, keepdims=True))
            for values in (mid[:, layer] - pre, post - mid[:, layer])
        ]
        one, two = (values / values.sum(-1, keepdims=True) for values in softmax)
        assert found.kl.item() == pytest.approx((one * np.log(one / two)).sum(-1).mean(), rel=1e-3)
    assert float(abs(ds.cos_ffn - answers.cos_ffn).max()) > 1e-3
    with pytest.raises(InputError, match="generated or prompt"):
        mp.analyses.sublayer_transitions(run, positions="answer")


def test_the_prompts_last_token_is_the_first_steps_query(run):
    trace = run[run.ids[0]]
    recorded = [trace.array(f"update/{name}").values[0] for name in ("cos_mha", "cos_ffn", "kl")]
    np.testing.assert_allclose(_measure_updates(trace)[:, -1], recorded, rtol=1e-3, atol=1e-4)


def test_without_the_prompts_states_the_capture_is_named(tiny_spd, run, tmp_path):
    bare = mp.trace(
        tiny_spd, [run.sample(run.ids[0])], tmp_path / "bare", capture="default", max_new_tokens=2
    )
    with pytest.raises(NotCaptured, match="prompt/residual_pre"):
        mp.analyses.sublayer_transitions(bare, positions="prompt")


def test_differences_times_ten(run):
    labelled = {name: number % 2 == 0 for number, name in enumerate(run.ids)}
    (run.path / "labels.jsonl").write_text(
        "".join(f'{{"id": "{name}", "faithful": {str(value).lower()}}}\n' for name, value in labelled.items())
    )
    again = mp.open_run(run.path)
    one, ten = (mp.analyses.neuron_activation(again, minimum=2, scale=scale) for scale in (1, 10))
    assert abs(one.difference).max() > 0
    for name in ("difference", "difference_low", "difference_high", "difference_third"):
        np.testing.assert_allclose(ten[name], 10 * one[name])
    for name in ("p", "effect", "ratio", "top_difference"):
        np.testing.assert_array_equal(ten[name], one[name])
    with pytest.raises(InputError, match="scale"):
        mp.analyses.neuron_activation(again, scale=0)
