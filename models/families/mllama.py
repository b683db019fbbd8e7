"""Llama 3.2 Vision: some layers attend to tiles of the pictures, which are no tokens of the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers.models.mllama.image_processing_pil_mllama import (
    get_image_size_fit_to_canvas,
    get_optimal_tiled_canvas,
)

from mmprobe.models.families.base import Family, LayerParts, View, VisionEncoder, decoder_parts


def tiles_of_canvas(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """The tiles, row by row, of a canvas with the picture in its upper left corner."""
    counts = (inputs["aspect_ratio_ids"] > 0).sum(-1).tolist() if sizes else []
    numbers = [number for count in counts for number in range(count)]  # of each picture within its prompt
    return [_tiles(size, number, config.vision_config) for size, number in zip(sizes, numbers, strict=True)]


def _tiles(size: tuple[int, int], number: int, vision: Any) -> list[View]:
    edge, side = vision.image_size, vision.image_size // vision.patch_size
    tall, wide = (int(length) for length in get_optimal_tiled_canvas(*size, vision.max_num_tiles, edge))
    _, shown = get_image_size_fit_to_canvas(*size, tall, wide, edge)
    tile = float(edge * size[1] / shown)  # in pixels of the file
    views = []
    for index in range(tall // edge * (wide // edge)):
        row, column = divmod(index, wide // edge)
        first_key = (number * vision.max_num_tiles + index) * (
            side**2 + 1
        ) + 1  # after the tile's class token
        views.append(View((side, side), (column * tile, row * tile, tile, tile), first_key=first_key))
    return views


def parts(layer: Any) -> LayerParts:
    """Layers with `cross_attn` attend to the pictures, and add what they find by a learned factor."""
    if not hasattr(layer, "cross_attn"):
        return decoder_parts(layer)
    return LayerParts(
        attention=layer.cross_attn,
        update=layer.cross_attn,
        mid=layer.post_attention_layernorm,
        activation=layer.mlp.act_fn,
        gain=lambda: layer.cross_attn_attn_gate.tanh(),
        has_cross_attention=True,
    )


def encoder_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Tiles, empty ones included: a class token, the patches, and padding to a multiple of eight."""
    vision = hf.config.vision_config
    side = vision.image_size // vision.patch_size
    length = -(-(side**2 + 1) // 8) * 8
    tile = np.full((length, 2), -1, np.int32)
    tile[1 : side**2 + 1] = np.stack(np.divmod(np.arange(side**2), side), 1)
    shown = inputs["aspect_ratio_mask"].flatten().bool().cpu().numpy()
    number = np.repeat(np.arange(len(shown), dtype=np.int32), length)
    found = np.column_stack([number, np.tile(tile, (len(shown), 1))])
    found[np.repeat(~shown, length), 1:] = -1
    return found


def encoder_layers(hf: Any) -> list[Any]:
    """Layers that see one tile, then those that see all of a picture."""
    vision = hf.model.vision_model
    return [*vision.transformer.layers, *vision.global_transformer.layers]


MLLAMA = Family(
    name="mllama",
    model_types=("mllama",),
    views=tiles_of_canvas,
    parts=parts,
    vision=VisionEncoder(encoder_layers, "self_attn", encoder_patch_positions),
    notes="Attends to pictures in layers of its own; without a picture these do not run.",
)
