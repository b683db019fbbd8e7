"""What families share that cut pictures into tiles, crop them or pad them, before CLIP or SigLIP reads each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.image_processing_utils import select_best_resolution
from transformers.models.llava_next.modeling_llava_next import unpad_image

from mmprobe.models.families.base import View

Size = tuple[int, int]
Box = tuple[float, float, float, float]


def centred(size: Size, height: float, width: float) -> Box:
    """A box of that height and width whose centre is the picture's; it reaches outside where padding is shown."""
    return (size[1] - width) / 2, (size[0] - height) / 2, width, height


def cropped(image_processor: Any, size: Size) -> Box:
    """What an image processor shows of a picture that it pads to a square, resizes and crops at the centre."""
    height, width = size
    if getattr(image_processor, "do_pad", None) and hasattr(image_processor, "pad_to_square"):
        height = width = max(size)
    crop = image_processor.crop_size if getattr(image_processor, "do_center_crop", None) else None
    if not crop:
        return centred(size, height, width)
    tall, wide, edge = height, width, image_processor.size.get("shortest_edge")
    if image_processor.do_resize and edge:
        tall, wide = int(edge * height / min(height, width)), int(edge * width / min(height, width))
    elif image_processor.do_resize:
        tall, wide = image_processor.size["height"], image_processor.size["width"]
    return centred(size, crop["height"] * height / tall, crop["width"] * width / wide)


def tiled(size: Size, rows: int, columns: int, side: int) -> list[View]:
    """A picture stretched to rows x columns tiles, row by row, then the whole as one tile; only that if not cut."""
    height, width = size
    whole = View((side, side), (0, 0, width, height))
    tall, wide = height / max(rows, 1), width / max(columns, 1)
    tiles = [
        View((side, side), (column * wide, row * tall, wide, tall))
        for row in range(rows)
        for column in range(columns)
    ]
    return [*tiles, whole] if len(tiles) > 1 else [whole]


def tile_counts(size: Size, config: Any) -> Size:
    """Rows and columns of tiles for the one of `image_grid_pinpoints` that suits a picture best."""
    height, width = select_best_resolution(size, config.image_grid_pinpoints)
    edge = config.vision_config.image_size
    return height // edge, width // edge


def unpadded(size: Size, config: Any) -> View:
    """The tiles of a picture put together again, without the rows or columns of padding; a token ends each row.

    Padding that shares patches with the picture stays, or some of the picture goes with it, so the box may be
    a little larger or smaller than the picture.
    """
    height, width = size
    side = config.vision_config.image_size // config.vision_config.patch_size
    rows, columns = (count * side for count in tile_counts(size, config))
    _, kept_rows, kept_columns = unpad_image(torch.empty(0, rows, columns), size).shape
    pixels = max(height / rows, width / columns)  # of the picture's file, along a patch
    return View(
        (kept_rows, kept_columns), centred(size, kept_rows * pixels, kept_columns * pixels), row_ends=1
    )


def tower_layers(hf: Any) -> Sequence[Any]:
    """The layers of a CLIP or SigLIP vision tower."""
    tower = hf.model.vision_tower
    return getattr(tower, "vision_model", tower).encoder.layers


def tower_patch_positions(tiles: int, hf: Any) -> np.ndarray:
    """Places of the positions of a CLIP or SigLIP tower that reads so many tiles."""
    tower, config = hf.model.vision_tower, hf.config.vision_config
    embeddings = getattr(tower, "vision_model", tower).embeddings
    side = config.image_size // config.patch_size
    return patch_positions(tiles, side, first_is_class=hasattr(embeddings, "class_embedding"))


def patch_positions(tiles: int, side: int, first_is_class: bool) -> np.ndarray:
    """int32 [patch, 3], tile, row and column of each position of an encoder that reads square tiles."""
    of_tile = np.stack(np.divmod(np.arange(side * side, dtype=np.int32), side), 1)
    if first_is_class:
        of_tile = np.concatenate([np.full((1, 2), -1, np.int32), of_tile])
    tile = np.repeat(np.arange(tiles, dtype=np.int32), len(of_tile))
    return np.column_stack([tile, np.tile(of_tile, (tiles, 1))])
