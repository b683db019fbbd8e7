"""Answers that come from elsewhere are traced as if the model had generated them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.equal_runs import assert_equal_runs, full_precision, make_samples
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.samples import Sample


@pytest.fixture(scope="module")
def samples(image_paths: list[Path]) -> list[Sample]:
    return make_samples(image_paths)


@pytest.mark.parametrize("family", first_fast(["qwen2_5_vl", "llava_next", "gemma3", "mllama"]))
def test_given_token_ids_are_traced_like_generated_ones(family, samples, tmp_path):
    model = load_tiny_model(family)
    options = {"capture": full_precision(), "batch_size": 2}
    own = mp.trace(model, samples, tmp_path / "own", max_new_tokens=11, **options)
    given = mp.trace(model, samples, tmp_path / "given", answers=own, **options)
    assert_equal_runs(given, own)
    assert all(trace.reading is None for trace in given)
    assert given.config["generate"]["answers"]["n"] == len(samples)


def test_answers_of_different_lengths_share_a_batch(tiny_spd, samples, tmp_path):
    texts = {sample.id: "The star moved. " * number for number, sample in enumerate(samples, 1)}
    together, alone = (
        mp.trace(
            tiny_spd, samples, tmp_path / str(size), answers=texts, batch_size=size, capture=full_precision()
        )
        for size in (len(samples), 1)
    )
    assert_equal_runs(together, alone)
    assert [trace.answer for trace in alone] == list(texts.values())


def test_texts_are_tokenised_after_the_prompt(tiny_spd, samples, tmp_path):
    """The log-probabilities are those of one forward pass of transformers over prompt and answer."""
    import torch

    sample, text = samples[1], "Yes, both show a star."
    run = mp.trace(tiny_spd, [sample], tmp_path / "run", answers={sample.id: text})
    inputs = tiny_spd.prepare(sample)
    ids = torch.tensor([tiny_spd.tokenizer(text, add_special_tokens=False)["input_ids"]])
    prompt = inputs["input_ids"].shape[1]
    inputs["input_ids"] = torch.cat([inputs["input_ids"], ids], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, ids.shape[1]))
    with torch.no_grad():
        logprobs = tiny_spd.hf(**inputs).logits[0, prompt - 1 : -1].log_softmax(-1)
    expected = logprobs.gather(1, ids[0, :, None])[:, 0]
    np.testing.assert_allclose(run[0].steps["logprob"], expected, atol=2e-5)


def test_a_method_acts_on_given_answers(tiny_spd, samples, tmp_path):
    own = mp.trace(tiny_spd, samples[1:3], tmp_path / "own", method="sage", max_new_tokens=9)
    given = mp.trace(tiny_spd, samples[1:3], tmp_path / "given", method="sage", answers=tmp_path / "own")
    assert_equal_runs(given, own)


def test_another_model_reads_the_text(tiny_spd, samples, tmp_path):
    own = mp.trace(tiny_spd, samples, tmp_path / "own", max_new_tokens=30)
    other = load_tiny_model("llava_next")
    read = mp.trace(other, samples, tmp_path / "read", answers=own)
    assert len(read) + len(read.failures) == len(samples) and len(read)
    ids = other.tokenizer(own[0].answer, add_special_tokens=False)["input_ids"]
    assert read[0].steps["id"].values.tolist() == ids


def test_answers_that_cannot_be_are_failures(tiny_spd, samples, tmp_path):
    end = next(iter(tiny_spd.eos_token_ids))
    lines = [
        {"id": samples[0].id, "token_ids": [end, 7]},
        {"id": samples[1].id, "token_ids": [10**6]},
        {"id": samples[2].id, "response": ""},
        {"id": samples[3].id, "response": "Yes."},
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = mp.trace(tiny_spd, samples, tmp_path / "run", answers=file, batch_size=5)
    assert run.ids == [samples[3].id]
    reasons = {failure["id"]: failure["message"] for failure in run.failures}
    assert "special token" in reasons[samples[0].id]
    assert "token ids" in reasons[samples[1].id]
    assert "empty" in reasons[samples[2].id] and reasons[samples[4].id]


def test_resuming_needs_the_same_answers(tiny_spd, samples, tmp_path):
    texts = {sample.id: "Yes." for sample in samples}
    mp.trace(tiny_spd, samples, tmp_path / "run", answers=texts)
    assert len(mp.trace(tiny_spd, samples, tmp_path / "run", answers=texts, resume=True)) == len(samples)
    with pytest.raises(InputError, match="another generate"):
        mp.trace(tiny_spd, samples, tmp_path / "run", answers=texts | {samples[0].id: "No."}, resume=True)


def test_bad_sources_are_one_line(tiny_spd, samples, tmp_path):
    with pytest.raises(InputError, match="any of the 5 samples"):
        mp.trace(tiny_spd, samples, tmp_path / "run", answers={"other": "Yes."})
    with pytest.raises(InputError, match="responses.jsonl"):
        mp.trace(tiny_spd, samples, tmp_path / "run", answers=tmp_path)
    with pytest.raises(InputError, match="engine nnsight"):
        mp.trace(tiny_spd, samples, tmp_path / "run", answers={samples[0].id: "Yes."}, engine="nnsight")


def test_the_command_traces_the_answers_of_a_benchmark(tmp_path):
    results = tmp_path / "results"
    asked = run_in_process("bench", "pope", "--model", "tiny-spd", "--n", "3", "--out", results)
    assert asked.code == 0, asked.stderr
    common = ("trace", "--model", "tiny-spd", "--answers")
    done = run_in_process(*common, results, "--out", tmp_path / "run")
    assert done.code == 0, done.stderr
    responses = [json.loads(line) for line in (results / "responses.jsonl").read_text().splitlines()]
    traced = mp.open_run(tmp_path / "run")
    assert {trace.id: trace.answer for trace in traced} == {
        each["id"]: each["response"] for each in responses
    }
    assert_fails(run_in_process(*common, tmp_path / "gone", "--out", tmp_path / "no"), "no such file")


def test_a_run_says_what_was_asked(tiny_spd, samples, tmp_path):
    mp.trace(tiny_spd, samples, tmp_path / "own", max_new_tokens=5)
    done = run_in_process(
        *("trace", "--model", "tiny-spd", "--answers", tmp_path / "own", "--out", tmp_path / "again")
    )
    assert done.code == 0, done.stderr
    assert [trace.sample for trace in mp.open_run(tmp_path / "again")] == [
        trace.sample for trace in mp.open_run(tmp_path / "own")
    ]
