"""LLaVA-NeXT (1.6): each image is shown stretched to one tile, then in high resolution, joined from tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import (
    Family,
    Frames,
    View,
    VisionEncoder,
    build_unpadded_view,
    count_tiles,
    find_crop,
    find_tower_positions,
    get_tower_layers,
)


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return two views of each image: the stretched whole, and the joined tiles without padding."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    return [
        [View((side, side), (0, 0, width, height)), build_unpadded_view((height, width), config)]
        for height, width in sizes
    ]


def build_video_views(
    inputs: Mapping[str, Any], videos: Sequence[Frames], processor: Any, config: Any
) -> list[list[View]]:
    """Return a view of each frame, cropped to a square, with a cell for each pooled square of patches."""
    if not videos:
        return []
    cell = config.vision_config.patch_size * config.spatial_pool_stride
    rows, columns = (int(pixels) // cell for pixels in inputs["pixel_values_videos"].shape[-2:])
    crops = [find_crop(processor.video_processor, (video.height, video.width)) for video in videos]
    return [[View((rows, columns), crop)] * video.number for video, crop in zip(videos, crops, strict=True)]


def find_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return tile, row and column of each patch; an image's first tile shows it as a whole."""
    n_tiles = 0
    for height, width in inputs["image_sizes"]:
        rows, columns = count_tiles((int(height), int(width)), hf.config)
        n_tiles += 1 + rows * columns
    return find_tower_positions(n_tiles, hf)


LLAVA_NEXT = Family(
    name="llava_next",
    model_types=("llava_next",),
    views=build_views,
    vision=VisionEncoder(
        layers=get_tower_layers, attention="self_attn", patch_positions=find_patch_positions
    ),
    shares_prefixes=True,
    notes="Each image is shown twice: as a whole, and in high resolution.",
)
LLAVA_NEXT_VIDEO = Family(
    name="llava_next_video",
    model_types=("llava_next_video",),
    views=build_views,
    video_views=build_video_views,
    equal_videos=True,
    extras=("hub",),
    shares_prefixes=True,
    notes=LLAVA_NEXT.notes,
)
