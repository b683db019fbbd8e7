"""Reduce the internals of one answer to the data sets of its trace, the same for every engine, and write them meanwhile.

The files are written by one thread with a bounded queue, from copies that a GPU makes on a stream of its own.
"""

from __future__ import annotations

import ctypes
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmprobe.cache import TraceWriter
from mmprobe.cache.hdf5 import Selection, lost_rows
from mmprobe.cache.schema import VARIABLES
from mmprobe.errors import InputError
from mmprobe.models import Group, Model, Prompt
from mmprobe.models.devices import read_weight
from mmprobe.models.hooks import has_forward_pre_hooks
from mmprobe.models.reading import Gap
from mmprobe.traces.asking import EndsRun
from mmprobe.traces.capture import CaptureSpec


class AttentionRows(NamedTuple):
    """Attention of layers that have equal shapes.

    Attributes:
        weights: float32 [layer, sample, head, query, key]. The keys are the batch's tokens without the padding that all samples
            share, or the images' keys in cross-attention layers.
        has_cross_attention: whether these are cross-attention layers.
    """

    weights: Tensor
    has_cross_attention: bool = False


ByLayer = Mapping[int, Tensor]
"""What layers computed, each [sample, step, ...]. A layer that did not run is missing."""
ROWS_BYTES = {
    "cpu": 2**21,
    "cuda": 2**28,
}  # of what is reduced together; more would leave a processor's cache


class UnobservedChange(InputError, EndsRun):
    """Something changes the residual stream where no observer sees it. No trace of the run would be right."""


class SampleRecorder:
    """What is recorded of one sample, and where it is written.

    Args:
        writer: the writer of the sample's trace.

    Attributes:
        n_steps: number of steps recorded.
        gap: between reading and decoding the answer; None if it was not read.
        has_ended: whether the answer is complete; other answers of the batch may continue.
        kept: positions of the prompt that are recorded under `prompt/`.
        visual_keys: positions of the visual tokens among the prompt's or, with cross-attention, among the images' keys.
    """

    def __init__(self, model: Model, prompt: Prompt, spec: CaptureSpec, writer: BackgroundWriter):
        self.model, self.prompt, self.spec, self.writer = model, prompt, spec, writer
        self.layers = spec.layer_indices(model.n_layers)
        self.n_steps = 0
        self.gap: Gap | None = None
        self.has_ended = False
        self.has_cross_attention = prompt.visual_keys is not None
        self.visual_keys = prompt.visual_positions if prompt.visual_keys is None else prompt.visual_keys
        self.kept = spec.prompt_positions(prompt.group)
        self.prompt_post: tuple[int, Tensor] | None = None  # the newest layer's output [position, hidden]

    def write_prompt_residual(self, name: str, layer: int, values: Tensor) -> None:
        """Write one layer's residual stream at the prompt's tokens that are kept.

        Args:
            name: `pre`, `mid` or `post`.
            values: [kept position, hidden].

        Raises:
            UnobservedChange: `pre` is not `post` of the layer before.
        """
        if name == "post":
            self.prompt_post = layer, values
        elif name == "pre" and self.prompt_post and not self.model.family.adds_between_layers:
            previous, post = self.prompt_post
            _check_stream(self.model, post[:, None], values[:, None], [previous, layer])
        if len(values) and f"prompt/residual_{name}" in self.spec.stored:
            shape = (len(values), len(self.layers), values.shape[-1])
            selection = (slice(0, len(values)), self.layers.index(layer), slice(0, values.shape[-1]))
            self.writer.write_part(f"prompt/residual_{name}", values, selection, shape)

    def write_prompt_attention(self, layer: int, first: int, rows: AttentionRows) -> None:
        """Write one layer's attention of a block of the prompt's queries.

        Args:
            first: position of the block's first query.
            rows: the block's rows of this sample, on all keys of the prompt.
        """
        index, last = self.layers.index(layer), first + rows.weights.shape[3]
        start, end = np.searchsorted(self.kept, [first, last]).tolist()
        if end - start < last - first:
            own = torch.from_numpy(self.kept[start:end] - first).to(rows.weights.device)
            rows = rows._replace(weights=rows.weights[:, :, :, own])
        if start == end:
            return
        keys = KeyGroups(
            [self],
            self.prompt.padding + len(self.prompt.ids),
            "prompt/attention_visual_head" in self.spec.stored,
        )
        mass, visual, by_head = keys.reduce(rows)
        by_name: dict[str, Tensor] = {"mass": mass[0, 0, ..., :-1].transpose(0, 1), "visual": visual[0, 0]}
        if by_head is not None:
            by_name["visual_head"] = by_head[0, 0].transpose(0, 1)
        if not rows.has_cross_attention:
            by_name["row"] = keys.heads_of(rows.weights)[0, 0].transpose(0, 1)
        for name, values in by_name.items():
            if f"prompt/attention_{name}" in self.spec.stored:
                shape = (len(self.kept), len(self.layers), *values.shape[1:])
                selection = (slice(start, end), index, *(slice(0, n) for n in values.shape[1:]))
                self.writer.write_part(f"prompt/attention_{name}", values, selection, shape)


