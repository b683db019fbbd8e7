"""Gemma 3: each image is stretched to one square; long images get crops as well (pan and scan)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import Family, View, VisionEncoder, find_tile_positions, get_tower_layers


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return a view of each whole image, then one of each of its crops."""
    side = math.isqrt(processor.image_seq_length)
    has_crops = len(inputs.get("pixel_values", [])) > len(sizes)
    views = []
    for height, width in sizes:
        crops = _find_crops(processor, height, width) if has_crops else []
        views.append([View((side, side), box) for box in [(0, 0, width, height), *crops]])
    return views


def _find_crops(processor: Any, height: int, width: int) -> list[tuple[int, int, int, int]]:
    """Return the box of each crop, by cropping an image whose pixel values are their own coordinates."""
    image_processor, settings = processor.image_processor, processor.images_kwargs
    pan_and_scan = getattr(image_processor, "pan_and_scan", None) or image_processor.pan_and_scan_batched
    options = {name: value for name, value in settings.items() if name.startswith("pan_and_scan")}
    crops = pan_and_scan(np.mgrid[:height, :width], **options)  # each [row or column, height, width]
    return [(int(crop[1, 0, 0]), int(crop[0, 0, 0]), crop.shape[2], crop.shape[1]) for crop in crops]


GEMMA3 = Family(
    name="gemma3",
    model_types=("gemma3",),
    views=build_views,
    vision=VisionEncoder(layers=get_tower_layers, attention="self_attn", patch_positions=find_tile_positions),
    notes="Most layers see a window of the last tokens only.",
)
