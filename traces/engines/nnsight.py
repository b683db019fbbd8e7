"""The nnsight engine: one nnsight trace around `generate`, on this machine or on NDIF's cluster.

It runs eager attention, one sample at a time. Its numbers are independent of the native engine's. It reads
modules with `tracer.iter`, step by step: nnsight's cache would keep the eager attention of the whole prompt
in memory, [head, query, key] for every layer.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import nnsight
import torch
from nnsight import NNsight, TransformersModel
from torch import Tensor
from torch.utils._pytree import tree_map_only

from mmprobe.models import Batch, Model
from mmprobe.models.finite import check_finite
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.engines.step_buffer import (
    StepBuffer,
    copy_sharing_weights,
    parts_to_collect,
    unsupported_reason,
)
from mmprobe.traces.recorder import SampleRecorder

__all__ = ["record", "unsupported_reason"]

_ONE_STEP_TOO_MANY = r"'.*' was never reached: the loop asked for a step the run did not make"
_wrapped: WeakKeyDictionary[Any, dict[bool, Any]] = WeakKeyDictionary()


def record(
    model: Model,
    batch: Batch,
    recorders: Sequence[SampleRecorder],
    spec: CaptureSpec,
    generate: dict[str, Any],
    remote: bool | str = False,
) -> Tensor:
    """Generate an answer and record it, as the native engine's `record`.

    Args:
        recorders: one recorder, of the only sample.
        generate: arguments of transformers' `generate`.
        remote: True runs the model on NDIF's cluster, a text on the host of that address, and "local" here,
            but in the way of a cluster.
    """
    recorder = recorders[0]
    modules = _module_names(model, recorder.layers)
    if remote == "local":
        recorder.writer.thread.wait()  # meanwhile nnsight hides most modules from all threads
    with torch.inference_mode():
        output, buffer = _trace_generate(
            _wrap(model, bool(remote)), {**batch.inputs, **generate}, modules, parts_to_collect(spec), remote
        )
        token_ids = output[0, len(recorder.prompt.ids) :].to(model.device)
        if len(buffer.logits) < len(token_ids):
            raise RuntimeError(f"nnsight read {len(buffer.logits)} of {len(token_ids)} steps")
        if remote:  # a cluster sends tensors on the CPU
            buffer = StepBuffer(**tree_map_only(Tensor, lambda value: value.to(model.device), vars(buffer)))
        check_finite(model, None if remote else batch.inputs, buffer.logits)
        buffer.write_to(recorder, token_ids)
    return output


def _trace_generate(
    wrapped: Any,
    arguments: dict[str, Any],
    modules: dict[Any, dict[str, str]],
    parts: set[str],
    remote: bool | str,
) -> tuple[Tensor, StepBuffer]:
    """Generate within an nnsight trace, and return the output and the internals.

    nnsight sends the source of the `with` block to where it runs, so the block uses nothing of this package.
    """
    norm = modules.pop("norm")["norm"]
    answers: list[Tensor] = []

    def generate(**arguments: Any) -> Tensor:
        answers.append(wrapped._module.generate(**arguments))
        return answers[0]

    if remote:
        tracing = wrapped.trace(fn=wrapped.generate, remote=remote, **arguments)
    else:
        tracing = wrapped.trace(fn=generate, **arguments)
    generator = f"{wrapped.path}.generator"  # returns the result of a TransformersModel's `generate`
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_ONE_STEP_TOO_MANY)
        with tracing as tracer:
            answer = tracer.cache(modules=[generator])  # here, since nothing after the loop is reached
            kept = nnsight.save({"normed": [], "logits": []})
            for name in ("attention", "pre", "mid", "post", "gates"):
                kept[name] = {layer: [] for layer in modules}
            for _ in tracer.iter[:]:
                for layer, names in modules.items():  # in the order of the forward pass
                    if "residuals" in parts:
                        kept["pre"][layer].append(wrapped.get(names["layer"]).input[0, -1].detach().clone())
                    if "attention" in parts:
                        rows = wrapped.get(names["attention"]).output[1][0, :, -1].detach().clone()
                        kept["attention"][layer].append(rows)
                    if "residuals" in parts:
                        kept["mid"][layer].append(wrapped.get(names["mid"]).input[0, -1].detach().clone())
                    if "gates" in parts:
                        kept["gates"][layer].append(
                            wrapped.get(names["gates"]).output[0, -1].detach().clone()
                        )
                    if "residuals" in parts:
                        after = wrapped.get(names["layer"]).output
                        after = after[0] if isinstance(after, tuple) else after
                        kept["post"][layer].append(after[0, -1].detach().clone())
                if "normed" in parts:
                    kept["normed"].append(wrapped.get(norm).output[0].detach().clone())
                kept["logits"].append(
                    wrapped.output.logits[0, -1].detach().clone()
                )  # the last module of a step
    buffer = StepBuffer(
        attention=kept["attention"] if "attention" in parts else {},
        residuals={name: kept[name] for name in ("pre", "mid", "post")} if "residuals" in parts else {},
        gates=kept["gates"] if "gates" in parts else {},
        logits=kept["logits"],
        normed=kept["normed"],
    )
    return answer[generator].output if remote else answers[0], buffer


def _wrap(model: Model, remote: bool) -> Any:
    """Return the model wrapped for nnsight: a copy that shares its weights.

    Its attention is eager, so that attention modules return their weights. Only a TransformersModel knows its
    name on a cluster; a local run does not need the pipeline that it brings along.
    """
    wrapped = _wrapped.setdefault(model.hf, {})
    if remote not in wrapped:
        hf = copy_sharing_weights(model.hf)
        hf.config.get_text_config()._attn_implementation = "eager"
        if remote:
            wrapped[remote] = TransformersModel(
                hf,
                task="image-text-to-text",
                processor=model.processor,
                tokenizer=copy.copy(model.tokenizer),  # nnsight changes its padding
                device=model.hf.device,
            )
        else:
            wrapped[remote] = NNsight(hf)
    wrapped[
        remote
    ]._module.generation_config = model.hf.generation_config  # may have changed since the copy was made
    return wrapped[remote]


def _module_names(model: Model, layers: list[int]) -> dict[Any, dict[str, str]]:
    """Return the names, as `hf.named_modules` gives them, of the final norm and of each layer's modules."""
    name = {module: name for name, module in model.hf.named_modules()}
    decoder = model.family.decoder(model.hf)
    names: dict[Any, dict[str, str]] = {"norm": {"norm": name[model.family.final_norm(model.hf)]}}
    for layer in layers:
        module = decoder.layers[layer]
        parts = model.family.parts(module)
        names[layer] = {"layer": name[module], "attention": name[parts.attention], "mid": name[parts.mid]}
        if parts.activation is not None:
            names[layer]["gates"] = name[parts.activation]
    return names
