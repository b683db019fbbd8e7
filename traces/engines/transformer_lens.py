"""The engine on TransformerLens: hook points of a TransformerBridge around Hugging Face's own `generate`.

TransformerLens runs eager attention and keeps to one sample; its numbers are independent of the native engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
from transformer_lens.model_bridge.sources import build_bridge_from_module

from mmprobe.models import Batch, Model
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.engines.step_buffer import Collected, refusal, sharing_copy, wanted_parts
from mmprobe.traces.recorder import SampleRecorder

RESIDUALS = {"pre": "hook_resid_pre", "mid": "hook_resid_mid", "post": "hook_resid_post"}

_bridges: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def refuses(model: Model, batch_size: int) -> str | None:
    """Why TransformerLens cannot do this run, None if it can."""
    if type(model.hf).__name__ not in SUPPORTED_ARCHITECTURES:
        return f"TransformerLens has no adapter for {type(model.hf).__name__}; use --engine native or nnsight"
    return refusal(model, batch_size)


def record(
    model: Model, batch: Batch, lanes: Sequence[SampleRecorder], spec: CaptureSpec, generate: dict[str, Any]
) -> Tensor:
    """Generate an answer and record it; as the native engine's `record`."""
    bridge, lane = _bridge(model), lanes[0]
    kept = Collected()
    bridge.original_model.generation_config = model.hf.generation_config  # may have changed since it was made
    with torch.inference_mode(), bridge.hooks(fwd_hooks=_hooks(model, bridge, lane.layers, spec, kept)):
        output = bridge.original_model.generate(**batch.inputs, **generate)
        kept.hand_over(lane, output[0, len(lane.prompt.ids) :])
    return output


def _bridge(model: Model) -> Any:
    """A bridge around a copy that shares the model's weights, made once: it rewires what it wraps."""
    if model.hf in _bridges:
        return _bridges[model.hf]
    name, hf = type(model.hf).__name__, sharing_copy(model.hf)
    adapter = SUPPORTED_ARCHITECTURES[name]
    vision = getattr(hf.config, "vision_config", None)
    kernel = getattr(vision, "_attn_implementation", None)
    unneeded = [
        library for library in adapter.required_libraries if library != "torchvision"
    ]  # processors need it
    with patch.object(adapter, "required_libraries", unneeded):
        bridge = build_bridge_from_module(hf, name, hf_config=hf.config, tokenizer=None)
    if vision is not None:
        vision._attn_implementation = kernel  # it has made all of the model eager
    hf.config.get_text_config()._attn_implementation = "eager"  # not all adapters do
    _bridges[model.hf] = bridge
    return bridge


def _activated(act: Any, value: Tensor) -> Tensor:
    return act(value[0, -1])


def _hooks(
    model: Model, bridge: Any, layers: list[int], spec: CaptureSpec, kept: Collected
) -> list[tuple[str, Callable[..., None]]]:
    parts, decoder, hooks = wanted_parts(spec), model.family.decoder(model.hf), []

    def keeping(values: list[Tensor], change: Callable[[Tensor], Tensor]) -> Callable[..., None]:
        def hook(value: Tensor, hook: Any) -> None:  # what a hook returns would replace the value
            values.append(change(value).detach().clone())

        return hook

    for layer in layers:
        if "residuals" in parts:
            for name, point in RESIDUALS.items():
                values = kept.residuals.setdefault(name, {}).setdefault(layer, [])
                hooks.append((f"blocks.{layer}.{point}", keeping(values, lambda value: value[0, -1])))
        if "attention" in parts:
            rows = kept.attention.setdefault(layer, [])
            hooks.append((f"blocks.{layer}.attn.hook_pattern", keeping(rows, lambda value: value[0, :, -1])))
        if "gates" in parts:  # no hook point stands between act and the product with the other half
            act = model.family.parts(decoder.layers[layer]).activation
            gates = kept.gates.setdefault(layer, [])
            hooks.append((f"blocks.{layer}.mlp.hook_pre", keeping(gates, partial(_activated, act))))
    if "normed" in parts:
        hooks.append(("ln_final.hook_out", keeping(kept.normed, lambda value: value[0])))
    transform = bridge.adapter.apply_output_logits_transform
    hooks.append(("unembed.hook_out", keeping(kept.logits, lambda value: transform(value[0, -1]))))
    return hooks
