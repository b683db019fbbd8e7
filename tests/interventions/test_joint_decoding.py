"""The next token of both paths in one pass: as many passes as that takes, and nothing else than without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from helpers.answering import FAMILIES, ready, run, sample_of, tiny

import mmprobe as mp
from mmprobe.interventions import intervene, joint_decoding, load_method
from mmprobe.interventions.contrast_path import ContrastPath
from mmprobe.interventions.methods.icd import insert_instruction
from mmprobe.models import Model
from mmprobe.models.prompt import build_batch
from mmprobe.traces import load_capture

STEPS = 7
METHODS = {  # second prompts as long as the answer's, longer, shorter, and made anew in the middle
    "vcd": {"alpha": 1.0},
    "icd": {"alpha": 1.0},
    "pai": {"gamma": 1.3},
    "sage": {"alpha": 0.4, "eta": 2.0, "k": 0.9, "refresh": 3},
}


@contextmanager
def passes(model: Model) -> Iterator[list[int]]:
    """Rows of each pass of one token through the last layer."""
    found: list[int] = []

    def count(module: torch.nn.Module, given: tuple[Any, ...]) -> None:
        if given[0].shape[1] == 1:
            found.append(len(given[0]))

    handle = model.family.decoder(model.hf).layers[-1].register_forward_pre_hook(count)
    try:
        yield found
    finally:
        handle.remove()


def apart(monkeypatch) -> None:
    monkeypatch.setattr(joint_decoding, "_can_join", lambda inputs, path: False)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", METHODS)
def test_one_pass_gives_what_two_give(family, name, image_paths, monkeypatch):
    """Rows of different lengths, so that both batches are padded, each in its own way."""
    model = tiny(family)
    chosen = [
        sample_of(image_paths[:2]),
        sample_of(image_paths[:2], question="Is there a star in one of these two?"),
    ]
    chats, batch = ready(model, *chosen)

    def answer() -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        with passes(model) as rows:
            ids, logits, _ = run(model, [load_method(name, **METHODS[name])], chats, batch, STEPS)
        return ids, logits, rows

    ids, logits, rows = answer()
    apart(monkeypatch)
    wanted_ids, wanted, two = answer()
    assert set(rows) == {4} and len(rows) == STEPS - 1
    assert set(two) == {2} and len(two) > len(rows)
    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("family", ["gemma3", "mllama"])
def test_caches_of_other_kinds_are_read_apart(family, count, image_paths):
    """Sliding layers, and layers that look at pictures beside the text."""
    model = tiny(family)
    chats, batch = ready(model, sample_of(image_paths[:count]))
    with passes(model) as rows:
        run(model, [load_method("vcd")], chats, batch, STEPS)
    assert set(rows) == {1} and len(rows) == 2 * (STEPS - 1)


def test_of_two_contrasts_the_second_reads_by_itself(image_paths, monkeypatch):
    model = tiny("qwen2_5_vl")
    chats, batch = ready(model, sample_of(image_paths[:2]))
    methods = [load_method("vcd"), load_method("icd")]
    with passes(model) as rows:
        _, logits, _ = run(model, methods, chats, batch, STEPS)
    assert sorted(rows) == [1] * (STEPS - 1) + [2] * (STEPS - 1)
    apart(monkeypatch)
    _, wanted, _ = run(model, methods, chats, batch, STEPS)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_a_trace_is_of_the_answer_alone(name, image_paths, monkeypatch, tmp_path):
    model = tiny("qwen2_5_vl")
    chosen = [sample_of(image_paths[:2], name="a"), sample_of(image_paths[1:3], "Is there a star?", "b")]
    spec = load_capture("full").model_copy(update={"dtype": "float32"})

    def traced(folder: str) -> mp.Run:
        return mp.trace(
            model, chosen, tmp_path / folder, capture=spec, max_new_tokens=STEPS, batch_size=2,
            method=load_method(name, **METHODS[name]),
        )  # fmt: skip

    found = traced("together")
    apart(monkeypatch)
    wanted = traced("apart")
    for one in ("a", "b"):
        assert found[one].answer == wanted[one].answer
        for path in wanted[one].captured:
            if "/" in path and path not in ("tokens/text", "ffn/active"):
                values = [run[one].array(path).values for run in (found, wanted)]
                np.testing.assert_allclose(*values, rtol=1e-3, atol=1e-4, err_msg=path)


def test_what_was_joined_is_parted_again(image_paths):
    """Each cache holds its own rows and tokens, so either can go on alone."""
    model = tiny("qwen2_5_vl")
    chats, batch = ready(model, sample_of(image_paths[:2]))
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
        more = torch.cat([out.sequences[:, batch.inputs["input_ids"].shape[1] :], torch.tensor([[5, 6]])], 1)
        found = path.read_answer(more)
        chats = [insert_instruction(chats[0], load_method("icd").instruction)]
        wanted = ContrastPath(model, build_batch(model, chats).inputs).read_answer(more)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
