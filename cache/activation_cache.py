"""A trace's residual streams as TransformerLens has them. The one file of this folder that knows torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformer_lens import ActivationCache

from mmprobe.errors import NotCaptured

if TYPE_CHECKING:
    from mmprobe.cache.trace import Trace

RESIDUALS = {"pre": "hook_resid_pre", "mid": "hook_resid_mid", "post": "hook_resid_post"}


def activation_cache(trace: Trace, model: Any | None) -> ActivationCache:
    """See `Trace.to_activation_cache`."""
    found = {
        name: trace.array(f"residual/{name}") for name in RESIDUALS if f"residual/{name}" in trace.captured
    }
    if not found:
        raise NotCaptured(f"trace {trace.id}: no residual streams were captured; --capture full records them")
    layers = next(iter(found.values()))["layer"].values.tolist()
    entries: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(layers):
        streams = {
            name: torch.from_numpy(values[:, index].values.astype(np.float32))
            for name, values in found.items()
        }
        for name, values in streams.items():
            entries[f"blocks.{layer}.{RESIDUALS[name]}"] = values
        if {"pre", "mid"} <= streams.keys():
            entries[f"blocks.{layer}.hook_attn_out"] = streams["mid"] - streams["pre"]
        if {"mid", "post"} <= streams.keys():
            entries[f"blocks.{layer}.hook_mlp_out"] = streams["post"] - streams["mid"]
    if layers[0] == 0 and "pre" in found:
        entries["hook_embed"] = entries["blocks.0.hook_resid_pre"]
    stand_in = SimpleNamespace(cfg=SimpleNamespace(n_layers=layers[-1] + 1, attn_only=False))
    return ActivationCache(entries, model or stand_in, has_batch_dim=False)
