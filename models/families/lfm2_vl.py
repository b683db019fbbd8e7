"""LFM2-VL: an image in its own shape, or stretched and cut into tiles, and shown as a whole after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the tiles of each image, row by row, and the whole; `spatial_shapes` are the grids of their patches."""
    image_processor, views = processor.image_processor, []
    factor = image_processor.downsample_factor
    patches = inputs["spatial_shapes"].tolist() if sizes else []
    grids = iter((-(-rows // factor), -(-columns // factor)) for rows, columns in patches)
    for height, width in sizes:
        rows, columns = _count_tiles(image_processor, height, width)
        boxes = [
            (column * width / columns, row * height / rows, width / columns, height / rows)
            for row in range(rows)
            for column in range(columns)
        ]
        if len(boxes) > 1 and image_processor.use_thumbnail:
            boxes.append((0, 0, width, height))
        views.append([View(next(grids), box) for box in boxes])
    return views


def _count_tiles(image_processor: Any, height: int, width: int) -> tuple[int, int]:
    """Return rows and columns of an image's tiles; one and one if it is not cut."""
    names = ("max_image_tokens", "encoder_patch_size", "downsample_factor", "max_pixels_tolerance")
    limits = {name: getattr(image_processor, name) for name in names}
    splits = image_processor.do_image_splitting and image_processor.max_tiles > 1
    if not splits or not image_processor._is_image_too_large(height=height, width=width, **limits):
        return 1, 1
    columns, rows, *_ = image_processor._get_grid_layout(
        height,
        width,
        min_tiles=image_processor.min_tiles,
        max_tiles=image_processor.max_tiles,
        tile_size=image_processor.tile_size,
    )
    return rows, columns


LFM2_VL = Family(
    name="lfm2_vl",
    model_types=("lfm2_vl",),
    views=build_views,
    extras=("hub",),
    notes="Layers with a convolution have no rows, and are recorded otherwise.",
)
