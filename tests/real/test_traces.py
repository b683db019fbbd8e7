"""What is traced of the real model equals what eager transformers computes, in each precision and with each engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from helpers.command_line import ENVIRONMENT, run_in_process
from helpers.datasets import read_datasets, write_samples
from helpers.family_checks import check_grids, is_close
from helpers.reference import eager_generate

import mmprobe as mp
from mmprobe.models import Group

COMPARED = [
    "0000-same",
    "0000-list",
    "0001-color",
    "0001-describe",
]  # one and two images, short and long answers


@pytest.fixture(scope="module", params=COMPARED)
def compared(request, real, traced, samples):
    """A trace made in a batch of eight, and what eager transformers computes of its sample alone."""
    trace = traced.run[request.param]
    sample = samples[request.param]
    return trace, eager_generate(real, real.prepare(sample), len(trace.steps["id"]))


def test_answers_and_attention_are_those_of_eager_transformers(compared):
    trace, eager = compared
    np.testing.assert_array_equal(trace.steps["id"].values, eager["ids"])
    rows = eager["attention"]
    assert rows.shape[1:3] == (30, 9)
    seen = np.nan_to_num(trace.array("attention/row").values)  # NaN for later tokens
    np.testing.assert_allclose(seen, rows, atol=2e-5)
    group = trace.tokens["group"].values
    mass = np.stack([rows[..., group == code].sum(-1) for code in range(len(Group))], -1)
    np.testing.assert_allclose(trace.attention_mass.values, mass, atol=2e-5)
    visual = rows[..., trace.tokens["image"].values >= 0]
    np.testing.assert_allclose(trace.array("attention/visual_head").values, visual, atol=2e-5)
    np.testing.assert_allclose(trace.attention_visual.values, visual.mean(2), atol=2e-5)


def test_the_residual_stream_and_the_gates_are_those_of_eager_transformers(compared):
    trace, eager = compared
    for name in ("pre", "mid", "post"):
        assert is_close(trace.array(f"residual/{name}").values, eager[name], 2e-5), name
    assert is_close(trace.ffn_gate_sum.values, eager["gate"].sum(0), 2e-5)
    # from 100 on, Sun et al. (2024, arXiv:2402.17762) count an activation as massive
    assert np.abs(eager["post"]).max() > 100, "the test is void: it is of a model with massive activations"


def test_what_is_said_of_steps_is_what_the_logits_say(compared):
    trace, eager = compared
    logprobs = torch.from_numpy(eager["logits"]).double().log_softmax(-1)
    ids = torch.from_numpy(eager["ids"])[:, None]
    np.testing.assert_allclose(trace.steps["logprob"].values, logprobs.gather(1, ids)[:, 0], atol=1e-3)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    np.testing.assert_allclose(trace.steps["entropy"].values, entropy, atol=1e-3)


def test_activation_maps_are_logits_of_the_said_token_at_earlier_positions(real, traced, samples):
    for name in COMPARED[:2]:
        trace, inputs = traced.run[name], real.prepare(samples[name])
        ids = trace.steps["id"].values
        length = inputs["input_ids"].shape[1]
        whole = torch.cat([inputs["input_ids"], torch.tensor(ids[None, :-1], dtype=torch.int64)], 1)
        with torch.no_grad():
            logits = real.hf(
                **{**inputs, "input_ids": whole, "attention_mask": torch.ones_like(whole)}
            ).logits[0]
        values = trace.array("tam/logit").values
        for step, token in enumerate(ids):
            seen = length + step
            np.testing.assert_allclose(values[step, :seen], logits[:seen, int(token)], atol=5e-3)
            assert np.isnan(values[step, seen:]).all()


def test_bfloat16_differs_from_eager_bfloat16_by_rounding(checkpoint, real, samples, tmp_path):
    """Both round, each in its own order. So they differ by no more than what two such roundings differ from float32 by."""
    model = mp.load_model(str(checkpoint), device="cpu", dtype="bfloat16")
    chosen = [samples["0000-exist"], samples["0001-same"]]
    run = mp.trace(model, chosen, tmp_path / "run", capture="full", max_new_tokens=6)
    for sample in chosen:
        trace = run[sample.id]
        steps = len(trace.steps["id"])
        rounded, exact = (eager_generate(each, each.prepare(sample), steps) for each in (model, real))
        np.testing.assert_array_equal(trace.steps["id"].values, rounded["ids"])
        # float32 may say something else; what is read before is the same up to that step, and with it
        same = min(steps, 1 + int(np.argmin(np.append(rounded["ids"] == exact["ids"], False))))
        visual = trace.tokens["image"].values >= 0
        ours = trace.array("attention/visual_head").values[:same].astype(float)
        theirs, true = (each["attention"][:same][..., visual] for each in (rounded, exact))
        assert_rounded(np.abs(ours - theirs), np.abs(theirs - true))
        ours = trace.residual_post.values[:same].astype(float)
        theirs, true = (each["post"][:same].astype(float) for each in (rounded, exact))
        norm = np.linalg.norm(true, axis=-1)
        assert_rounded(
            np.linalg.norm(ours - theirs, axis=-1) / norm, np.linalg.norm(theirs - true, axis=-1) / norm
        )


def assert_rounded(difference, rounding):
    """Two independent roundings differ by the square root of 2 of one on average; the largest of half a million by more."""
    assert difference.mean() <= 1.5 * rounding.mean() and difference.max() <= 3 * rounding.max()


@pytest.mark.parametrize("engine", ["nnsight", "transformer_lens"])
def test_engines_agree(engine, real, traced, tmp_path):
    names = ["0000-same", "0001-color"]
    chosen = [sample for sample in traced.samples if sample.id in names]
    run = mp.trace(real, chosen, tmp_path / "run", capture=traced.capture, engine=engine, max_new_tokens=48)
    for name in names:
        expected, actual = traced.run[name], run[name]
        assert actual.answer == expected.answer and actual.captured == expected.captured
        for data in actual.captured:
            values, others = actual.array(data).values, expected.array(data).values
            if values.dtype.kind != "f":
                if data != "ffn/active":  # signs near 0 depend on rounding; gate_sum is compared
                    np.testing.assert_array_equal(values, others, err_msg=data)
                continue
            tolerance = 1e-3 if data in ("update/kl", "steps/entropy", "steps/logprob") else 5e-5
            assert is_close(np.nan_to_num(values), np.nan_to_num(others), tolerance), data


def test_visual_tokens_are_where_the_grid_says(real, tmp_path):
    check_grids(real, tmp_path, most=5)


def test_all_lines_of_check_hold(checkpoint, things, tmp_path):
    finished = run_in_process(
        "check", checkpoint, "--data", things, "--out", tmp_path / "check.json", "--dtype", "float32"
    )
    assert finished.code == 0, finished.stdout
    lines = json.loads((tmp_path / "check.json").read_text())
    assert lines


def test_a_killed_run_is_resumed_and_equals_an_undisturbed_one(checkpoint, real, traced, tmp_path):
    chosen = traced.samples[:6]
    file, out = write_samples(tmp_path / "samples.jsonl", chosen), tmp_path / "run"
    call = [
        "trace",
        "--model",
        checkpoint,
        "--data",
        file,
        "--out",
        out,
        "--dtype",
        "float32",
        "--max-new-tokens",
        "6",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "mmprobe", *map(str, call)],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while len(list(out.glob("samples/*.h5"))) < 2 and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was done before it was killed"
    kept = {path: path.stat().st_ino for path in out.glob("samples/*.h5")}
    assert 2 <= len(kept) < len(chosen)
    assert run_in_process(*call, "--resume").code == 0
    assert all(path.stat().st_ino == inode for path, inode in kept.items())
    whole = mp.trace(real, mp.load_samples(file), tmp_path / "whole", max_new_tokens=6).path
    for sample in chosen:
        first, second = (folder / "samples" / f"{sample.id}.h5" for folder in (out, whole))
        assert read_datasets(first) == read_datasets(second), sample.id


def test_answers_in_batches_of_eight_and_alone_are_equal(real, traced, tmp_path):
    """All questions of a pair; the run was made in batches of eight."""
    chosen = traced.samples[: len(traced.samples) // 2]
    alone = mp.trace(real, chosen, tmp_path / "run", capture="default", batch_size=1, max_new_tokens=48)
    for sample in chosen:
        assert alone[sample.id].answer == traced.run[sample.id].answer
