"""InternVL: tiles of the stretched picture, then the whole as one more tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

from mmprobe.models.families.base import Family, View, VisionEncoder
from mmprobe.models.families.tiles import patch_positions, tiled


def tiles_and_whole(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """The tiles whose arrangement is closest to the picture's shape, row by row, and the whole."""
    image_processor = processor.image_processor
    tile = image_processor.size["height"], image_processor.size["width"]
    fewest, most = image_processor.min_patches, image_processor.max_patches
    side = int(
        config.vision_config.image_size[0] // config.vision_config.patch_size[0] * config.downsample_ratio
    )
    found = []
    for size in sizes:
        columns, rows = get_optimal_tiled_canvas(size, tile, fewest, most) if most > 1 else (1, 1)
        found.append(tiled(size, rows, columns, side))
    return found


def encoder_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """All tiles; each has a class token first."""
    config = hf.config.vision_config
    side = config.image_size[0] // config.patch_size[0]
    return patch_positions(len(inputs["pixel_values"]), side, first_is_class=True)


INTERNVL = Family(
    name="internvl",
    model_types=("internvl",),
    views=tiles_and_whole,
    needs=("hub",),
    vision=VisionEncoder(
        layers=lambda hf: hf.model.vision_tower.encoder.layer,
        attention="attention",
        patch_positions=encoder_patch_positions,
    ),
)
