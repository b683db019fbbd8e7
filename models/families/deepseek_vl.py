"""DeepSeek-VL and Janus: each image is padded to one square."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import Family, View, VisionEncoder, build_patch_positions, centre_box


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image, in the middle of a square as long as its longer side."""
    side = math.isqrt(processor.num_image_tokens)
    return [[View((side, side), centre_box(size, max(size), max(size)))] for size in sizes]


def get_encoder_layers(hf: Any) -> Sequence[Any]:
    return hf.model.vision_model.encoder.layers


def find_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return image, row and column of each patch, one square after the other."""
    vision = hf.config.vision_config
    side = vision.image_size // vision.patch_size
    return build_patch_positions(len(inputs["pixel_values"]), side, has_class_token=False)


DEEPSEEK_VL = Family(
    name="deepseek_vl",
    model_types=("deepseek_vl",),
    views=build_views,
    vision=VisionEncoder(
        layers=get_encoder_layers, attention="self_attn", patch_positions=find_patch_positions
    ),
    shares_prefixes=True,
)
DEEPSEEK_VL_HYBRID = Family(
    name="deepseek_vl_hybrid", model_types=("deepseek_vl_hybrid",), views=build_views, shares_prefixes=True
)
JANUS = Family(name="janus", model_types=("janus",), views=build_views, shares_prefixes=True)
