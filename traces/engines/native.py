"""The native engine: let the model answer at full speed, then read the answer once more and look.

Reading is a forward pass over the answer's tokens, which are known by then, from the key-value cache that generation
left (`models/reading.py`). Its observers see all steps of a block at once, so looking takes a few calls a layer for
`BLOCK_STEPS` tokens. Given answers are read in the pass of their prompts. A cache that cannot be cut back is of no use: there,
prompt and answer are read as a whole. Where an answer cannot be read afterwards (`find_way` in `traces/engines`), the same
observers look while the model decodes: a decoding step is a reading of one token.

Of each pass, only what it computed for the answer's queries is kept, and reduced a block at a time. The keys of
earlier positions never change, so attention rows are computed from queries and keys at the end of a block, for growing,
sliding and cross-attention caches, and the rows of one layer and one block exist at a time. The vision encoder is
recorded while it runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, StaticCache, StoppingCriteria, StoppingCriteriaList

from mmprobe.cache.schema import BLOCK_STEPS
from mmprobe.models import Batch, Model
from mmprobe.models.attention import AttentionCall, Observer, attention_scores, mask_scores, observe_attention
from mmprobe.models.compiled import to_dynamic, use_compiled
from mmprobe.models.devices import is_dispatched
from mmprobe.models.hooks import Listener, find_hooked_module, observe
from mmprobe.models.points import Point, observe_points
from mmprobe.models.reading import AnswerReader, DecodedLogprobs, ForcedTokens, SharedStart, pass_length
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.recorder import AttentionRows, BatchReducer, ByLayer, SampleRecorder

RecordedName = str | tuple[str, torch.Size]  # of what is recorded; queries and gates have one name a shape


def longest_pass(device: str, rows: int) -> int:
    """Return how many steps one pass over answers reads at most.

    They are more on a GPU, which pays for each pass, where the batch is small enough for its memory.

    Args:
        device: its type.
        rows: of the batch.

    Example:
        >>> longest_pass("cuda", 1), longest_pass("cuda", 8), longest_pass("cpu", 1)
        (256, 64, 64)
    """
    return BLOCK_STEPS * (max(1, 4 // rows) if device == "cuda" else 1)


def record(
    model: Model,
    batch: Batch,
    recorders: Sequence[SampleRecorder],
    spec: CaptureSpec,
    generate: dict[str, Any],
    start: SharedStart | None = None,
    way: str = "decoded",
    answers: Sequence[Sequence[int]] | None = None,
    compiled: bool = False,
) -> Tensor:
    """Generate the answers of a batch, unless they are given, and record them.

    Args:
        recorders: one recorder a sample, in the order of the batch.
        generate: arguments of transformers' `generate`.
        start: where the model starts, if the beginnings of the prompts have been read already.
        way: the name of a `Way`: `read`, `whole` or `decoded`.
        answers: token ids of given answers, for each sample; None to generate them.
        compiled: whether to decode with compiled layers; only where answers are read afterwards, from the cache.

    Returns:
        int64 [batch, token], as `model.hf.generate(**batch.inputs, **generate)` returns it.
    """
    recorder = BatchRecorder(model, recorders, spec, answers)
    if start is not None and start.states is not None and spec.wants("tam/"):
        recorder.normed.append(start.states)
    inputs = batch.inputs if start is None else start.inputs
    with torch.inference_mode():
        if way == "decoded":
            output = recorder.decode(inputs, generate)
        else:
            output = recorder.read(inputs, generate, way == "whole", compiled)
    if spec.wants("vision/") and recorders[0].prompt.views:
        _write_patch_positions(model, batch.inputs, recorders[0])
    return output


class BatchRecorder(StoppingCriteria):
    """Collects a batch's internals, and passes them to the samples' recorders a block of steps at a time.

    It is a stopping criterion that never stops, because transformers calls stopping criteria once a step with
    all tokens so far.
    """

    def __init__(
        self,
        model: Model,
        recorders: Sequence[SampleRecorder],
        spec: CaptureSpec,
        answers: Sequence[Sequence[int]] | None = None,
    ):
        self.model, self.recorders, self.spec, self.answers = model, recorders, spec, answers
        self.reducer = BatchReducer(recorders)
        decoder = model.family.decoder(model.hf)
        self.norm = model.family.final_norm(model.hf)
        self.layers = spec.layer_indices(model.n_layers)
        self.parts = {layer: model.family.parts(decoder.layers[layer]) for layer in self.layers}
        self.prompt_length = recorders[0].prompt.padding + len(recorders[0].prompt.ids)  # padding included
        self.n_steps = 0  # steps passed on
        self.ids: Tensor | None = None  # [batch, token]; None until the forward pass of the prompt is over
        self.keys = {layer: LayerKeys(self.parts[layer].has_cross_attention) for layer in self.layers}
        self.has_hooks = find_hooked_module(model.hf) is not None
        self.buffer = ForwardPassBuffer(self.has_hooks, model.device if is_dispatched(model.hf) else None)
        self.logits: list[Tensor] = []  # each [batch, step, vocabulary]
        self.normed: list[Tensor] = []  # each [batch, position, hidden]
        self.decoded: DecodedLogprobs | None = None  # of answers that are read

    def decode(self, inputs: Mapping[str, Any], generate: Mapping[str, Any]) -> Tensor:
        """Decode the answers, and record each step."""
        options = dict(generate)
        if self.answers is not None:
            forced = ForcedTokens(self._pad_answers(), self.prompt_length)
            options["logits_processor"] = [*options.get("logits_processor", ()), forced]
            options |= {"max_new_tokens": forced.answers.shape[1], "do_sample": False}
        with self.install_hooks(), self._record_vision():
            output = self.model.hf.generate(
                **inputs, **options, stopping_criteria=StoppingCriteriaList([self])
            )
        self.finish(output.shape[1])
        return output

    def read(
        self, inputs: Mapping[str, Any], generate: Mapping[str, Any], whole: bool, compiled: bool = False
    ) -> Tensor:
        """Generate the answers or take the given ones, and read them, from the cache of the prompts or as a whole."""
        cache = None if whole else inputs.get("past_key_values") or DynamicCache()
        if self.answers is None:
            self.ids, cache = self._generate(inputs, generate, cache, compiled)
        else:  # their prompts are read in the first pass over the answers
            self.ids = torch.cat([inputs["input_ids"], self._pad_answers()], 1)
        steps = self.ids.shape[1] - self.prompt_length
        length = min(steps, longest_pass(self.model.device.type, len(self.ids)))
        if cache is not None:  # else the logits take less than a pass over the prompts
            length = pass_length(self.model, len(self.ids), length)
        reader = AnswerReader(self.model, inputs, self.ids, self.prompt_length, cache)
        reads_prompts = self.answers is not None
        if reads_prompts and cache is not None and not reader.n_cached and self._answers_have_visual_tokens():
            with self._observe_prompts():
                reader.read(0)
            reads_prompts = False
        with self.install_hooks():
            for first in range(0, steps, length):
                self.buffer.width = min(length, steps - first)
                for keys in self.keys.values():
                    keys.begin_pass(self.buffer.width)
                with self._record_vision() if reads_prompts and not first else nullcontext():
                    reader.read(self.buffer.width)
                self.flush(self.prompt_length + first + self.buffer.width)
        self.finish(self.ids.shape[1])
        return self.ids

    def _generate(
        self,
        inputs: Mapping[str, Any],
        generate: Mapping[str, Any],
        cache: DynamicCache | None,
        compiled: bool,
    ) -> tuple[Tensor, DynamicCache | None]:
        """Generate the answers; return them with their prompts, [batch, token], and the cache that is left, if one is given."""
        inputs = inputs if cache is None else {**inputs, "past_key_values": cache}
        answering = self.model.family.answering(self.model.hf)
        with ExitStack() as of_prompts, use_compiled(self.model, inputs, generate, compiled) as options:
            of_prompts.enter_context(self._observe_prompts())
            self.decoded = DecodedLogprobs(of_prompts.close)
            with observe(answering, outputs=self.decoded.keep_logits):
                ids = self.model.hf.generate(
                    **options, stopping_criteria=StoppingCriteriaList([self.decoded])
                )
        used = options.get("past_key_values")
        return ids, to_dynamic(used, ids.shape[1] - 1) if isinstance(used, StaticCache) else cache

    def _pad_answers(self) -> Tensor:
        """Return the given answers, [batch, step]; shorter ones end with end-of-sequence tokens."""
        assert self.answers is not None
        longest, end = max(map(len, self.answers)), min(self.model.eos_token_ids, default=0)
        padded = [[*answer, *[end] * (longest - len(answer))] for answer in self.answers]
        return torch.tensor(padded, device=self.model.device)

    def _answers_have_visual_tokens(self) -> bool:
        """Return whether a given answer has tokens that stand for images in its prompt: the model would take them for more."""
        visual = [set(each.prompt.ids[each.prompt.visual_positions].tolist()) for each in self.recorders]
        return any(ids.intersection(answer) for ids, answer in zip(visual, self.answers or (), strict=True))

    @contextmanager
    def _observe_prompts(self) -> Iterator[None]:
        """Within the block, observe what the capture needs of the prompts' pass."""
        states = observe(self.norm, outputs=self._add_prompt_states)
        with self._record_vision(), states if self.spec.wants("tam/") else nullcontext():
            yield

    def _record_vision(self) -> AbstractContextManager[None]:
        return record_vision(self.model, self.recorders[0]) if self.spec.wants("vision/") else nullcontext()

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        self.ids = input_ids
        if len(self.logits) == BLOCK_STEPS:
            self.flush(input_ids.shape[1])
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    @contextmanager
    def install_hooks(self) -> Iterator[None]:
        """Within the block, observe what the capture needs of the model."""
        spec, observers = self.spec, dict[Point, Listener]()
        for layer in self.layers:
            if spec.wants("attention/", "prompt/attention"):
                observers["call", layer] = self._attention_observer(layer)
            if spec.wants("residual/", "update/", "prompt/residual"):
                for point, name in (("residual", "pre"), ("resid_mid", "mid"), ("resid_post", "post")):
                    observers[point, layer] = self._residual_listener(name, layer)
            if spec.wants("ffn/"):
                observers["gate", layer] = partial(self._add_gate, layer)
        if spec.wants("tam/"):
            observers["normed", -1] = self._add_normed
        answering = self.model.family.answering(self.model.hf)
        with observe(answering, outputs=self._add_logits), observe_points(self.model, observers):
            yield

    def _add_logits(self, output: Any) -> None:
        self.logits.append(self.buffer.cut(output.logits))
        self.buffer.end_pass()

    def _add_gate(self, layer: int, values: Tensor) -> None:
        self.buffer.add(("gate", values.shape[2:]), layer, values)

    def _add_normed(self, values: Tensor) -> None:
        if self.ids is not None:  # else these are the prompt's
            self._add_prompt_states(values)
            values = self.buffer.cut(values)
        self.normed.append(values.clone() if self.has_hooks else values)

    def _add_prompt_states(self, values: Tensor) -> None:
        """Keep the states of the prompt but for its last token, whose state is the answer's first."""
        n_known = sum(states.shape[1] for states in self.normed)
        if n_known < self.prompt_length - 1:
            self.normed.append(values[:, : self.prompt_length - 1 - n_known])

    def _residual_listener(self, name: str, layer: int) -> Callable[[Tensor], None]:
        for_steps = self.spec.wants("residual/", "update/")
        for_prompt = f"prompt/residual_{name}" in self.spec.stored

        if for_steps and not for_prompt:
            return partial(self.buffer.add, name, layer)

        def add_residual(values: Tensor) -> None:
            if for_prompt and self.ids is None:
                for row, recorder in enumerate(self.recorders):
                    kept = torch.from_numpy(recorder.kept + recorder.prompt.padding).to(values.device)
                    prompt_values = values[row, kept]
                    recorder.write_prompt_residual(name, layer, prompt_values)
            if for_steps:
                self.buffer.add(name, layer, values)

        return add_residual

    def _attention_observer(self, layer: int) -> Observer:
        keys = self.keys[layer]
        for_steps = self.spec.wants("attention/")
        for_prompt = self.spec.wants("prompt/attention")

        def add_attention(call: AttentionCall) -> None:
            if for_prompt and self.ids is None:
                for row, recorder in enumerate(self.recorders):
                    padding = recorder.prompt.padding
                    for first, rows in prompt_rows(call, row, padding, keys.has_cross_attention):
                        recorder.write_prompt_attention(layer, first, rows)
            if for_steps:
                query = call.query.transpose(1, 2)
                # one name a shape, since queries of different shapes cannot be joined in one tensor
                self.buffer.add(("query", query.shape[2:]), layer, query)
                keys.add(call)

        return add_attention

    def flush(self, length: int) -> None:
        """Pass on the steps collected since the last call.

        Args:
            length: number of tokens so far, including padding and the newest token.
        """
        first = self.prompt_length + self.n_steps
        steps = length - first
        if steps <= 0 or self.ids is None:
            return
        token_ids = self.ids[:, first:length]
        logits = torch.cat(self.logits[:steps], 1)
        by_name = self.buffer.take(steps)
        queries, gates = (
            {
                layer: values
                for name, by_layer in by_name.items()
                if name[0] == kind
                for layer, values in by_layer.items()
            }
            for kind in ("query", "gate")
        )
        residuals: dict[str, ByLayer] = {
            name: by_name[name] for name in ("pre", "mid", "post") if name in by_name
        }
        if self.normed:
            self.normed[:] = [torch.cat(self.normed, 1)[:, : length - 1]]
        counts = self._count_steps(token_ids)
        if any(counts):
            self._write_block(token_ids, logits, counts, queries, residuals, gates)
        self.logits.clear()
        for keys in self.keys.values():
            keys.start_block()
        self.n_steps += steps

    def _write_block(
        self,
        token_ids: Tensor,
        logits: Tensor,
        counts: list[int],
        queries: ByLayer,
        residuals: Mapping[str, ByLayer],
        gates: ByLayer,
    ) -> None:
        """Reduce a block of steps, of which `counts` belong to each answer."""
        logprobs, likeliest = self.reducer.write_steps(token_ids, logits, counts)
        if self.decoded is not None:
            gaps = self.decoded.compare(self.n_steps, logprobs, likeliest, counts)
            for recorder, gap in zip(self.recorders, gaps, strict=True):
                recorder.gap = gap.join(recorder.gap) if gap.steps else recorder.gap
        if residuals:
            self.reducer.write_residuals(residuals)
        if gates:
            self.reducer.write_gates(gates)
        if "tam/logit" in self.spec.stored:
            self.reducer.write_tam(self.normed[0], token_ids)
        if self.spec.wants("attention/"):
            steps = max(counts)
            self.reducer.write_attention(partial(self._rows, queries, steps), steps)

    def _rows(self, queries: ByLayer, steps: int, rows: slice, most: int) -> Iterator[AttentionRows | None]:
        """Yield the attention of some rows' steps, of so many layers at a time at most, in the order of the layers."""
        position = self.prompt_length + self.n_steps - 1
        paddings = [recorder.prompt.padding for recorder in self.recorders[rows]]
        together: list[int] = []

        def compute() -> AttentionRows:
            query = torch.stack([queries[layer][rows, :steps] for layer in together]).transpose(2, 3)
            found = compute_rows([self.keys[layer] for layer in together], query, rows, position, paddings)
            together.clear()
            return found

        for layer in self.layers:
            joins = (
                layer in queries
                and len(together) < most
                and bool(together)
                and queries[layer].shape == queries[together[0]].shape
                and self.keys[layer].fits(self.keys[together[0]])
            )
            if together and not joins:
                yield compute()
            if layer in queries:
                together.append(layer)
            else:
                yield None
        if together:
            yield compute()

    def _count_steps(self, token_ids: Tensor) -> list[int]:
        """Return how many of the block's steps belong to each answer.

        An answer ends with its first end-of-sequence token; a given one has the length that was given.
        """
        if self.answers is not None:
            left = [len(answer) - self.n_steps for answer in self.answers]
            return [min(max(count, 0), token_ids.shape[1]) for count in left]
        eos, counts = self.model.eos_token_ids, []
        for recorder, ids in zip(self.recorders, token_ids.tolist(), strict=True):
            end = next((step for step, token in enumerate(ids, 1) if token in eos), None)
            counts.append(0 if recorder.has_ended else end or len(ids))
            recorder.has_ended = recorder.has_ended or end is not None
        return counts

    def finish(self, length: int) -> None:
        """Pass on the last block, and write what belongs to the answers as a whole."""
        self.flush(length)
        self.reducer.finish(self.normed[0] if self.normed else None)


