"""Qwen2.5-VL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View


def merged_grids(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """One view a picture, as large as the picture allows, whose patches are merged two by two."""
    merge = config.vision_config.spatial_merge_size
    grids = inputs.get("image_grid_thw", [])
    return [
        [View((int(rows) // merge, int(columns) // merge), (0, 0, width, height))]
        for (_, rows, columns), (height, width) in zip(grids, sizes, strict=True)
    ]


QWEN2_5_VL = Family(
    name="qwen2_5_vl",
    model_types=("qwen2_5_vl",),
    views=merged_grids,
    needs=("hub",),
)
