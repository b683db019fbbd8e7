"""LLaVA 1.5: one square a picture, of which CLIP's processor crops what is outside the centre."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View, VisionEncoder
from mmprobe.models.families.tiles import cropped, tower_layers, tower_patch_positions


def cropped_squares(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """One view a picture, of a token a patch."""
    if not sizes:
        return []
    patch = config.vision_config.patch_size
    rows, columns = (pixels // patch for pixels in inputs["pixel_values"].shape[-2:])
    return [[View((rows, columns), cropped(processor.image_processor, size))] for size in sizes]


LLAVA = Family(
    name="llava",
    model_types=("llava",),
    views=cropped_squares,
    vision=VisionEncoder(
        layers=tower_layers,
        attention="self_attn",
        patch_positions=lambda inputs, hf: tower_patch_positions(len(inputs["pixel_values"]), hf),
    ),
    notes="Of a picture that is not square, its ends are cropped: the model does not see them.",
)
