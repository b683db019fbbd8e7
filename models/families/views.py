"""Views and patch positions that families share.

Some crop images, pad them or cut them into tiles, each of which CLIP or SigLIP reads. Qwen-like families show each
image in one view, as large as the image allows, and their encoder merges its patches in squares.

Modules of families import torch and transformers where they use them, so that families are listed at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import Frames, View

Size = tuple[int, int]  # height and width
ViewBox = tuple[float, float, float, float]  # x, y, width and height


def centre_box(size: Size, height: float, width: float) -> ViewBox:
    """Return a box with the image's centre. It reaches outside the image where padding is shown."""
    return (size[1] - width) / 2, (size[0] - height) / 2, width, height


def find_crop(image_processor: Any, size: Size) -> ViewBox:
    """Return the part of an image that remains when a processor pads, resizes and crops it, in that order.

    The processor pads to a square and crops at the centre; it may leave out any of these steps.
    """
    height, width = size
    if getattr(image_processor, "do_pad", None) and hasattr(image_processor, "pad_to_square"):
        height = width = max(size)
    crop = image_processor.crop_size if getattr(image_processor, "do_center_crop", None) else None
    if not crop:
        return centre_box(size, height, width)
    resized_height, resized_width, edge = height, width, image_processor.size.get("shortest_edge")
    if image_processor.do_resize and edge:
        shorter = min(height, width)
        resized_height, resized_width = int(edge * height / shorter), int(edge * width / shorter)
    elif image_processor.do_resize:
        resized_height, resized_width = image_processor.size["height"], image_processor.size["width"]
    return centre_box(size, crop["height"] * height / resized_height, crop["width"] * width / resized_width)


def split_into_tiles(size: Size, rows: int, columns: int, side: int) -> list[View]:
    """Return the tiles of an image stretched to rows x columns, row by row, then the whole image as one tile.

    An image that is not cut has only the last. Each view has `side` x `side` cells.
    """
    height, width = size
    whole = View((side, side), (0, 0, width, height))
    tile_height, tile_width = height / max(rows, 1), width / max(columns, 1)
    tiles = [
        View((side, side), (column * tile_width, row * tile_height, tile_width, tile_height))
        for row in range(rows)
        for column in range(columns)
    ]
    return [*tiles, whole] if len(tiles) > 1 else [whole]


def count_tiles(size: Size, config: Any) -> Size:
    """Return rows and columns of tiles in the resolution of `image_grid_pinpoints` that suits an image."""
    from transformers.image_processing_utils import select_best_resolution

    height, width = select_best_resolution(size, config.image_grid_pinpoints)
    edge = config.vision_config.image_size
    return height // edge, width // edge


def build_unpadded_view(size: Size, config: Any, side: int | None = None) -> View:
    """Return the view of an image's joined tiles without padding; one more token ends each row.

    Args:
        side: cells along a tile; the default is its number of patches.

    A patch at the edge may show both padding and image, and is kept or dropped as a whole. So the box may be
    a little larger or smaller than the image.
    """
    import torch
    from transformers.models.llava_next.modeling_llava_next import unpad_image

    height, width = size
    side = side or config.vision_config.image_size // config.vision_config.patch_size
    rows, columns = (count * side for count in count_tiles(size, config))
    _, kept_rows, kept_columns = unpad_image(torch.empty(0, rows, columns), size).shape
    pixels = max(height / rows, width / columns)  # of the image's file, along a patch
    box = centre_box(size, kept_rows * pixels, kept_columns * pixels)
    return View((kept_rows, kept_columns), box, row_end_tokens=1)


def get_tower_layers(hf: Any) -> Sequence[Any]:
    """Return the layers of a CLIP or SigLIP vision tower."""
    tower = hf.model.vision_tower
    return getattr(tower, "vision_model", tower).encoder.layers


