"""Qwen2.5-VL: one view of each image, whose patches are merged in squares; its encoder attends in windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers.vision_utils import get_vision_window_index

from mmprobe.models.families.base import Family, VisionEncoder
from mmprobe.models.families.views import (
    build_merged_views,
    find_merged_patch_positions,
    get_encoder_blocks,
)


def find_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return image, row and column of each patch; the encoder sorts its patches by attention window."""
    vision = hf.config.vision_config
    windows, _ = get_vision_window_index(
        inputs["image_grid_thw"],
        spatial_merge_size=vision.spatial_merge_size,
        window_size=vision.window_size,
        patch_size=vision.patch_size,
    )
    squares = find_merged_patch_positions(inputs, hf).reshape(-1, vision.spatial_merge_size**2, 3)
    return squares[windows.cpu().numpy()].reshape(-1, 3)


QWEN2_5_VL = Family(
    name="qwen2_5_vl",
    model_types=("qwen2_5_vl",),
    views=build_merged_views,
    extras=("hub",),
    vision=VisionEncoder(layers=get_encoder_blocks, attention="attn", patch_positions=find_patch_positions),
    shares_prefixes=True,
)
