"""MiniCPM-V 4.6, 4.7 and MiniCPM-OCR: each image as a whole, then cut into slices, each with its own grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the whole of each image, then its slices, row by row; `target_sizes` are the grids of their patches."""
    image_processor, views = processor.image_processor, []
    merge = 2 if image_processor.downsample_mode == "4x" else 4
    patches = inputs["target_sizes"].tolist() if sizes else []
    grids = iter((rows // merge, columns // merge) for rows, columns in patches)
    for height, width in sizes:
        rows, columns = 0, 0
        if image_processor.slice_mode:
            limits = image_processor.max_slice_nums, image_processor.scale_resolution
            rows, columns = image_processor.get_sliced_grid((height, width), *limits) or (0, 0)
        boxes = [(0, 0, width, height)] + [
            (column * width / columns, row * height / rows, width / columns, height / rows)
            for row in range(rows)
            for column in range(columns)
        ]
        views.append([View(next(grids), box) for box in boxes])
    return views


def _declare(name: str) -> Family:
    return Family(
        name=name,
        model_types=(name,),
        views=build_views,
        extras=("hub",),
        notes="Layers with linear attention have no rows, and are recorded otherwise.",
    )


MINICPMV4_6 = _declare("minicpmv4_6")
MINICPMV4_7 = _declare("minicpmv4_7")
MINICPM_OCR = _declare("minicpm_ocr")