def find_tile_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return the patch positions of a CLIP or SigLIP tower that reads one tile for each of `pixel_values`."""
    return find_tower_positions(len(inputs["pixel_values"]), hf)


def find_tower_positions(n_tiles: int, hf: Any) -> np.ndarray:
    """Return the patch positions of a CLIP or SigLIP tower that reads `n_tiles` tiles, int32 [patch, 3]."""
    tower, config = hf.model.vision_tower, hf.config.vision_config
    embeddings = getattr(tower, "vision_model", tower).embeddings
    side = config.image_size // config.patch_size
    return build_patch_positions(n_tiles, side, has_class_token=hasattr(embeddings, "class_embedding"))


def build_patch_positions(n_tiles: int, side: int, has_class_token: bool) -> np.ndarray:
    """Return tile, row and column of each position of an encoder of square tiles, int32 [patch, 3].

    Row and column of a class token, which comes first in its tile, are -1.
    """
    cells = np.stack(np.divmod(np.arange(side * side, dtype=np.int32), side), 1)
    if has_class_token:
        cells = np.concatenate([np.full((1, 2), -1, np.int32), cells])
    tile = np.repeat(np.arange(n_tiles, dtype=np.int32), len(cells))
    return np.column_stack([tile, np.tile(cells, (n_tiles, 1))])


def build_merged_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each whole image, with a cell for each merged patch."""
    merge = find_merge_size(processor, config)
    return [
        [View((int(rows) // merge, int(columns) // merge), (0, 0, width, height))]
        for (_, rows, columns), (height, width) in zip(inputs.get("image_grid_thw", []), sizes, strict=True)
    ]


def build_merged_video_views(
    inputs: Mapping[str, Any], videos: Sequence[Frames], processor: Any, config: Any
) -> list[list[View]]:
    """Return a view of each few frames that the encoder merges, with a cell for each merged patch.

    The last frame is repeated where their number does not divide.
    """
    merge = find_merge_size(processor, config)
    merges = [int(each) for each in inputs.get("video_merge_sizes", [merge] * len(videos))]
    together = int(processor.video_processor.temporal_patch_size)
    return [
        [
            View((int(rows) // merge, int(columns) // merge), (0, 0, width, height), pictures=pictures)
            for pictures in (
                min(together, number - first) for first in range(0, int(times) * together, together)
            )
        ]
        for (times, rows, columns), (number, height, width), merge in zip(
            inputs.get("video_grid_thw", []), videos, merges, strict=True
        )
    ]


def build_sized_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each whole image, given the size to which the processor scaled it (Pixtral)."""
    cell = processor.patch_size * processor.spatial_merge_size
    return [
        [View((int(resized_height) // cell, int(resized_width) // cell), (0, 0, width, height))]
        for (resized_height, resized_width), (height, width) in zip(
            inputs.get("image_sizes", []), sizes, strict=True
        )
    ]


def find_merge_size(processor: Any, config: Any) -> int:
    """Return how many patches along each side of a square are merged into one visual token.

    The config or the processor says so under one of several names; Kimi gives both sides.
    """
    names = ("spatial_merge_size", "merge_size", "merge_kernel_size", "downsample_factor")
    for source in (getattr(config, "vision_config", None), processor.image_processor, config):
        for name in names:
            value = getattr(source, name, None)
            if value is not None:
                return int(value if isinstance(value, int) else value[0])
    return 1


def get_encoder_blocks(hf: Any) -> Sequence[Any]:
    """Return the layers of a Qwen-like vision encoder."""
    return hf.model.visual.blocks


def find_merged_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return image, row and column of each patch, int32 [patch, 3]; merged patches are adjacent."""
    merge = hf.config.vision_config.spatial_merge_size
    positions = []
    for image, (_, rows, columns) in enumerate(inputs["image_grid_thw"].tolist()):
        row, column = np.mgrid[:rows, :columns]
        grid = np.stack([np.full((rows, columns), image), row, column], -1)
        squares = grid.reshape(rows // merge, merge, columns // merge, merge, 3).swapaxes(1, 2)
        positions.append(squares.reshape(-1, 3))
    return np.concatenate(positions).astype(np.int32)
