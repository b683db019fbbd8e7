"""Attention with biases added to its scores, on the fast kernel and without a matrix of queries by keys.

To multiply the softmax weights of some keys by w and renormalise is to add log(w) to their scores. The row of
a single query is cheap, so a bias of the last query may depend on the query and on the head. A bias of all
queries must not. It becomes one more dimension of the keys, in which every query is 1, and the kernel keeps
its causal form.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mmprobe.models.attention_rows import attention_scores, mask_scores

EXTRA_DIMS = 8  # kernels want multiples of 8; only the first is used


class LastQuery:
    """The last query of a call of the kernel, which predicts the next token.

    Args:
        query: all queries of the call, [batch, head, position, dim].
        key: [batch, kv_head, key, dim].
        mask: broadcastable to [batch, head, position, key], or None.
        scale: factor of the scores.
    """

    def __init__(self, query: Tensor, key: Tensor, mask: Tensor | None, scale: float):
        self.query, self.key, self.scale = query[:, :, -1:], key, scale
        self.mask = None if mask is None else mask[..., -1:, :]

    @cached_property
    def scores(self) -> Tensor:
        """The scaled scores without the mask, float32 [batch, head, 1, key]."""
        return attention_scores(self.query, self.key, self.scale)

    def weights(self, bias: Tensor | None = None) -> Tensor:
        """Return the softmax row, float32 [batch, head, 1, key], with a bias added to the scores."""
        scores = self.scores if bias is None else self.scores + bias
        return (scores if self.mask is None else mask_scores(scores, self.mask)).softmax(-1)


class AttentionBias(NamedTuple):
    """A change of one call's attention.

    Attributes:
        bias: added to the scores before the softmax, [batch, 1 or head, 1, key].
        all_queries: whether all queries get the bias, and not only the last. Then all heads get the same.
        gain: factor of the last query's output, [batch, head, 1], or None.
    """

    bias: Tensor
    all_queries: bool = False
    gain: Tensor | None = None


def sum_biases(biases: Sequence[AttentionBias]) -> Tensor | None:
    """Return the sum of the biases, [batch, 1 or head, 1, key], or None if there are none."""
    if not biases:
        return None
    total = biases[0].bias
    for other in biases[1:]:
        total = total + other.bias
    return total


def attend_with_biases(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    last: LastQuery,
    biases: Sequence[AttentionBias],
    options: dict[str, Any],
) -> Tensor:
    """Return the kernel's output with all biases, [batch, position, head, dim].

    Args:
        last: the last query of `query`.
        options: options of the kernel; `scaling` must be among them.
    """
    if query.shape[2] == 1:
        return _attend_last_query(last, value, biases)
    shared_bias = sum_biases([bias for bias in biases if bias.all_queries])
    if shared_bias is not None:
        output = _attend_with_shared_bias(module, query, key, value, mask, shared_bias, options)
    else:
        output, _ = sdpa_attention_forward(module, query, key, value, mask, **options)
    if any(not bias.all_queries or bias.gain is not None for bias in biases):
        output = output.clone()
        output[:, -1:] = _attend_last_query(last, value, biases)
    return output


def _attend_with_shared_bias(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor,
    options: dict[str, Any],
) -> Tensor:
    """Return the kernel's output with one bias at all queries, carried by an extra dimension of the keys."""
    wide_query, wide_key, wide_value = (F.pad(values, (0, EXTRA_DIMS)) for values in (query, key, value))
    wide_query[..., query.shape[-1]] = 1
    wide_key[..., key.shape[-1]] = (bias[:, :, 0] / options["scaling"]).to(key.dtype)
    output, _ = sdpa_attention_forward(module, wide_query, wide_key, wide_value, mask, **options)
    return output[..., : value.shape[-1]].contiguous()


def _attend_last_query(last: LastQuery, value: Tensor, biases: Sequence[AttentionBias]) -> Tensor:
    """Return the last query's output [batch, 1, head, dim].

    Most bias functions have computed the scores already, so this costs less than a call of the kernel.
    """
    batch, heads = last.query.shape[:2]
    groups = value.shape[1]
    weights = last.weights(sum_biases(biases)).view(batch, groups, heads // groups, -1).to(value.dtype)
    output = (weights @ value).view(batch, 1, heads, -1)
    for bias in biases:
        if bias.gain is not None:
            output = output * bias.gain.to(output.dtype)[:, None]
    return output