class KeyGroups:
    """Which keys of some samples are of which group, and which are visual tokens, to reduce attention rows by.

    Args:
        recorders: one a sample.
        end: number of the batch's tokens, with the padding, up to the last query.
        by_head: whether the weights on visual tokens are needed by head.
    """

    def __init__(self, recorders: Sequence[SampleRecorder], end: int, by_head: bool):
        first = recorders[0]
        self.heads = first.spec.head_indices(first.model.n_heads)
        self.records_all_heads = len(self.heads) == first.model.n_heads
        self.has_cross_attention, self.by_head = first.has_cross_attention, by_head
        paddings = np.array([each.prompt.padding for each in recorders])
        self.starts = (paddings - paddings.min()).tolist()  # of each prompt among the keys
        known = np.zeros((len(recorders), end - int(paddings.min()), len(Group) + 1), np.float32)
        self.n_visual = [len(each.visual_keys) for each in recorders]
        visual = []
        for row, (each, start) in enumerate(zip(recorders, self.starts, strict=True)):
            prompt = each.prompt
            groups = np.full(known.shape[1] - start, Group.GENERATED, np.intp)
            groups[: len(prompt.group)] = prompt.group
            known[row, start + np.arange(len(groups)), groups] = 1
            leading = int(prompt.visual_positions[0]) if len(prompt.visual_positions) else 0
            known[row, start : start + leading, -1] = 1
            offset = 0 if self.has_cross_attention else start
            visual.append(each.visual_keys + offset)
        self.membership = _to_device(
            torch.from_numpy(known), first.model.device
        )  # [sample, key, group + leading]
        self.visual = _to_device(_join_rows(visual), first.model.device)  # [sample, visual]
        self.lacks_visual: Tensor | None = None  # where a sample has fewer visual tokens than another
        if min(self.n_visual) < max(self.n_visual):
            counts = torch.tensor(self.n_visual, device=self.visual.device)
            self.lacks_visual = torch.arange(max(self.n_visual), device=counts.device) >= counts[:, None]
        self.index: Tensor | None = None  # `visual`, as large as what is gathered

    def heads_of(self, weights: Tensor) -> Tensor:
        """Return the recorded heads of [layer, sample, head, ...], NaN for those that a layer does not have."""
        return self._fill_heads(self._select_heads(weights))

    def _select_heads(self, weights: Tensor) -> Tensor:
        if self.records_all_heads:
            return weights
        return weights[:, :, [head for head in self.heads if head < weights.shape[2]]]

    def _fill_heads(self, values: Tensor) -> Tensor:
        missing = len(self.heads) - values.shape[2]
        if not missing:
            return values
        shape = (*values.shape[:2], missing, *values.shape[3:])
        return torch.cat([values, values.new_full(shape, torch.nan)], 2)

    def reduce(self, rows: AttentionRows) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the mass of layers, and their weights on visual tokens.

        Returns:
            The mass [layer, sample, head, query, group + leading]; the weights' mean over heads [layer, sample, query,
            visual]; the weights [layer, sample, head, query, visual] if they are needed by head, or else None.
        """
        weights = self._select_heads(rows.weights)
        layers, samples, heads, queries, keys = weights.shape
        if rows.has_cross_attention:
            mass = weights.new_zeros(*weights.shape[:-1], len(Group) + 1)
            mass[..., Group.VISUAL] = weights.sum(-1)
        else:
            membership = self.membership.to(weights.device)
            mass = (weights.reshape(layers, samples, -1, keys) @ membership).view(
                *weights.shape[:-1], len(Group) + 1
            )
            if self.has_cross_attention:  # a layer that sees the text only
                weights = weights.new_zeros(1, 1, 1, 1, 1).expand(*weights.shape[:-1], max(self.n_visual))
                return self._fill_heads(mass), weights[:, :, 0], weights if self.by_head else None
        mass = self._fill_heads(mass)
        if not self.by_head:
            return mass, self._take_visual(weights.mean(2)), None
        visual = self._take_visual(weights)
        return mass, visual.mean(2), self._fill_heads(visual)

    def _take_visual(self, weights: Tensor) -> Tensor:
        """Return weights [layer, sample, ..., key] at each sample's visual tokens."""
        shape = (*weights.shape[:-1], self.visual.shape[1])
        middle = (1,) * (weights.dim() - 3)
        if self.index is None or self.index.shape != shape or self.index.device != weights.device:
            index = self.visual.to(weights.device).view(1, len(self.visual), *middle, -1)
            self.index = index.expand(shape).contiguous()  # three times as fast as a small one
        taken = weights.gather(-1, self.index)
        if self.lacks_visual is not None:
            lacks = self.lacks_visual.to(weights.device).view(1, len(self.visual), *middle, -1)
            taken.masked_fill_(lacks, 0)
        return taken


