"""The engine on nnsight: one trace around `generate`, read step by step, here or on NDIF's cluster.

It reads with `tracer.iter`: nnsight's cache keeps what modules return whole, so eager attention of the
prompt would stay in memory, [head, query, key] for every layer. It runs eager attention and keeps to one
sample; its numbers are independent of the native engine's.
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
from mmprobe.traces.capture import CaptureSpec
from mmprobe.traces.engines.step_buffer import Collected, refusal, sharing_copy, wanted_parts
from mmprobe.traces.recorder import SampleRecorder

refuses = refusal
_OUTRUN = r"'.*' was never reached: the loop asked for a step the run did not make"
_wrapped: WeakKeyDictionary[Any, dict[bool, Any]] = WeakKeyDictionary()


def record(
    model: Model,
    batch: Batch,
    lanes: Sequence[SampleRecorder],
    spec: CaptureSpec,
    generate: dict[str, Any],
    remote: bool | str = False,
) -> Tensor:
    """Generate an answer and record it; as the native engine's `record`.

    Args:
        remote: True runs on NDIF's cluster, a text on the host of that address, "local" as if on one.
    """
    places = _places(model, lanes[0].layers)
    if remote == "local":
        lanes[0].writer.background.settle()  # nnsight hides most modules from all threads meanwhile
    with torch.inference_mode():
        output, kept = _traced(
            _wrap(model, bool(remote)), {**batch.inputs, **generate}, places, wanted_parts(spec), remote
        )
        ids = output[0, len(lanes[0].prompt.ids) :].to(model.device)
        if len(kept.logits) < len(ids):
            raise RuntimeError(f"nnsight read {len(kept.logits)} of {len(ids)} steps")
        if remote:  # what comes from a cluster is on the CPU
            kept = Collected(**tree_map_only(Tensor, lambda value: value.to(model.device), vars(kept)))
        kept.hand_over(lanes[0], ids)
    return output


def _traced(
    wrapped: Any,
    asked: dict[str, Any],
    places: dict[Any, dict[str, str]],
    parts: set[str],
    remote: bool | str,
) -> tuple[Tensor, Collected]:
    """The block below is sent as source to where it runs, so it holds nothing of this package."""
    norm = places.pop("norm")["norm"]
    answers: list[Tensor] = []

    def run(**asked: Any) -> Tensor:
        answers.append(wrapped._module.generate(**asked))
        return answers[0]

    if remote:
        tracing = wrapped.trace(fn=wrapped.generate, remote=remote, **asked)
    else:
        tracing = wrapped.trace(fn=run, **asked)
    generator = f"{wrapped.path}.generator"  # where a TransformersModel's `generate` leaves its result
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_OUTRUN)  # a loop over all steps asks for one too many
        with tracing as tracer:
            answer = tracer.cache(modules=[generator])  # what follows the loop would never be reached
            kept = nnsight.save({"normed": [], "logits": []})
            for name in ("attention", "pre", "mid", "post", "gates"):
                kept[name] = {layer: [] for layer in places}
            for _ in tracer.iter[:]:
                for layer, place in places.items():  # in the order in which the forward pass gets there
                    if "residuals" in parts:
                        kept["pre"][layer].append(wrapped.get(place["layer"]).input[0, -1].detach().clone())
                    if "attention" in parts:
                        rows = wrapped.get(place["attention"]).output[1][0, :, -1].detach().clone()
                        kept["attention"][layer].append(rows)
                    if "residuals" in parts:
                        kept["mid"][layer].append(wrapped.get(place["mid"]).input[0, -1].detach().clone())
                    if "gates" in parts:
                        kept["gates"][layer].append(
                            wrapped.get(place["gates"]).output[0, -1].detach().clone()
                        )
                    if "residuals" in parts:
                        after = wrapped.get(place["layer"]).output
                        after = after[0] if isinstance(after, tuple) else after
                        kept["post"][layer].append(after[0, -1].detach().clone())
                if "normed" in parts:
                    kept["normed"].append(wrapped.get(norm).output[0].detach().clone())
                kept["logits"].append(wrapped.output.logits[0, -1].detach().clone())  # last: ends each step
    collected = Collected(
        attention=kept["attention"] if "attention" in parts else {},
        residuals={name: kept[name] for name in ("pre", "mid", "post")} if "residuals" in parts else {},
        gates=kept["gates"] if "gates" in parts else {},
        logits=kept["logits"],
        normed=kept["normed"],
    )
    return answer[generator].output if remote else answers[0], collected


def _wrap(model: Model, remote: bool) -> Any:
    """The model for nnsight: a copy that shares its weights, eager so that attention modules return their rows.

    Only a TransformersModel knows what it is called on a cluster; locally it would bring a pipeline along.
    """
    kinds = _wrapped.setdefault(model.hf, {})
    if remote not in kinds:
        hf = sharing_copy(model.hf)
        hf.config.get_text_config()._attn_implementation = "eager"
        if remote:
            kinds[remote] = TransformersModel(
                hf,
                task="image-text-to-text",
                processor=model.processor,
                tokenizer=copy.copy(model.tokenizer),  # it changes its padding
                device=model.hf.device,
            )
        else:
            kinds[remote] = NNsight(hf)
    kinds[remote]._module.generation_config = model.hf.generation_config  # may have changed since
    return kinds[remote]


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
