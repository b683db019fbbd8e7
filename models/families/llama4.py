"""Llama 4: each image is scaled, padded and cut into tiles, and shown as a whole after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the tiles of each image, row by row, padded at the right and lower end, then the stretched whole."""
    if not sizes:
        return []
    import torch

    # needs torchvision
    from transformers.models.llama4.image_processing_llama4 import find_supported_resolutions, get_best_fit

    image_processor, vision = processor.image_processor, config.vision_config
    edge = image_processor.size["height"]
    side = int(edge // vision.patch_size * vision.pixel_shuffle_ratio)
    resolutions = find_supported_resolutions(
        max_num_chunks=image_processor.max_patches, patch_size=image_processor.size
    )
    views = []
    for height, width in sizes:
        canvas = get_best_fit(
            (height, width), torch.tensor(resolutions), image_processor.resize_to_max_canvas
        )
        rows, columns = (int(length) // edge for length in canvas)
        box = _find_tile(height, width, rows * edge, columns * edge, image_processor)
        tiles = [
            View((side, side), (column * box[0], row * box[1], *box))
            for row in range(rows)
            for column in range(columns)
        ]
        whole = View((side, side), (0, 0, width, height))
        views.append([*tiles, whole] if rows * columns > 1 else tiles)
    return views


def _find_tile(height: int, width: int, canvas_height: int, canvas_width: int, image_processor: Any) -> Any:
    """Return width and height of a tile in pixels of the image's file."""
    from transformers.models.llama4.image_processing_llama4 import get_max_res_without_distortion

    edge = image_processor.size["height"]
    target = canvas_height, canvas_width
    if not image_processor.resize_to_max_canvas:
        target = min(max(height, edge), canvas_height), min(max(width, edge), canvas_width)
    resized_height, resized_width = get_max_res_without_distortion((height, width), target)
    return edge * width / max(resized_width, 1), edge * height / max(resized_height, 1)


LLAMA4 = Family(
    name="llama4",
    model_types=("llama4",),
    views=build_views,
    extras=("hub",),
    notes="Three of four layers see a chunk of the sequence only. Some FFNs are mixtures of experts.",
)
