"""Ovis2: each image is shown as a whole and, if it is large, stretched and cut into tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View, split_into_tiles

COVERING = 0.9  # the share of an image that its tiles must cover, a constant of the processor


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the whole of each image, then its tiles, row by row."""
    from transformers.models.ovis2.image_processing_pil_ovis2 import get_min_tile_covering_grid

    image_processor, views = processor.image_processor, []
    side = math.isqrt(processor.image_seq_length)
    for size in sizes:
        columns, rows = get_min_tile_covering_grid(
            size,
            target_patch_size=image_processor.size["height"],
            max_image_tiles=image_processor.max_patches,
            covering_threshold=COVERING,
        )
        *tiles, whole = split_into_tiles(size, rows, columns, side)
        views.append([whole, *tiles])
    return views


OVIS2 = Family(name="ovis2", model_types=("ovis2",), views=build_views, shares_prefixes=True)