def _join_rows(rows: Sequence[np.ndarray]) -> Tensor:
    """Return rows of whole numbers as one tensor, int64 [row, number]; shorter ones end with zeros.

    Example:
        >>> _join_rows([np.array([1, 2]), np.array([3])]).tolist()
        [[1, 2], [3, 0]]
    """
    joined = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for own, row in zip(joined, rows, strict=True):
        own[: len(row)] = row
    return torch.from_numpy(joined)


def _to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, without waiting for a GPU."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


class BatchReducer:
    """Reduces the internals of a batch's answers, a block of steps at a time, and passes them to the samples' writers.

    All samples are reduced together, and layers too where their shapes allow. So the number of operations grows with the layers
    alone, as long as what is reduced is smaller than `ROWS_BYTES`.

    Args:
        recorders: one a sample, in the order of the batch.

    Example:
        >>> reducer = BatchReducer(recorders)                                   # doctest: +SKIP
        >>> logprobs, _ = reducer.write_steps(token_ids, logits, [64, 12])      # doctest: +SKIP
        >>> reducer.write_residuals({"mid": {0: values}})                       # doctest: +SKIP
    """

    def __init__(self, recorders: Sequence[SampleRecorder]):
        self.recorders = recorders
        self.model, self.spec = recorders[0].model, recorders[0].spec
        self.layers, self.device = recorders[0].layers, self.model.device
        self.end = (
            max(each.prompt.padding + len(each.prompt.ids) for each in recorders) - 1
        )  # keys of the last query
        self.counts = [0] * len(recorders)  # how many steps of the present block belong to each answer
        self.steps = 0  # of the present block
        self.gate_sum: Tensor | None = None  # [sample, layer, neuron]

    def _split(self, sample_bytes: int) -> Iterator[slice]:
        """Yield rows that are reduced together, but those whose answers had ended before the block."""
        allowed = ROWS_BYTES.get(self.device.type, ROWS_BYTES["cpu"])
        size = max(1, allowed // max(sample_bytes, 1))
        for first in range(0, len(self.recorders), size):
            if any(self.counts[first : first + size]):
                yield slice(first, min(first + size, len(self.recorders)))

    def _write(self, name: str, values: Tensor, rows: slice = slice(None)) -> None:
        """Append a block of steps [sample, step, ...] to a data set of some rows, if the capture includes it."""
        if name in self.spec.stored or name.startswith("steps/"):
            _write_parts(name, values, self._parts(rows, lambda row, count: (row, slice(count))))

    def _parts(self, rows: slice, index: Callable[[int, int], tuple[Any, ...]]) -> list[TracePart]:
        """Return what each sample appends.

        Args:
            index: returns, for a row among `rows` and the number of its steps, where its values are.
        """
        writers = [each.writer for each in self.recorders[rows]]
        counts = enumerate(zip(writers, self.counts[rows], strict=True))
        return [
            TracePart(writer, index(row, count), writer.writer.append)
            for row, (writer, count) in counts
            if count
        ]

    def write_steps(self, token_ids: Tensor, logits: Tensor, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Begin a block of steps.

        Args:
            token_ids: the generated tokens [sample, step].
            logits: the logits that predicted them [sample, step, vocabulary].
            counts: how many of the steps belong to each answer; the others are of samples whose answers have ended.

        Returns:
            The tokens' log-probabilities, and the most likely tokens, [sample, step].
        """
        self.counts, self.steps = list(counts), max(counts)
        self.end += self.steps
        for recorder, count in zip(self.recorders, counts, strict=True):
            recorder.n_steps += count
        token_ids, logits = token_ids[:, : self.steps], logits[:, : self.steps]
        self._write("steps/id", token_ids)
        logprobs = logits.new_zeros(token_ids.shape, dtype=torch.float32)
        likeliest = torch.zeros_like(token_ids, device=logits.device)
        for rows in self._split(4 * self.steps * logits.shape[-1]):
            of_all = logits[rows].float().log_softmax(-1)
            logprobs[rows] = of_all.gather(2, token_ids[rows, :, None].to(of_all.device))[..., 0]
            likeliest[rows] = of_all.argmax(-1)
            self._write("steps/entropy", torch.special.entr(of_all.exp()).sum(-1), rows)
        self._write("steps/logprob", logprobs)
        return logprobs, likeliest

    def write_attention(
        self, rows_of: Callable[[slice, int], Iterator[AttentionRows | None]], queries: int
    ) -> None:
        """Write the attention of the block's queries. The rows of a few layers and samples exist at a time.

        Args:
            rows_of: yields, for some rows of the batch and a number of layers that may be together, the attention of the
                layers in their order; None for a layer that did not run.
            queries: number of queries of one sample's rows, the block's steps at most.
        """
        sample_bytes = 4 * self.model.n_heads * queries * self.end
        allowed = ROWS_BYTES.get(self.device.type, ROWS_BYTES["cpu"])
        for rows in self._split(sample_bytes):
            size = (rows.stop - rows.start) * sample_bytes
            self._write_rows(rows, rows_of(rows, max(1, allowed // max(size, 1))))

    def _write_rows(self, rows: slice, attention: Iterator[AttentionRows | None]) -> None:
        keys = KeyGroups(self.recorders[rows], self.end, "attention/visual_head" in self.spec.stored)
        shape = (len(keys.starts), self.steps, len(self.layers))
        heads, n_visual = len(keys.heads), max(keys.n_visual)

        def make(*more: int) -> Tensor:
            return torch.full((*shape, *more), torch.nan, device=self.device)

        mass = make(heads, len(Group) + 1)
        visual = {"attention/visual": make(n_visual)} if "attention/visual" in self.spec.stored else {}
        if keys.by_head:
            visual["attention/visual_head"] = make(heads, n_visual)
        first = 0
        for each in attention:
            last = first + (1 if each is None else len(each.weights))
            if each is not None:
                own, mean, by_head = keys.reduce(each)
                mass[:, :, first:last] = own.permute(1, 3, 0, 2, 4)
                if "attention/visual" in visual:
                    visual["attention/visual"][:, :, first:last] = mean.permute(1, 2, 0, 3)
                if by_head is not None:
                    visual["attention/visual_head"][:, :, first:last] = by_head.permute(1, 3, 0, 2, 4)
                if "attention/row" in self.spec.stored and not each.has_cross_attention:
                    self._write_whole_rows(rows, first, keys, each.weights)
            first = last
        self._write("attention/mass", mass[..., :-1], rows)
        self._write("attention/leading", mass[..., -1], rows)
        for name, values in visual.items():
            _write_parts(
                name,
                values,
                self._parts(rows, lambda row, count: (row, slice(count), ..., slice(keys.n_visual[row]))),
            )

    def _write_whole_rows(self, rows: slice, first: int, keys: KeyGroups, weights: Tensor) -> None:
        """Write the rows [layer, sample, head, step, key] of layers, without the padding, a layer at a time."""
        weights, parts = keys.heads_of(weights), []
        for row, (recorder, count) in enumerate(zip(self.recorders[rows], self.counts[rows], strict=True)):
            end = len(recorder.prompt.ids) + recorder.n_steps - 1
            for layer in range(len(weights) if count else 0):
                steps = slice(recorder.n_steps - count, recorder.n_steps)
                selection = (steps, first + layer, slice(None), slice(0, end))
                shape = (recorder.n_steps, len(self.layers), len(keys.heads), end)
                write = partial(_write_transposed, recorder.writer.writer, selection, shape)
                own = slice(keys.starts[row], keys.starts[row] + end)
                parts.append(TracePart(recorder.writer, (layer, row, slice(None), slice(count), own), write))
        _write_parts("attention/row", weights, parts)

    def write_residuals(self, residuals: Mapping[str, ByLayer]) -> None:
        """Write the residual stream, and what each layer does to it.

        Args:
            residuals: by `pre`, `mid` and `post` (before, within and after the layer).

        Raises:
            UnobservedChange: a layer's `post` is not the next layer's `pre`.
        """
        width = next(iter(next(iter(residuals.values())).values())).shape[-1]
        for rows in self._split(4 * self.steps * len(self.layers) * width):
            own = {name: self._join_layers(by_layer, rows) for name, by_layer in residuals.items()}
            if "pre" in own and "post" in own:
                _check_stream(self.model, own["post"][:, :, :-1], own["pre"][:, :, 1:], self.layers)
            for name, values in own.items():
                self._write(f"residual/{name}", values, rows)
            if self.spec.wants("update/"):
                pre, mid, post = (own[name].float() for name in ("pre", "mid", "post"))
                attention, ffn = (mid - pre).log_softmax(-1), (post - mid).log_softmax(-1)
                self._write("update/cos_mha", F.cosine_similarity(pre, mid, dim=-1), rows)
                self._write("update/cos_ffn", F.cosine_similarity(mid, post, dim=-1), rows)
                self._write("update/kl", (attention.exp() * (attention - ffn)).sum(-1), rows)

    def write_gates(self, by_layer: ByLayer) -> None:
        """Write which neurons are active, and add act(gate) to its sum."""
        width = self.model.n_neurons
        if self.gate_sum is None:
            first = next(iter(by_layer.values()))
            shape = (len(self.recorders), len(self.layers), width)
            self.gate_sum = torch.zeros(shape, device=first.device)
            begins = "ffn/gate_first" in self.spec.stored
        else:
            begins = False
        for rows in self._split(4 * self.steps * len(self.layers) * width):
            gates = self._join_layers(by_layer, rows, width)
            if begins:
                self._write_whole("ffn/gate_first", gates[:, 0].float(), rows)
            self._write("ffn/active", gates > 0, rows)
            if min(self.counts[rows]) < self.steps:
                counts = torch.tensor(self.counts[rows], device=gates.device)
                ended = torch.arange(self.steps, device=gates.device) >= counts[:, None]
                gates = gates.masked_fill(ended[..., None, None], 0)
            self.gate_sum[rows] += gates.sum(1, dtype=torch.float32)

    def _write_whole(self, name: str, values: Tensor, rows: slice = slice(None)) -> None:
        """Write a data set [sample, ...] of some rows as a whole."""
        writers = [each.writer for each in self.recorders[rows]]
        _write_parts(
            name, values, [TracePart(each, (row,), each.writer.write) for row, each in enumerate(writers)]
        )

    def write_tam(self, states: Tensor, token_ids: Tensor) -> None:
        """Write the logit of each step's token at every position up to its query, and NaN after it.

        Args:
            states: the input of the unembedding [sample, position, hidden], at all positions up to the last query, with the
                padding.
            token_ids: the generated tokens [sample, step].
        """
        weight = read_weight(self.model.hf.get_output_embeddings())
        rows = weight[token_ids[:, : self.steps].to(weight.device)]
        logit = (rows @ states[:, : self.end].to(weight.device).transpose(1, 2)).float().to(self.device)
        positions = torch.arange(self.end, device=self.device)
        hidden = positions > positions[self.end - self.steps :, None]
        logit.masked_fill_(hidden, torch.nan)
        paddings = [each.prompt.padding for each in self.recorders]
        if any(paddings):
            logit.masked_fill_(
                positions < torch.tensor(paddings, device=self.device)[:, None, None], torch.nan
            )

        def place(row: int, count: int) -> tuple[Any, ...]:
            return row, slice(count), slice(paddings[row], self.end - self.steps + count)

        if "tam/logit" in self.spec.stored:
            _write_parts("tam/logit", logit, self._parts(slice(None), place))

    def finish(self, states: Tensor | None) -> None:
        """Write the data sets of the answers as a whole.

        Args:
            states: the input of the unembedding [sample, position, hidden], at all positions of the prompts at least, with the
                padding; only `tam/prompt` needs it.
        """
        if "ffn/gate_sum" in self.spec.stored and self.gate_sum is not None:
            self._write_whole("ffn/gate_sum", self.gate_sum)
        if "tam/prompt" in self.spec.stored and states is not None:
            prompts = [each.prompt for each in self.recorders]
            users = [np.flatnonzero(prompt.group == Group.USER) for prompt in prompts]
            ids = _join_rows([prompt.ids[user] for prompt, user in zip(prompts, users, strict=True)])
            seen = _join_rows([prompt.visual_positions + prompt.padding for prompt in prompts])
            weight = read_weight(self.model.hf.get_output_embeddings())
            samples = torch.arange(len(prompts), device=states.device)[:, None]
            visual = states[samples, _to_device(seen, states.device)].to(weight.device)
            values = weight[_to_device(ids, weight.device)] @ visual.transpose(1, 2)
            parts = [
                TracePart(
                    each.writer,
                    (row, slice(len(user)), slice(len(each.prompt.visual_positions))),
                    each.writer.writer.write,
                )
                for row, (each, user) in enumerate(zip(self.recorders, users, strict=True))
            ]
            _write_parts("tam/prompt", values, parts)

    def _join_layers(self, by_layer: ByLayer, rows: slice, width: int | None = None) -> Tensor:
        """Return the block's steps of some rows as one tensor [sample, step, layer, ...].

        It is NaN where a captured layer did not run, or is narrower than others.

        Args:
            width: size of the last dimension; None where all layers have the same.
        """
        parts = [by_layer[layer][rows, : self.steps] if layer in by_layer else None for layer in self.layers]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts) and all(
            part.shape[-1] in (width, None) or width is None for part in known
        ):
            return torch.stack(known, 2)
        shape = (*known[0].shape[:2], len(parts), *known[0].shape[2:-1], width or known[0].shape[-1])
        joined = known[0].new_full(shape, torch.nan)
        for index, part in enumerate(parts):
            if part is not None:
                joined[:, :, index, ..., : part.shape[-1]] = part
        return joined


def _check_stream(model: Model, post: Tensor, pre: Tensor, layers: list[int]) -> None:
    """Check that a layer's output is what the next layer reads, unless a pre-hook of the user changes it.

    Layers that did not run are NaN.

    Args:
        post: resid_post of all but the last layer [..., layer, hidden].
        pre: resid_pre of all but the first layer, of the same shape.

    Raises:
        UnobservedChange: it is not.
    """
    if torch.equal(post, pre):  # takes a fifth of the time
        return
    decoder_layers = model.family.decoder(model.hf).layers
    differs = ((post - pre).abs() > 0).any(-1).flatten(0, -2).any(0).tolist()
    for first, second, differ in zip(layers[:-1], layers[1:], differs, strict=True):
        if differ and second == first + 1 and not has_forward_pre_hooks(decoder_layers[second]):
            raise UnobservedChange(
                f"layer {first}: its resid_post is not resid_pre of layer {second}, since something that is "
                "no torch hook changes the residual stream between them; remove it, or leave residual/ and "
                "update/ out of the capture"
            )


def _write_transposed(
    writer: TraceWriter, selection: Selection, shape: tuple[int, ...], name: str, values: np.ndarray
) -> None:
    """Write a layer's rows [head, step, key] where they are [step, head, key]."""
    writer.write_part(name, values.swapaxes(0, 1), selection, shape)


QUEUE_SIZE = 16  # calls that may wait for the disk
_IDLE_SECONDS = 0.25  # without a call, after which memory is given back
_BUSY_SECONDS = 5.0  # of calls without a pause, after which it is, too; our choice


class WritingFailed(RuntimeError, EndsRun):
    """Writing failed for a reason other than the disk; the cause has the details."""


class WriterThread:
    """A thread that makes the calls submitted to it, in order.

    It works for 7 ms of Python and HDF5 a trace, in which the model's thread launches nothing; large arrays are written without
    Python's lock. A process would leave 0.7 ms of them, for 11 ms of another core a trace and 0.7 s for its start.

    Once a call fails, no later call is made, and every later `submit` raises the error.

    Example:
        >>> with WriterThread() as thread:
        ...     thread.submit(print, "written")
        written
    """

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[Callable[..., None], tuple[Any, ...]] | None] = queue.Queue(QUEUE_SIZE)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="mmprobe-writer", daemon=True)
        self.streams: dict[torch.device, torch.cuda.Stream] = {}

    def __enter__(self) -> WriterThread:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.calls.put(None)
        self.thread.join()
        if kind is None:
            self.check()

    def submit(self, function: Callable[..., None], *arguments: Any) -> None:
        """Queue a call. Tensors among the arguments are copied to the host, without waiting for the copies.

        Raises:
            OSError: the disk refused an earlier call.
            WritingFailed: an earlier call failed for another reason.
        """
        self.check()
        self.calls.put((function, tuple(self._copy_to_host(value) for value in arguments)))

    def wait(self) -> None:
        """Wait until every queued call has been made, or skipped after an error."""
        self.calls.join()

    def check(self) -> None:
        """Raise the error of a call that failed, as `submit` does."""
        error = self.error  # is kept: calls queued after the one that failed must not be made
        if isinstance(error, OSError):
            raise error
        if error is not None:
            raise WritingFailed(f"writing failed ({type(error).__name__}: {error})") from error

    def _run(self) -> None:
        given_back = time.monotonic()
        while True:
            is_idle = False
            try:
                call = self.calls.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                is_idle = True
            if is_idle or time.monotonic() - given_back > _BUSY_SECONDS:
                given_back = time.monotonic()
                with suppress(OSError):
                    give_back_memory()
            if is_idle:
                continue
            try:
                if call is None:
                    return
                if self.error is None:
                    _make_call(*call)
            except BaseException as error:
                self.error = error
            finally:
                call = None  # frees its tensors before the thread waits for the next call
                self.calls.task_done()

    def _copy_to_host(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.device.type != "cuda":
            return value.cpu()
        if value.device not in self.streams:
            self.streams[value.device] = torch.cuda.Stream(value.device)
        stream = self.streams[value.device]
        stream.wait_stream(torch.cuda.current_stream(value.device))
        with torch.cuda.stream(stream):
            pinned = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            pinned.copy_(value, non_blocking=True)
            value.record_stream(stream)
            return _PendingCopy(pinned, stream.record_event())


class _PendingCopy:
    """A tensor on its way to the host."""

    def __init__(self, tensor: Tensor, arrived: torch.cuda.Event):
        self.tensor, self.arrived = tensor, arrived

    def wait(self) -> Tensor:
        """Return the tensor once it has arrived."""
        self.arrived.synchronize()
        return self.tensor


def _make_call(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    function(*(value.wait() if isinstance(value, _PendingCopy) else value for value in arguments))


class BackgroundWriter:
    """A `TraceWriter` that takes tensors and writes them in a `WriterThread`."""

    def __init__(self, writer: TraceWriter, thread: WriterThread):
        self.writer, self.thread = writer, thread

    def append(self, name: str, values: Tensor) -> None:
        """Add a block of steps to a data set whose first dimension is `step`."""
        _write_parts(name, values, [TracePart(self, (), self.writer.append)])

    def write(self, name: str, values: Tensor) -> None:
        """Write a whole data set."""
        _write_parts(name, values, [TracePart(self, (), self.writer.write)])

    def write_part(self, name: str, values: Tensor, selection: Selection, shape: tuple[int, ...]) -> None:
        """Write a part of a data set that has at least this shape."""

        def write(name: str, host: np.ndarray) -> None:
            self.writer.write_part(name, host, selection, shape)

        _write_parts(name, values, [TracePart(self, (), write)])


class TracePart(NamedTuple):
    """What one trace gets of a tensor.

    Attributes:
        place: where in the tensor it is.
        write: a method of the writer's `TraceWriter`, which takes the name of the data set and the values.
    """

    writer: BackgroundWriter
    place: tuple[Any, ...]
    write: Callable[[str, np.ndarray], None]


def _write_parts(name: str, values: Tensor, parts: Sequence[TracePart]) -> None:
    """Copy a tensor to the host once, and queue the writing of its parts.

    Values for a float16 data set are rounded on the model's device, so that less is copied. A part's original values are
    written if rounding loses their precision, or if the data set is float32 by then.
    """
    if not parts:
        return
    thread = parts[0].writer.thread
    narrow = any(part.writer.writer.is_float16(name) for part in parts)
    if not narrow or not values.is_floating_point() or values.dtype == torch.float16:

        def write_all(host: Tensor) -> None:
            for part in parts:
                part.write(name, _to_disk(name, host[part.place]))

        thread.submit(write_all, values)
        return

    def write_rounded(host: Tensor, lost: Tensor) -> None:
        for part in parts:
            keeps = part.writer.writer.is_float16(name) and not bool(lost[part.place[: lost.dim()]].any())
            part.write(name, _to_disk(name, host[part.place] if keeps else values[part.place].cpu()))

    rounded = values.half()
    thread.submit(write_rounded, rounded, lost_rows(values.float(), rounded))


def _to_disk(name: str, values: Tensor) -> np.ndarray:
    """Return a tensor on the host as the numpy array that the format stores; float16 stays float16.

    Example:
        >>> _to_disk("residual/mid", torch.tensor([[[0.1]]], dtype=torch.bfloat16)).dtype
        dtype('float32')
    """
    if name == "ffn/active":
        return np.packbits(values.numpy(), axis=-1)
    if not values.is_floating_point():
        return values.numpy().astype(VARIABLES[name].dtype)
    return (values if values.dtype == torch.float16 else values.float()).numpy()


_MARGIN_KB = 2**13  # memory returned far below the peak would have to be taken and cleared again


def give_back_memory(below_peak: bool = False) -> None:
    """Return freed memory to the system, if the process is about as large as it ever was.

    Recording keeps small tensors that are between large temporary ones. glibc cannot join the freed memory
    around them, so the process would take new memory for the next large tensors and grow. On systems without
    glibc this does nothing.

    Args:
        below_peak: return it however large the process is: after work that is seldom done.

    Example:
        >>> give_back_memory()
    """
    if _trim is None:
        return
    if below_peak:
        _trim(0)
        return
    sizes = dict(re.findall(r"(VmHWM|VmRSS):\s+(\d+) kB", Path("/proc/self/status").read_text()))
    if "VmHWM" in sizes and int(sizes["VmRSS"]) + _MARGIN_KB > int(
        sizes["VmHWM"]
    ):  # not every kernel has VmHWM
        _trim(0)


def _find_malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # no glibc
        return None


_trim = _find_malloc_trim()
