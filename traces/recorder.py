"""Reduce the internals of one answer to the data sets of its trace, the same for every engine, and write them meanwhile.

The files are written by one thread with a bounded queue, from copies that a GPU makes on a stream of its own.
"""

from __future__ import annotations

import ctypes
import queue
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmprobe.cache import TraceWriter
from mmprobe.cache.hdf5 import Selection
from mmprobe.cache.schema import VARIABLES
from mmprobe.errors import InputError
from mmprobe.models import Group, Model, Prompt
from mmprobe.models.devices import read_weight
from mmprobe.models.hooks import has_forward_pre_hooks
from mmprobe.models.reading import Gap
from mmprobe.traces.asking import EndsRun
from mmprobe.traces.capture import CaptureSpec


class AttentionRows(NamedTuple):
    """Attention of one layer.

    Attributes:
        weights: [head, query, key]. The keys are the sample's tokens from the first one on, or the images'
            keys in a cross-attention layer.
        has_cross_attention: whether the layer is a cross-attention layer.
    """

    weights: Tensor
    has_cross_attention: bool = False

    def cut(self, count: int, steps: int) -> AttentionRows:
        """Return the first `count` of `steps` queries, without the keys after the last of them."""
        if count == steps:
            return self
        keys = None if self.has_cross_attention else count - steps
        return self._replace(weights=self.weights[:, :count, :keys])


class UnobservedChange(InputError, EndsRun):
    """Something changes the residual stream where no observer sees it. No trace of the run would be right."""


