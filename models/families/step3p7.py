"""Step 3.7: windows of a large image, row by row, then the image as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the windows of each image, which the processor plans, and the stretched whole."""
    image_processor, views = processor.image_processor, []
    cell = image_processor.vision_patch_size * image_processor.downsampler_stride
    whole, part = image_processor.size["height"] // cell, image_processor.patch_size // cell
    for height, width in sizes:
        _, (scaled_width, scaled_height), window, n_columns, n_rows, _ = image_processor._plan_patches(
            width, height, image_processor.size["height"], image_processor.patch_size
        )
        x, y = (window * width / scaled_width, window * height / scaled_height) if window else (0, 0)
        windows = [
            View((part, part), (column * x, row * y, x, y))
            for row in range(n_rows if window else 0)
            for column in range(n_columns if window else 0)
        ]
        views.append([*windows, View((whole, whole), (0, 0, width, height))])
    return views


STEP3P7 = Family(
    name="step3p7",
    model_types=("step3p7",),
    views=build_views,
    extras=("hub",),
    notes="Layers may differ in their number of heads: those that a layer lacks are NaN.",
)
