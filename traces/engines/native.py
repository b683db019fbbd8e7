"""The native engine: record while the model generates with its own fast kernel.

Each step only keeps what the forward pass computed for its queries; every `BLOCK_STEPS` steps
are reduced together and written. Keys of earlier positions never change, so the softmax rows of
a block of queries can be computed at its end; one layer's block of rows is all of the attention
that ever exists at once. Some devices run one forward pass past the end of an answer; what it
left is dropped, since a block is as long as its tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.models import Batch, Model
from mmprobe.models.attention import AttentionCall, observe_attention
from mmprobe.models.hooks import observe
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.keys import Keys, prompt_rows
from mmprobe.traces.recorder import Rows, SampleRecorder
from mmprobe.traces.vision import watching_vision, write_patch_positions


class Recorder(StoppingCriteria):
    """Collects a batch's internals and hands them to its lanes, a block of steps at a time.

    It is a stopping criterion that never stops: transformers calls it once a step, with the
    tokens so far.
    """

    def __init__(self, model: Model, lanes: Sequence[SampleRecorder], spec: CaptureSpec):
        self.model, self.lanes, self.spec = model, lanes, spec
        decoder = model.family.decoder(model.hf)
        self.norm, self.layers = decoder.norm, spec.layer_indices(model.n_layers)
        self.modules = {layer: decoder.layers[layer] for layer in self.layers}
        self.parts = {layer: model.family.parts(module) for layer, module in self.modules.items()}
        self.length = lanes[0].prompt.padding + len(lanes[0].prompt.ids)  # of the padded prompt
        self.done = 0  # steps handed over
        self.ids: Tensor | None = None  # [batch, token], None until the prompt has been read
        self.keys = {layer: Keys(self.parts[layer].has_cross_attention) for layer in self.layers}
        self.passes = Passes()
        self.logits: list[Tensor] = []  # each [batch, 1, vocabulary]
        self.normed: list[Tensor] = []  # each [batch, position, hidden]

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        self.ids = input_ids
        if len(self.logits) == BLOCK_STEPS:
            self.flush(input_ids.shape[1])
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Listeners and observers in place within the block, and gone after it."""
        spec, observers = self.spec, {}
        with ExitStack() as listeners:
            for layer, module in self.modules.items():
                parts = self.parts[layer]
                if spec.wants("attention/", "prompt/attention"):
                    observers[parts.attention] = self._observer(layer)
                if spec.wants("residual/", "update/", "prompt/residual"):
                    pre, mid, post = (self._residual(name, layer) for name in ("pre", "mid", "post"))
                    listeners.enter_context(observe(module, pre, post))
                    listeners.enter_context(observe(parts.mid, inputs=mid))
                if spec.wants("ffn/") and parts.activation is not None:
                    keep = partial(self.passes.keep, "gate", layer)
                    listeners.enter_context(observe(parts.activation, outputs=keep))
            listeners.enter_context(observe(self.model.hf, outputs=self._keep_logits))
            if spec.wants("tam/"):
                listeners.enter_context(observe(self.norm, outputs=self.normed.append))
            text_config = self.model.hf.config.get_text_config()
            listeners.enter_context(observe_attention([text_config], observers))
            if spec.wants("vision/"):
                listeners.enter_context(watching_vision(self.model, self.lanes[0]))
            yield

    def _keep_logits(self, output: Any) -> None:
        self.logits.append(_last(output.logits))
        self.passes.end()

    def _residual(self, name: str, layer: int) -> Callable[[Tensor], None]:
        for_steps = self.spec.wants("residual/", "update/")
        for_prompt = f"prompt/residual_{name}" in self.spec.stored

        def keep(values: Tensor) -> None:
            if for_prompt and self.ids is None:
                for row, lane in enumerate(self.lanes):
                    lane.prompt_residual(name, layer, values[row, lane.prompt.padding :].clone())
            if for_steps:
                self.passes.keep(name, layer, values)

        return keep

    def _observer(self, layer: int) -> Callable[[AttentionCall], None]:
        keys = self.keys[layer]
        for_steps = self.spec.wants("attention/")
        for_prompt = self.spec.wants("prompt/attention")

        def observe(call: AttentionCall) -> None:
            if for_prompt and self.ids is None:
                for row, lane in enumerate(self.lanes):
                    for first, rows in prompt_rows(call, row, lane.prompt.padding, keys.has_cross_attention):
                        lane.prompt_attention(layer, first, rows)
            if for_steps:
                query = call.query.transpose(1, 2)  # those of other sizes cannot stand in one tensor
                self.passes.keep(f"query {tuple(query.shape[2:])}", layer, query)
                keys.see(call)

        return observe

    def flush(self, length: int) -> None:
        """Hand over the steps gathered since the last call.

        Args:
            length: number of tokens so far, padding and the newest generated one included.
        """
        first = self.length + self.done
        steps = length - first
        if steps <= 0 or self.ids is None:
            return
        chosen = self.ids[:, first:length]
        logits = torch.cat(self.logits[:steps], 1)
        taken = self.passes.take(steps)
        queries = {
            layer: part[:, :, index]
            for name, (layers, part) in taken.items()
            if name.startswith("query")
            for index, layer in enumerate(layers)
        }
        wide = {
            name: self._every_layer(*taken[name]) for name in ("pre", "mid", "post", "gate") if name in taken
        }
        gates = wide.pop("gate", None)
        if self.normed:
            self.normed[:] = [torch.cat(self.normed, 1)[:, : length - 1]]
        for row, (lane, count) in enumerate(zip(self.lanes, self._lasting(chosen), strict=True)):
            if not count:
                continue
            lane.steps(chosen[row, :count], logits[row, :count])
            if self.spec.wants("attention/"):
                lane.attention(partial(self._rows, queries, row, count), count)
            if wide:
                lane.residuals({name: values[row, :count] for name, values in wide.items()})
            if gates is not None:
                lane.gates(gates[row, :count])
            if "tam/logit" in self.spec.stored:
                last = length - 1 - steps + count
                lane.tam(self.normed[0][row, lane.prompt.padding : last], chosen[row, :count])
        self.logits.clear()
        for keys in self.keys.values():
            keys.advance()
        self.done += steps

    def _rows(self, queries: dict[int, Tensor], row: int, count: int, layer: int) -> Rows | None:
        if layer not in queries:
            return None
        return self.keys[layer].rows(
            queries[layer][row, :count].transpose(0, 1),
            row,
            self.length + self.done - 1,
            self.lanes[row].prompt.padding,
        )

    def _lasting(self, chosen: Tensor) -> list[int]:
        """How many of these steps belong to each lane's answer, which ends with its first end-of-sequence token."""
        ends, counts = self.model.eos_token_ids, []
        for lane, ids in zip(self.lanes, chosen.tolist(), strict=True):
            at = next((step for step, token in enumerate(ids) if token in ends), None)
            counts.append(0 if lane.ended else len(ids) if at is None else at + 1)
            lane.ended = lane.ended or at is not None
        return counts

    def _every_layer(self, layers: list[int], part: Tensor) -> Tensor:
        """[batch, step, layer, ...] with NaN for layers that did not run."""
        if layers == self.layers:
            return part
        whole = part.new_full((*part.shape[:2], len(self.layers), *part.shape[3:]), torch.nan)
        whole[:, :, [self.layers.index(layer) for layer in layers]] = part
        return whole

    def finish(self, length: int) -> None:
        """Hand over the last block and what belongs to the answers as a whole."""
        self.flush(length)
        for row, lane in enumerate(self.lanes):
            lane.finish(self.normed[0][row, lane.prompt.padding :] if self.normed else None)


