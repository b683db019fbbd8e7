"""Shifted attention: equal to whole matrices of weights, and still on the fast kernel."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmprobe.models.attention_bias import AttentionBias, LastQuery, attend_with_biases

HEADS, GROUPS, KEYS, DIM, SCALE = 6, 2, 11, 16, 0.3


class Module(nn.Module):
    is_causal = True
    num_key_value_groups = HEADS // GROUPS


def tensors(queries: int = KEYS, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    return (
        torch.randn(batch, HEADS, queries, DIM),
        torch.randn(batch, GROUPS, KEYS, DIM),
        torch.randn(batch, GROUPS, KEYS, DIM),
    )


def weights_of(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The whole causal matrix of softmax weights."""
    key = key.repeat_interleave(HEADS // GROUPS, 1)
    scores = query @ key.transpose(2, 3) * SCALE
    queries = torch.arange(KEYS - query.shape[2], KEYS)[:, None]
    return scores.masked_fill(torch.arange(KEYS) > queries, float("-inf")).softmax(-1)


def mixed(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return (weights @ value.repeat_interleave(HEADS // GROUPS, 1)).transpose(1, 2)


def shifted(query, key, value, mask, *shifts):
    last = LastQuery(query, key, mask, SCALE)
    return attend_with_biases(Module(), query, key, value, mask, last, shifts, {"scaling": SCALE})


def scaled(weights: torch.Tensor, visual: torch.Tensor, factor: float) -> torch.Tensor:
    """Weights of visual keys times a factor, rows renormalised: what a method says it does."""
    changed = torch.where(visual, weights * factor, weights)
    return changed / changed.sum(-1, keepdim=True)


VISUAL = torch.zeros(KEYS, dtype=torch.bool)
VISUAL[2:7] = True
LOG_BIAS = math.log1p(0.4) * VISUAL.float().expand(2, 1, 1, KEYS)


def test_scaling_weights_and_renormalising_is_a_logarithm_added_to_scores():
    """By hand: three keys of weights 0.5, 0.3 and 0.2, of which the second one is visual and gets 1 + alpha = 3."""
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    added = (weights.log() + math.log(3) * torch.tensor([0.0, 1, 0])).softmax(0)
    torch.testing.assert_close(added, torch.tensor([0.5, 0.9, 0.2], dtype=torch.float64) / 1.6)


@pytest.mark.parametrize("queries", [1, KEYS], ids=["one query", "a prompt"])
def test_only_the_last_row_is_shifted(queries):
    query, key, value = tensors(queries)
    weights = weights_of(query, key)
    weights[:, :, -1] = scaled(weights[:, :, -1], VISUAL, 1.4)
    torch.testing.assert_close(
        shifted(query, key, value, None, AttentionBias(LOG_BIAS)), mixed(weights, value)
    )


@pytest.mark.parametrize("queries", [1, KEYS], ids=["one query", "a prompt"])
def test_every_row_is_shifted(queries):
    query, key, value = tensors(queries)
    weights = scaled(weights_of(query, key), VISUAL, 1.4)
    found = shifted(query, key, value, None, AttentionBias(LOG_BIAS, all_queries=True))
    torch.testing.assert_close(found, mixed(weights, value))


@pytest.mark.parametrize("kind", ["bool", "numbers"])
@pytest.mark.parametrize("all_queries", [False, True])
def test_masks_are_kept(kind, all_queries):
    query, key, value = tensors()
    seen = torch.tril(torch.ones(KEYS, KEYS, dtype=torch.bool)).repeat(2, 1, 1, 1)
    seen[1, :, 1:, 0] = False  # padding of the second row, whose own row sees itself
    mask = seen if kind == "bool" else torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
    scores = query @ key.repeat_interleave(3, 1).transpose(2, 3) * SCALE
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    rows = slice(None) if all_queries else slice(-1, None)
    weights[:, :, rows] = scaled(weights[:, :, rows], VISUAL, 1.4)
    found = shifted(query, key, value, mask, AttentionBias(LOG_BIAS, all_queries))
    torch.testing.assert_close(found, mixed(weights, value))


def test_shifts_differ_by_head_and_add_up_and_gains_multiply():
    query, key, value = tensors()
    bias, gain = torch.randn(2, HEADS, 1, KEYS), torch.rand(2, HEADS, 1)
    found = shifted(
        query, key, value, None, AttentionBias(bias), AttentionBias(LOG_BIAS, all_queries=True, gain=gain)
    )
    weights = scaled(weights_of(query, key), VISUAL, 1.4)
    weights[:, :, -1:] = (weights[:, :, -1:].log() + bias).softmax(-1) * gain[..., None]
    torch.testing.assert_close(found, mixed(weights, value))


def test_the_row_that_shifters_see_is_the_kernels():
    query, key, value = tensors()
    last = LastQuery(query, key, None, SCALE)
    torch.testing.assert_close(last.weights(), weights_of(query, key)[:, :, -1:])


@pytest.mark.parametrize("all_queries", [False, True])
def test_a_prompt_keeps_the_causal_kernel_without_a_matrix(monkeypatch, all_queries):
    """No mask of queries by keys is ever made: the prompt's call has none and is causal, and it is the only one."""
    calls = []
    plain = F.scaled_dot_product_attention

    def watched(query, key, value, attn_mask=None, is_causal=False, **options):
        calls.append((query.shape[2], is_causal, None if attn_mask is None else attn_mask.shape))
        return plain(query, key, value, attn_mask=attn_mask, is_causal=is_causal, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    query, key, value = tensors()
    shifted(query, key, value, None, AttentionBias(LOG_BIAS, all_queries))
    assert calls == [(KEYS, True, None)]
