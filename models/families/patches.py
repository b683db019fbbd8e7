"""What Qwen-like families share: one view a picture, as large as the picture allows, its patches merged in squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import View


def merged_grids(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """One view a picture, of the whole picture."""
    merge = config.vision_config.spatial_merge_size
    return [
        [View((int(rows) // merge, int(columns) // merge), (0, 0, width, height))]
        for (_, rows, columns), (height, width) in zip(inputs.get("image_grid_thw", []), sizes, strict=True)
    ]


def qwen_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Picture, row and column of each patch, int32 [patch, 3]; patches that are merged stand together."""
    merge, found = hf.config.vision_config.spatial_merge_size, []
    for picture, (_, rows, columns) in enumerate(inputs["image_grid_thw"].tolist()):
        row, column = np.mgrid[:rows, :columns]
        blocks = np.stack([np.full((rows, columns), picture), row, column], -1).reshape(
            rows // merge, merge, columns // merge, merge, 3
        )
        found.append(blocks.swapaxes(1, 2).reshape(-1, 3))
    return np.concatenate(found).astype(np.int32)
