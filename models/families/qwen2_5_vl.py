"""Qwen2.5-VL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers.vision_utils import get_vision_window_index

from mmprobe.models.families.base import Family, VisionEncoder
from mmprobe.models.families.patches import merged_grids, qwen_patch_positions


def windowed_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """The encoder sorts its patches by the windows that they attend in."""
    vision = hf.config.vision_config
    windows, _ = get_vision_window_index(
        inputs["image_grid_thw"],
        spatial_merge_size=vision.spatial_merge_size,
        window_size=vision.window_size,
        patch_size=vision.patch_size,
    )
    merged = qwen_patch_positions(inputs, hf).reshape(-1, vision.spatial_merge_size**2, 3)
    return merged[windows.cpu().numpy()].reshape(-1, 3)


QWEN2_5_VL = Family(
    name="qwen2_5_vl",
    model_types=("qwen2_5_vl",),
    views=merged_grids,
    needs=("hub",),
    vision=VisionEncoder(lambda hf: hf.model.visual.blocks, "attn", windowed_patch_positions),
)
