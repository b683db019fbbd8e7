"""Views and patch positions of Qwen-like families.

Each image gets one view, as large as the image allows. The encoder merges its patches in squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import View


def build_merged_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each whole image, with a cell for each merged patch."""
    merge = config.vision_config.spatial_merge_size
    return [
        [View((int(rows) // merge, int(columns) // merge), (0, 0, width, height))]
        for (_, rows, columns), (height, width) in zip(inputs.get("image_grid_thw", []), sizes, strict=True)
    ]


def get_encoder_blocks(hf: Any) -> Sequence[Any]:
    """Return the layers of a Qwen-like vision encoder."""
    return hf.model.visual.blocks


def find_merged_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return image, row and column of each patch, int32 [patch, 3]; merged patches stand together."""
    merge = hf.config.vision_config.spatial_merge_size
    positions = []
    for image, (_, rows, columns) in enumerate(inputs["image_grid_thw"].tolist()):
        row, column = np.mgrid[:rows, :columns]
        grid = np.stack([np.full((rows, columns), image), row, column], -1)
        squares = grid.reshape(rows // merge, merge, columns // merge, merge, 3).swapaxes(1, 2)
        positions.append(squares.reshape(-1, 3))
    return np.concatenate(positions).astype(np.int32)
