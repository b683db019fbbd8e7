"""A method sees the residual stream that the model continues with, whatever torch hooks of the user do."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import mmprobe as mp
from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.models import Model
from mmprobe.models.points import Observers
from mmprobe.samples import Sample
from mmprobe.traces import CaptureSpec

LAYERS, STEPS = (0, 2), 4


@dataclass(frozen=True)
class Spy(Method):
    """Record the residual stream between attention and FFN at each query, by layer."""

    name = "spy"
    seen: dict[int, list[Tensor]] = field(default_factory=lambda: {layer: [] for layer in LAYERS})

    def __post_init__(self) -> None:
        """Accept the parameter."""

    def create_state(self, context: MethodContext) -> MethodState:
        return SpyState(self.seen)


class SpyState(MethodState):
    def __init__(self, seen: dict[int, list[Tensor]]):
        self.seen = seen

    def observers(self) -> Observers:
        return {("resid_mid", layer): partial(self.keep, layer) for layer in LAYERS}

    def keep(self, layer: int, mid: Tensor) -> None:
        self.seen[layer].append(mid[0, -1].clone())


@pytest.mark.parametrize("in_place", [False, True])
def test_a_method_gets_the_stream_and_not_what_a_pre_hook_makes_of_it(
    random_qwen: Model, image_paths: list[Path], tmp_path: Path, in_place: bool
) -> None:
    def halve(module: torch.nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (inputs[0].mul_(0.5) if in_place else inputs[0] * 0.5,)

    spy = Spy()
    spec = CaptureSpec(datasets=["residual/mid"], dtype="float32")
    samples = [Sample(id="a", images=image_paths[:1], question="What is there?")]
    handles = [
        layer.post_attention_layernorm.register_forward_pre_hook(halve)
        for layer in random_qwen.hf.model.language_model.layers
    ]
    try:
        run = mp.trace(random_qwen, samples, tmp_path, capture=spec, max_new_tokens=STEPS, method=spy)
    finally:
        for handle in handles:
            handle.remove()
    assert run.failures == []
    for layer in LAYERS:
        seen = torch.stack(spy.seen[layer])[:STEPS].numpy()
        np.testing.assert_allclose(seen, run["a"].residual_mid.sel(layer=layer), rtol=1e-5, atol=1e-5)