class ForwardPassBuffer:
    """What the layers computed at the last positions of each forward pass.

    A pass over many tokens is kept as it is. Of passes over one token, the layers' tensors are joined in one a name:
    this takes less time than keeping many small ones, between which the allocator finds little room to use again.

    Args:
        copies: copy each layer's values at once. Hooks of the user may change them in place later.
        device: gather the layers' values there, since tensors of several devices cannot be joined.

    Attributes:
        width: number of the last positions of a pass that are kept.
    """

    def __init__(self, copies: bool, device: torch.device | None = None) -> None:
        self.copies, self.device, self.width = copies, device, 1
        self.current: dict[RecordedName, dict[int, Tensor]] = defaultdict(dict)  # of the present pass
        self.passes: dict[RecordedName, list[Tensor]] = defaultdict(list)  # each [layer, batch, 1, ...]
        self.layers: dict[RecordedName, list[int]] = {}  # layers that ran

    def cut(self, values: Tensor) -> Tensor:
        """Return the last positions of [batch, position, ...], as a copy that does not keep the others alive."""
        return values if values.size(1) == self.width else values[:, -self.width :].clone()

    def add(self, name: RecordedName, layer: int, values: Tensor) -> None:
        """Add a layer's values [batch, position, ...] of the present pass."""
        # calls of Python functions are most of what small models pay for recording, so there are few here
        if values.size(1) != self.width:
            values = values[:, -self.width :].clone()
        elif self.copies:
            values = values.clone()
        self.current[name][layer] = values if self.device is None else values.to(self.device)

    def end_pass(self) -> None:
        """End a forward pass."""
        if self.width > 1:
            return  # `take` comes next
        for name, by_layer in self.current.items():
            self.layers[name] = list(by_layer)
            self.passes[name].append(torch.stack(list(by_layer.values())))
        self.current.clear()

    def take(self, steps: int) -> dict[RecordedName, dict[int, Tensor]]:
        """Empty the buffer; return what it holds by name and layer, each [batch, step, ...]."""
        taken = dict(self.current)
        self.current.clear()
        for name in list(self.passes):
            values = torch.cat(self.passes.pop(name), 2)  # [layer, batch, step, ...]
            taken[name] = dict(zip(self.layers[name], values[:, :, :steps], strict=True))
        return taken


