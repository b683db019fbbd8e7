"""DeepSeek-VL: one square a picture, padded around it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View, VisionEncoder
from mmprobe.models.families.tiles import centred, patch_positions


def padded_square(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """The picture in the middle of a square as long as its longer side."""
    side = math.isqrt(processor.num_image_tokens)
    return [[View((side, side), centred(size, max(size), max(size)))] for size in sizes]


def encoder_patch_positions(inputs: Mapping[str, Any], hf: Any) -> Any:
    """One square a picture."""
    vision = hf.config.vision_config
    return patch_positions(
        len(inputs["pixel_values"]), vision.image_size // vision.patch_size, first_is_class=False
    )


DEEPSEEK_VL = Family(
    name="deepseek_vl",
    model_types=("deepseek_vl",),
    views=padded_square,
    vision=VisionEncoder(
        lambda hf: hf.model.vision_model.encoder.layers, "self_attn", encoder_patch_positions
    ),
)
