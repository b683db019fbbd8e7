"""Attention rows, recomputed from queries and keys for growing, sliding and cross-attention caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmprobe.models.attention import AttentionCall, attention_scores, mask_scores
from mmprobe.traces.recorder import AttentionRows

PROMPT_QUERIES = 128  # the prompt's queries whose rows exist at a time


class LayerKeys:
    """The keys of one layer, kept until the rows of a block of queries are computed.

    The newest tensor of a growing cache contains all earlier keys. A sliding cache forgets keys, so the last
    window and all keys since then are kept here.

    Args:
        has_cross_attention: whether the keys are the images' keys, which are the same at every step.
    """

    def __init__(self, has_cross_attention: bool):
        self.has_cross_attention = has_cross_attention
        self.keys: Tensor | None = None  # [batch, kv_head, position, dim]
        self.first = 0  # position of the first key in `keys`
        self.new_keys: list[Tensor] = []  # each [batch, kv_head, 1, dim]; of a sliding cache
        self.window: int | None = None
        self.chunked = False
        self.scale = 1.0
        self.mask: Tensor | None = None
        self.biases: list[Tensor | None] = []  # `AttentionCall.bias` of each step of the block
        self.queries = 1  # number of the last queries of each call that are the answer's

    def begin_pass(self, queries: int) -> None:
        """Prepare for a pass over many queries, which sees all keys that they see."""
        self.keys, self.first, self.queries = None, 0, queries

    def add(self, call: AttentionCall) -> None:
        """Keep what a forward pass used."""
        self.scale = call.scale
        self.biases.append(call.bias)
        if self.has_cross_attention or call.window is None:
            self.keys, self.mask = call.key, call.mask
        elif self.keys is None:
            self.window, self.chunked = call.window, call.chunked
            self.first = max(call.key.shape[2] - self.queries + 1 - call.window, 0)
            self.keys = call.key[:, :, self.first :].clone()
        else:
            self.new_keys.append(call.key[:, :, -1:].clone())

    def compute_rows(
        self, query: Tensor, rows: slice, position: int, paddings: Sequence[int]
    ) -> list[AttentionRows]:
        """Return the attention of consecutive queries of some samples.

        Args:
            query: [sample, head, step, dim].
            rows: the samples' rows in the batch.
            position: position of the first query, padding included.
            paddings: number of padding tokens before each sample's prompt.

        Returns:
            For each sample weights [head, step, key], from the first token after the padding to the last query.
        """
        assert self.keys is not None
        query = query.to(self.keys.device)  # the layer's own, where layers are on several
        keys = self.keys[rows]
        if self.has_cross_attention:
            scores = attention_scores(query, keys, self.scale)
            if self.mask is not None:
                scores = mask_scores(scores, self.mask[rows, :, -1:])
            return [AttentionRows(weights, has_cross_attention=True) for weights in scores.softmax(-1)]
        if self.new_keys:
            keys = torch.cat([keys, *(new[rows] for new in self.new_keys)], 2)
        steps = query.shape[2]
        first, end = max(self.first, min(paddings)), position + steps
        scores = attention_scores(query, keys[:, :, first - self.first : end - self.first], self.scale)
        self._add_biases(scores, rows, position, first)
        causal = torch.full((steps, steps), float("-inf"), device=query.device).triu_(1)
        scores[..., -steps:] += causal  # every query sees the keys before the first query
        if self.window is not None:
            query_positions = torch.arange(position, end, device=query.device)[:, None]
            key_positions = torch.arange(first, end, device=query.device)
            scores.masked_fill_(key_positions <= query_positions - self.window, float("-inf"))
        for sample, padding in zip(scores, paddings, strict=True):
            if padding > first:
                sample[..., : padding - first] = float("-inf")
            if self.chunked and self.window is not None:  # chunks begin with the sample's first token
                queries = torch.arange(position, end, device=query.device)[:, None] - padding
                starts = queries // self.window * self.window + padding
                sample.masked_fill_(torch.arange(first, end, device=query.device) < starts, float("-inf"))
        skips = [padding - first for padding in paddings]  # negative where a sliding cache forgot keys
        return [
            AttentionRows(weights[..., skip:] if skip >= 0 else F.pad(weights, (-skip, 0)))
            for weights, skip in zip(scores.softmax(-1), skips, strict=True)
        ]

    def _add_biases(self, scores: Tensor, rows: slice, position: int, first: int) -> None:
        """Add each step's bias to scores [sample, head, step, key], whose keys begin at position `first`."""
        for step, bias in enumerate(self.biases[: scores.shape[2]]):
            if bias is not None:
                values = bias[rows, :, 0]  # [sample, head, key]; its last key is the query's own
                end = position + step + 1 - first
                values = values[..., max(values.shape[-1] - end, 0) :]
                scores[:, :, step, end - values.shape[-1] : end] += values

    def start_block(self) -> None:
        """Forget the finished block, and the keys that later queries cannot see."""
        self.biases.clear()
        if self.new_keys and self.keys is not None and self.window is not None:
            keys = torch.cat([self.keys, *self.new_keys], 2)
            surplus = max(keys.shape[2] - self.window, 0)
            self.keys = keys[:, :, surplus:].clone()
            self.first += surplus
            self.new_keys.clear()


def prompt_rows(
    call: AttentionCall, row: int, padding: int, has_cross_attention: bool
) -> Iterator[tuple[int, AttentionRows]]:
    """Yield the attention of a prompt in blocks of queries, each with the position of its first query.

    Args:
        row: the sample's row in the batch.
        padding: number of padding tokens before the sample's prompt.
    """
    query = call.query[row, :, padding:]
    key = call.key[row] if has_cross_attention else call.key[row, :, padding:]
    key_positions = torch.arange(key.shape[1], device=key.device)
    for first in range(0, query.shape[1], PROMPT_QUERIES):
        block = query[:, first : first + PROMPT_QUERIES]
        end = first + block.shape[1]
        scores = attention_scores(block, key, call.scale)
        holds_last_query = end == query.shape[1]
        if call.shared_bias is not None:
            other_scores = scores[:, :-1] if holds_last_query else scores
            other_scores += call.shared_bias[row, :, :, padding:]
        if holds_last_query and call.bias is not None:
            scores[:, -1:] += call.bias[row, :, :, padding:]
        if call.mask is not None:
            first_key = 0 if has_cross_attention else padding
            scores = mask_scores(scores, call.mask[row, :, padding + first : padding + end, first_key:])
        elif not has_cross_attention:
            query_positions = torch.arange(first, end, device=key.device)[:, None]
            scores.masked_fill_(key_positions > query_positions, float("-inf"))
        yield first, AttentionRows(scores.softmax(-1), has_cross_attention)


def attention_received(call: AttentionCall) -> Tensor:
    """Return the attention that each patch of a vision encoder receives, [head, patch].

    It is the mean over the queries of the patch's image or window.
    """
    means = []
    for row in range(len(call.query)):
        total = torch.zeros(call.query.shape[1], call.key.shape[2], device=call.key.device)
        for first in range(0, call.query.shape[2], PROMPT_QUERIES):
            scores = attention_scores(
                call.query[row, :, first : first + PROMPT_QUERIES], call.key[row], call.scale
            )
            if call.mask is not None:
                mask = call.mask[row if len(call.mask) > 1 else 0]
                scores = mask_scores(scores, mask[:, first : first + PROMPT_QUERIES])
            total += scores.softmax(-1).sum(1)
        means.append(total / call.query.shape[2])
    return torch.cat(means, 1)