@contextmanager
def record_vision(model: Model, recorder: SampleRecorder) -> Iterator[None]:
    """Within the block, record what the vision encoder computes for a sample's images."""
    vision = model.family.vision
    assert vision is not None
    layers = list(vision.layers(model.hf))
    received: list[list[Tensor]] = [[] for _ in layers]  # each [head, patch], of a window or of some images

    def write_residual(index: int, output: Tensor) -> None:
        values = output.reshape(-1, output.shape[-1]).clone()  # the model may change its output in place
        selection = (index, slice(0, values.shape[0]), slice(0, values.shape[1]))
        recorder.writer.write_part("vision/residual", values, selection, (len(layers), *values.shape))

    with ExitStack() as stack:
        if "vision/residual" in recorder.spec.stored:
            for index, layer in enumerate(layers):
                stack.enter_context(observe(layer, outputs=partial(write_residual, index)))
        if "vision/attention" in recorder.spec.stored:
            observers = {
                layer.get_submodule(vision.attention): _attention_observer(parts)
                for layer, parts in zip(layers, received, strict=True)
            }
            stack.enter_context(observe_attention([model.hf.config.vision_config], observers))
        yield
    if received[0]:
        attention = torch.stack([torch.cat(parts, 1) for parts in received])
        recorder.writer.write("vision/attention", attention)


