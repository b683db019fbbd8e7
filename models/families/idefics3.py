"""Idefics3 and SmolVLM: tiles of the stretched picture, then the whole as one more tile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import Family, View, VisionEncoder
from mmprobe.models.families.tiles import patch_positions, tiled


def tiles_and_whole(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """The tiles row by row and the whole; the marks between them are tokens of their own."""
    side = math.isqrt(processor.image_seq_len)
    counts = [processor.image_processor.get_number_of_image_patches(*size) for size in sizes]
    return [tiled(size, rows, columns, side) for size, (_, rows, columns) in zip(sizes, counts, strict=True)]


def encoder_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """All tiles but those of zeros, which only fill up the batch."""
    pixels = inputs["pixel_values"]
    real = (pixels != 0).flatten(2).any(-1)
    return patch_positions(
        int(real.sum()), pixels.shape[-1] // hf.config.vision_config.patch_size, first_is_class=False
    )


VISION = VisionEncoder(
    layers=lambda hf: hf.model.vision_model.encoder.layers,
    attention="self_attn",
    patch_positions=encoder_patch_positions,
)
IDEFICS3 = Family(name="idefics3", model_types=("idefics3",), views=tiles_and_whole, vision=VISION)
SMOLVLM = Family(
    name="smolvlm", model_types=("smolvlm",), views=tiles_and_whole, needs=("hub",), vision=VISION
)
