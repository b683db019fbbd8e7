"""Attention with something added to its scores, on the fast kernel and without a matrix of queries by keys.

To multiply some keys' softmax weights by w and renormalise is to add log(w) to their scores. One query's row is cheap,
so what is added there may depend on the query and on the head. What is added at all queries must not: it is then one
more dimension of the keys, by which every query is 1, and the kernel keeps its causal form.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

WIDER = 8  # dimensions more, of which one is used: kernels want multiples of 8


class LastQuery:
    """The last query of a call of the kernel, which predicts the next token.

    Args:
        query: all of them, [batch, head, position, dim].
        key: [batch, kv_head, key, dim].
        mask: broadcastable to [batch, head, position, key], or None.
        scale: of the scores.
    """

    def __init__(self, query: Tensor, key: Tensor, mask: Tensor | None, scale: float):
        self.query, self.key, self.scale = query[:, :, -1:], key, scale
        self.mask = None if mask is None else mask[..., -1:, :]

    @cached_property
    def scores(self) -> Tensor:
        """query times key times scale, without the mask, float32 [batch, head, 1, key]."""
        batch, heads, _, dim = self.query.shape
        groups, keys = self.key.shape[1:3]
        # heads that share keys stand as queries, so keys need not be repeated
        query = self.query.float().reshape(batch * groups, heads // groups, dim)
        key = self.key.float().reshape(batch * groups, keys, dim)
        nothing = query.new_empty(1)  # baddbmm scales as it multiplies, in half the time of two steps
        return torch.baddbmm(nothing, query, key.mT, beta=0, alpha=self.scale).view(batch, heads, 1, keys)

    def weights(self, bias: Tensor | None = None) -> Tensor:
        """The softmax row, float32 [batch, head, 1, key], with something added to the scores."""
        scores = self.scores if bias is None else self.scores + bias
        return (scores if self.mask is None else masked(scores, self.mask)).softmax(-1)


class AttentionBias(NamedTuple):
    """A change of one call's attention.

    Attributes:
        bias: added to the scores before the softmax, [batch, 1 or head, 1, key].
        everywhere: whether all queries get it, not only the last; then the same for all heads.
        gain: [batch, head, 1], by which the last query's output is multiplied, or None.
    """

    bias: Tensor
    everywhere: bool = False
    gain: Tensor | None = None


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores with -inf where a bool mask is false, or with a mask of numbers added."""
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask


def added(shifts: Sequence[AttentionBias]) -> Tensor | None:
    """The sum of several shifts' biases, [batch, 1 or head, 1, key]; None of none."""
    if not shifts:
        return None
    total = shifts[0].bias
    for shift in shifts[1:]:
        total = total + shift.bias
    return total


def shifted_rows(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    last: LastQuery,
    shifts: Sequence[AttentionBias],
    options: dict[str, Any],
) -> Tensor:
    """The kernel's output with all shifts, [batch, position, head, dim].

    Args:
        last: the last of the queries.
        options: of the kernel; `scaling` must be among them.
    """
    if query.shape[2] == 1:
        return _last_row(last, value, shifts)
    everywhere = added([shift for shift in shifts if shift.everywhere])
    if everywhere is not None:
        output = _widened(module, query, key, value, mask, everywhere, options)
    else:
        output, _ = sdpa_attention_forward(module, query, key, value, mask, **options)
    if any(not shift.everywhere or shift.gain is not None for shift in shifts):
        output = output.clone()
        output[:, -1:] = _last_row(last, value, shifts)
    return output


def _widened(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor,
    options: dict[str, Any],
) -> Tensor:
    wider_query, wider_key, wider_value = (F.pad(values, (0, WIDER)) for values in (query, key, value))
    wider_query[..., query.shape[-1]] = 1
    wider_key[..., key.shape[-1]] = (bias[:, :, 0] / options["scaling"]).to(key.dtype)
    output, _ = sdpa_attention_forward(module, wider_query, wider_key, wider_value, mask, **options)
    return output[..., : value.shape[-1]].contiguous()


def _last_row(last: LastQuery, value: Tensor, shifts: Sequence[AttentionBias]) -> Tensor:
    """[batch, 1, head, dim]; most shifters know the scores, so this is less than the kernel would do."""
    batch, heads = last.query.shape[:2]
    groups = value.shape[1]
    weights = last.weights(added(shifts)).view(batch, groups, heads // groups, -1).to(value.dtype)
    output = (weights @ value).view(batch, 1, heads, -1)
    for shift in shifts:
        if shift.gain is not None:
            output = output * shift.gain.to(output.dtype)[:, None]
    return output
