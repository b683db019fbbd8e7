"""The vision encoder's residual stream, and the attention that each patch receives there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmprobe.models import Model
from mmprobe.models.attention import AttentionCall, Observer, observe_attention
from mmprobe.models.hooks import observe
from mmprobe.traces.keys import attention_received
from mmprobe.traces.recorder import SampleRecorder


@contextmanager
def watching_vision(model: Model, lane: SampleRecorder) -> Iterator[None]:
    """Within the block, what the encoder computes for the lane's pictures goes to the lane's trace."""
    vision = model.family.vision
    assert vision is not None
    layers = list(vision.layers(model.hf))
    received: list[list[Tensor]] = [[] for _ in layers]  # each [head, patch], of a window or some pictures

    def keep(index: int, output: Tensor) -> None:
        values = output.reshape(-1, output.shape[-1]).clone()  # the model may go on with it in place
        where = (index, slice(0, values.shape[0]), slice(0, values.shape[1]))
        lane.writer.put("vision/residual", values, where, (len(layers), *values.shape))

    with ExitStack() as stack:
        if "vision/residual" in lane.spec.stored:
            for index, layer in enumerate(layers):
                stack.enter_context(observe(layer, outputs=partial(keep, index)))
        if "vision/attention" in lane.spec.stored:
            observers = {
                layer.get_submodule(vision.attention): _observer(kept)
                for layer, kept in zip(layers, received, strict=True)
            }
            stack.enter_context(observe_attention([model.hf.config.vision_config], observers))
        yield
    if received[0]:
        lane.writer.write("vision/attention", torch.stack([torch.cat(parts, 1) for parts in received]))


def write_patch_positions(model: Model, inputs: Mapping[str, Any], lane: SampleRecorder) -> None:
    """Where each of the encoder's positions stands in its picture."""
    vision = model.family.vision
    if vision is not None and "vision/place" in lane.spec.stored:
        lane.writer.write("vision/place", torch.from_numpy(vision.patch_positions(inputs, model.hf)))


def _observer(kept: list[Tensor]) -> Observer:
    def observe(call: AttentionCall) -> None:
        kept.append(attention_received(call))

    return observe