def _write_patch_positions(model: Model, inputs: Mapping[str, Any], recorder: SampleRecorder) -> None:
    """Write the image, row and column of each position of the vision encoder."""
    vision = model.family.vision
    if vision is not None and "vision/place" in recorder.spec.stored:
        positions = torch.from_numpy(vision.patch_positions(inputs, model.hf))
        recorder.writer.write("vision/place", positions)


def _attention_observer(parts: list[Tensor]) -> Observer:
    def append_attention(call: AttentionCall) -> None:
        parts.append(_attention_received(call))

    return append_attention


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

    def fits(self, other: LayerKeys) -> bool:
        """Return whether the rows of this layer can be computed together with those of another."""
        return self._kind() == other._kind() and not self._kind()[-1]

    def _kind(self) -> tuple[Any, ...]:
        assert self.keys is not None
        place = self.keys.shape, self.keys.device, self.first, len(self.new_keys)
        changed = self.has_cross_attention or any(bias is not None for bias in self.biases)
        return *place, self.window, self.chunked, self.scale, changed

    def all_keys(self, rows: slice) -> Tensor:
        """Return the keys of some rows of the batch, [sample, kv_head, key, dim], from position `first` on."""
        assert self.keys is not None
        if not self.new_keys:
            return self.keys[rows]
        return torch.cat([self.keys[rows], *(new[rows] for new in self.new_keys)], 2)

    def add_biases(self, scores: Tensor, rows: slice, position: int, first: int) -> None:
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


