"""Gemma 3: one square a picture, and crops of long pictures where its processor pans and scans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import Family, View, VisionEncoder
from mmprobe.models.families.tiles import tower_layers, tower_patch_positions


def whole_and_crops(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """The stretched whole, then the crops if there are any."""
    side = math.isqrt(processor.image_seq_length)
    found = []
    scanned = len(inputs.get("pixel_values", [])) > len(sizes)
    for height, width in sizes:
        crops = _crops(processor, height, width) if scanned else []
        boxes = [(0, 0, width, height), *crops]
        found.append([View((side, side), box) for box in boxes])
    return found


def _crops(processor: Any, height: int, width: int) -> list[tuple[int, int, int, int]]:
    """Boxes of the crops, by letting the processor crop a picture whose pixels are their own coordinates."""
    image_processor, settings = processor.image_processor, processor.images_kwargs
    crop = getattr(image_processor, "pan_and_scan", None) or image_processor.pan_and_scan_batched
    crops = crop(
        np.mgrid[:height, :width],
        **{name: value for name, value in settings.items() if name.startswith("pan_and_scan")},
    )
    return [(int(part[1, 0, 0]), int(part[0, 0, 0]), part.shape[2], part.shape[1]) for part in crops]


GEMMA3 = Family(
    name="gemma3",
    model_types=("gemma3",),
    views=whole_and_crops,
    vision=VisionEncoder(
        tower_layers, "self_attn", lambda inputs, hf: tower_patch_positions(len(inputs["pixel_values"]), hf)
    ),
    notes="Most layers see a window of the last tokens only.",
)
