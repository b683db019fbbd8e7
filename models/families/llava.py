"""LLaVA 1.5: the centre of each image is cropped to one square."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View, VisionEncoder
from mmprobe.models.families.views import find_crop, find_tile_positions, get_tower_layers


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image, with a cell for each patch of CLIP."""
    if not sizes:
        return []
    patch_size = config.vision_config.patch_size
    rows, columns = (pixels // patch_size for pixels in inputs["pixel_values"].shape[-2:])
    return [[View((rows, columns), find_crop(processor.image_processor, size))] for size in sizes]


LLAVA = Family(
    name="llava",
    model_types=("llava",),
    views=build_views,
    vision=VisionEncoder(layers=get_tower_layers, attention="self_attn", patch_positions=find_tile_positions),
    shares_prefixes=True,
    notes="The ends of an image that is not square are cropped: the model does not see them.",
)
