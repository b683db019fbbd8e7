"""LLaVA-NeXT (1.6): the whole picture as one tile, then as large as a grid of tiles allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import Family, View, VisionEncoder
from mmprobe.models.families.tiles import tile_counts, tower_layers, tower_patch_positions, unpadded


def whole_and_unpadded(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Two views a picture: stretched to a square, and in high resolution with a learned token after each row."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    return [
        [View((side, side), (0, 0, width, height)), unpadded((height, width), config)]
        for height, width in sizes
    ]


def encoder_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """The tiles of each picture: the whole, then its parts row by row."""
    counts = [tile_counts((int(height), int(width)), hf.config) for height, width in inputs["image_sizes"]]
    return tower_patch_positions(sum(1 + rows * columns for rows, columns in counts), hf)


LLAVA_NEXT = Family(
    name="llava_next",
    model_types=("llava_next",),
    views=whole_and_unpadded,
    vision=VisionEncoder(layers=tower_layers, attention="self_attn", patch_positions=encoder_patch_positions),
    notes="Each picture is shown twice: as a whole, and in high resolution.",
)