class SampleRecorder:
    """Reduces one sample's internals, a block of steps at a time, and passes them to its writer.

    Args:
        writer: the writer of the sample's trace.
    """

    def __init__(self, model: Model, prompt: Prompt, spec: CaptureSpec, writer: BackgroundWriter):
        self.model, self.prompt, self.spec, self.writer = model, prompt, spec, writer
        self.decoder_layers = model.family.decoder(model.hf).layers
        self.layers = spec.layer_indices(model.n_layers)
        self.heads = spec.head_indices(model.n_heads)
        self.records_all_heads = len(self.heads) == model.n_heads
        self.device = model.device
        self.n_steps = 0  # steps recorded
        self.gap: Gap | None = None  # between reading and decoding the answer; None if it was not read
        self.has_ended = False  # the answer is complete; other answers of the batch may continue
        self.gate_sum: Tensor | None = None  # [layer, neuron]
        self.prompt_post: tuple[int, Tensor] | None = None  # the newest layer's output [position, hidden]
        visual_keys = prompt.visual_keys
        self.has_cross_attention = visual_keys is not None
        self.visual = torch.from_numpy(prompt.visual_positions).to(self.device)
        self.visual_slices = _to_slices(prompt.visual_positions if visual_keys is None else visual_keys)
        self.n_visual = sum(part.stop - part.start for part in self.visual_slices)
        self.kept = spec.prompt_positions(prompt.group)  # positions that are recorded under prompt/
        groups = torch.from_numpy(prompt.group.astype(np.int64)).to(self.device)
        self.membership = F.one_hot(groups, len(Group) + 1).float()  # [token, group + leading]
        first_image = int(prompt.visual_positions[0]) if len(prompt.visual_positions) else 0
        self.membership[:first_image, -1] = 1

    def write(self, name: str, values: Tensor) -> None:
        """Append a block of steps to a data set, if the capture includes it."""
        if name in self.spec.stored or name.startswith("steps/"):
            self.writer.append(name, values)

    def write_steps(self, token_ids: Tensor, logits: Tensor) -> Tensor:
        """Begin a block of steps, and return the log-probabilities of its tokens [step].

        Args:
            token_ids: the generated tokens [step].
            logits: the logits that predicted them [step, vocabulary].
        """
        logprobs = logits.float().log_softmax(-1)
        of_tokens = logprobs.gather(1, token_ids[:, None])[:, 0]
        self.write("steps/id", token_ids)
        self.write("steps/logprob", of_tokens)
        self.write("steps/entropy", torch.special.entr(logprobs.exp()).sum(-1))
        self.n_steps += len(token_ids)
        return of_tokens

    def write_attention(self, rows_of_layer: Callable[[int], AttentionRows | None], steps: int) -> None:
        """Write the attention of the last `steps` queries. The rows of one layer exist at a time.

        Args:
            rows_of_layer: returns a layer's rows [head, step, key], or None for a layer that did not run.
        """
        block = AttentionBlock(self, steps)
        for layer in self.layers:
            block.add(rows_of_layer(layer))
        block.write()

    def select_heads(self, weights: Tensor) -> Tensor:
        """Return the recorded heads of [head, ...] that the layer has; a layer may have fewer than another."""
        if self.records_all_heads:
            return weights
        return weights[[head for head in self.heads if head < len(weights)]]

    def fill_heads(self, values: Tensor) -> Tensor:
        """Return [head, ...] of all recorded heads, NaN for heads that the layer does not have."""
        missing = len(self.heads) - len(values)
        if not missing:
            return values
        return torch.cat([values, values.new_full((missing, *values.shape[1:]), torch.nan)])

    def reduce(
        self, rows: AttentionRows | None, membership: Tensor, steps: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return a layer's mass and its weights on visual tokens.

        Returns:
            The mass [head, step, group + leading]; the weights' mean over heads [step, visual]; the weights by head
            [head, step, visual] if the capture needs them, or else None.
        """
        by_head = bool({"attention/visual_head", "prompt/attention_visual_head"} & self.spec.stored)
        n_groups = len(Group) + 1
        if rows is None:
            mass = torch.full((len(self.heads), steps, n_groups), torch.nan, device=self.device)
            visual = torch.full((len(self.heads), steps, self.n_visual), torch.nan, device=self.device)
            return mass, visual[0], visual if by_head else None
        weights = self.select_heads(rows.weights)
        if rows.has_cross_attention:
            mass = torch.zeros(*weights.shape[:2], n_groups, device=self.device)
            mass[..., Group.VISUAL] = weights.sum(-1)
        else:
            mass = weights @ membership.to(weights.device)
            if self.has_cross_attention:  # a layer that sees the text only
                visual = torch.zeros(*weights.shape[:2], self.n_visual, device=self.device)
                return mass, visual[0], visual if by_head else None
        mass = self.fill_heads(mass)
        if not by_head:
            return mass, _take_slices(weights.mean(0), self.visual_slices), None
        visual = _take_slices(weights, self.visual_slices)
        return mass, visual.mean(0), self.fill_heads(visual)

    def write_residuals(self, residuals: dict[str, Tensor]) -> None:
        """Write the residual stream, and what each layer does to it.

        Args:
            residuals: by `pre`, `mid` and `post` (before, within and after the layer), [step, layer, hidden].

        Raises:
            UnobservedChange: a layer's `post` is not the next layer's `pre`.
        """
        if "pre" in residuals and "post" in residuals:
            self._check_stream(residuals["post"][:, :-1], residuals["pre"][:, 1:], self.layers)
        for name, values in residuals.items():
            self.write(f"residual/{name}", values)
        if self.spec.wants("update/"):
            pre, mid, post = (residuals[name].float() for name in ("pre", "mid", "post"))
            attention, ffn = (mid - pre).log_softmax(-1), (post - mid).log_softmax(-1)
            self.write("update/cos_mha", F.cosine_similarity(pre, mid, dim=-1))
            self.write("update/cos_ffn", F.cosine_similarity(mid, post, dim=-1))
            self.write("update/kl", (attention.exp() * (attention - ffn)).sum(-1))

    def _check_stream(self, post: Tensor, pre: Tensor, layers: list[int]) -> None:
        """Check that a layer's output is what the next layer reads, unless a pre-hook of the user changes it.

        Layers that did not run are NaN.

        Args:
            post: resid_post of all but the last layer [position, layer, hidden].
            pre: resid_pre of all but the first layer, of the same shape.
        """
        if torch.equal(post, pre):  # takes a fifth of the time
            return
        differs = ((post - pre).abs() > 0).any(-1).any(0).tolist()
        for first, second, differ in zip(layers[:-1], layers[1:], differs, strict=True):
            if differ and second == first + 1 and not has_forward_pre_hooks(self.decoder_layers[second]):
                raise UnobservedChange(
                    f"layer {first}: its resid_post is not resid_pre of layer {second}, since something that is "
                    "no torch hook changes the residual stream between them; remove it, or leave residual/ and "
                    "update/ out of the capture"
                )

    def write_gates(self, gates: Tensor) -> None:
        """Write which neurons are active, and add act(gate) [step, layer, neuron] to its sum."""
        if self.gate_sum is None and "ffn/gate_first" in self.spec.stored:
            self.writer.write("ffn/gate_first", gates[0].float())
        total = gates.sum(0, dtype=torch.float32)
        self.gate_sum = total if self.gate_sum is None else self.gate_sum + total
        self.write("ffn/active", gates > 0)

    def write_tam(self, states: Tensor, token_ids: Tensor) -> None:
        """Write the logit of each step's token at every position up to its query, and NaN after it.

        Args:
            states: the input of the unembedding [position, hidden], at all positions up to the last query.
            token_ids: the generated tokens [step].
        """
        rows = self._unembedding(token_ids)
        logit = (states.to(rows.device) @ rows.T).T.float().to(self.device)
        queries = torch.arange(len(states) - len(token_ids), len(states), device=self.device)
        future = torch.arange(len(states), device=self.device) > queries[:, None]
        self.write("tam/logit", logit.masked_fill(future, float("nan")))

    def _unembedding(self, ids: Tensor) -> Tensor:
        weight = read_weight(self.model.hf.get_output_embeddings())
        return weight[ids.to(weight.device)]

    def finish(self, states: Tensor | None) -> None:
        """Write the data sets of the answer as a whole.

        Args:
            states: the input of the unembedding [position, hidden], at all positions of the prompt at least;
                only `tam/prompt` needs it.
        """
        if "ffn/gate_sum" in self.spec.stored and self.gate_sum is not None:
            self.writer.write("ffn/gate_sum", self.gate_sum)
        if "tam/prompt" in self.spec.stored and states is not None:
            user = torch.from_numpy(np.flatnonzero(self.prompt.group == Group.USER)).to(self.device)
            ids = torch.from_numpy(self.prompt.ids).to(self.device)[user].long()
            rows = self._unembedding(ids)
            seen = states[self.visual.to(states.device)]
            self.writer.write("tam/prompt", rows @ seen.to(rows.device).T)

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
            self._check_stream(post[:, None], values[:, None], [previous, layer])
        if len(values) and f"prompt/residual_{name}" in self.spec.stored:
            shape = (len(values), len(self.layers), values.shape[-1])
            selection = (slice(0, len(values)), self.layers.index(layer), slice(0, values.shape[-1]))
            self.writer.write_part(f"prompt/residual_{name}", values, selection, shape)

    def write_prompt_attention(self, layer: int, first: int, rows: AttentionRows) -> None:
        """Write one layer's attention of a block of the prompt's queries.

        Args:
            first: position of the block's first query.
            rows: the block's rows, on all keys of the prompt.
        """
        index, last = self.layers.index(layer), first + rows.weights.shape[1]
        start, end = np.searchsorted(self.kept, [first, last]).tolist()
        if end - start < last - first:
            own = torch.from_numpy(self.kept[start:end] - first).to(rows.weights.device)
            rows = rows._replace(weights=rows.weights[:, own])
        queries = end - start
        if not queries:
            return
        mass, visual, by_head = self.reduce(rows, self.membership, queries)
        by_name: dict[str, Tensor] = {"mass": mass[..., :-1].transpose(0, 1), "visual": visual}
        if by_head is not None:
            by_name["visual_head"] = by_head.transpose(0, 1)
        if not rows.has_cross_attention:
            by_name["row"] = self.fill_heads(self.select_heads(rows.weights)).transpose(0, 1)
        for name, values in by_name.items():
            if f"prompt/attention_{name}" in self.spec.stored:
                shape = (len(self.kept), len(self.layers), *values.shape[1:])
                selection = (slice(start, end), index, *(slice(0, n) for n in values.shape[1:]))
                self.writer.write_part(f"prompt/attention_{name}", values, selection, shape)


class AttentionBlock:
    """The attention of the last `steps` queries of a sample, which is added a layer at a time.

    Args:
        steps: number of the queries, which the recorder counts already.
    """

    def __init__(self, recorder: SampleRecorder, steps: int):
        self.recorder, self.steps = recorder, steps
        self.keys = len(recorder.prompt.ids) + recorder.n_steps - 1
        known = recorder.membership
        generated = torch.zeros(self.keys - len(known), known.shape[1], device=recorder.device)
        generated[:, Group.GENERATED] = 1
        self.membership = torch.cat([known, generated])  # [key, group + leading]
        self.masses: list[Tensor] = []
        self.visuals: dict[str, Tensor] = {}  # filled in place: stacking takes twice the memory

    def add(self, rows: AttentionRows | None) -> None:
        """Add the rows [head, step, key] of the next layer, or None if it did not run."""
        recorder, index = self.recorder, len(self.masses)
        mass, visual, by_head = recorder.reduce(rows, self.membership, self.steps)
        self.masses.append(mass.to(recorder.device))
        self._fill_visual(index, visual, by_head)
        if "attention/row" in recorder.spec.stored and rows is not None and not rows.has_cross_attention:
            shape = (recorder.n_steps, len(recorder.layers), len(recorder.heads), self.keys)
            steps = slice(recorder.n_steps - self.steps, recorder.n_steps)
            weights = recorder.fill_heads(recorder.select_heads(rows.weights)).transpose(0, 1)
            selection = (steps, index, slice(None), slice(0, self.keys))
            recorder.writer.write_part("attention/row", weights, selection, shape)

    def _fill_visual(self, index: int, visual: Tensor, by_head: Tensor | None) -> None:
        """Copy a layer's weights on visual tokens, from `reduce`, to the blocks."""
        recorder = self.recorder
        by_name = {"attention/visual": visual}
        if by_head is not None:
            by_name["attention/visual_head"] = by_head.transpose(0, 1)
        for name, values in by_name.items():
            if name not in recorder.spec.stored:
                continue
            if name not in self.visuals:
                # rounded here, since attention weights never overflow float16
                dtype = torch.float16 if recorder.writer.is_float16(name) else values.dtype
                shape = len(values), len(recorder.layers), *values.shape[1:]
                self.visuals[name] = values.new_empty(shape, dtype=dtype, device=recorder.device)
            self.visuals[name][:, index] = values

    def write(self) -> None:
        """Write the block, once all layers are added."""
        mass = torch.stack(self.masses, 1).permute(2, 1, 0, 3)  # [step, layer, head, group + leading]
        self.recorder.write("attention/mass", mass[..., :-1])
        self.recorder.write("attention/leading", mass[..., -1])
        for name, values in self.visuals.items():
            self.recorder.write(name, values)


def _to_slices(positions: np.ndarray) -> list[slice]:
    """Return ascending positions as slices; the visual tokens of an image need few."""
    parts = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts if len(part)] or [slice(0, 0)]


