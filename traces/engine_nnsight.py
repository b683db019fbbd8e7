"""The engine on nnsight: one trace around `generate`, read step by step.

It reads with `tracer.iter`: nnsight's cache keeps what modules return whole, so eager attention of the
prompt would stay in memory, [head, query, key] for every layer. It runs eager attention and keeps to one
sample; its numbers are independent of the native engine's.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import nnsight
import torch
from nnsight import TransformersModel
from torch import Tensor

from mmprobe.models import Batch, Model
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.collected import Collected, refusal, sharing_copy, wanted_parts
from mmprobe.traces.lane import Lane

refuses = refusal
_OUTRUN = r"'.*' was never reached: the loop asked for a step the run did not make"
_wrapped: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def record(
    model: Model, batch: Batch, lanes: Sequence[Lane], spec: CaptureSpec, generate: dict[str, Any]
) -> Tensor:
    """Generate an answer and record it; as the native engine's `record`."""
    lane, parts = lanes[0], wanted_parts(spec)
    wrapped, places = _wrap(model), _places(model, lane.layers)
    norm = places.pop("norm")["norm"]
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.filterwarnings("ignore", message=_OUTRUN)
        with wrapped.trace(fn="generate") as tracer:
            with tracer.invoke(**batch.inputs, **generate):
                kept = nnsight.save({"normed": [], "logits": []})
                for name in ("attention", "pre", "mid", "post", "gates"):
                    kept[name] = {layer: [] for layer in places}
                for _ in tracer.iter[:]:
                    for layer, place in places.items():  # in the order in which the forward pass gets there
                        if "residuals" in parts:
                            kept["pre"][layer].append(wrapped.get(place["layer"]).input[0, -1].detach().clone())
                        if "attention" in parts:
                            weights = wrapped.get(place["attention"]).output[1]
                            kept["attention"][layer].append(weights[0, :, -1].detach().clone())
                        if "residuals" in parts:
                            kept["mid"][layer].append(wrapped.get(place["mid"]).input[0, -1].detach().clone())
                        if "gates" in parts:
                            kept["gates"][layer].append(wrapped.get(place["gates"]).output[0, -1].detach().clone())
                        if "residuals" in parts:
                            after = wrapped.get(place["layer"]).output
                            after = after[0] if isinstance(after, tuple) else after
                            kept["post"][layer].append(after[0, -1].detach().clone())
                    if "normed" in parts:
                        kept["normed"].append(wrapped.get(norm).output[0].detach().clone())
                    kept["logits"].append(wrapped.output.logits[0, -1].detach().clone())
            with tracer.invoke():  # what follows a loop that outruns the run would not be reached
                output = nnsight.save(tracer.result)
        collected = Collected(
            attention=kept["attention"] if "attention" in parts else {},
            residuals={name: kept[name] for name in ("pre", "mid", "post")} if "residuals" in parts else {},
            gates=kept["gates"] if "gates" in parts else {},
            logits=kept["logits"],
            normed=kept["normed"],
        )
        collected.hand_over(lane, output[0, len(lane.prompt.ids) :])
    return output


def _wrap(model: Model) -> Any:
    """The model for nnsight: a copy that shares its weights, eager so that attention modules return their rows."""
    if model.hf not in _wrapped:
        hf = sharing_copy(model.hf)
        hf.config.get_text_config()._attn_implementation = "eager"
        _wrapped[model.hf] = TransformersModel(
            hf, task="image-text-to-text", processor=model.processor, tokenizer=model.tokenizer
        )
    return _wrapped[model.hf]


def _places(model: Model, layers: list[int]) -> dict[Any, dict[str, str]]:
    """Where things are, by the names that `hf.named_modules` gives them."""
    name = {module: name for name, module in model.hf.named_modules()}
    decoder = model.family.decoder(model.hf)
    found: dict[Any, dict[str, str]] = {"norm": {"norm": name[decoder.norm]}}
    for layer in layers:
        module = decoder.layers[layer]
        parts = model.family.parts(module)
        found[layer] = {"layer": name[module], "attention": name[parts.attention], "mid": name[parts.mid]}
        if parts.activation is not None:
            found[layer]["gates"] = name[parts.activation]
    return found
