"""Collect the internals of a whole answer, and then write them block by block."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.models import Model
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.recorder import AttentionRows, BatchReducer, SampleRecorder


@dataclass
class StepBuffer:
    """The internals of one answer, step by step.

    Attributes:
        attention: by layer, one row [head, key] a step. A row ends at its query's own token.
        residuals: by `pre`, `mid` or `post`, and then by layer, one vector [hidden] a step.
        gates: by layer, act(gate) [neuron] of each step.
        logits: one vector [vocabulary] a step.
        normed: inputs of the unembedding [position, hidden]: first the prompt's, then one position a step.
    """

    attention: dict[int, list[Tensor]] = field(default_factory=dict)
    residuals: dict[str, dict[int, list[Tensor]]] = field(default_factory=dict)
    gates: dict[int, list[Tensor]] = field(default_factory=dict)
    logits: list[Tensor] = field(default_factory=list)
    normed: list[Tensor] = field(default_factory=list)

    def write_to(self, recorder: SampleRecorder, token_ids: Tensor) -> None:
        """Write the steps of an answer; steps after its end are dropped.

        Args:
            token_ids: the answer's tokens [step].
        """
        reducer, prompt_length = BatchReducer([recorder]), len(recorder.prompt.ids)
        states = torch.cat(self.normed)[None, : prompt_length + len(token_ids) - 1] if self.normed else None
        for first in range(0, len(token_ids), BLOCK_STEPS):
            block_ids = token_ids[None, first : first + BLOCK_STEPS]
            block = slice(first, first + block_ids.shape[1])
            keys = prompt_length + block.stop - 1
            reducer.write_steps(block_ids, torch.stack(self.logits[block])[None], [block_ids.shape[1]])
            if self.attention:
                reducer.write_attention(partial(self._rows, block, keys), block_ids.shape[1])
            if self.residuals:
                residuals = {name: _stack(by_layer, block) for name, by_layer in self.residuals.items()}
                reducer.write_residuals(residuals)
            if self.gates:
                reducer.write_gates(_stack(self.gates, block))
            if "tam/logit" in recorder.spec.stored and states is not None:
                reducer.write_tam(states, block_ids)
        reducer.finish(states)

    def _rows(self, block: slice, keys: int, rows: slice, most: int) -> Iterator[AttentionRows]:
        for layer in self.attention:
            yield pad_rows(self.attention[layer][block], keys)


def _stack(by_layer: dict[int, list[Tensor]], block: slice) -> dict[int, Tensor]:
    """Return the block's vectors by layer, each [1, step, ...]."""
    return {layer: torch.stack(values[block])[None] for layer, values in by_layer.items()}


def pad_rows(rows: list[Tensor], keys: int) -> AttentionRows:
    """Return rows [head, key] of consecutive queries of a layer as one tensor [1, 1, head, query, key].

    The keys after each query are 0, and so are the first keys, which rows of a sliding window lack.

    Args:
        keys: number of keys of the last query.

    Example:
        >>> pad_rows([torch.ones(1, 1), torch.full((1, 2), 0.5)], 2).weights
        tensor([[[[[1.0000, 0.0000],
                   [0.5000, 0.5000]]]]])
    """
    padded = []
    for end, row in enumerate(rows, keys - len(rows) + 1):
        padded.append(F.pad(_renormalize(row), (end - row.shape[-1], keys - end)))
    return AttentionRows(torch.stack(padded, 1)[None, None])


def _renormalize(row: Tensor) -> Tensor:
    """Return a row in float32 that sums to 1; a row in lower precision does not after rounding."""
    return row if row.dtype == torch.float32 else row.float() / row.float().sum(-1, keepdim=True)


def copy_sharing_weights(hf: nn.Module) -> Any:
    """Return a copy of a model with the same weights. A library can rewire it without changing the model."""
    weights: Iterable[Tensor] = chain(hf.parameters(), hf.buffers())
    observed = vars(hf).pop("forward", None)  # of an open block: in a copy, it would call the original
    try:
        return copy.deepcopy(hf, {id(tensor): tensor for tensor in weights})
    finally:
        if observed is not None:
            hf.forward = observed


def parts_to_collect(spec: CaptureSpec) -> set[str]:
    """Return which of attention, residuals, gates and normed a capture needs."""
    needs = {
        "attention": spec.wants("attention/"),
        "residuals": spec.wants("residual/", "update/"),
        "gates": spec.wants("ffn/"),
        "normed": spec.wants("tam/"),
    }
    return {name for name, needed in needs.items() if needed}


def unsupported_reason(model: Model, batch_size: int) -> str | None:
    """Return why an engine with a step buffer does not support a run, or None if it does."""
    if batch_size > 1:
        return 'takes one sample at a time; use batch_size=1 or engine="native"'
    if model.has_cross_attention:
        return f'does not support the cross-attention of {model.family.name}; use engine="native"'
    if reason := model.why_irregular:
        return f'{reason}, which it does not support; use engine="native"'
    return None
