"""The TransformerLens engine: hook points of a TransformerBridge around transformers' own `generate`.

It runs eager attention, one sample at a time. Its numbers are independent of the native engine's.
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
from mmprobe.models.finite import check_finite
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.engines import step_buffer
from mmprobe.traces.engines.step_buffer import StepBuffer, copy_sharing_weights, parts_to_collect
from mmprobe.traces.recorder import SampleRecorder

RESIDUALS = {"pre": "hook_resid_pre", "mid": "hook_resid_mid", "post": "hook_resid_post"}

_bridges: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def unsupported_reason(model: Model, batch_size: int) -> str | None:
    """Return why TransformerLens does not support a run, or None if it does."""
    architecture = type(model.hf).__name__
    if architecture not in SUPPORTED_ARCHITECTURES:
        return f"TransformerLens has no adapter for {architecture}; use another engine"
    return step_buffer.unsupported_reason(model, batch_size)


def record(
    model: Model,
    batch: Batch,
    recorders: Sequence[SampleRecorder],
    spec: CaptureSpec,
    generate: dict[str, Any],
) -> Tensor:
    """Generate an answer and record it, as the native engine's `record`.

    Args:
        recorders: one recorder, of the only sample.
        generate: arguments of transformers' `generate`.
    """
    bridge, recorder = load_bridge(model), recorders[0]
    buffer = StepBuffer()
    bridge.original_model.generation_config = model.hf.generation_config  # may have changed since it was made
    hooks = _make_hooks(model, bridge, recorder.layers, spec, buffer)
    with torch.inference_mode(), bridge.hooks(fwd_hooks=hooks):
        output = bridge.original_model.generate(**batch.inputs, **generate)
        check_finite(model, batch.inputs, buffer.logits)
        buffer.write_to(recorder, output[0, len(recorder.prompt.ids) :])
    return output


def load_bridge(model: Model) -> Any:
    """Return a bridge around a copy with the same weights, since a bridge rewires the model it wraps."""
    if model.hf in _bridges:
        return _bridges[model.hf]
    name, hf = type(model.hf).__name__, copy_sharing_weights(model.hf)
    adapter = SUPPORTED_ARCHITECTURES[name]
    vision = getattr(hf.config, "vision_config", None)
    kernel = getattr(vision, "_attn_implementation", None)
    # torchvision is required for processors only, which the bridge does not use
    required = [library for library in adapter.required_libraries if library != "torchvision"]
    with patch.object(adapter, "required_libraries", required):
        bridge = build_bridge_from_module(hf, name, hf_config=hf.config, tokenizer=None)
    if vision is not None:
        vision._attn_implementation = kernel  # the bridge made the whole model eager
    hf.config.get_text_config()._attn_implementation = "eager"  # which not every adapter sets
    _bridges[model.hf] = bridge
    return bridge


def _make_hooks(
    model: Model, bridge: Any, layers: list[int], spec: CaptureSpec, buffer: StepBuffer
) -> list[tuple[str, Callable[..., None]]]:
    """Return the hook points that a capture needs, each with a hook that fills the buffer."""
    parts = parts_to_collect(spec)
    decoder = model.family.decoder(model.hf)
    hooks: list[tuple[str, Callable[..., None]]] = []

    def append_to(values: list[Tensor], transform: Callable[[Tensor], Tensor]) -> Callable[..., None]:
        def hook(
            value: Tensor, hook: Any
        ) -> None:  # must return None: another result would replace the value
            values.append(transform(value).detach().clone())

        return hook

    for layer in layers:
        if "residuals" in parts:
            for name, point in RESIDUALS.items():
                values = buffer.residuals.setdefault(name, {}).setdefault(layer, [])
                hooks.append((f"blocks.{layer}.{point}", append_to(values, lambda value: value[0, -1])))
        if "attention" in parts:
            rows = buffer.attention.setdefault(layer, [])
            hooks.append(
                (f"blocks.{layer}.attn.hook_pattern", append_to(rows, lambda value: value[0, :, -1]))
            )
        if "gates" in parts:  # no hook point has the activation's output
            activation = model.family.parts(decoder.layers[layer]).activation
            gates = buffer.gates.setdefault(layer, [])
            hooks.append((f"blocks.{layer}.mlp.hook_pre", append_to(gates, partial(_activate, activation))))
    if "normed" in parts:
        hooks.append(("ln_final.hook_out", append_to(buffer.normed, lambda value: value[0])))
    apply_transform = bridge.adapter.apply_output_logits_transform
    hooks.append(("unembed.hook_out", append_to(buffer.logits, lambda value: apply_transform(value[0, -1]))))
    return hooks


def _activate(activation: Any, value: Tensor) -> Tensor:
    """Return act(gate) [neuron] of the last position."""
    return activation(value[0, -1])