def _take_slices(weights: Tensor, slices: list[slice]) -> Tensor:
    """Return weights [..., key] at some keys; an index for each key takes ten times as long."""
    return torch.cat([weights[..., part] for part in slices], -1)


QUEUE_SIZE = 16  # calls that may wait for the disk
_WEIGHTS = ("attention/", "prompt/attention")  # between 0 and 1, so they never overflow float16
_IDLE_SECONDS = 0.25  # without a call, after which memory is given back
_BUSY_SECONDS = 5.0  # of calls without a pause, after which it is, too; our choice


class WritingFailed(RuntimeError, EndsRun):
    """Writing failed for a reason other than the disk; the cause has the details."""


class WriterThread:
    """A thread that makes the calls submitted to it, in order.

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
            self._raise_error()

    def submit(self, function: Callable[..., None], *arguments: Any) -> None:
        """Queue a call. Tensors among the arguments are copied to the host, without waiting for the copies.

        Raises:
            OSError: the disk refused an earlier call.
            WritingFailed: an earlier call failed for another reason.
        """
        self._raise_error()
        self.calls.put((function, tuple(self._copy_to_host(value) for value in arguments)))

    def wait(self) -> None:
        """Wait until every queued call has been made, or skipped after an error."""
        self.calls.join()

    def _raise_error(self) -> None:
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

    def is_float16(self, name: str) -> bool:
        """Return whether a data set is stored in float16."""
        return self.writer.is_float16(name)

    def append(self, name: str, values: Tensor) -> None:
        """Add a block of steps to a data set whose first dimension is `step`."""
        self._submit(self.writer.append, name, values)

    def write(self, name: str, values: Tensor) -> None:
        """Write a whole data set."""
        self._submit(self.writer.write, name, values)

    def write_part(self, name: str, values: Tensor, selection: Selection, shape: tuple[int, ...]) -> None:
        """Write a part of a data set that has at least this shape."""
        self._submit(self.writer.write_part, name, values, selection, shape)

    def _submit(self, write: Callable[..., None], name: str, values: Tensor, *position: Any) -> None:
        """Queue a write.

        Values for a float16 data set are rounded on the model's device, so that less is copied. The original
        values are written if rounding made one of them infinite, or if the data set is float32 by then.
        """
        rounds = self.is_float16(name) and values.is_floating_point() and values.dtype != torch.float16
        original = values if rounds and not name.startswith(_WEIGHTS) else None

        def write_on_host(host: Tensor) -> None:
            array = to_disk(name, host)
            if original is not None and (_has_infinity(array) or not self.is_float16(name)):
                array = to_disk(name, original.cpu())
            write(name, array, *position)

        self.thread.submit(write_on_host, values.half() if rounds else values)


def to_disk(name: str, values: Tensor) -> np.ndarray:
    """Return a tensor on the host as the numpy array that the format stores; float16 stays float16.

    Example:
        >>> to_disk("residual/mid", torch.tensor([[[0.1]]], dtype=torch.bfloat16)).dtype
        dtype('float32')
    """
    if name == "ffn/active":
        return np.packbits(values.numpy(), axis=-1)
    if not values.is_floating_point():
        return values.numpy().astype(VARIABLES[name].dtype)
    return (values if values.dtype == torch.float16 else values.float()).numpy()


def _has_infinity(values: np.ndarray) -> bool:
    """Return whether a float16 array contains an infinity."""
    return bool((values.view(np.uint16) & 0x7FFF == 0x7C00).any())  # np.isinf takes five times as long


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
