"""One answer's raw internals, reduced to the data sets of its trace, whichever engine collected them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmprobe.models import Group, Model, Prompt
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.writer_thread import BackgroundWriter


class Rows(NamedTuple):
    """Attention of a layer's queries: weights [head, query, key]; the keys are the tokens from the first one
    on, or those of the pictures for a layer that crosses."""

    weights: Tensor
    has_cross_attention: bool = False


class SampleRecorder:
    """Reduces one sample's internals block by block and hands them to its writer.

    Args:
        writer: of the sample's trace.
    """

    def __init__(self, model: Model, prompt: Prompt, spec: CaptureSpec, writer: BackgroundWriter):
        self.model, self.prompt, self.spec, self.writer = model, prompt, spec, writer
        self.layers = spec.layer_indices(model.n_layers)
        self.heads = spec.head_indices(model.n_heads)
        self.all_heads = len(self.heads) == model.n_heads
        self.device = model.device
        self.done = 0  # steps written
        self.ended = False  # the answer is whole, though others of its batch go on
        self.gate_sum: Tensor | None = None  # [layer, neuron]
        groups = torch.from_numpy(prompt.group.astype(np.int64)).to(self.device)
        self.membership = F.one_hot(groups, len(Group) + 1).float()  # [prompt, group + leading]
        self.visual = torch.from_numpy(prompt.visual).to(self.device)
        keys = prompt.visual_keys
        self.cells = _runs(prompt.visual if keys is None else keys)
        self.has_cross_attention = (
            keys is not None
        )  # pictures are seen by cross-attention, in layers of its own
        first_image = int(prompt.visual[0]) if len(prompt.visual) else 0
        self.membership[:first_image, -1] = 1

    def write(self, name: str, values: Tensor) -> None:
        """Append a block of steps, if the capture wants it."""
        if name in self.spec.stored or name.startswith("steps/"):
            self.writer.append(name, values)

    def steps(self, chosen: Tensor, logits: Tensor) -> None:
        """Begin a block: the tokens chosen [step], and the logits [step, vocabulary] they were chosen by."""
        logprobs = logits.float().log_softmax(-1)
        self.write("steps/id", chosen)
        self.write("steps/logprob", logprobs.gather(1, chosen[:, None])[:, 0])
        self.write("steps/entropy", torch.special.entr(logprobs.exp()).sum(-1))
        self.done += len(chosen)

    def attention(self, rows_of: Callable[[int], Rows | None], steps: int) -> None:
        """Attention of the last `steps` queries; one layer's rows exist at a time.

        Args:
            rows_of: a layer's rows [head, step, key], None for a layer that did not run.
        """
        keys = len(self.prompt.ids) + self.done - 1
        generated = torch.zeros(keys - len(self.membership), len(Group) + 1, device=self.device)
        generated[:, Group.GENERATED] = 1
        membership = torch.cat([self.membership, generated])
        masses: list[Tensor] = []
        visuals: dict[str, Tensor] = {}  # filled in: stacking at the end takes twice the memory
        for index, layer in enumerate(self.layers):
            rows = rows_of(layer)
            mass, visual = self._summed(rows, membership, steps)
            masses.append(mass)
            self._fill_in(visuals, index, visual)
            if "attention/row" in self.spec.stored and rows is not None and not rows.has_cross_attention:
                shape = (self.done, len(self.layers), len(self.heads), keys)
                where = (slice(self.done - steps, self.done), index, slice(None), slice(0, keys))
                self.writer.put("attention/row", self._chosen(rows.weights).transpose(0, 1), where, shape)
        mass = torch.stack(masses, 1).permute(2, 1, 0, 3)  # [step, layer, head, group + leading]
        self.write("attention/mass", mass[..., :-1])
        self.write("attention/leading", mass[..., -1])
        for name, values in visuals.items():
            self.write(name, values)

    def _fill_in(self, visuals: dict[str, Tensor], index: int, visual: Tensor) -> None:
        """Put a layer's weights on visual tokens, as `_summed` gives them, into the blocks [step, layer, ...]."""
        found = {"attention/visual": visual.mean(0) if visual.ndim == 3 else visual}
        if visual.ndim == 3:
            found["attention/visual_head"] = visual.transpose(0, 1)
        for name, values in found.items():
            if name not in self.spec.stored:
                continue
            if name not in visuals:  # weights always fit into float16
                dtype = torch.float16 if self.writer.halves(name) else values.dtype
                shape = len(values), len(self.layers), *values.shape[1:]
                visuals[name] = values.new_empty(shape, dtype=dtype)
            visuals[name][:, index] = values

    def _chosen(self, weights: Tensor) -> Tensor:
        return weights if self.all_heads else weights[self.heads]

    def _summed(self, rows: Rows | None, membership: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Mass [head, step, group + leading] of a layer, and its weights on visual tokens: [head, step, visual]
        if they are wanted by head, else their mean over heads."""
        by_head = bool({"attention/visual_head", "prompt/attention_visual_head"} & self.spec.stored)
        cells = sum(run.stop - run.start for run in self.cells)
        if rows is None:
            nan = torch.full(
                (len(self.heads), steps, max(cells, len(Group) + 1)), torch.nan, device=self.device
            )
            visual = nan[..., :cells]
            return nan[..., : len(Group) + 1], visual if by_head else visual[0]
        weights = self._chosen(rows.weights)
        if rows.has_cross_attention:
            mass = torch.zeros(*weights.shape[:2], len(Group) + 1, device=self.device)
            mass[..., Group.VISUAL] = weights.sum(-1)
            return mass, _columns(weights if by_head else weights.mean(0), self.cells)
        mass = weights @ membership
        if self.has_cross_attention:
            visual = torch.zeros(*weights.shape[:2], cells, device=self.device)
            return mass, visual if by_head else visual[0]
        return mass, _columns(weights if by_head else weights.mean(0), self.cells)

    def residuals(self, stacked: dict[str, Tensor]) -> None:
        """The residual stream [step, layer, hidden] before, within and after each layer, by `pre`, `mid`, `post`."""
        for name, values in stacked.items():
            self.write(f"residual/{name}", values)
        if self.spec.wants("update/"):
            pre, mid, post = (stacked[name].float() for name in ("pre", "mid", "post"))
            attention, ffn = (mid - pre).log_softmax(-1), (post - mid).log_softmax(-1)
            self.write("update/cos_mha", F.cosine_similarity(pre, mid, dim=-1))
            self.write("update/cos_ffn", F.cosine_similarity(mid, post, dim=-1))
            self.write("update/kl", (attention.exp() * (attention - ffn)).sum(-1))

    def gates(self, gates: Tensor) -> None:
        """act(gate) [step, layer, neuron]."""
        total = gates.float().sum(0)
        self.gate_sum = total if self.gate_sum is None else self.gate_sum + total
        self.write("ffn/active", gates > 0)

    def tam(self, states: Tensor, chosen: Tensor) -> None:
        """Logit of each step's token at every position up to its query, NaN after it.

        Args:
            states: what the unembedding reads [position, hidden], at all positions up to the last query.
        """
        logit = (states @ self._unembedding(chosen).T).T.float()
        queries = torch.arange(len(states) - len(chosen), len(states), device=self.device)
        future = torch.arange(len(states), device=self.device) > queries[:, None]
        self.write("tam/logit", logit.masked_fill(future, float("nan")))

    def _unembedding(self, ids: Tensor) -> Tensor:
        return self.model.hf.get_output_embeddings().weight[ids]

    def finish(self, states: Tensor | None) -> None:
        """Write what belongs to the answer as a whole.

        Args:
            states: what the unembedding reads [position, hidden], at all positions of the prompt at least;
                needed for tam/prompt only.
        """
        if "ffn/gate_sum" in self.spec.stored and self.gate_sum is not None:
            self.writer.write("ffn/gate_sum", self.gate_sum)
        if "tam/prompt" in self.spec.stored and states is not None:
            user = torch.from_numpy(np.flatnonzero(self.prompt.group == Group.USER)).to(self.device)
            ids = torch.from_numpy(self.prompt.ids).to(self.device)[user].long()
            self.writer.write("tam/prompt", self._unembedding(ids) @ states[self.visual].T)

    def prompt_residual(self, name: str, layer: int, values: Tensor) -> None:
        """One layer's residual stream [position, hidden] at the prompt's tokens; name is pre, mid or post."""
        if f"prompt/residual_{name}" in self.spec.stored:
            shape = (len(values), len(self.layers), values.shape[-1])
            where = (slice(0, len(values)), self.layers.index(layer), slice(0, values.shape[-1]))
            self.writer.put(f"prompt/residual_{name}", values, where, shape)

    def prompt_attention(self, layer: int, first: int, rows: Rows) -> None:
        """One layer's attention of a block of the prompt's tokens.

        Args:
            first: position of the block's first query.
            rows: weights [head, query, key] on all tokens of the prompt.
        """
        index, queries = self.layers.index(layer), rows.weights.shape[1]
        mass, visual = self._summed(rows, self.membership, queries)
        found: dict[str, Tensor] = {"mass": mass[..., :-1].transpose(0, 1)}
        if visual.ndim == 3:
            found |= {"visual_head": visual.transpose(0, 1), "visual": visual.mean(0)}
        else:
            found["visual"] = visual
        if not rows.has_cross_attention:
            found["row"] = self._chosen(rows.weights).transpose(0, 1)
        for name, values in found.items():
            if f"prompt/attention_{name}" in self.spec.stored:
                rest = values.shape[1:]
                shape = (len(self.prompt.ids), len(self.layers), *rest)
                where = (slice(first, first + queries), index, *(slice(0, size) for size in rest))
                self.writer.put(f"prompt/attention_{name}", values, where, shape)


def _runs(positions: np.ndarray) -> list[slice]:
    """Ascending positions as slices, of which pictures need few."""
    parts = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts if len(part)] or [slice(0, 0)]


def _columns(weights: Tensor, runs: list[slice]) -> Tensor:
    """Weights [..., key] of some keys; by an index for each, this takes ten times as long."""
    return torch.cat([weights[..., run] for run in runs], -1)
