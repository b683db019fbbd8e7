"""Read known tokens: forward passes over prompts and their answers, to look and to change what is computed.

A `Reading` is what every causal probe and test is made of. An `AnswerReader` moves on along the cache that generation
left, one block of the answer at a time: a decoding step reads one token, a reading many, whose keys and values see
each other as they did when they were decoded one by one, so what a layer computes is the same up to rounding.

What prompts have in common is read once. Keys and values depend on the tokens before them only, so prompts with the same
images and system prompt share those of their common beginning, a `Prefix`. It is read on its own, up to the first token
of the question, and every question continues from a copy. A `PrefixStore` keeps the newest ones.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import DynamicCache, LogitsProcessor, StoppingCriteria
from transformers.modeling_outputs import BaseModelOutputWithPooling

from mmprobe.models.devices import copy_module
from mmprobe.models.finite import not_finite
from mmprobe.models.hooks import Change, Forward, find_hooked_module, observe, wrap_forward
from mmprobe.models.loading import Model, build_generation_kwargs
from mmprobe.models.points import Changes, Observers, Point, change_points, observe_points
from mmprobe.models.prompt import Batch, Chat, Group, Prompt, build_batch, decode_answer, decode_sequence
from mmprobe.samples import Sample

LOGITS_BYTES = {
    "cpu": 2**25,
    "cuda": 2**28,
}  # of the logits of one pass; a GPU pays for each pass, not for memory
WAITING_BYTES = 2**20  # of the logits of decoded steps that are reduced together
MAX_BYTES = 2**30  # of all kept prefixes; our choice
MOST_PREFIXES = 64  # at a time; a diagnosis reads a fifth of its images again with half as many
OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")  # one value a token
OF_ROWS = {
    "inputs_embeds",
    "attention_mask",
    "position_ids",
    "visual_pos_masks",
    "deepstack_visual_embeds",
}  # arguments of decoders with something for each row
PrefixKey = tuple[Any, ...]


class Row(NamedTuple):
    """A prompt with its answer, one row of a reading.

    Attributes:
        model: the model that reads it.
        prompt: the prompt.
        ids: int64 [step], token ids of the answer.
    """

    model: Model
    prompt: Prompt
    ids: Tensor

    @property
    def text(self) -> str:
        """The answer as text."""
        return decode_answer(self.model.tokenizer, self.ids.tolist())

    @property
    def queries(self) -> slice:
        """The positions that predict the answer's tokens: the prompt's last token and the answer but for its last."""
        first = len(self.prompt.ids) - 1
        return slice(first, first + len(self.ids))

    def texts(self) -> np.ndarray:
        """Return str [step], the texts of the answer's tokens."""
        return np.array(decode_sequence(self.model, self.ids.cpu().numpy()), dtype=str)


class Prediction(NamedTuple):
    """What a model says of an answer's tokens.

    Attributes:
        logprobs: float32 [step], the log-probability of each token.
        likeliest: int64 [step], the token that the model would have said.
        margins: float32 [step], how far each token's log-probability is above that of the likeliest other token; below 0
            where the model would have said the other one.
        last: float32 [vocabulary], the log-probability of every token at the last step.
    """

    logprobs: Tensor
    likeliest: Tensor
    margins: Tensor
    last: Tensor


KeysAndValues = dict[int, tuple[Tensor, Tensor]]
Values = dict[int, Tensor]


