"""InternVL and families with its tiles: each image is stretched and cut into tiles, and shown as a whole after them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import (
    Family,
    Frames,
    View,
    VisionEncoder,
    build_patch_positions,
    build_stretched_frames,
    get_image_token_id,
    get_parallel_parts,
    split_into_tiles,
)


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the tiles of each image, in the arrangement closest to its shape, then the whole."""
    return _build_tiles(sizes, processor.image_processor, _find_side(processor, config))


def build_video_views(
    inputs: Mapping[str, Any], videos: Sequence[Frames], processor: Any, config: Any
) -> list[list[View]]:
    """Return a view of each frame, stretched to one tile."""
    side = _find_side(processor, config)
    return build_stretched_frames(videos, side, side)


def _build_aya_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the tiles of each image, then the whole (Aya Vision)."""
    return _build_tiles(sizes, processor.image_processor, processor.img_size // processor.patch_size)


def _build_cohere_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the tiles of each image, then the whole (Command A Vision), whose arrangement is chosen otherwise."""
    if not sizes:
        return []
    from transformers.models.cohere2_vision import image_processing_cohere2_vision  # needs torchvision

    choose = image_processing_cohere2_vision.get_optimal_tiled_canvas
    return _build_tiles(sizes, processor.image_processor, processor.patch_size, choose)


def _build_page_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the tiles of each page, then the whole; they have twice as many cells on the fine route (Granite Docling)."""
    is_fine = "tile_fine_mask" in inputs
    side = math.isqrt(processor.image_seq_len * (4 if is_fine else 1))
    grids = [processor.image_processor.get_tile_grid(*size) for size in sizes]
    return [
        split_into_tiles(size, rows, columns, side)
        for size, (rows, columns) in zip(sizes, grids, strict=True)
    ]


def _find_side(processor: Any, config: Any) -> int:
    vision = config.vision_config
    if hasattr(config, "downsample_ratio"):
        return int(vision.image_size[0] // vision.patch_size[0] * config.downsample_ratio)
    return math.isqrt(processor.image_seq_length)


def _build_tiles(
    sizes: Sequence[tuple[int, int]], image_processor: Any, side: int, choose: Any = None
) -> list[list[View]]:
    """Return the tiles of each image and the whole; `choose` arranges them, by default as GOT-OCR 2 does."""
    if choose is None:
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

        choose = get_optimal_tiled_canvas
    tile = image_processor.size["height"], image_processor.size["width"]
    min_tiles, max_tiles = image_processor.min_patches, image_processor.max_patches
    views = []
    for size in sizes:
        rows, columns = 1, 1
        if max_tiles > 1:
            columns, rows = choose(size, tile, min_tiles, max_tiles)
        views.append(split_into_tiles(size, rows, columns, side))
    return views


def get_encoder_layers(hf: Any) -> Sequence[Any]:
    return hf.model.vision_tower.encoder.layer


def find_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return tile, row and column of each patch; each tile begins with a class token."""
    vision = hf.config.vision_config
    side = vision.image_size[0] // vision.patch_size[0]
    return build_patch_positions(len(inputs["pixel_values"]), side, has_class_token=True)


INTERNVL = Family(
    name="internvl",
    model_types=("internvl",),
    views=build_views,
    video_views=build_video_views,
    video_token_id=get_image_token_id,
    equal_videos=True,
    extras=("hub",),
    vision=VisionEncoder(
        layers=get_encoder_layers, attention="attention", patch_positions=find_patch_positions
    ),
    shares_prefixes=True,
)
QIANFAN_OCR = Family(
    name="qianfan_ocr",
    model_types=("qianfan_ocr",),
    views=build_views,
    extras=("hub",),
    shares_prefixes=True,
)
AYA_VISION = Family(
    name="aya_vision",
    model_types=("aya_vision",),
    views=_build_aya_views,
    parts=get_parallel_parts,
    extras=("hub",),
    notes="Attention and FFN run side by side: resid_mid is computed, resid_pre plus the attention's update.",
)
COHERE2_VISION = Family(
    name="cohere2_vision",
    model_types=("cohere2_vision",),
    views=_build_cohere_views,
    parts=get_parallel_parts,
    extras=("hub",),
    notes=AYA_VISION.notes,
)
GRANITE_DOCLING = Family(
    name="granite_docling",
    model_types=("granite_docling",),
    views=_build_page_views,
    extras=("hub",),
    shares_prefixes=True,
)
