"""Answers that are read afterwards give what recording them as they are decoded gives."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.equal_runs import QUESTIONS, assert_equal_runs, full_precision, make_samples
from helpers.slow import first_fast
from helpers.tiny_models import TINY_NAMES, load_tiny_model

import mmprobe as mp
from mmprobe.cache import Run
from mmprobe.models import Model, reading
from mmprobe.models.hooks import observe
from mmprobe.samples import Sample
from mmprobe.traces.capture import load_capture
from mmprobe.traces.engines import Way, find_way, native

WHOLE = [
    "qwen3_5",
    "mllama",
    "blip-2",
    "instructblip",
    "lfm2_vl",
    "lfm3_vl",
    "minicpm_ocr",
    "minicpmv4_6",
    "minicpmv4_7",
]
WHOLE += ["qwen3_5_moe"]
NEWEST = ["qwen2_5_vl", "gemma3", "paligemma", "qwen3_5", "mllama", "blip-2", "llama4", "gemma4_e2b"]
TINY = list(dict.fromkeys([*NEWEST, *TINY_NAMES]))


def trace_both_ways(model: Model, samples: list[Sample], folder: Path, **options: object) -> tuple[Run, Run]:
    """Return a run whose answers are read, and one that records them as they are decoded."""
    settings = {"capture": full_precision(), "max_new_tokens": 21, **options}
    read = mp.trace(model, samples, folder / "read", **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmprobe.traces.run.find_way", lambda *_: Way("decoded", "the test says so"))
        decoded = mp.trace(model, samples, folder / "decoded", **settings)
    return read, decoded


def trace_given(model: Model, run: Run, folder: Path, **options: Any) -> Run:
    """Trace the answers of a run as given ones."""
    samples = [trace.sample for trace in run]
    return mp.trace(model, samples, folder / "given", capture=full_precision(), answers=run, **options)


def add_one(counts: dict[str, int], name: str, _: Any) -> None:
    counts[name] += 1


def make_samples_of(family: str, images: list[Path]) -> list[Sample]:
    """Return the questions that a family takes."""
    samples = make_samples(images)
    if family == "paligemma":
        return [sample for sample in samples if sample.images]
    return [s for s in samples if len(s.images) == 1] if family in ("blip-2", "instructblip") else samples


@pytest.mark.parametrize("size", first_fast([3, 1]))
@pytest.mark.parametrize("family", first_fast(TINY, 2))
def test_reading_gives_what_decoding_gives(family, size, image_paths, tmp_path, monkeypatch):
    monkeypatch.setattr("mmprobe.traces.engines.native.BLOCK_STEPS", 8)  # two whole blocks and a part of one
    model = load_tiny_model(family)
    way = find_way(model, load_capture("default"))
    assert way.name == ("whole" if family in WHOLE else "read") and bool(way.reason) == (family in WHOLE)
    read, decoded = trace_both_ways(model, make_samples_of(family, image_paths), tmp_path, batch_size=size)
    assert_equal_runs(read, decoded)
    for trace in read:
        gap = trace.reading
        assert gap["difference"] < 1e-4 and gap["agreeing"] == gap["steps"] == trace.steps.sizes["step"]
    assert all(trace.reading is None for trace in decoded)
    assert_equal_runs(trace_given(model, read, tmp_path, batch_size=size), read)


@pytest.mark.parametrize("size", first_fast([1, 4]))
def test_readings_share_prefixes(size, image_paths, tmp_path):
    samples = [
        Sample(id=f"{number}", images=image_paths[number % 2 :][:2], question=question)
        for number, question in enumerate(QUESTIONS * 2)
    ]
    model = load_tiny_model("qwen2_5_vl")
    read, decoded = trace_both_ways(model, samples, tmp_path, batch_size=size)
    assert_equal_runs(read, decoded)
    assert_equal_runs(trace_given(model, read, tmp_path, batch_size=size), read)


@pytest.mark.parametrize("given", first_fast([False, True]))
def test_a_pass_may_be_longer_than_a_chunk_on_disk(given, image_paths, tmp_path, monkeypatch):
    """As on a GPU. Given answers of one batch have several lengths."""
    model, samples = load_tiny_model("qwen2_5_vl"), make_samples(image_paths)
    answers = {sample.id: "The star moved. " * 20 * number for number, sample in enumerate(samples, 1)}
    runs = []
    for longest in (64, 256):
        monkeypatch.setattr(native, "longest_pass", lambda *_, longest=longest: longest)
        settings = {"answers": answers} if given else {"max_new_tokens": 150}
        run = mp.trace(
            model, samples, tmp_path / str(longest), batch_size=3, capture=full_precision(), **settings
        )
        runs.append(run)
    assert min(trace.steps.sizes["step"] for trace in runs[0]) > 64
    assert_equal_runs(runs[1], runs[0])


def test_given_answers_are_read_with_their_prompts(tiny_spd, image_paths, tmp_path):
    """One forward pass for each answer that fits into one, and the images are encoded once."""
    samples = make_samples(image_paths)[1:]
    answers = {sample.id: "The star moved. " * 3 for sample in samples}
    passes = {"decoder": 0, "vision": 0}
    hf = tiny_spd.hf.model
    with ExitStack() as stack:
        for name, module in (("decoder", hf.language_model), ("vision", hf.visual)):
            count = partial(add_one, passes, name)
            stack.enter_context(observe(module, outputs=count))
        mp.trace(tiny_spd, samples, tmp_path / "run", answers=answers, shared_prefix=False)
    assert passes == {"decoder": len(samples), "vision": sum(bool(sample.images) for sample in samples)}


def test_a_sampled_answer_that_ends_early_is_read_to_its_end(tiny_spd, image_paths, tmp_path):
    read, decoded = trace_both_ways(
        tiny_spd, make_samples(image_paths), tmp_path, batch_size=2, temperature=1.0, max_new_tokens=70
    )
    assert len({trace.steps.sizes["step"] for trace in read}) > 1
    assert_equal_runs(read, decoded)


def test_a_repetition_penalty_acts_while_decoding_alone(tiny_spd, image_paths, tmp_path):
    read, decoded = trace_both_ways(
        tiny_spd, make_samples(image_paths), tmp_path, repetition_penalty=1.5, max_new_tokens=30
    )
    assert_equal_runs(read, decoded)


def test_methods_prompts_and_hooks_are_recorded_while_decoding(tiny_spd):
    spec = load_capture("default")
    assert find_way(tiny_spd, spec) == Way("read")
    method = mp.interventions.load_method("pai")
    assert find_way(tiny_spd, spec, [method]) == Way(
        "decoded", "method pai changes each step as it is decoded"
    )
    handle = tiny_spd.hf.model.language_model.layers[0].register_forward_hook(lambda *_: None)
    try:
        way = find_way(tiny_spd, spec)
        assert way.name == "decoded" and "torch hook" in way.reason
    finally:
        handle.remove()


def test_a_reading_that_differs_from_decoding_is_said(tiny_spd, image_paths, tmp_path, caplog):
    """A layer that computes something else for several tokens than for one."""
    mlp = tiny_spd.hf.model.language_model.layers[3].mlp
    forward = mlp.forward
    mlp.forward = lambda states: forward(states) * (0.5 if 1 < states.shape[1] < 30 else 1)
    try:
        run = mp.trace(tiny_spd, make_samples(image_paths)[:1], tmp_path / "run", max_new_tokens=20)
    finally:
        del mlp.forward
    assert run[0].reading["difference"] > 0.01
    assert "0-1: " in caplog.text


def test_logits_of_one_pass_take_little_memory(tiny_spd, image_paths, tmp_path, monkeypatch):
    whole = mp.trace(tiny_spd, make_samples(image_paths), tmp_path / "whole", max_new_tokens=20, batch_size=2)
    vocabulary = tiny_spd.hf.config.get_text_config().vocab_size
    monkeypatch.setitem(reading.LOGITS_BYTES, "cpu", 2 * 3 * 4 * vocabulary)
    assert reading.pass_length(tiny_spd, 2, 64) == 3
    parts = mp.trace(tiny_spd, make_samples(image_paths), tmp_path / "parts", max_new_tokens=20, batch_size=2)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one.attention_mass, other.attention_mass, atol=2e-6)


@pytest.mark.parametrize("steps_together", [1, 3, 100])
def test_log_probabilities_of_decoding_are_those_of_each_step(steps_together, monkeypatch):
    logits = torch.randn(7, 2, 11, generator=torch.Generator().manual_seed(0))  # [step, row, vocabulary]
    tokens = torch.arange(14).reshape(2, 7) % 11
    monkeypatch.setattr(reading, "WAITING_BYTES", steps_together * logits[0].nbytes)
    decoded = reading.DecodedLogprobs()
    for step in range(7):
        decoded.keep_logits(SimpleNamespace(logits=logits[step][:, None]))
        stops = decoded(tokens[:, : step + 1], logits[step])
        assert not stops.any()
    logprobs, likeliest = logits.log_softmax(-1), logits.argmax(-1)
    own = logprobs.gather(2, tokens.T[..., None])[..., 0].T  # [row, step]
    likeliest = likeliest.T
    for first, counts in ((0, [4, 4]), (4, [3, 1])):  # the second answer ends within the block
        steps = slice(first, first + max(counts))
        read = own[:, steps].clone()
        read[1, counts[1] :] += 7  # after its end
        for gap, count in zip(decoded.compare(first, read, likeliest[:, steps], counts), counts, strict=True):
            assert gap.difference < 1e-6 and gap.agreeing == gap.steps == count
    gaps = decoded.compare(2, own[:, 2:4] + torch.tensor([[0.5], [0.25]]), likeliest[:, 2:4], [2, 2])
    assert [gap.difference for gap in gaps] == pytest.approx([0.5, 0.25])
