"""Biased attention equals whole matrices of weights, and still runs on the fast kernel."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmprobe.models.attention import AttentionBias, LastQuery, attend_with_biases

HEADS, GROUPS, KEYS, DIM, SCALE = 6, 2, 11, 16, 0.3


class Module(nn.Module):
    is_causal = True
    num_key_value_groups = HEADS // GROUPS


def random_tensors(queries: int = KEYS, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    return (
        torch.randn(batch, HEADS, queries, DIM),
        torch.randn(batch, GROUPS, KEYS, DIM),
        torch.randn(batch, GROUPS, KEYS, DIM),
    )


def causal_weights(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return the whole causal matrix of softmax weights."""
    key = key.repeat_interleave(HEADS // GROUPS, 1)
    scores = query @ key.transpose(2, 3) * SCALE
    queries = torch.arange(KEYS - query.shape[2], KEYS)[:, None]
    return scores.masked_fill(torch.arange(KEYS) > queries, float("-inf")).softmax(-1)


def weigh_values(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return (weights @ value.repeat_interleave(HEADS // GROUPS, 1)).transpose(1, 2)


def attend(query, key, value, mask, *biases):
    last = LastQuery(query, key, mask, SCALE)
    return attend_with_biases(Module(), query, key, value, mask, last, biases, {"scaling": SCALE})


def scale_visual(weights: torch.Tensor, visual: torch.Tensor, factor: float) -> torch.Tensor:
    """Return rows with the weights of visual keys times a factor, renormalised."""
    scaled = torch.where(visual, weights * factor, weights)
    return scaled / scaled.sum(-1, keepdim=True)


VISUAL = torch.zeros(KEYS, dtype=torch.bool)
VISUAL[2:7] = True
LOG_BIAS = math.log1p(0.4) * VISUAL.float().expand(2, 1, 1, KEYS)


def test_scaling_weights_and_renormalising_adds_a_logarithm_to_scores():
    """By hand: three keys with weights 0.5, 0.3 and 0.2; the second is visual and is multiplied by 3."""
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    biased = (weights.log() + math.log(3) * torch.tensor([0.0, 1, 0])).softmax(0)
    torch.testing.assert_close(biased, torch.tensor([0.5, 0.9, 0.2], dtype=torch.float64) / 1.6)


@pytest.mark.parametrize("queries", [1, KEYS], ids=["one query", "a prompt"])
def test_only_the_last_row_is_biased(queries):
    query, key, value = random_tensors(queries)
    weights = causal_weights(query, key)
    weights[:, :, -1] = scale_visual(weights[:, :, -1], VISUAL, 1.4)
    torch.testing.assert_close(
        attend(query, key, value, None, AttentionBias(LOG_BIAS)), weigh_values(weights, value)
    )


@pytest.mark.parametrize("queries", [1, KEYS], ids=["one query", "a prompt"])
def test_every_row_is_biased(queries):
    query, key, value = random_tensors(queries)
    weights = scale_visual(causal_weights(query, key), VISUAL, 1.4)
    output = attend(query, key, value, None, AttentionBias(LOG_BIAS, all_queries=True))
    torch.testing.assert_close(output, weigh_values(weights, value))


@pytest.mark.parametrize("kind", ["bool", "numbers"])
@pytest.mark.parametrize("all_queries", [False, True])
def test_masks_are_kept(kind, all_queries):
    query, key, value = random_tensors()
    visible = torch.tril(torch.ones(KEYS, KEYS, dtype=torch.bool)).repeat(2, 1, 1, 1)
    visible[1, :, 1:, 0] = False  # padding of the second row; its own query sees it
    mask = visible if kind == "bool" else torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))
    scores = query @ key.repeat_interleave(3, 1).transpose(2, 3) * SCALE
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    rows = slice(None) if all_queries else slice(-1, None)
    weights[:, :, rows] = scale_visual(weights[:, :, rows], VISUAL, 1.4)
    output = attend(query, key, value, mask, AttentionBias(LOG_BIAS, all_queries))
    torch.testing.assert_close(output, weigh_values(weights, value))


def test_biases_differ_by_head_and_add_up_and_gains_multiply():
    query, key, value = random_tensors()
    bias, gain = torch.randn(2, HEADS, 1, KEYS), torch.rand(2, HEADS, 1)
    output = attend(
        query, key, value, None, AttentionBias(bias), AttentionBias(LOG_BIAS, all_queries=True, gain=gain)
    )
    weights = scale_visual(causal_weights(query, key), VISUAL, 1.4)
    weights[:, :, -1:] = (weights[:, :, -1:].log() + bias).softmax(-1) * gain[..., None]
    torch.testing.assert_close(output, weigh_values(weights, value))


def test_bias_functions_see_the_row_of_the_kernel():
    query, key, value = random_tensors()
    last = LastQuery(query, key, None, SCALE)
    torch.testing.assert_close(last.weights(), causal_weights(query, key)[:, :, -1:])


@pytest.mark.parametrize("all_queries", [False, True])
def test_a_prompt_keeps_the_causal_kernel_without_a_matrix(monkeypatch, all_queries):
    """There is one call of the kernel, which is causal and has no mask of queries by keys."""
    calls = []
    kernel = F.scaled_dot_product_attention

    def record(query, key, value, attn_mask=None, is_causal=False, **options):
        calls.append((query.shape[2], is_causal, None if attn_mask is None else attn_mask.shape))
        return kernel(query, key, value, attn_mask=attn_mask, is_causal=is_causal, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    query, key, value = random_tensors()
    attend(query, key, value, None, AttentionBias(LOG_BIAS, all_queries))
    assert calls == [(KEYS, True, None)]
