"""What a library's tracing leaves of one answer, all steps at once, handed to a lane block by block."""

from __future__ import annotations

import copy
from collections.abc import Iterable
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
from mmprobe.traces.recorder import Rows, SampleRecorder


@dataclass
class Collected:
    """Raw internals of one answer, in the order of its steps.

    Attributes:
        attention: by layer, rows [head, key], the keys being the last of the tokens up to the query.
        residuals: by `pre`, `mid` or `post` and layer, [hidden].
        gates: by layer, act(gate) [neuron].
        logits: each [vocabulary].
        normed: what the unembedding reads, each [position, hidden]: the prompt's, then one position a step.
    """

    attention: dict[int, list[Tensor]] = field(default_factory=dict)
    residuals: dict[str, dict[int, list[Tensor]]] = field(default_factory=dict)
    gates: dict[int, list[Tensor]] = field(default_factory=dict)
    logits: list[Tensor] = field(default_factory=list)
    normed: list[Tensor] = field(default_factory=list)

    def hand_over(self, lane: SampleRecorder, ids: Tensor) -> None:
        """Reduce and write the steps of an answer [step]; what was collected beyond its end is dropped."""
        prompt = len(lane.prompt.ids)
        states = torch.cat(self.normed)[: prompt + len(ids) - 1] if self.normed else None
        for first in range(0, len(ids), BLOCK_STEPS):
            chosen = ids[first : first + BLOCK_STEPS]
            last = first + len(chosen)
            block = slice(first, last)
            lane.steps(chosen, torch.stack(self.logits[block]))
            if self.attention:
                lane.attention(partial(self._rows, block, prompt + last - 1), len(chosen))
            if self.residuals:
                lane.residuals({name: _stacked(kept, block) for name, kept in self.residuals.items()})
            if self.gates:
                lane.gates(_stacked(self.gates, block))
            if "tam/logit" in lane.spec.stored and states is not None:
                lane.tam(states[: prompt + last - 1], chosen)
        lane.finish(states)

    def _rows(self, block: slice, keys: int, layer: int) -> Rows:
        return _padded(self.attention[layer][block], keys)


def _stacked(by_layer: dict[int, list[Tensor]], block: slice) -> Tensor:
    return torch.stack([torch.stack(values[block]) for values in by_layer.values()], 1)


def _padded(rows: list[Tensor], keys: int) -> Rows:
    """Rows of consecutive queries [head, query, key]; a sliding window's lack the first keys, all lack the later."""
    count = len(rows)
    ends = [keys - count + 1 + index for index in range(count)]
    padded = [
        F.pad(_whole(row), (end - row.shape[-1], keys - end)) for row, end in zip(rows, ends, strict=True)
    ]
    return Rows(torch.stack(padded, 1))


def _whole(row: Tensor) -> Tensor:
    """A row in single precision that sums to 1, which one that the model rounded does not."""
    return row if row.dtype == torch.float32 else row.float() / row.float().sum(-1, keepdim=True)


def sharing_copy(hf: nn.Module) -> Any:
    """New modules and configs with the same weights: what a library does to them, the original never notices."""
    weights: Iterable[Tensor] = chain(hf.parameters(), hf.buffers())
    return copy.deepcopy(hf, {id(tensor): tensor for tensor in weights})


def wanted_parts(spec: CaptureSpec) -> set[str]:
    """Which of attention, residuals, gates and normed a capture needs."""
    parts = {
        "attention": spec.wants("attention/"),
        "residuals": spec.wants("residual/", "update/"),
        "gates": spec.wants("ffn/"),
        "normed": spec.wants("tam/"),
    }
    return {name for name, needed in parts.items() if needed}


def refusal(model: Model, batch_size: int) -> str | None:
    """Why an engine that collects everything first cannot do this run, None if it can."""
    if batch_size > 1:
        return "takes one sample at a time; use --batch-size 1 or --engine native"
    if model.has_cross_attention:
        return (
            f"cannot do {model.family.name}, whose pictures are seen by cross-attention; use --engine native"
        )
    return None
