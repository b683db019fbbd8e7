"""Softmax rows of attention, from queries and keys. The kernel does not return them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mmprobe.models.attention import AttentionCall


def attention_scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Return scaled products, float32 [..., head, query, key]. Consecutive query heads share a key head.

    Args:
        query: [..., head, query, dim].
        key: [..., kv_head, key, dim].

    Example:
        >>> attention_scores(torch.ones(4, 1, 2), torch.ones(2, 3, 2), 0.5)[0]
        tensor([[1., 1., 1.]])
    """
    *samples, heads, queries, dim = query.shape
    # heads that share keys become further queries, so keys need not be repeated
    grouped = (query.float() * scale).reshape(*samples, key.shape[-3], -1, dim)
    return (grouped @ key.float().transpose(-1, -2)).reshape(*samples, heads, queries, -1)


def mask_scores(scores: Tensor, mask: Tensor) -> Tensor:
    """Return scores with -inf where a bool mask is false, or with a mask of numbers added.

    Example:
        >>> mask_scores(torch.zeros(2), torch.tensor([True, False]))
        tensor([0., -inf])
    """
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask


def softmax_rows(call: AttentionCall, row: int, queries: slice) -> Tensor:
    """Return the attention weights of some queries of one row of a call, float32 [head, query, key].

    The call has no biases. Without a mask, each query sees the keys up to its own, or all keys where there are fewer or
    more keys than queries, as in cross-attention.

    Example:
        >>> softmax_rows(call, 0, slice(-1, None)).sum(-1)                   # doctest: +SKIP
        tensor([[1.], [1.]])
    """
    scores = attention_scores(call.query[row, :, queries], call.key[row], call.scale)
    if call.mask is not None:
        mask = call.mask[row if len(call.mask) > 1 else 0]
        return mask_scores(scores, mask[:, queries]).softmax(-1)
    if call.query.shape[2] == call.key.shape[2]:
        positions = torch.arange(call.key.shape[2], device=scores.device)
        scores = scores.masked_fill(positions > positions[queries, None], float("-inf"))
    return scores.softmax(-1)
