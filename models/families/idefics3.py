"""Idefics3 and SmolVLM: each image is stretched and cut into tiles, and shown as a whole after them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import (
    Family,
    Frames,
    View,
    VisionEncoder,
    build_patch_positions,
    build_stretched_frames,
    get_image_token_id,
    split_into_tiles,
)


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the tiles of each image, row by row, then the whole. Tokens between the tiles are text."""
    side = math.isqrt(processor.image_seq_len)
    views = []
    for size in sizes:
        _, rows, columns = processor.image_processor.get_number_of_image_patches(*size)
        views.append(split_into_tiles(size, rows, columns, side))
    return views


def build_video_views(
    inputs: Mapping[str, Any], videos: Sequence[Frames], processor: Any, config: Any
) -> list[list[View]]:
    """Return a view of each frame, stretched to one tile (SmolVLM)."""
    side = math.isqrt(processor.image_seq_len)
    return build_stretched_frames(videos, side, side)


def get_encoder_layers(hf: Any) -> Sequence[Any]:
    return hf.model.vision_model.encoder.layers


def find_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return tile, row and column of each patch, without tiles of zeros, which only fill up the batch."""
    pixels = inputs["pixel_values"]
    is_tile = (pixels != 0).flatten(2).any(-1)
    side = pixels.shape[-1] // hf.config.vision_config.patch_size
    return build_patch_positions(int(is_tile.sum()), side, has_class_token=False)


VISION = VisionEncoder(layers=get_encoder_layers, attention="self_attn", patch_positions=find_patch_positions)
IDEFICS3 = Family(
    name="idefics3",
    model_types=("idefics3",),
    views=build_views,
    vision=VISION,
    shares_prefixes=True,
    continues_with_images=True,
)
SMOLVLM = Family(
    name="smolvlm",
    model_types=("smolvlm",),
    views=build_views,
    video_views=build_video_views,
    video_token_id=get_image_token_id,
    equal_videos=True,
    videos_alone=True,
    extras=("hub",),
    vision=VISION,
    shares_prefixes=True,
    continues_with_images=True,
)
