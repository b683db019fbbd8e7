"""Molmo2: each image is shown as a whole, and then joined from overlapping crops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return two views of each image, both stretched to the whole: in low and in high resolution."""
    grids = inputs["image_grids"].tolist() if sizes else []
    views = []
    for (low_rows, low_columns, rows, columns), (height, width) in zip(grids, sizes, strict=True):
        box = (0, 0, width, height)
        views.append([View((low_rows, low_columns), box), View((rows, columns), box)])
    return views


MOLMO2 = Family(
    name="molmo2",
    model_types=("molmo2",),
    views=build_views,
    extras=("hub",),
    image_token_id=lambda config: config.image_patch_id,
    notes="Each image is shown twice: as a whole, and in high resolution. Visual tokens see each other.",
)
