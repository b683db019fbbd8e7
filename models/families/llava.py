"""LLaVA 1.5 and models built like it: the centre of each image is cropped to one square."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import (
    Family,
    Frames,
    View,
    VisionEncoder,
    build_sized_views,
    find_crop,
    find_tile_positions,
    get_tower_layers,
)


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image, with a cell for each patch of CLIP, or for each of Pixtral's patches."""
    if not sizes:
        return []
    if "image_sizes" in inputs:
        return build_sized_views(inputs, sizes, processor, config)
    patch_size = config.vision_config.patch_size
    rows, columns = (pixels // patch_size for pixels in inputs["pixel_values"].shape[-2:])
    return [[View((rows, columns), find_crop(processor.image_processor, size))] for size in sizes]


def _build_square_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one square view of each image, as large as the number of its visual tokens says."""
    if not sizes:
        return []
    n_tokens = int((inputs["input_ids"] == Family.image_token_id(config)).sum())
    side = math.isqrt(n_tokens // len(sizes))
    return [[View((side, side), find_crop(processor.image_processor, size))] for size in sizes]


def _build_square_frames(
    inputs: Mapping[str, Any], videos: Sequence[Frames], processor: Any, config: Any
) -> list[list[View]]:
    """Return a view of each frame, cropped to a square; the encoder's class token comes before its patches (Video-LLaVA)."""
    if not videos:
        return []
    rows, columns = (pixels // processor.patch_size for pixels in inputs["pixel_values_videos"].shape[-2:])
    before = processor.num_additional_image_tokens
    crops = [find_crop(processor.video_processor, (video.height, video.width)) for video in videos]
    return [
        [View((rows, columns), crop, start_tokens=before)] * video.number
        for video, crop in zip(videos, crops, strict=True)
    ]


CROPPED = "The ends of an image that is not square are cropped: the model does not see them."
LLAVA = Family(
    name="llava",
    model_types=("llava",),
    views=build_views,
    vision=VisionEncoder(layers=get_tower_layers, attention="self_attn", patch_positions=find_tile_positions),
    shares_prefixes=True,
    continues_with_images=True,
    notes=f"{CROPPED} With a Pixtral encoder, images keep their shape.",
)
VIPLLAVA = Family(
    name="vipllava",
    model_types=("vipllava",),
    views=build_views,
    vision=LLAVA.vision,
    shares_prefixes=True,
    notes=CROPPED,
)
FAST_VLM = Family(
    name="fast_vlm", model_types=("fast_vlm",), views=_build_square_views, shares_prefixes=True, notes=CROPPED
)
VIDEO_LLAVA = Family(
    name="video_llava",
    model_types=("video_llava",),
    views=_build_square_views,
    video_views=_build_square_frames,
    equal_videos=True,
    extras=("hub",),
    shares_prefixes=True,
    notes=CROPPED,
)
