"""Blocked keys, biases and observers together, against eager attention with masks written by hand."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mmprobe as mp
from mmprobe.models import Group, Model, attention
from mmprobe.models.attention import (
    AttentionBias,
    AttentionCall,
    LastQuery,
    bias_attention,
    block_attention,
    observe_attention,
)
from mmprobe.samples import Sample

LAYERS = (0, 2)  # whose keys are blocked; layer 1 between them sees everything


@pytest.fixture(scope="module")
def sample(image_paths) -> Sample:
    return Sample(id="a", images=image_paths[1:], question="Compare the two images.")


@pytest.fixture(scope="module")
def blocked(random_qwen: Model, sample: Sample) -> Tensor:
    """Queries from the question on, and keys of the first image: bool [query, key]."""
    prompt = random_qwen.prompt(sample)
    first_query = np.flatnonzero(prompt.group == Group.USER)[0]
    matrix = torch.zeros(len(prompt.ids), len(prompt.ids), dtype=torch.bool)
    matrix[first_query:, torch.from_numpy(prompt.image == 0)] = True
    return matrix


def attention_modules(hf: Any) -> list[torch.nn.Module]:
    return [layer.self_attn for layer in hf.model.language_model.layers]


def eager_rows(model: Model, sample: Sample, blocked: Tensor, bias: Tensor | None = None) -> np.ndarray:
    """Return softmax rows [position, layer, head, key]; the masks have blocked pairs and the bias [key]."""
    hf = copy.deepcopy(model.hf)
    hf.set_attn_implementation("eager")

    def change_mask(module: Any, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = options["attention_mask"].masked_fill(blocked, torch.finfo(torch.float32).min)
        if bias is not None:
            mask[:, :, -1] += bias
        return args, options | {"attention_mask": mask}

    for layer in LAYERS:
        attention_modules(hf)[layer].register_forward_pre_hook(change_mask, with_kwargs=True)
    with torch.no_grad():
        output = hf(**model.prepare(sample), output_attentions=True)
    return torch.stack([rows[0] for rows in output.attentions]).permute(2, 0, 1, 3).numpy()


def test_a_trace_taken_while_keys_are_blocked_holds_the_blocked_rows(random_qwen, sample, blocked, tmp_path):
    spec = mp.CaptureSpec(datasets=["attention/row", "attention/mass"], positions="all", dtype="float32")
    modules = attention_modules(random_qwen.hf)
    config = random_qwen.hf.config.get_text_config()
    with block_attention([config], {modules[layer]: blocked for layer in LAYERS}):
        trace = mp.trace(random_qwen, [sample], tmp_path / "run", capture=spec, max_new_tokens=1)["a"]
    expected = eager_rows(random_qwen, sample, blocked)
    prompt_rows = trace.array("prompt/attention_row").values
    answer_row = trace.array("attention/row").values[0, ..., : expected.shape[-1]]
    np.testing.assert_allclose(prompt_rows, expected, atol=1e-5)
    np.testing.assert_allclose(answer_row, expected[-1], atol=1e-5)
    first_image = random_qwen.prompt(sample).image == 0
    assert (answer_row[list(LAYERS)][..., first_image] == 0).all()
    assert (answer_row[1][..., first_image] > 0).all()
    np.testing.assert_allclose(trace.attention_mass.values.sum(-1), 1, atol=1e-5)


def test_biases_are_added_to_what_is_not_blocked(random_qwen, sample, blocked):
    """A bias function sees the blocked rows, and observers see both in the mask and the bias."""
    bias = torch.linspace(-1, 1, len(blocked))
    weights: list[Tensor] = []
    calls: dict[int, AttentionCall] = {}

    def compute_bias(last: LastQuery) -> AttentionBias:
        weights.append(last.weights()[0])
        return AttentionBias(bias.expand(1, 1, 1, -1))

    modules = attention_modules(random_qwen.hf)
    configs = [random_qwen.hf.config.get_text_config()]
    observers = {module: partial(calls.__setitem__, layer) for layer, module in enumerate(modules)}
    with (
        torch.no_grad(),
        observe_attention(configs, observers),
        bias_attention(configs, {modules[layer]: compute_bias for layer in LAYERS}),
        block_attention(configs, {modules[layer]: blocked for layer in LAYERS}),
    ):
        random_qwen.hf(**random_qwen.prepare(sample))
    expected = eager_rows(random_qwen, sample, blocked, bias)
    for layer, call in calls.items():
        rows = softmax_rows(call)
        np.testing.assert_allclose(rows[:, -1], expected[-1, layer], atol=1e-5)
        value = call.value[0].repeat_interleave(len(rows) // call.value.shape[1], 0)
        torch.testing.assert_close(call.output[0].transpose(0, 1), rows @ value, atol=1e-4, rtol=1e-4)
    assert all((row[:, :, blocked[-1]] == 0).all() for row in weights)


def softmax_rows(call: AttentionCall) -> Tensor:
    """Return the rows [head, query, key] of a call, from what its observer gets."""
    key = call.key[0].repeat_interleave(call.query.shape[1] // call.key.shape[1], 0)
    scores = call.query[0] @ key.mT * call.scale
    if call.bias is not None:
        scores[:, -1:] += call.bias[0]
    mask = torch.ones(scores.shape[1:], dtype=torch.bool).tril() if call.mask is None else call.mask[0]
    return scores.masked_fill(~mask, -torch.inf).softmax(-1)


def test_nested_blocks_hide_the_keys_of_both_and_leave_nothing_behind(random_qwen, sample, blocked):
    module, config = attention_modules(random_qwen.hf)[0], random_qwen.hf.config.get_text_config()
    calls: list[AttentionCall] = []
    second_key = torch.zeros_like(blocked)
    second_key[2:, 1] = True
    with (
        torch.no_grad(),
        block_attention([config], {module: blocked}),
        block_attention([config], {module: second_key}),
        observe_attention([config], {module: calls.append}),
    ):
        random_qwen.hf(**random_qwen.prepare(sample))
    rows = softmax_rows(calls[0])
    assert (rows[:, blocked | second_key] == 0).all()
    assert (rows[:, -1, ~(blocked | second_key)[-1]] > 0).all()
    assert config._attn_implementation == "sdpa"
    assert not (attention._blocked_keys or attention._bias_functions or attention._observers)
