"""Granite 4 Vision: as LLaVA-NeXT, with windows of patches merged into fewer tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from mmprobe.models.families.base import Family, View, build_unpadded_view


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return two views of each image: the stretched whole, and the joined tiles without padding."""
    patches = config.vision_config.image_size // config.vision_config.patch_size
    side = int(patches * Fraction(config.downsample_rate))
    return [
        [View((side, side), (0, 0, width, height)), build_unpadded_view((height, width), config, side)]
        for height, width in sizes
    ]


GRANITE4_VISION = Family(
    name="granite4_vision",
    model_types=("granite4_vision",),
    views=build_views,
    adds_between_layers=True,
    shares_prefixes=True,
    notes="Some layers add image features again: there, resid_post is not the next resid_pre.",
)
