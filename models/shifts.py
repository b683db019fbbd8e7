"""Attention with something added to its scores, on the fast kernel and without a matrix of queries by keys.

To multiply some keys' softmax weights by w and renormalise is to add log(w) to their scores. One query's row is cheap,
so what is added there may depend on the query and on the head. What is added at all queries must not: it is then one
more dimension of the keys, by which every query is 1, and the kernel keeps its causal form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

WIDER = 8  # dimensions more, of which one is used: kernels want multiples of 8


class LastQuery(NamedTuple):
    """The last query of a call of the kernel, which predicts the next token: query [batch, head, 1, dim], key
    [batch, kv_head, key, dim], mask broadcastable to [batch, head, 1, key] or None, and the scale of the scores."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    scale: float

    @classmethod
    def of(cls, query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> LastQuery:
        return cls(query[:, :, -1:], key, None if mask is None else mask[..., -1:, :], scale)

    def scores(self) -> Tensor:
        """What goes into the softmax, float32 [batch, head, 1, key]."""
        batch, heads, _, dim = self.query.shape
        grouped = (self.query.float() * self.scale).reshape(batch, self.key.shape[1], -1, dim)
        scores = (grouped @ self.key.float().transpose(2, 3)).reshape(batch, heads, 1, -1)
        return scores if self.mask is None else masked(scores, self.mask)

    def weights(self) -> Tensor:
        """The softmax row, float32 [batch, head, 1, key]."""
        return self.scores().softmax(-1)


class Shift(NamedTuple):
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


def added(shifts: Sequence[Shift]) -> Tensor | None:
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
    shifts: Sequence[Shift],
    options: dict[str, Any],
) -> Tensor:
    """The kernel's output with all shifts, [batch, position, head, dim].

    Args:
        options: of the kernel; `scaling` must be among them.
    """
    if query.shape[2] == 1:
        return _last_row(query, key, value, mask, shifts, options["scaling"])
    everywhere = added([shift for shift in shifts if shift.everywhere])
    if everywhere is not None:
        output = _widened(module, query, key, value, mask, everywhere, options)
    else:
        output, _ = sdpa_attention_forward(module, query, key, value, mask, **options)
    if any(not shift.everywhere or shift.gain is not None for shift in shifts):
        output = output.clone()
        output[:, -1:] = _last_row(query, key, value, mask, shifts, options["scaling"])
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


def _last_row(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, shifts: Sequence[Shift], scale: float
) -> Tensor:
    """[batch, 1, head, dim]; heads that share keys stand as queries, so keys need not be repeated."""
    batch, heads, _, dim = query.shape
    groups = key.shape[1]
    bias = added(shifts)
    assert bias is not None
    if mask is not None:
        bias = masked(bias, mask[..., -1:, :])
    if bias.shape[1] > 1:
        bias = bias.expand(batch, heads, 1, -1).reshape(batch, groups, heads // groups, -1)
    grouped = query[:, :, -1:].reshape(batch, groups, heads // groups, dim)
    bias = bias.to(query.dtype).expand(batch, -1, -1, key.shape[2])
    output = F.scaled_dot_product_attention(grouped, key, value, attn_mask=bias, scale=scale)
    output = output.reshape(batch, heads, 1, -1).transpose(1, 2)
    for shift in shifts:
        if shift.gain is not None:
            output = output * shift.gain.to(output.dtype)[:, None]
    return output.contiguous()
