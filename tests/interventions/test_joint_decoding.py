"""Joint decoding: fewer forward passes, and the same answers and traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from helpers.answers import FAMILIES, make_sample, prepare, run_methods
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model

import mmprobe as mp
from mmprobe.interventions import intervene, joint_decoding, load_method
from mmprobe.interventions.contrast import ContrastPath
from mmprobe.interventions.methods.icd import insert_instruction
from mmprobe.models import Model
from mmprobe.models.prompt import build_batch
from mmprobe.traces import load_capture

STEPS = 7
METHODS = {  # contrast prompts as long as the answer's, longer, shorter, and replaced during the answer
    "vcd": {"alpha": 1.0},
    "icd": {"alpha": 1.0},
    "pai": {"gamma": 1.3},
    "sage": {"alpha": 0.4, "eta": 2.0, "k": 0.9, "refresh": 3},
}


@contextmanager
def count_rows(model: Model) -> Iterator[list[int]]:
    """Record the number of rows of each pass of one token through the last layer."""
    n_rows: list[int] = []

    def record(module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        if arguments[0].shape[1] == 1:
            n_rows.append(len(arguments[0]))

    handle = model.family.decoder(model.hf).layers[-1].register_forward_pre_hook(record)
    try:
        yield n_rows
    finally:
        handle.remove()


def disable_joint_decoding(monkeypatch) -> None:
    monkeypatch.setattr(joint_decoding, "_can_join", lambda inputs, path: False)


@pytest.mark.parametrize("family", first_fast(FAMILIES))
@pytest.mark.parametrize("name", METHODS)
def test_joint_passes_equal_separate_passes(family, name, image_paths, monkeypatch):
    """The rows have different lengths, so both batches are padded, each in its own way."""
    model = load_tiny_model(family)
    samples = [
        make_sample(image_paths[:2]),
        make_sample(image_paths[:2], question="Is there a star in one of these two?"),
    ]
    chats, batch = prepare(model, *samples)

    def answer() -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        with count_rows(model) as rows:
            ids, logits, _ = run_methods(model, [load_method(name, **METHODS[name])], chats, batch, STEPS)
        return ids, logits, rows

    ids, logits, rows = answer()
    disable_joint_decoding(monkeypatch)
    separate_ids, separate_logits, separate_rows = answer()
    assert set(rows) == {4} and len(rows) == STEPS - 1
    assert set(separate_rows) == {2} and len(separate_rows) > len(rows)
    assert torch.equal(ids, separate_ids)
    torch.testing.assert_close(logits, separate_logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_two_rows_are_multiplied_as_weights_times_tokens(family, image_paths, monkeypatch):
    model = load_tiny_model(family)
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    monkeypatch.setattr(joint_decoding, "LEAST_WEIGHTS", 0)
    linear, tokens = torch.nn.functional.linear, list[int]()

    def count(values: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        tokens.append(values.shape[:-1].numel())
        return linear(values, *weights)

    monkeypatch.setattr(torch.nn.functional, "linear", count)
    together = run_methods(model, [load_method("vcd")], chats, batch, STEPS)
    assert tokens and not {2, 3} & set(tokens)
    disable_joint_decoding(monkeypatch)
    alone = run_methods(model, [load_method("vcd")], chats, batch, STEPS)
    assert tokens.count(1) > STEPS
    assert torch.equal(together[0], alone[0])
    torch.testing.assert_close(together[1], alone[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("family", ["gemma3", "mllama"])
def test_other_kinds_of_caches_are_not_joined(family, count, image_paths):
    """Gemma 3 has layers with a sliding window, and Mllama has cross-attention."""
    model = load_tiny_model(family)
    chats, batch = prepare(model, make_sample(image_paths[:count]))
    with count_rows(model) as rows:
        run_methods(model, [load_method("vcd")], chats, batch, STEPS)
    assert set(rows) == {1} and len(rows) == 2 * (STEPS - 1)


def test_only_the_first_of_two_contrast_paths_is_joined(image_paths, monkeypatch):
    model = load_tiny_model("qwen2_5_vl")
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    methods = [load_method("vcd"), load_method("icd")]
    with count_rows(model) as rows:
        _, logits, _ = run_methods(model, methods, chats, batch, STEPS)
    assert sorted(rows) == [1] * (STEPS - 1) + [2] * (STEPS - 1)
    disable_joint_decoding(monkeypatch)
    _, separate_logits, _ = run_methods(model, methods, chats, batch, STEPS)
    torch.testing.assert_close(logits, separate_logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", first_fast(METHODS))
def test_a_trace_holds_the_answer_only(name, image_paths, monkeypatch, tmp_path):
    model = load_tiny_model("qwen2_5_vl")
    samples = [make_sample(image_paths[:2], name="a"), make_sample(image_paths[1:3], "Is there a star?", "b")]
    spec = load_capture("full").model_copy(update={"dtype": "float32"})

    def trace(folder: str) -> mp.Run:
        return mp.trace(
            model, samples, tmp_path / folder, capture=spec, max_new_tokens=STEPS, batch_size=2,
            method=load_method(name, **METHODS[name]),
        )  # fmt: skip

    joint = trace("joint")
    disable_joint_decoding(monkeypatch)
    separate = trace("separate")
    for name in ("a", "b"):
        assert joint[name].answer == separate[name].answer
        for path in separate[name].captured:
            if "/" in path and path not in ("tokens/text", "ffn/active", "methods/report"):
                values = [run[name].array(path).values for run in (joint, separate)]
                np.testing.assert_allclose(*values, rtol=1e-3, atol=1e-4, err_msg=path)


def test_the_caches_are_separate_after_the_passes(image_paths):
    """Each cache has its own rows and tokens, so each path can continue alone."""
    model = load_tiny_model("qwen2_5_vl")
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    with torch.inference_mode(), intervene(model, [load_method("icd")], chats, batch) as intervention:
        out = model.hf.generate(
            **batch.inputs, max_new_tokens=4, do_sample=False, return_dict_in_generate=True,
            logits_processor=intervention.processors,
        )  # fmt: skip
    path = intervention.states[0][1].contrast_path
    assert path is not None
    for cache, length in (
        (out.past_key_values, batch.inputs["input_ids"].shape[1]),
        (path.cache, path.prompt_length),
    ):
        assert {tuple(layer.keys.shape[:3:2]) for layer in cache.layers} == {(1, length + 3)}
    with torch.inference_mode():
        longer = torch.cat(
            [out.sequences[:, batch.inputs["input_ids"].shape[1] :], torch.tensor([[5, 6]])], 1
        )
        logits = path.read_answer(longer)
        chats = [insert_instruction(chats[0], load_method("icd").instruction)]
        expected = ContrastPath(model, build_batch(model, chats).inputs).read_answer(longer)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
