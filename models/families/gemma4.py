"""Gemma 4: one view of each image in its own shape, whose patches are pooled in squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image; its patches' columns and rows are `image_position_ids`, -1 for padding."""
    return _build(inputs, sizes, processor.image_processor.pooling_kernel_size)


def build_unified_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image, whose positions are those of pooled patches."""
    return _build(inputs, sizes, 1)


def _build(inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], side: int) -> list[list[View]]:
    views = []
    for positions, (height, width) in zip(inputs.get("image_position_ids", []), sizes, strict=True):
        last_column, last_row = positions.max(0).values.tolist()
        views.append([View(((last_row + 1) // side, (last_column + 1) // side), (0, 0, width, height))])
    return views


WINDOW = "Most layers see a window of the last tokens only."
GEMMA4 = Family(name="gemma4", model_types=("gemma4",), views=build_views, extras=("hub",), notes=WINDOW)
GEMMA4_UNIFIED = Family(
    name="gemma4_unified",
    model_types=("gemma4_unified",),
    views=build_unified_views,
    extras=("hub",),
    notes=WINDOW,
)
