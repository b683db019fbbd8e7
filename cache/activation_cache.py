"""Convert a trace's residual stream to a TransformerLens `ActivationCache`.

This is the only file of the folder that uses torch.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformer_lens import ActivationCache

from mmprobe.errors import NotCaptured

if TYPE_CHECKING:
    from mmprobe.cache.trace import Trace

HOOK_NAMES = {"pre": "hook_resid_pre", "mid": "hook_resid_mid", "post": "hook_resid_post"}


def activation_cache(trace: Trace, model: Any | None) -> ActivationCache:
    """Return the cache that `Trace.to_activation_cache` describes."""
    arrays = {
        name: trace.array(f"residual/{name}") for name in HOOK_NAMES if f"residual/{name}" in trace.captured
    }
    if not arrays:
        raise NotCaptured(f'trace {trace.id}: no residual streams were captured; capture="full" records them')
    layers = next(iter(arrays.values()))["layer"].values.tolist()
    activations: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(layers):
        residuals = {
            name: torch.from_numpy(array[:, index].values.astype(np.float32))
            for name, array in arrays.items()
        }
        for name, residual in residuals.items():
            activations[f"blocks.{layer}.{HOOK_NAMES[name]}"] = residual
        if {"pre", "mid"} <= residuals.keys():
            activations[f"blocks.{layer}.hook_attn_out"] = residuals["mid"] - residuals["pre"]
        if {"mid", "post"} <= residuals.keys():
            activations[f"blocks.{layer}.hook_mlp_out"] = residuals["post"] - residuals["mid"]
    if layers[0] == 0 and "pre" in arrays:
        activations["hook_embed"] = activations["blocks.0.hook_resid_pre"]
    config_only = SimpleNamespace(cfg=SimpleNamespace(n_layers=layers[-1] + 1, attn_only=False))
    return ActivationCache(activations, model or config_only, has_batch_dim=False)
