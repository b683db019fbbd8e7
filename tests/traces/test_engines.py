"""Every data set of the other two engines equals the native engine's."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from helpers.slow import first_fast

import mmprobe as mp
from mmprobe.samples import Sample
from mmprobe.traces import load_capture
from mmprobe.traces.engines.step_buffer import pad_rows

STEPS = 70  # more than a block


@pytest.fixture(scope="module")
def samples(image_paths) -> list[Sample]:
    return [
        Sample(
            id="two",
            images=image_paths[:2],
            system="You see pictures.",
            question="Compare them step by step.",
        ),
        Sample(id="one", images=image_paths[2:], question="Is there a star?"),
        Sample(id="none", question="What is a star?"),
    ]


@pytest.fixture(scope="module", params=first_fast(["tiny_spd", "random_qwen"]))
def runs(request, samples, tmp_path_factory) -> dict[str, mp.Run]:
    model = request.getfixturevalue(request.param)
    spec = load_capture("full").model_copy(update={"dtype": "float32"})
    spec = spec.model_copy(update={"datasets": [*spec.datasets, "attention/row"]})
    folder = tmp_path_factory.mktemp("engines")
    before = [weight.clone() for weight in model.hf.parameters()]
    runs_by_engine = {
        engine: mp.trace(model, samples, folder / engine, capture=spec, engine=engine, max_new_tokens=STEPS)
        for engine in ("native", "nnsight", "transformer_lens")
    }
    assert all(torch.equal(old, new) for old, new in zip(before, model.hf.parameters(), strict=True))
    assert model.hf.config.get_text_config()._attn_implementation == "sdpa"
    return runs_by_engine


def test_rounded_rows_sum_to_one_again():
    """The row has one large weight and two thousand small ones, which bfloat16 all rounds up."""
    row = torch.tensor([[0.6] + [0.4 / 2000] * 2000])
    assert abs(float(row.bfloat16().float().sum()) - 1) > 1e-3
    weights = pad_rows([row.bfloat16()], 2003).weights
    assert abs(float(weights.sum()) - 1) < 1e-6 and weights.shape == (1, 1, 1, 1, 2003)
    assert torch.equal(pad_rows([row], 2001).weights[0, 0, :, 0], row), "float32 rows stay as they are"


@pytest.mark.parametrize("engine", ["nnsight", "transformer_lens"])
@pytest.mark.slow
def test_every_data_set_equals_the_native_engine(runs, engine):
    for native, other in zip(runs["native"], runs[engine], strict=True):
        assert native.captured == other.captured
        assert native.answer == other.answer
        for name in native.captured:
            expected, actual = native.array(name).values, other.array(name).values
            if expected.dtype.kind != "f":
                if name != "ffn/active":  # signs near 0 depend on rounding; gate_sum is compared
                    np.testing.assert_array_equal(actual, expected, err_msg=name)
                continue
            np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected), err_msg=name)
            expected, actual = np.nan_to_num(expected), np.nan_to_num(actual)
            largest = np.abs(expected).max(-1, keepdims=True, initial=1)
            tolerance = 1e-4 if name in ("update/kl", "steps/entropy", "steps/logprob") else 2e-5
            assert (np.abs(actual - expected) <= tolerance * largest).all(), name


@pytest.mark.parametrize("engine", ["nnsight", "transformer_lens"])
def test_settings_that_change_between_two_runs_take_effect(
    random_qwen, samples, tmp_path, monkeypatch, engine
):
    """Both engines keep a copy of the model, which was made with the settings of the first run."""

    def trace_token_ids(name: str) -> list[int]:
        run = mp.trace(random_qwen, samples[1:2], tmp_path / name, engine=engine, max_new_tokens=8)
        return run["one"].steps["id"].values.tolist()

    token_ids = trace_token_ids("whole")
    assert len(token_ids) == 8
    settings = copy.deepcopy(random_qwen.hf.generation_config)
    settings.eos_token_id = token_ids[3]
    monkeypatch.setattr(random_qwen.hf, "generation_config", settings)
    assert trace_token_ids("ended") == token_ids[: token_ids.index(token_ids[3]) + 1]


def test_a_run_that_an_engine_does_not_support_is_refused(random_qwen, samples, tmp_path):
    with pytest.raises(mp.InputError, match="engine nnsight: .*one sample"):
        mp.trace(random_qwen, samples, tmp_path / "a", engine="nnsight", batch_size=2)
    spec = mp.CaptureSpec(datasets=["residual/mid"], positions="all")
    with pytest.raises(mp.InputError, match="prompt/residual_mid: .*engine transformer_lens"):
        mp.trace(random_qwen, samples, tmp_path / "b", capture=spec, engine="transformer_lens")
    with pytest.raises(mp.InputError, match="engine 'nope': .* native, nnsight, transformer_lens"):
        mp.trace(random_qwen, samples, tmp_path / "c", engine="nope")
    assert not any((tmp_path / name).exists() for name in "abc")


@pytest.mark.slow
def test_a_remote_run_gives_the_same_numbers(tiny_spd, samples, tmp_path):
    """nnsight serialises the request and runs the deserialised one, as a cluster does."""
    spec = load_capture("full").model_copy(update={"dtype": "float32"})
    run = mp.trace(
        tiny_spd,
        samples[:2],
        tmp_path / "run",
        capture=spec,
        engine="nnsight",
        max_new_tokens=9,
        remote="local",
    )
    assert not run.failures
    local_run = mp.trace(
        tiny_spd, samples[:2], tmp_path / "here", capture=spec, engine="nnsight", max_new_tokens=9
    )
    for local, remote in zip(local_run, run, strict=True):
        assert local.captured == remote.captured
        for name in ("steps/id", "attention/mass", "residual/post", "ffn/gate_sum", "tam/logit"):
            np.testing.assert_array_equal(remote.array(name).values, local.array(name).values)


def test_a_remote_run_needs_nnsight(tiny_spd, samples, tmp_path):
    with pytest.raises(mp.InputError, match='engine native: .* engine="nnsight"'):
        mp.trace(tiny_spd, samples, tmp_path / "run", remote=True)