class Reading:
    """Forward passes over known tokens: prompts with their answers, a row each, all rows in one pass.

    The first pass encodes the images and keeps what enters the decoder. The others repeat only what can differ: the
    layers from the first one that is changed, and the tokens from the first one that is changed (`begin_at`). Passes
    compute gradients where torch's mode says so. Prompts are padded on the left and answers on the right, where no
    token before the padding sees it; positions count the padding.

    Args:
        batch: the prompts.
        answers: token ids, for each prompt. All empty to read what comes after the prompts.
        beginnings: for each prompt what was read of it before; then `predict` reads only the rest of each. None to read whole
            prompts.

    Attributes:
        rows: the prompts with their answers.
        decoder_inputs: the arguments of the decoder's forward, of all tokens, once there was a pass.
        start: the first token that passes compute.
        keys: by layer, the keys and values of the tokens before it, [row, kv_head, position, dim].
        count, backwards: number of forward and of backward passes so far.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.samples import Sample
        >>> model, sample = load_model("tiny-spd", device="cpu"), Sample(id="a", question="Is there a star?")
        >>> reading = Reading(model, model.batch([sample]), [[7, 8]])
        >>> reading.predict()[0].logprobs.shape, reading.logits({("ffn", 5): lambda update: 0 * update}).shape
        (torch.Size([2]), torch.Size([1, 2, 504]))
    """

    def __init__(
        self,
        model: Model,
        batch: Batch,
        answers: Sequence[Sequence[int] | Tensor],
        beginnings: Sequence[Prefix] | None = None,
    ):
        self.model, self._batch, self._beginnings = model, batch, beginnings
        ids = [torch.as_tensor(answer, dtype=torch.int64, device=model.device) for answer in answers]
        self.rows = tuple(Row(model, *pair) for pair in zip(batch.prompts, ids, strict=True))
        self.decoder_inputs: dict[str, Any] = {}
        self.start = self.count = self.backwards = 0
        self.keys: KeysAndValues = {}
        self._steps = max(map(len, ids))
        self._output: Any = None  # of the model without its head, in the first pass
        self._unchanged: dict[int, Tensor] = {}  # by start
        self._reached: dict[int, tuple[int, Any]] = {}  # by start: a layer, and what it returns unchanged

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The inputs of the model's forward, of all tokens."""
        return append_answers(self.model, self._batch.inputs, [row.ids for row in self.rows])

    @property
    def row(self) -> Row:
        """The prompt with its answer; of several, the first one."""
        return self.rows[0]

    @property
    def unchanged(self) -> Tensor:
        """float32 [row, step, vocabulary], the logits with nothing changed, as passes from the start compute them."""
        return self._read_unchanged()

    def _read_unchanged(self) -> Tensor:
        """Return `unchanged`. The first pass keeps what enters the decoder."""
        if self.start not in self._unchanged:
            with torch.no_grad():
                self._unchanged[self.start] = self.logits()
        return self._unchanged[self.start]

    def logits(
        self,
        changes: Changes | None = None,
        observers: Observers | None = None,
        inputs: dict[str, Any] | None = None,
    ) -> Tensor:
        """Return float32 [row, step, vocabulary], the logits that predict each token of each answer, in one pass.

        Steps past a shorter answer's end are meaningless. Without answers it is the step after the prompts.

        Args:
            changes: what is changed, by point (`change_points`). Layers before the first change are taken from an earlier
                pass, if nothing is observed; so a loop over layers should go up.
            observers: what looks, by point (`observe_points`).
            inputs: arguments of the decoder's forward, of all tokens; None for the prompts' own.
        """
        return self._read(changes, observers, inputs, self._steps + 1)[0]

    def predict(self, changes: Changes | None = None, observers: Observers | None = None) -> list[Prediction]:
        """Return what the model says of each answer, in one pass, with logits in float32.

        The logits of a few steps exist at a time (`pass_length`), so memory does not grow with the answers.

        Args:
            changes, observers: as in `logits`. Where beginnings were given, observers see the tokens after them (`place`).
        """
        parts: list[list[Prediction]] = [[] for _ in self.rows]
        with torch.no_grad(), float32_logits(self.model):
            if self._beginnings is not None and not changes:
                blocks = self._read_rests(self._beginnings, observers)
            else:
                blocks = self._read_blocks(changes, observers)
            for row, first, logits in blocks:
                ids = self.rows[row].ids[first : first + len(logits)]
                if len(ids):
                    logprobs = logits[: len(ids)].log_softmax(-1)
                    places = ids.to(logprobs.device)[:, None]
                    own = logprobs.gather(1, places)[:, 0]
                    others = logprobs.scatter(1, places, -torch.inf).amax(-1)
                    parts[row].append(
                        Prediction(own, logprobs.argmax(-1), own - others, logprobs[-1].clone())
                    )
        read = [prediction.logprobs for row in parts for prediction in row]
        if read and bool(torch.stack([values.isnan().any() for values in read]).any()):
            raise not_finite(self.model, None if changes else self.inputs)
        return [
            Prediction(
                torch.cat([p.logprobs for p in row]),
                torch.cat([p.likeliest for p in row]),
                torch.cat([p.margins for p in row]),
                row[-1].last,
            )
            for row in parts
        ]

    def logprobs(self, changes: Changes | None = None, observers: Observers | None = None) -> list[Tensor]:
        """Return the log-probability of each token of each answer, float32 [step], as `predict` computes it."""
        return [prediction.logprobs for prediction in self.predict(changes, observers)]

    def components(self, kind: str, inputs: dict[str, Any] | None = None) -> Values:
        """Return the component of each layer that runs, [row, position, ...], from one pass.

        Args:
            kind: as in `change_component`.
            inputs: as in `logits`.

        Example:
            >>> reading.components("ffn")[0].shape                           # doctest: +SKIP
            torch.Size([1, 630, 192])
        """
        values = Values()

        def keep(layer: int, value: Tensor) -> None:
            values[layer] = value.detach().clone()

        with torch.no_grad():
            layers = range(self.model.n_layers)
            self.logits(None, {(kind, layer): partial(keep, layer) for layer in layers}, inputs)
        return values

    def gradients(
        self,
        kinds: Sequence[str],
        metric: Callable[[Tensor], Tensor],
        layers: Sequence[int] | None = None,
        changes: Changes | None = None,
    ) -> dict[str, Values]:
        """Return the gradient of a metric of the logits with respect to each component, by kind and layer.

        Args:
            metric: a function of the logits [row, step, vocabulary].
            layers: layers whose gradients are returned; None for all.
            changes: as in `logits`.

        Returns:
            [row, position, ...] for each kind and each layer that runs, as large as the component.
        """
        return next(self.gradients_without(kinds, metric, [()], layers, changes))

    def gradients_without(
        self,
        kinds: Sequence[str],
        metric: Callable[[Tensor], Tensor],
        blocked: Sequence[Sequence[Point]],
        layers: Sequence[int] | None = None,
        changes: Changes | None = None,
    ) -> Iterator[dict[str, Values]]:
        """Yield the gradients of `gradients`, without the ways through some components, for one group of them after another.

        One forward and one backward pass serve all groups: what flows into a layer from above is the same whatever is blocked
        below it. Each group takes the rest of a backward pass, from the residual stream after its last layer down, or a whole
        one where a layer reads what an earlier one computed otherwise than from the stream. What the forward pass keeps is in
        memory until the last group.

        Args:
            blocked: groups of components that pass no gradient on to what they read.
        """
        leaves: dict[Point, Tensor] = {}
        streams: dict[int, Tensor] = {}
        closed: set[Point] = set()

        def track(point: Point) -> Change:
            def close(gradient: Tensor) -> Tensor:
                return torch.zeros_like(gradient) if point in closed else gradient

            def add_leaf(value: Tensor) -> Tensor:
                leaves[point] = torch.zeros_like(value, requires_grad=True)
                passed = value.view_as(value)
                if passed.requires_grad:
                    passed.register_hook(close)
                return passed + leaves[point]

            return add_leaf

        def keep_stream(layer: int, value: Tensor) -> Tensor:
            streams[layer] = value.view_as(value)
            return streams[layer]

        numbers = range(self.model.n_layers) if layers is None else layers
        points = dict.fromkeys([(kind, n) for n in numbers for kind in kinds])
        points |= dict.fromkeys(point for group in blocked for point in group)
        last = [max((layer for _, layer in group), default=None) for group in blocked]
        tracked = {point: track(point) for point in points}
        kept = {("resid_post", layer): partial(keep_stream, layer) for layer in last if layer is not None}
        with (
            torch.enable_grad(),
            self.model.freeze(),
            change_points(self.model, changes or {}),
            change_points(self.model, tracked),
            change_points(self.model, kept),
        ):
            measured = metric(self.logits())
        wanted = {point: leaf for point, leaf in leaves.items() if point[0] in kinds}
        cuts = {
            layer: stream
            for layer, stream in streams.items()
            if stream.requires_grad and _separates(stream, measured, _up_to(layer, wanted))
        }
        self.backwards += 1
        above = _pull_back(measured, None, {**wanted, **cuts})
        for group, layer in zip(blocked, last, strict=True):
            found: dict[Point, Tensor] = {point: above[point] for point in wanted}
            if layer is not None:
                closed.update(group)
                self.backwards += 1
                below = _up_to(layer, wanted)
                if layer in cuts:
                    found |= _pull_back(cuts[layer], above[layer], below)
                else:
                    found |= _pull_back(measured, None, wanted)
                closed.clear()
            out: dict[str, Values] = {kind: {} for kind in kinds}
            for (kind, number), gradient in found.items():
                out[kind][number] = gradient
            yield out

    def begin_at(self, position: int, keys: KeysAndValues | None = None) -> int:
        """Let later passes compute the tokens from a position on, and return the position where they begin.

        What is observed of a pass begins there, too. All steps of the answers are computed: a position after the
        last token of the prompt counts as this token. Where the keys of a family cannot be reused
        (`why_not_shared`), passes begin at 0.

        Args:
            position: no token before it is changed in later passes.
            keys: of the tokens before the position, or of more; None to read them.
        """
        if self._output is None:
            self._read_unchanged()
        position = min(position, self.inputs["input_ids"].shape[1] - self._steps - 1)
        self.start = 0 if why_not_shared(self.model) else position
        if keys is None and self.start:
            keys = self._read_keys()
        parts = (keys or {}).items() if self.start else ()
        self.keys = {
            layer: (key[:, :, : self.start], value[:, :, : self.start]) for layer, (key, value) in parts
        }
        return self.start

    def repeat(self, times: int) -> Reading:
        """Return a reading of the same rows so many times over, one whole batch after another.

        It begins at the same token, and encodes no image again. Its passes can change each copy in another way. What they compute
        differs by rounding from what this reading's passes compute, since kernels add in another order for other shapes.
        """
        if not self.can_repeat:
            raise ValueError(f"{self.model.family.name}: the rows of its decoder's arguments are not known")
        rows = [row for _ in range(times) for row in self.rows]
        batch = Batch(self._batch.inputs, [row.prompt for row in rows])
        out = Reading(self.model, batch, [row.ids for row in rows])
        count = len(self.rows)
        out.inputs = {
            name: _tile(value, times, count) if name in OF_TOKENS else value
            for name, value in self.inputs.items()
        }
        out.decoder_inputs = {
            name: [_tile(part, times, len(part)) for part in value]
            if name == "deepstack_visual_embeds" and value is not None
            else _tile(value, times, count, -2 if name == "position_ids" else 0)
            for name, value in self.decoder_inputs.items()
        }
        out.start, out._output = self.start, self._output
        out.keys = {
            layer: (_tile(key, times, count), _tile(value, times, count))
            for layer, (key, value) in self.keys.items()
        }
        return out

    @property
    def can_repeat(self) -> bool:
        """Whether `repeat` knows the rows of all arguments of the decoder; there must have been a pass."""
        kinds = Tensor | list | tuple | dict
        of_rows = {name for name, value in self.decoder_inputs.items() if isinstance(value, kinds)}
        return self._output is not None and of_rows <= OF_ROWS

    def _read_keys(self) -> KeysAndValues:
        """Return the keys and values of the tokens before the start."""
        self.count += 1
        cache = DynamicCache()
        with torch.no_grad():
            inputs = cut_inputs(self.decoder_inputs, slice(None, self.start))
            self._decoder(**inputs | {"past_key_values": cache, "use_cache": True})
        layers: Any = cache.layers
        return {number: (layer.keys, layer.values) for number, layer in enumerate(layers)}

    @property
    def _decoder(self) -> Any:
        return self.model.family.decoder(self.model.hf)

    def _read(
        self,
        changes: Changes | None,
        observers: Observers | None,
        inputs: dict[str, Any] | None,
        keep: int,
    ) -> tuple[Tensor, Any]:
        """Return the logits of the last steps, and what the model without its head returns, from one pass.

        Args:
            keep: number of positions whose logits are computed.

        Raises:
            InputError: the model computed NaN in the first pass.
        """
        self.count += 1
        outputs: list[Any] = []
        skipped = 0 if observers or inputs is not None or not changes else min(n for _, n in changes)
        arguments = self._build_inputs(self.decoder_inputs if inputs is None else inputs)

        def read(forward: Forward) -> Forward:
            def forward_from_decoder(*args: Any, **options: Any) -> Any:
                if self._output is None:  # the first pass
                    with self._keep_inputs():
                        outputs.append(forward(*args, **options))
                else:
                    outputs.append(type(self._output)(**self._output))
                    outputs[0].last_hidden_state = self._decoder(**arguments).last_hidden_state
                return outputs[0]

            return forward_from_decoder

        with (
            change_points(self.model, changes or {}),
            observe_points(self.model, observers or {}),
            wrap_forward(self.model.hf.base_model, read),
            self._skip_layers(skipped if self._output is not None else 0),
        ):
            logits = self._unembed(keep)
        if self._output is None:
            if bool(logits[:, 0].isnan().any()):
                raise not_finite(self.model, None if changes or inputs is not None else self.inputs)
            kept = dict(outputs[0]) | {
                "last_hidden_state": torch.empty(0)
            }  # in its place, but without its memory
            self._output = type(outputs[0])(**_detach(kept))
        return self._cut(logits), outputs[0]

    def _unembed(self, keep: int) -> Tensor:
        """Return the logits of the last positions as the model's forward makes them."""
        hf = self.model.hf
        options = {"logits_to_keep": keep} if hf._supports_logits_to_keep() else {}
        logits: Tensor = hf(**self.inputs | options, use_cache=False).logits
        return logits[:, -keep:]

    def _cut(self, logits: Tensor) -> Tensor:
        """Return the logits of the steps from those of the last positions."""
        return (logits[:, : self._steps] if self._steps else logits).float()

    def _read_blocks(
        self, changes: Changes | None, observers: Observers | None
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Yield logits [step, vocabulary] of some steps, each with its row and its first step, from one pass."""
        hf, length = self.model.hf, pass_length(self.model, len(self.rows), self._steps)
        whole = length >= self._steps or not hf._supports_logits_to_keep()
        logits, output = self._read(changes, observers, None, self._steps + 1 if whole else 1)
        if whole:
            yield from ((row, 0, each) for row, each in enumerate(logits))
            return
        states = output.last_hidden_state[:, -self._steps - 1 : -1]
        for first in range(0, self._steps, length):
            output.last_hidden_state = states[:, first : first + length]
            with wrap_forward(hf.base_model, lambda forward: lambda *args, **options: output):
                part = self._unembed(output.last_hidden_state.shape[1]).float()
            yield from ((row, first, each) for row, each in enumerate(part))

    def place(self, row: int, positions: Any) -> Any:
        """Return the places among the keys of a pass at which tokens of a row are, after the row's padding.

        Args:
            positions: of tokens in the row's prompt with its answer, int [token].
        """
        if self._beginnings is None:
            return positions + self.rows[row].prompt.padding
        return positions + max(len(each.ids) for each in self._beginnings) - len(self._beginnings[row].ids)

    def _read_rests(
        self, beginnings: Sequence[Prefix], observers: Observers | None = None
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Yield what `_read_blocks` yields, from a pass over what follows the beginnings."""
        unembedding, read = self.model.hf.get_output_embeddings(), self._read_states(beginnings, observers)
        answered = []  # the states that predict the answers, of all rows one after another: weights are read once for all
        for row, states, beginning in zip(self.rows, read, beginnings, strict=True):
            answered.append(states[row.queries.start - len(beginning.ids) :][: len(row.ids)])
        joined = torch.cat(answered)
        length = pass_length(self.model, 1, len(joined))
        for first in range(0, len(joined), length):
            logits, begin = unembedding(joined[first : first + length]).float(), 0
            for number, row in enumerate(self.rows):
                end = begin + len(row.ids)
                part = logits[max(begin - first, 0) : max(end - first, 0)]
                if len(part):
                    yield number, max(first - begin, 0), part
                begin = end

    def _read_states(self, beginnings: Sequence[Prefix], observers: Observers | None = None) -> Tensor:
        """Return what the unembedding reads of each row after its beginning, [row, position, hidden].

        After its end, each row is filled with tokens that no token of the row sees.
        """
        self.count += 1
        columns = max(len(each.ids) for each in beginnings)
        paddings = [columns - len(each.ids) for each in beginnings]
        lengths = [len(row.prompt.ids) + len(row.ids) for row in self.rows]
        longest = max(padding + length for padding, length in zip(paddings, lengths, strict=True))
        inputs = _place_tokens(self._batch, paddings, longest)
        for ids, row, padding in zip(inputs["input_ids"], self.rows, paddings, strict=True):
            end = padding + len(row.prompt.ids)
            ids[end : end + len(row.ids)] = row.ids
        cache, states = build_cache(self.model, beginnings, paddings), list[Tensor]()
        observed = {("normed", -1): states.append, **(observers or {})}
        with torch.inference_mode(), no_logits(self.model), observe_points(self.model, observed):
            options = build_generation_kwargs(self.model, 1)
            self.model.hf.generate(**inputs, **options, past_key_values=cache)
        return states[0]

    def _build_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return inputs of the decoder from the start on, with the keys before it."""
        if not self.start:
            return inputs
        cache = DynamicCache()  # a pass adds to it
        for layer, (key, value) in self.keys.items():
            cache.update(key, value, layer)
        return cut_inputs(inputs, slice(self.start, None)) | {"past_key_values": cache}

    @contextmanager
    def _skip_layers(self, first_layer: int) -> Iterator[None]:
        """Within the block, take what layers before the first return from an earlier pass, or keep it."""
        none = -1, torch.empty(0)
        reached, stored = self._reached.get(self.start, none)
        reached, stored = (reached, stored) if reached < first_layer else none

        def wrap(layer: int, forward: Forward) -> Forward:
            def skip(*args: Any, **options: Any) -> Any:
                return stored.clone()  # families add to it in place

            def keep(*args: Any, **options: Any) -> Any:
                output = forward(*args, **options)
                self._reached[self.start] = (layer, output.detach().clone())
                return output

            return skip if layer <= reached else keep

        with ExitStack() as stack:
            for layer, module in enumerate(self._decoder.layers[:first_layer]):
                stack.enter_context(wrap_forward(module, partial(wrap, layer)))
            yield

    @contextmanager
    def _keep_inputs(self) -> Iterator[None]:
        """Within the block, keep the arguments of the decoder."""

        def keep(module: nn.Module, args: Any, options: dict[str, Any]) -> None:
            self.decoder_inputs = _detach(options)

        handle = self._decoder.register_forward_pre_hook(keep, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


def _tile(value: Any, times: int, rows: int, dim: int = 0) -> Any:
    """Return an argument of some rows for those of `Reading.repeat`; what has no dimension of so many rows stays."""
    if isinstance(value, dict):
        return {name: _tile(each, times, rows, dim) for name, each in value.items()}
    if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[dim] != rows:
        return value
    return torch.cat([value] * times, dim)


def _place_tokens(batch: Batch, paddings: Sequence[int], length: int) -> dict[str, Any]:
    """Return what `generate` takes of the prompts' tokens, each after its padding and up to a length, cut or filled with its last.

    Tokens after the end are seen by no earlier one.
    """
    placed: dict[str, Any] = {}
    for name in (each for each in OF_TOKENS if each in batch.inputs):
        rows = []
        for value, prompt, padding in zip(batch.inputs[name], batch.prompts, paddings, strict=True):
            own = value[prompt.padding :][: length - padding]
            own = torch.cat([own.new_full((padding,), int(own[0]) if name == "input_ids" else 0), own])
            of_text = "type_ids" in name  # 0
            rows.append(pad(own, (0, length - len(own))) if of_text else _fill(own, length))
        placed[name] = torch.stack(rows)
    return placed


def _up_to(layer: int, leaves: Mapping[Point, Tensor]) -> dict[Point, Tensor]:
    return {point: leaf for point, leaf in leaves.items() if point[1] <= layer}


def _pull_back(value: Tensor, gradient: Tensor | None, to: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
    """Return the gradient of a value with respect to each of some tensors, given that of something with respect to the value."""
    if not to:
        return {}
    found = torch.autograd.grad(
        value, list(to.values()), gradient, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return dict(zip(to, found, strict=True))


def _separates(stream: Tensor, measured: Tensor, leaves: Mapping[Point, Tensor]) -> bool:
    """Return whether each way from some leaves to what is measured goes through a stream."""
    inside = {id(leaf) for leaf in leaves.values()}
    waiting, seen = [measured.grad_fn], {stream.grad_fn}
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if id(getattr(node, "variable", None)) in inside:
            return False
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
    return True


def _detach(value: Any) -> Any:
    """Return arguments without the gradients of their tensors."""
    if isinstance(value, dict):
        return {name: _detach(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_detach, value))
    return value.detach() if isinstance(value, Tensor) else value


def read_chats(
    model: Model,
    chats: Sequence[Chat],
    answers: Sequence[Sequence[int]],
    prefixes: PrefixStore | None = None,
) -> Reading:
    """Return the reading of answers after chats.

    Args:
        chats: all of them with images, or none; and so with videos.
        answers: token ids of the answer to each chat.
        prefixes: what chats with the same images share: their common beginning is read once, and the rests of all chats in
            one pass. None to read whole prompts.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.models.prompt import build_chat
        >>> from mmprobe.samples import Sample
        >>> model, chat = load_model("tiny-spd", device="cpu"), build_chat(Sample(id="a", question="What?"))
        >>> [logprobs.shape[0] for logprobs in read_chats(model, [chat, chat], [[7], [8, 9]]).logprobs()]
        [1, 2]
    """
    batch = build_batch(model, chats)
    beginnings = None if prefixes is None else _find_beginnings(chats, batch, prefixes)
    return Reading(model, batch, answers, beginnings)


def begin_chats(
    model: Model, chats: Sequence[Chat], prefixes: PrefixStore | None = None
) -> tuple[dict[str, Any], int]:
    """Return the arguments of `generate` that answer chats, and the number of columns of the padded prompts.

    Args:
        chats, prefixes: as in `read_chats`.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.models.prompt import build_chat
        >>> from mmprobe.samples import Sample
        >>> model, chat = load_model("tiny-spd", device="cpu"), build_chat(Sample(id="a", question="What?"))
        >>> inputs, columns = begin_chats(model, [chat])
        >>> inputs["input_ids"].shape[1] == columns
        True
    """
    batch = build_batch(model, chats)
    inputs, columns = dict(batch.inputs), batch.inputs["input_ids"].shape[1]
    beginnings = None if prefixes is None else _find_beginnings(chats, batch, prefixes)
    if beginnings is not None:
        cache, _ = begin_batch(model, batch, beginnings, keeps_states=False)
        inputs = {name: value for name, value in inputs.items() if name in OF_TOKENS}
        inputs["past_key_values"] = cache
    return inputs, columns


def _find_beginnings(chats: Sequence[Chat], batch: Batch, prefixes: PrefixStore) -> list[Prefix] | None:
    """Return what was read of each chat, equally long where images are; None where it would take too much memory, or
    with videos."""
    if any(chat.clips for chat in chats):
        return None
    keys = [(image_key(chat),) for chat in chats]
    found = prefixes.find_all(keys, chats, batch)
    common: dict[object, Prefix] = {}  # of the same images: each begins like the others
    for key, each in zip(keys, found, strict=True):
        if each is None:
            return None
        common[key] = min(common.get(key, each), each, key=lambda part: len(part.ids))
    return [common[key] for key in keys]


def _pixel_key(image: Image.Image) -> tuple[object, ...]:
    """Return what is equal for images with the same pixels."""
    return image.mode, image.size, hashlib.sha256(image.tobytes()).digest()


def image_key(chat: Chat, count: int | None = None) -> tuple[object, ...]:
    """Return what is equal for chats with the same pixels, system prompt and parts up to an image.

    Args:
        count: of images, the last of which it is; None for all of them.

    Example:
        >>> from mmprobe.models.prompt import build_chat
        >>> from mmprobe.samples import Sample
        >>> first, second = (build_chat(Sample(id="a", question=text)) for text in ("What?", "Where?"))
        >>> image_key(first) == image_key(second)
        True
    """
    pixels = map(_pixel_key, chat.images[:count])
    system = (str(message["content"]) for message in chat.messages if message["role"] == "system")
    parts = [(message["role"], str(part)) for message in chat.messages for part in message["content"]]
    shown = [place for place, (_, part) in enumerate(parts) if part == str({"type": "image"})][:count]
    last = shown[-1] if shown else -1
    return (*system, *parts[: last + 1], str(dict(chat.template)), *pixels)


def cut_inputs(inputs: dict[str, Any], tokens: slice) -> dict[str, Any]:
    """Return arguments of the decoder's forward for some of the tokens, from the first or to the last one on.

    The mask keeps a column for each token up to the last of them.

    Example:
        >>> cut_inputs({"inputs_embeds": torch.zeros(1, 5, 2), "position_ids": None}, slice(3, None))[
        ...     "inputs_embeds"
        ... ].shape
        torch.Size([1, 2, 2])
    """
    out = dict(inputs)
    for name in ("inputs_embeds", "visual_pos_masks"):
        if isinstance(out.get(name), Tensor):
            out[name] = out[name][:, tokens]
    if isinstance(out.get("position_ids"), Tensor):
        out["position_ids"] = out["position_ids"][..., tokens]
    if isinstance(out.get("attention_mask"), Tensor):
        out["attention_mask"] = out["attention_mask"][:, : tokens.stop]
    if isinstance(out.get("deepstack_visual_embeds"), list):  # a row for each visual token
        kept = torch.zeros_like(inputs["visual_pos_masks"])
        kept[:, tokens] = True
        rows = kept[inputs["visual_pos_masks"]]
        out["deepstack_visual_embeds"] = [part[rows] for part in out["deepstack_visual_embeds"]]
    return out


def first_difference(inputs: dict[str, Any], others: dict[str, Any]) -> int:
    """Return the first token whose arguments of the decoder's forward differ in any row; their number if none does.

    Example:
        >>> ones = torch.ones(1, 5, 2)
        >>> first_difference({"inputs_embeds": ones}, {"inputs_embeds": ones * torch.arange(1, 6)[None, :, None]})
        1
    """
    differs = (inputs["inputs_embeds"] != others["inputs_embeds"]).any(-1)
    for part, other in zip(
        *(each.get("deepstack_visual_embeds") or [] for each in (inputs, others)), strict=True
    ):
        differs[inputs["visual_pos_masks"]] |= (part != other).any(-1)
    differs = differs.any(0)
    return int(differs.nonzero()[0]) if differs.any() else len(differs)


# The unembeddings of open blocks of `float32_logits`, each with its own forward.
_own: dict[nn.Module, Forward] = {}


@contextmanager
def float32_logits(model: Model) -> Iterator[None]:
    """Compute the model's logits in float32 within the block.

    This covers the unembedding and any scaling or capping of logits. Large bfloat16 logits are 0.125 apart,
    more than one token of a prompt contributes. Half-precision weights are copied within the block, which
    takes 2.2 GB for a 7B model. Float32 logits may change what the model answers: generate within `own_logits`.

    Example:
        >>> with float32_logits(model):                                # doctest: +SKIP
        ...     logits = reading.logits()
    """
    unembedding = model.hf.get_output_embeddings()
    if unembedding in _own:  # an outer block does it
        yield
        return
    precise = cast_to_float32(unembedding)
    if precise is unembedding:
        yield
        return
    _own[unembedding] = unembedding.forward
    try:
        with wrap_forward(unembedding, lambda forward: lambda states: precise(states.float())):
            yield
    finally:
        del _own[unembedding]


@contextmanager
def own_logits(model: Model) -> Iterator[None]:
    """Compute logits as the model does, within a block of `float32_logits`, too.

    Example:
        >>> from mmprobe.models import load_model
        >>> model = load_model("tiny-spd", device="cpu", dtype="bfloat16")
        >>> states = torch.zeros(1, model.hf.lm_head.in_features, dtype=torch.bfloat16)
        >>> with float32_logits(model), own_logits(model):
        ...     model.hf.lm_head(states).dtype
        torch.bfloat16
    """
    unembedding = model.hf.get_output_embeddings()
    with wrap_forward(unembedding, lambda forward: lambda states: _own.get(unembedding, forward)(states)):
        yield


@contextmanager
def no_logits(model: Model) -> Iterator[None]:
    """Let passes that are made for keys, values and states return zeros for logits: the unembedding can be a tenth of a pass.

    Example:
        >>> from mmprobe.models import load_model
        >>> model = load_model("tiny-spd", device="cpu")
        >>> with no_logits(model):
        ...     model.hf.lm_head(torch.ones(1, model.hf.lm_head.in_features)).abs().max()
        tensor(0.)
    """
    vocabulary = model.hf.config.get_text_config().vocab_size

    def skip(states: Tensor) -> Tensor:
        return states.new_zeros(*states.shape[:-1], vocabulary)

    with wrap_forward(model.hf.get_output_embeddings(), lambda forward: skip):
        yield


def cast_to_float32(module: nn.Module) -> nn.Module:
    """Return a module in single precision: the module itself, or a copy without gradients.

    A copy of the unembedding of a 7B model takes 2.2 GB.

    Example:
        >>> cast_to_float32(nn.Linear(2, 3, dtype=torch.bfloat16)).weight.dtype
        torch.float32
    """
    if next(module.parameters()).dtype == torch.float32:
        return module
    return copy_module(module).float().requires_grad_(False)


GROWING = {
    "full_attention",
    "sliding_attention",
    "chunked_attention",
}  # layers whose keys a cache can keep all


def why_not_cut_back(model: Model) -> str | None:
    """Return why a cache of a model's prompts cannot be cut back to a beginning of them, or None if it can.

    A `DynamicCache` keeps the keys that a sliding window has left, too.

    Example:
        >>> from mmprobe.models import load_model
        >>> why_not_cut_back(load_model("tiny-spd")) is None
        True
    """
    kinds = set(getattr(model.hf.config.get_text_config(), "layer_types", None) or GROWING) - GROWING
    if kinds:
        return f"layers of {' and '.join(sorted(kinds))} keep a state that cannot be cut back"
    if model.family.answers_by:
        return f"{model.family.name} generates with its language model alone, and keeps no cache of its own"
    if model.has_cross_attention:
        return "the cache has the images' keys beside those of the tokens"
    return "its cache is a state that cannot be cut back" if model.hf._is_stateful else None


class AnswerReader:
    """Reads the answers of a batch in passes of any length.

    Args:
        inputs: of `generate`.
        ids: what `generate` returned, [batch, token].
        prompt_length: number of tokens of the padded prompts.
        cache: the keys and values of the first tokens. It is cut back to `prompt_length` - 1 of them, and grows again. If it
            has fewer, the first pass reads the rest of the prompts, too; their images if it is empty.
            None if it cannot be cut back: then each pass begins with the prompts' first tokens and their images.
    """

    def __init__(
        self,
        model: Model,
        inputs: Mapping[str, Any],
        ids: Tensor,
        prompt_length: int,
        cache: DynamicCache | None,
    ):
        self.hf, self.ids, self.cache = model.hf, ids, cache
        self.n_read, self.n_cached = prompt_length - 1, 0
        if cache is not None:
            self.n_cached = min(cache.get_seq_length(), self.n_read)
            cache.crop(self.n_cached - cache.get_seq_length())
        if self.n_cached:
            inputs = _of_tokens(inputs)
        options = append_answers(model, inputs, list(ids[:, prompt_length:]))
        del options["input_ids"]
        if "position_ids" in inspect.signature(self.hf.forward).parameters:
            of_cache = options if cache is None else options | {"past_key_values": cache}
            options["position_ids"] = self.hf._prepare_position_ids_for_generation(ids, of_cache)
        if bool((options["attention_mask"] == 1).all()):
            options["attention_mask"] = None  # as `generate` does, for the causal kernel
        self.options = options

    def read(self, count: int) -> None:
        """Read the next tokens in one pass. Observers see what it computes, these tokens last.

        Args:
            count: of each row; 0 to read the prompts alone.
        """
        self.n_read += count
        options = {name: self._cut(name, value) for name, value in self.options.items()}
        if self.hf._supports_logits_to_keep():
            options["logits_to_keep"] = max(count, 1)  # 0 would keep all
        options |= {"use_cache": self.cache is not None, "is_first_iteration": not self.n_cached}
        if self.cache is not None:
            options["past_key_values"] = self.cache
        if self.n_cached:
            options["next_sequence_length"] = self.n_read - self.n_cached
        inputs = self.hf.prepare_inputs_for_generation(self.ids[:, : self.n_read], **options)
        self.hf(**inputs, return_dict=True)
        if self.cache is not None:
            self.n_cached, self.options = self.n_read, _of_tokens(self.options)

    def _cut(self, name: str, value: Any) -> Any:
        """Return what belongs to the tokens that are read, of an argument with a value a token."""
        if name == "cross_attention_mask":  # [batch, token, image, tile]
            return value[:, : self.n_read]
        of_tokens = isinstance(value, Tensor) and name in (*OF_TOKENS, "position_ids")
        return value[..., : self.n_read] if of_tokens else value


def _of_tokens(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with one value a token."""
    return {name: value for name, value in options.items() if name in (*OF_TOKENS, "position_ids")}


def append_answers(
    model: Model, inputs: Mapping[str, Any], answers: Sequence[Sequence[int] | Tensor]
) -> dict[str, Any]:
    """Return the inputs of one forward pass over prompts and their answers.

    Answers are padded on the right with token 0, where no token before the padding sees it.

    Args:
        inputs: of the prompts, padded on the left.
        answers: token ids, for each prompt.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.samples import Sample
        >>> model = load_model("tiny-spd", device="cpu")
        >>> prompt = model.prepare(Sample(id="a", question="What?"))
        >>> append_answers(model, prompt, [[7, 8]])["input_ids"].shape[1] - prompt["input_ids"].shape[1]
        2
    """
    longest = max(map(len, answers))
    extended: dict[str, Any] = dict(inputs)
    if (
        longest
    ):  # each family extends its masks and token types as in `generate`; later tokens are like the first
        extended = model.hf._update_model_kwargs_for_generation({}, extended, is_encoder_decoder=False)
        for name, value in extended.items():
            if isinstance(value, Tensor) and name in inputs and value.shape != inputs[name].shape:
                extended[name] = _repeat_last(value, value.shape, inputs[name].shape, longest - 1)
    padded = torch.stack(
        [pad(torch.as_tensor(row, dtype=torch.int64), (0, longest - len(row))) for row in answers]
    )
    extended["input_ids"] = torch.cat([inputs["input_ids"], padded.to(inputs["input_ids"].device)], 1)
    if longest and "token_type_ids" in extended:
        extended["token_type_ids"][:, -longest:] = model.family.answer_token_type
    return extended


def _repeat_last(values: Tensor, shape: Sequence[int], before: Sequence[int], count: int) -> Tensor:
    """Return values that gained one place along a dimension, with the last place repeated so many times."""
    dim = next(dim for dim, sizes in enumerate(zip(shape, before, strict=True)) if len(set(sizes)) > 1)
    last = values.narrow(dim, values.shape[dim] - 1, 1)
    return torch.cat([values, last.expand(*shape[:dim], count, *shape[dim + 1 :])], dim)


def pass_length(model: Model, rows: int, longest: int) -> int:
    """Return how many tokens of each row one pass reads, so that their logits take little memory.

    Example:
        >>> from mmprobe.models import load_model
        >>> pass_length(load_model("tiny-spd"), 8, 64)
        64
    """
    vocabulary = model.hf.config.get_text_config().vocab_size
    allowed = LOGITS_BYTES.get(model.device.type, LOGITS_BYTES["cpu"])
    return max(1, min(longest, allowed // (rows * vocabulary * model.hf.dtype.itemsize)))


class ForcedTokens(LogitsProcessor):
    """Lets `generate` choose the tokens of given answers.

    Args:
        answers: token ids, [batch, step].
        prompt_length: number of tokens of the padded prompts.
    """

    def __init__(self, answers: Tensor, prompt_length: int):
        self.answers, self.prompt_length = answers, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        token = self.answers[:, input_ids.shape[1] - self.prompt_length, None].to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter_(1, token, 0.0)


class Gap(NamedTuple):
    """How far a reading is from the decoding of the same answer.

    Attributes:
        difference: the largest difference of a token's log-probability, in nat.
        agreeing: number of steps whose most likely token is the same.
        steps: number of steps.
    """

    difference: float
    agreeing: int
    steps: int

    def join(self, other: Gap | None) -> Gap:
        """Return the gap of these and other steps of an answer.

        Example:
            >>> Gap(0.25, 2, 2).join(Gap(0.5, 1, 3))
            Gap(difference=0.5, agreeing=3, steps=5)
        """
        if other is None:
            return self
        return Gap(
            max(self.difference, other.difference), self.agreeing + other.agreeing, self.steps + other.steps
        )


class DecodedLogprobs(StoppingCriteria):
    """Keeps the log-probability of each token as it is decoded, and the most likely token. It never stops.

    Logits of small models wait for those of later steps, since a call for each step would take most of the time.

    Args:
        after_prompts: called once the prompts are read.
    """

    def __init__(self, after_prompts: Callable[[], Any] = lambda: None) -> None:
        self.after_prompts = after_prompts
        self.logits: Tensor | None = None  # of the present step, [batch, vocabulary]
        self.waiting: list[Tensor] = []  # of the newest steps
        self.ids: Tensor | None = None  # the newest token is that of the newest of them
        self.never: Tensor | None = None
        self.logprobs: list[Tensor] = []  # each [batch, step]
        self.likeliest: list[Tensor] = []  # each [batch, step]

    def keep_logits(self, output: Any) -> None:
        """Keep the logits of the last position until its token is known."""
        last = output.logits[:, -1]
        self.logits = last if output.logits.shape[1] == 1 else last.clone()  # those of a prompt can be large

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        assert self.logits is not None
        self.waiting.append(self.logits)
        self.ids = input_ids
        if len(self.waiting) * self.logits.nbytes >= WAITING_BYTES:
            self._reduce()
        if self.never is None:
            self.never = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
            self.after_prompts()
        return self.never

    def _reduce(self) -> None:
        """Reduce the logits that wait."""
        if not self.waiting or self.ids is None:
            return
        logprobs = torch.stack(self.waiting, 1).float().log_softmax(-1)
        tokens = self.ids[:, -len(self.waiting) :, None].to(logprobs.device)
        self.logprobs.append(logprobs.gather(2, tokens)[..., 0])
        self.likeliest.append(logprobs.argmax(-1))
        self.waiting.clear()

    def compare(self, first: int, logprobs: Tensor, likeliest: Tensor, counts: Sequence[int]) -> list[Gap]:
        """Return the gap of some steps of each answer to their reading.

        Args:
            first: the first of the steps.
            logprobs, likeliest: of the reading, each [batch, step].
            counts: how many of the steps belong to each answer.
        """
        self._reduce()
        if len(self.logprobs) > 1:
            self.logprobs[:] = [torch.cat(self.logprobs, 1)]
            self.likeliest[:] = [torch.cat(self.likeliest, 1)]
        steps = slice(first, first + logprobs.shape[1])
        known = torch.tensor(counts, device=logprobs.device)[:, None]
        known = torch.arange(logprobs.shape[1], device=logprobs.device) < known
        gaps = (self.logprobs[0][:, steps].to(logprobs.device) - logprobs).abs().masked_fill(~known, 0)
        same = (self.likeliest[0][:, steps].to(likeliest.device) == likeliest) & known
        found = torch.stack([gaps.amax(1).double(), same.sum(1).double()], 1).tolist()  # one wait for all
        return [
            Gap(difference, int(agreeing), count)
            for (difference, agreeing), count in zip(found, counts, strict=True)
        ]


def prefix_key(sample: Sample) -> PrefixKey:
    """Return what is equal for samples that show the same images under the same system prompt.

    Of a conversation, it is all up to the last image. Samples without images, and those with videos, share with no other.

    Example:
        >>> prefix_key(Sample(id="a", question="Why?")) == prefix_key(Sample(id="b", question="Why?"))
        False
    """
    if not sample.images or sample.videos:
        return (sample.id,)
    parts = [(turn.role, part.text) for turn in sample.messages for part in turn.content]
    last = max((place for place, (_, text) in enumerate(parts) if text is None), default=-1)
    return (
        tuple(sample.images),
        sample.system,
        *parts[: last + 1],
        json.dumps(sample.template, sort_keys=True),
    )


def repeated_keys(samples: Iterable[Sample]) -> frozenset[PrefixKey]:
    """Return the keys that several samples have.

    Example:
        >>> repeated_keys([Sample(id="a", question="Why?")])
        frozenset()
    """
    counts = Counter(map(prefix_key, samples))
    return frozenset(key for key, count in counts.items() if count > 1)


def sort_by_images(batches: Sequence[list[Sample]]) -> list[list[Sample]]:
    """Return batches so that those whose first samples have the same key follow each other."""
    groups: dict[PrefixKey, list[list[Sample]]] = {}
    for batch in batches:
        groups.setdefault(prefix_key(batch[0]), []).append(batch)
    return [batch for group in groups.values() for batch in group]


def why_not_shared(model: Model) -> str | None:
    """Return why prompts of a model are read whole, or None if they can share prefixes.

    Example:
        >>> from mmprobe.models import load_model
        >>> why_not_shared(load_model("tiny-spd")) is None
        True
    """
    if not model.family.shares_prefixes:
        return f"{model.family.name} is not known to have causal attention over one growing cache"
    config = model.hf.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is None and getattr(config, "sliding_window", None) is not None:
        kinds = ["sliding_attention"]
    if kinds is not None and set(kinds) != {"full_attention"}:
        return f"this {model.family.name} has layers of {', '.join(sorted(set(kinds)))}"
    if hooked := find_hooked_module(model.hf):
        return f"the torch hook on {hooked} may expect whole prompts"
    return None


def prefix_bytes(model: Model, n_tokens: float, keeps_states: bool = True) -> int:
    """Return the bytes of one kept prefix.

    Args:
        n_tokens: number of its tokens.
        keeps_states: whether the states that the unembedding reads are kept, too.
    """
    config = model.hf.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values = 2 * model.n_layers * config.num_key_value_heads * head_dim + keeps_states * config.hidden_size
    return int(n_tokens * values * model.hf.dtype.itemsize)


@dataclass(frozen=True)
class Prefix:
    """A beginning that prompts have in common, as the model has read it.

    Attributes:
        ids: token ids, int32 [token].
        keys, values: by layer, [1, kv_head, token, dim].
        states: the states that the unembedding reads, [1, token, hidden]; None where nobody needs them.
        rope_delta: what M-RoPE adds to the positions of later tokens, [1, 1]; None in other models.
    """

    ids: np.ndarray
    keys: list[Tensor]
    values: list[Tensor]
    states: Tensor | None
    rope_delta: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        states = [] if self.states is None else [self.states]
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values, *states))

    def common_part(self, prompt: Prompt, last: int | None = None) -> Prefix | None:
        """Return the part that a prompt begins with, or None if that part lacks some of the visual tokens.

        Args:
            last: position of the last visual token that it must have; None for the prompt's last one.
        """
        length = min(len(self.ids), len(prompt.ids) - 1)  # one token at least is read anew
        differs = np.flatnonzero(self.ids[:length] != prompt.ids[:length])
        length = int(differs[0]) if len(differs) else length
        if length <= (prompt.visual_positions[-1] if last is None else last):
            return None
        keys, values = ([each[:, :, :length] for each in layers] for layers in (self.keys, self.values))
        states = None if self.states is None else self.states[:, :length]
        return Prefix(self.ids[:length], keys, values, states, self.rope_delta)


class SharedStart(NamedTuple):
    """Where `generate` starts for a batch.

    Attributes:
        inputs: for `generate`, with the cache of the first columns of the padded prompts.
        states: the states that the unembedding reads at these columns, [batch, column, hidden], or None.
        store: where the beginnings of the rows are kept.
        keys: the key of each row in it.
        beginnings: what each row has in common with others.
    """

    inputs: dict[str, Any]
    states: Tensor | None
    store: PrefixStore
    keys: Sequence[PrefixKey]
    beginnings: Sequence[Prefix]


class PrefixStore:
    """The prefixes of the newest groups of samples with the same images.

    Args:
        repeated: keys that several samples have (`repeated_keys`). Other samples are read whole.
        keeps_states: whether to keep the states that the unembedding reads.
        max_bytes: of all kept prefixes. A prompt whose prefix is larger is read whole.
    """

    def __init__(
        self,
        model: Model,
        repeated: frozenset[PrefixKey],
        keeps_states: bool,
        max_bytes: int = MAX_BYTES,
    ):
        self.model, self.repeated, self.keeps_states, self.max_bytes = (
            model,
            repeated,
            keeps_states,
            max_bytes,
        )
        self.prefixes: OrderedDict[PrefixKey, Prefix] = OrderedDict()
        self.features: OrderedDict[PrefixKey, Tensor] = OrderedDict()  # of images

    def start(self, keys: Sequence[PrefixKey], chats: Sequence[Chat], batch: Batch) -> SharedStart | None:
        """Return where to continue a batch from its prefixes, or None if it has to be read whole.

        It depends on the batch and on `repeated` only, not on what is in the store.

        Args:
            keys: `prefix_key` of each row's sample.
        """
        if not self.repeated.issuperset(keys) or why_not_shared(self.model):
            return None
        load = (lambda: batch.inputs) if len(chats) == 1 else None
        found = [self.find(*row, load) for row in zip(keys, chats, batch.prompts, strict=True)]
        beginnings = [each for each in found if each is not None]
        if len(beginnings) < len(found):
            return None
        cache, states = begin_batch(self.model, batch, beginnings, self.keeps_states)
        inputs = {name: value for name, value in batch.inputs.items() if name in OF_TOKENS}
        return SharedStart(inputs | {"past_key_values": cache}, states, self, keys, beginnings)

    def find(
        self,
        key: PrefixKey,
        chat: Chat,
        prompt: Prompt,
        load: Callable[[], Mapping[str, Any]] | None = None,
        keeps_states: bool | None = None,
    ) -> Prefix | None:
        """Return the beginning of a prompt from the store, or read and keep it; None if it is too large.

        Args:
            key: equal for chats with the same images and system prompt.
            load: returns the inputs of this chat alone; None to build them.
            keeps_states: whether to keep the states that the unembedding reads, if not as the store does. It is the
                same for all chats of a key.
        """
        keeps_states = self.keeps_states if keeps_states is None else keeps_states
        length = _prefix_length(prompt)
        if prefix_bytes(self.model, length, keeps_states) > self.max_bytes:
            return None
        if key not in self.prefixes:
            alone = build_batch(self.model, [chat]).inputs if load is None else load()
            inputs = {
                name: value[:, :length] if name in OF_TOKENS else value for name, value in alone.items()
            }
            self._keep(key, *read_tokens(self.model, inputs, [prompt.ids[:length]], [], keeps_states))
        self.prefixes.move_to_end(key)
        return self.prefixes[key].common_part(prompt)

    def find_all(self, keys: Sequence[PrefixKey], chats: Sequence[Chat], batch: Batch) -> list[Prefix | None]:
        """Return what `find` returns for each of several chats; beginnings that are missing are read in one pass.

        How they are rounded depends on which of them are missing.

        Args:
            keys: `(image_key(chat),)` for each.
        """
        prompts = batch.prompts
        if self.model.family.continues_with_images:
            for count in range(1, max(len(chat.images) for chat in chats) + 1):
                self._read_images(count, chats, batch)
        missing: dict[PrefixKey, int] = {}
        for row, (key, prompt) in enumerate(zip(keys, prompts, strict=True)):
            size = prefix_bytes(self.model, _prefix_length(prompt), self.keeps_states)
            if key not in self.prefixes and size <= self.max_bytes:
                missing.setdefault(key, row)
        if len(missing) > 1:
            batch = build_batch(self.model, [chats[row] for row in missing.values()])
            lengths = list(map(_prefix_length, batch.prompts))
            paddings = [max(lengths) - length for length in lengths]
            inputs = batch.inputs | _place_tokens(batch, paddings, max(lengths))
            ids = [prompt.ids[:length] for prompt, length in zip(batch.prompts, lengths, strict=True)]
            read = read_tokens(self.model, inputs, ids, [], self.keeps_states, paddings)
            for key, prefix in zip(missing, read, strict=True):
                self._keep(key, prefix)
        return [self.find(*each) for each in zip(keys, chats, prompts, strict=True)]

    def _read_images(self, count: int, chats: Sequence[Chat], batch: Batch) -> None:
        """Read and keep chats up to an image, each after what was read up to the image before; equally long ones in one pass.

        Args:
            count: the number of the image, from 1 on.
        """
        passes: dict[tuple[int, int], dict[PrefixKey, tuple[int, Prefix | None]]] = defaultdict(dict)
        known = set(self.prefixes)
        for row, (chat, prompt) in enumerate(zip(chats, batch.prompts, strict=True)):
            key = (image_key(chat, count),)
            if count > len(chat.images) or key in known:
                continue
            ends = [_find_end(prompt, image) for image in range(len(chat.images))]
            length = _prefix_length(prompt) if count == len(ends) else ends[count - 1]
            before = None
            if count > 1:
                earlier = self.prefixes.get((image_key(chat, count - 1),))
                before = None if earlier is None else earlier.common_part(prompt, ends[count - 2] - 1)
                if before is None:
                    continue  # it was forgotten, so the prompt is read whole
            if prefix_bytes(self.model, length, self.keeps_states) <= self.max_bytes:
                passes[len(before.ids) if before else 0, length][key] = (row, before)
                known.add(key)
        for (_, length), found in passes.items():
            rows = [row for row, _ in found.values()]
            shown = [
                chats[row]._replace(
                    messages=[{"role": "user", "content": [{"type": "image"}]}],
                    images=[chats[row].images[count - 1]],
                )
                for row in rows
            ]
            features = BaseModelOutputWithPooling(pooler_output=self._encode(shown))  # type: ignore[arg-type]
            inputs: dict[str, Any] = {"mm_encoder_outputs": {"image": features}}
            for name in (each for each in OF_TOKENS if each in batch.inputs):
                own = [batch.inputs[name][row, batch.prompts[row].padding :][:length] for row in rows]
                inputs[name] = torch.stack(own)
            ids = [batch.prompts[row].ids[:length] for row in rows]
            earlier_parts = [each for _, each in found.values() if each is not None]
            read = read_tokens(self.model, inputs, ids, earlier_parts, self.keeps_states)
            for key, prefix in zip(found, read, strict=True):
                self._keep(key, prefix)

    def _encode(self, shown: Sequence[Chat]) -> list[Tensor]:
        """Return what the language model gets of the image of each chat, [token, hidden]; each image is encoded once.

        Args:
            shown: chats with one image.
        """
        keys = [_pixel_key(chat.images[0]) for chat in shown]
        found = {key: self.features[key] for key in keys if key in self.features}
        missing = {key: chat for key, chat in zip(keys, shown, strict=True) if key not in found}
        if missing:
            inputs = build_batch(self.model, list(missing.values())).inputs
            of_images = {name: value for name, value in inputs.items() if name not in OF_TOKENS}
            with torch.inference_mode():
                made = self.model.hf.base_model.get_image_features(**of_images, return_dict=True)
            found |= zip(missing, made.pooler_output, strict=True)
        for key in found:
            self.features[key] = found[key]
            self.features.move_to_end(key)
        while sum(each.nbytes for each in self.features.values()) > self.max_bytes // 4:
            self.features.popitem(last=False)
        return [found[key] for key in keys]

    def count_kept(self, prompt: Prompt) -> int:
        """Return how many prefixes as long as that of a prompt are kept at a time."""
        size = prefix_bytes(self.model, _prefix_length(prompt), self.keeps_states)
        return min(MOST_PREFIXES, self.max_bytes // max(size, 1))

    def _keep(self, key: PrefixKey, prefix: Prefix) -> None:
        """Keep a prefix, and forget the oldest ones that exceed the memory."""
        self.prefixes[key] = prefix
        while (
            len(self.prefixes) > MOST_PREFIXES
            or sum(each.nbytes for each in self.prefixes.values()) > self.max_bytes
        ):
            self.prefixes.popitem(last=False)


def _find_end(prompt: Prompt, image: int) -> int:
    """Return the number of tokens up to the last one of an image."""
    views = [view for view, source in enumerate(prompt.sources) if source == image]
    return int(np.flatnonzero(np.isin(prompt.image, views))[-1]) + 1


def _prefix_length(prompt: Prompt) -> int:
    """Return the number of tokens before the question: the user's first token after all images."""
    end = int(prompt.visual_positions[-1]) + 1
    questions = np.flatnonzero(prompt.group[end:] == Group.USER)
    return end + int(questions[0]) if len(questions) else end


def read_tokens(
    model: Model,
    inputs: Mapping[str, Any],
    ids: Sequence[np.ndarray],
    before: Sequence[Prefix],
    keeps_states: bool,
    paddings: Sequence[int] | None = None,
) -> list[Prefix]:
    """Read tokens from the beginning of prompts on, a prompt a row.

    Args:
        inputs: of the tokens, with the images unless `before` includes them.
        ids: each row's tokens, int32 [token], with those of its `before`. What `inputs` has after them is not kept.
        before: what was read of each row already, equally long; empty if nothing was.
        keeps_states: whether to keep the states that the unembedding reads.
        paddings: number of columns before each row's tokens, where nothing was read before; None for none.
    """
    cache = build_cache(model, before, [0] * len(before)) if before else DynamicCache()
    states: list[Tensor] = []
    observed = (
        observe(model.family.final_norm(model.hf), outputs=states.append) if keeps_states else nullcontext()
    )
    with torch.inference_mode(), no_logits(model), observed:
        model.hf.generate(**inputs, **build_generation_kwargs(model, 1), past_key_values=cache)
    delta = None if before else getattr(model.hf.model, "rope_deltas", None)
    prefixes, layers = [], list[Any](cache.layers)
    for row, tokens in enumerate(ids):
        first = paddings[row] if paddings is not None else 0
        columns = slice(first, first + len(tokens))
        keys, values = (
            [getattr(layer, name)[row : row + 1, :, columns] for layer in layers]
            for name in ("keys", "values")
        )
        earlier = [before[row].states] if before else []
        parts = [*(each for each in earlier if each is not None), *(each[row : row + 1] for each in states)]
        kept = torch.cat(parts, 1)[:, columns] if keeps_states else None
        own_delta = before[row].rope_delta if before else delta if delta is None else delta[row : row + 1]
        prefixes.append(Prefix(tokens, keys, values, kept, own_delta))
    return prefixes


def begin_batch(
    model: Model, batch: Batch, beginnings: Sequence[Prefix], keeps_states: bool
) -> tuple[DynamicCache, Tensor | None]:
    """Return a cache of the first columns of a batch, given the beginning of each row, and the states there.

    The question of a single row is left to read. Several rows have questions of different lengths, so each is read
    up to its last token.

    Returns:
        The cache; the states that the unembedding reads, [batch, column, hidden], or None where nobody needs them.
    """
    if len(beginnings) > 1:
        beginnings = _read_rests(model, batch, beginnings, keeps_states)
    paddings = [prompt.padding for prompt in batch.prompts]
    cache = build_cache(model, beginnings, paddings)
    states = [each.states for each in beginnings if keeps_states and each.states is not None]
    return cache, _pad(states, paddings) if states else None


def _read_rests(model: Model, batch: Batch, beginnings: Sequence[Prefix], keeps_states: bool) -> list[Prefix]:
    """Return each row's prompt up to its last token, from a pass over all rows with beginnings of one length."""
    prefixes, by_length = list(beginnings), defaultdict[int, list[int]](list)
    ids = [prompt.ids[:-1] for prompt in batch.prompts]
    for row, beginning in enumerate(beginnings):
        if len(beginning.ids) < len(ids[row]):
            by_length[len(beginning.ids)].append(row)
    for rows in by_length.values():
        longest = max(len(ids[row]) for row in rows)
        inputs = {
            name: torch.stack(
                [_fill(batch.inputs[name][row, batch.prompts[row].padding : -1], longest) for row in rows]
            )
            for name in OF_TOKENS
            if name in batch.inputs
        }
        read = read_tokens(
            model, inputs, [ids[row] for row in rows], [beginnings[row] for row in rows], keeps_states
        )
        for row, prefix in zip(rows, read, strict=True):
            prefixes[row] = prefix
    return prefixes


def _fill(values: Tensor, length: int) -> Tensor:
    """Repeat the last of some values, one a token, after their end; no earlier token sees these."""
    return torch.cat([values, values[-1:].expand(length - len(values))])


def build_cache(model: Model, prefixes: Sequence[Prefix], paddings: Sequence[int]) -> DynamicCache:
    """Return a cache with a prefix a row, and let the model place later tokens after it."""
    cache = DynamicCache()
    for layer in range(len(prefixes[0].keys)):
        keys, values = ([getattr(each, name)[layer] for each in prefixes] for name in ("keys", "values"))
        cache.update(_pad(keys, paddings), _pad(values, paddings), layer)
    deltas = [prefix.rope_delta for prefix in prefixes if prefix.rope_delta is not None]
    if deltas:  # `generate` adds it to the positions of the tokens that are not in the cache
        model.hf.model.rope_deltas = torch.cat(deltas)
    return cache


def _pad(parts: Sequence[Tensor], paddings: Sequence[int]) -> Tensor:
    """Join tensors [1, ..., token, feature], each after its row's padding."""
    if not any(paddings):
        return torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    pairs = zip(parts, paddings, strict=True)
    return torch.cat([pad(part, (0, 0, padding, 0)) for part, padding in pairs])
