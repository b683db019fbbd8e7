"""LLaVA-OneVision: the only picture of a prompt in tiles, several pictures as one padded square each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import Family, View, VisionEncoder
from mmprobe.models.families.tiles import centred, tile_counts, tower_layers, tower_patch_positions, unpadded


def whole_and_unpadded_or_square(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Of an only picture, the whole and what `anyres_max_N` leaves of its tiles; else a square and a token after it."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    found = []
    for (height, width), alone in zip(sizes, _alone(inputs), strict=True):
        longest = max(height, width)
        if alone:
            whole = View((side, side), (0, 0, width, height))
            found.append([whole, _downsampled(unpadded((height, width), config), side, config)])
        else:
            found.append([View((side, side), centred((height, width), longest, longest), after=1)])
    return found


def _downsampled(view: View, side: int, config: Any) -> View:
    rows, columns = view.grid
    most = int(config.vision_aspect_ratio.removeprefix("anyres_max_"))
    ratio = math.sqrt(rows * columns / (most * side**2))
    return view._replace(grid=(int(rows // ratio), int(columns // ratio))) if ratio > 1.1 else view


def _alone(inputs: Mapping[str, Any]) -> Iterator[bool]:
    """Of each picture, whether its prompt has no other."""
    counts = [int(count) for count in inputs.get("batch_num_images", [])]
    return (count == 1 for count in counts for _ in range(count))


def encoder_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """The tiles of each picture: the whole, then its parts row by row if it is alone."""
    tiles = 0
    for (height, width), alone in zip(inputs["image_sizes"], _alone(inputs), strict=True):
        rows, columns = tile_counts((int(height), int(width)), hf.config) if alone else (0, 0)
        tiles += 1 + rows * columns
    return tower_patch_positions(tiles, hf)


LLAVA_ONEVISION = Family(
    name="llava_onevision",
    model_types=("llava_onevision",),
    views=whole_and_unpadded_or_square,
    needs=("hub",),
    vision=VisionEncoder(layers=tower_layers, attention="self_attn", patch_positions=encoder_patch_positions),
    notes="Only the picture of a prompt with one picture is shown in high resolution.",
)
