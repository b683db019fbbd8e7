"""Softmax rows from queries and keys, for any cache: growing, sliding, or of the pictures."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from mmprobe.models.attention import AttentionCall
from mmprobe.traces.recorder import Rows

PROMPT_QUERIES = 128  # of the prompt whose rows exist at a time


class Keys:
    """Keys of one layer, held so that a block of queries can be answered at its end.

    A growing cache keeps every earlier key, so its newest tensor is enough. A sliding one forgets, so
    the last window of keys and those that came since are held here.

    Args:
        crosses: the keys are those of the pictures, the same at every step.
    """

    def __init__(self, has_cross_attention: bool):
        self.has_cross_attention = has_cross_attention
        self.held: Tensor | None = None  # [batch, kv_head, position, dim]
        self.first = 0  # position of the first key held
        self.fresh: list[Tensor] = []  # each [batch, kv_head, 1, dim]
        self.window: int | None = None
        self.scale = 1.0
        self.mask: Tensor | None = None
        self.biases: list[Tensor | None] = []  # of each step since the last `advance`, as `AttentionCall` has them

    def see(self, call: AttentionCall) -> None:
        self.scale = call.scale
        self.biases.append(call.bias)
        if self.has_cross_attention or call.window is None:
            self.held, self.mask = call.key, call.mask
        elif self.held is None:
            self.window = call.window
            self.first = max(call.key.shape[2] - call.window, 0)
            self.held = call.key[:, :, self.first :].clone()
        else:
            self.fresh.append(call.key[:, :, -1:].clone())

    def rows(self, query: Tensor, row: int, position: int, padding: int) -> Rows:
        """Attention of consecutive queries of one lane.

        Args:
            query: [head, step, dim].
            position: of the first query, padding included.
            padding: positions of the lane that no query sees.

        Returns:
            weights [head, step, key], from the first token after the padding to the last query's.
        """
        assert self.held is not None
        if self.has_cross_attention:
            scores = _scores(query, self.held[row], self.scale)
            if self.mask is not None:
                scores = _masked(scores, self.mask[row, :, -1:])
            return Rows(scores.softmax(-1), has_cross_attention=True)
        held = (
            torch.cat([self.held[row], *(key[row] for key in self.fresh)], 1)
            if self.fresh
            else self.held[row]
        )
        first, last = max(self.first, padding), position + query.shape[1]
        scores = _scores(query, held[:, first - self.first : last - self.first], self.scale)
        self._shift(scores, row, position, first)
        steps = query.shape[1]
        later = torch.full((steps, steps), float("-inf"), device=query.device).triu_(1)
        scores[:, :, -steps:] += later  # keys before the first query are seen by all
        if self.window is not None:
            queries = torch.arange(position, last, device=query.device)[:, None]
            keys = torch.arange(first, last, device=query.device)
            scores.masked_fill_(keys <= queries - self.window, float("-inf"))
        weights = scores.softmax(-1)
        return Rows(F.pad(weights, (first - padding, 0)) if first > padding else weights)

    def _shift(self, scores: Tensor, row: int, position: int, first: int) -> None:
        """Add to scores [head, step, key], whose keys begin at `first`, what a method added at each step."""
        for step, bias in enumerate(self.biases[: scores.shape[1]]):
            if bias is not None:
                own = bias[row, :, 0]  # its last key is the query itself
                end = position + step + 1 - first
                own = own[:, max(own.shape[1] - end, 0) :]
                scores[:, step, end - own.shape[1] : end] += own

    def advance(self) -> None:
        """Forget what no later query can see."""
        self.biases.clear()
        if self.fresh and self.held is not None and self.window is not None:
            held = torch.cat([self.held, *self.fresh], 2)
            surplus = max(held.shape[2] - self.window, 0)
            self.held, self.first = held[:, :, surplus:].clone(), self.first + surplus
            self.fresh.clear()


def prompt_rows(call: AttentionCall, row: int, padding: int, has_cross_attention: bool) -> Iterator[tuple[int, Rows]]:
    """Attention of a lane's prompt, a block of queries at a time, with the block's first position."""
    query = call.query[row, :, padding:]
    key = call.key[row] if has_cross_attention else call.key[row, :, padding:]
    for first in range(0, query.shape[1], PROMPT_QUERIES):
        block = query[:, first : first + PROMPT_QUERIES]
        scores = _scores(block, key, call.scale)
        ends = first + block.shape[1] == query.shape[1]
        if call.shared_bias is not None:
            others = scores[:, :-1] if ends else scores
            others += call.shared_bias[row, :, :, padding:]
        if ends and call.bias is not None:
            scores[:, -1:] += call.bias[row, :, :, padding:]
        if call.mask is not None:
            seen = slice(padding + first, padding + first + block.shape[1])
            scores = _masked(scores, call.mask[row, :, seen, 0 if has_cross_attention else padding :])
        elif not has_cross_attention:
            positions = torch.arange(first, first + block.shape[1], device=key.device)[:, None]
            scores.masked_fill_(torch.arange(key.shape[1], device=key.device) > positions, float("-inf"))
        yield first, Rows(scores.softmax(-1), has_cross_attention)


def attention_received(call: AttentionCall) -> Tensor:
    """What each key of an encoder gets, mean over the queries of its picture or window: [head, patch]."""
    found = []
    for row in range(len(call.query)):
        total = torch.zeros(call.query.shape[1], call.key.shape[2], device=call.key.device)
        for first in range(0, call.query.shape[2], PROMPT_QUERIES):
            scores = _scores(call.query[row, :, first : first + PROMPT_QUERIES], call.key[row], call.scale)
            if call.mask is not None:
                mask = call.mask[row if len(call.mask) > 1 else 0]
                scores = _masked(scores, mask[:, first : first + PROMPT_QUERIES])
            total += scores.softmax(-1).sum(1)
        found.append(total / call.query.shape[2])
    return torch.cat(found, 1)


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scaled products [head, query, key]; consecutive query heads share a key head."""
    heads, queries, dim = query.shape
    scores = (query.float() * scale).reshape(len(key), -1, dim) @ key.float().transpose(1, 2)
    return scores.reshape(heads, queries, -1)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, float("-inf"))
    return scores + mask
