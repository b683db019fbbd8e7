"""LLaVA-OneVision: the only image of a prompt is cut into tiles; of several, each is padded to one square."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import (
    Family,
    Frames,
    View,
    VisionEncoder,
    build_stretched_frames,
    build_unpadded_view,
    centre_box,
    count_tiles,
    find_tower_positions,
    get_tower_layers,
)


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the views of each image.

    The only image of a prompt has two: the stretched whole, and its joined tiles, scaled down to the limit
    that `anyres_max_N` sets. Each of several images has one, a padded square with one more token at its end.
    """
    side = config.vision_config.image_size // config.vision_config.patch_size
    views = []
    for (height, width), is_alone in zip(sizes, _find_only_images(inputs), strict=True):
        if is_alone:
            whole = View((side, side), (0, 0, width, height))
            joined = build_unpadded_view((height, width), config)
            views.append([whole, _scale_down(joined, side, config)])
        else:
            edge = max(height, width)
            views.append([View((side, side), centre_box((height, width), edge, edge), end_tokens=1)])
    return views


def _scale_down(view: View, side: int, config: Any) -> View:
    rows, columns = view.grid
    max_tiles = int(config.vision_aspect_ratio.removeprefix("anyres_max_"))
    ratio = math.sqrt(rows * columns / (max_tiles * side**2))
    return view._replace(grid=(int(rows // ratio), int(columns // ratio))) if ratio > 1.1 else view


def _find_only_images(inputs: Mapping[str, Any]) -> Iterator[bool]:
    """Yield for each image whether it is the only one of its prompt."""
    counts = [int(count) for count in inputs.get("batch_num_images", [])]
    return (count == 1 for count in counts for _ in range(count))


def build_video_views(
    inputs: Mapping[str, Any], videos: Sequence[Frames], processor: Any, config: Any
) -> list[list[View]]:
    """Return a view of each frame, stretched to a square, with a cell for each pooled square of patches.

    A video has one more token at its end.
    """
    side = math.ceil(config.vision_config.image_size // config.vision_config.patch_size / 2)
    return [
        [*frames[:-1], frames[-1]._replace(end_tokens=1)]
        for frames in build_stretched_frames(videos, side, side)
    ]


def find_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return tile, row and column of each patch.

    The tiles of an image are the whole, and after it its parts, row by row, if it is the only image of its
    prompt.
    """
    n_tiles = 0
    for (height, width), is_alone in zip(inputs["image_sizes"], _find_only_images(inputs), strict=True):
        rows, columns = count_tiles((int(height), int(width)), hf.config) if is_alone else (0, 0)
        n_tiles += 1 + rows * columns
    return find_tower_positions(n_tiles, hf)


LLAVA_ONEVISION = Family(
    name="llava_onevision",
    model_types=("llava_onevision",),
    views=build_views,
    video_views=build_video_views,
    equal_videos=True,
    extras=("hub",),
    vision=VisionEncoder(
        layers=get_tower_layers, attention="self_attn", patch_positions=find_patch_positions
    ),
    shares_prefixes=True,
    notes="An image is shown in high resolution only if it is the only one of its prompt.",
)