def compute_rows(
    layers: Sequence[LayerKeys], query: Tensor, rows: slice, position: int, paddings: Sequence[int]
) -> AttentionRows:
    """Return the attention of consecutive queries of some samples in some layers, which fit together.

    Args:
        query: [layer, sample, head, step, dim].
        rows: the samples' rows in the batch.
        position: position of the first query, padding included.
        paddings: number of padding tokens before each sample's prompt.

    Returns:
        The weights on the keys from the smallest padding to the last query; 0 on what a query does not see.
    """
    own = layers[0]
    assert own.keys is not None
    query = query.to(own.keys.device)  # the layer's own, where layers are on several
    if own.has_cross_attention:
        scores = attention_scores(query, own.keys[rows][None], own.scale)
        if own.mask is not None:
            scores = mask_scores(scores, own.mask[rows, :, -1:])
        return AttentionRows(scores.softmax(-1), has_cross_attention=True)
    steps, start = query.shape[3], min(paddings)
    first, end = max(own.first, start), position + steps
    keys = [layer.all_keys(rows)[:, :, first - own.first : end - own.first] for layer in layers]
    scores = attention_scores(query, torch.stack(keys) if len(keys) > 1 else keys[0][None], own.scale)
    own.add_biases(scores[0], rows, position, first)  # layers with biases are alone
    query_positions = torch.arange(position, end, device=query.device)[:, None]
    key_positions = torch.arange(first, end, device=query.device)
    unseen = key_positions > query_positions
    if own.window is not None:
        unseen |= key_positions <= query_positions - own.window
    if max(paddings) > first or (own.chunked and own.window is not None):
        begins = torch.tensor(paddings, device=query.device)[:, None, None, None]  # [sample, 1, 1, 1]
        unseen = unseen | (key_positions < begins)
        if own.chunked and own.window is not None:  # chunks begin with the sample's first token
            chunks = (query_positions - begins) // own.window * own.window + begins
            unseen |= key_positions < chunks
    weights = scores.masked_fill_(unseen, float("-inf")).softmax(-1)
    return AttentionRows(F.pad(weights, (first - start, 0)) if first > start else weights)


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
        yield first, AttentionRows(scores.softmax(-1)[None, None], has_cross_attention)


def _attention_received(call: AttentionCall) -> Tensor:
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