def record(
    model: Model, batch: Batch, lanes: Sequence[SampleRecorder], spec: CaptureSpec, generate: dict[str, Any]
) -> Tensor:
    """Generate answers and record them.

    Args:
        generate: options of transformers' `generate`.

    Returns:
        int64 [batch, token], as `model.hf.generate(**batch.inputs, **generate)` returns it.
    """
    recorder = Recorder(model, lanes, spec)
    with torch.inference_mode(), recorder.watching():
        output = model.hf.generate(
            **batch.inputs, **generate, stopping_criteria=StoppingCriteriaList([recorder])
        )
        recorder.finish(output.shape[1])
    if spec.wants("vision/") and lanes[0].prompt.views:
        write_patch_positions(model, batch.inputs, lanes[0])
    return output


class Passes:
    """What layers compute at the last position of each forward pass, as one tensor a pass and name.

    Many small tensors that stay would leave the allocator little to use again, which costs more than to join them.
    """

    def __init__(self) -> None:
        self.latest: dict[str, dict[int, Tensor]] = defaultdict(dict)  # of the pass under way, by layer
        self.joined: dict[str, list[Tensor]] = defaultdict(list)  # each [batch, 1, layer, ...]
        self.layers: dict[str, list[int]] = {}  # that ran

    def keep(self, name: str, layer: int, values: Tensor) -> None:
        """Note a layer's values [batch, position, ...]."""
        self.latest[name][layer] = _last(values)

    def end(self) -> None:
        """End a forward pass."""
        for name, found in self.latest.items():
            self.layers[name] = list(found)
            self.joined[name].append(torch.stack(list(found.values()), 2))
        self.latest.clear()

    def take(self, steps: int) -> dict[str, tuple[list[int], Tensor]]:
        """Layers and values [batch, step, layer, ...] of the first passes by name; then begin anew."""
        found = {}
        for name in list(self.joined):
            found[name] = self.layers[name], torch.cat(self.joined.pop(name)[:steps], 1)
        return found


def _last(values: Tensor) -> Tensor:
    """The last position of [batch, position, ...], copied where a view would keep a whole prompt alive."""
    return values if values.shape[1] == 1 else values[:, -1:].clone()
