"""Perception-LM: each image is shown as a whole, then stretched and cut into tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View, split_into_tiles


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the whole of each image, then its tiles, row by row, even if there is one."""
    image_processor, views = processor.image_processor, []
    edge = image_processor.tile_size
    side = edge // processor.patch_size // processor.pooling_ratio
    for height, width in sizes:
        whole = View((side, side), (0, 0, width, height))
        if image_processor.vision_input_type != "thumb+tile":
            views.append([whole])
            continue
        shape = {"img_width": width, "img_height": height, "tile_size": edge}
        columns, rows = image_processor._fit_image_to_canvas(
            **shape
        ) or image_processor._find_closest_aspect_ratio(**shape)
        tiles = split_into_tiles((height, width), rows, columns, side)[: rows * columns]
        views.append([whole, *tiles])
    return views


PERCEPTION_LM = Family(
    name="perception_lm",
    model_types=("perception_lm",),
    views=build_views,
    extras=("hub",),
    shares_prefixes=True,
    notes="Each image is shown as a whole, and in tiles.",
)
