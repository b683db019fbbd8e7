"""Record the vision encoder: its residual stream, and the attention that each patch receives."""

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
from mmprobe.traces.attention_rows import attention_received
from mmprobe.traces.recorder import SampleRecorder


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


def write_patch_positions(model: Model, inputs: Mapping[str, Any], recorder: SampleRecorder) -> None:
    """Write the image, row and column of each position of the vision encoder."""
    vision = model.family.vision
    if vision is not None and "vision/place" in recorder.spec.stored:
        positions = torch.from_numpy(vision.patch_positions(inputs, model.hf))
        recorder.writer.write("vision/place", positions)


def _attention_observer(parts: list[Tensor]) -> Observer:
    def append_attention(call: AttentionCall) -> None:
        parts.append(attention_received(call))

    return append_attention
