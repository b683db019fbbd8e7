"""Llama 3.2 Vision: some layers attend to tiles of the images, which are not tokens of the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.models.families.base import Family, LayerParts, View, VisionEncoder, get_decoder_parts


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return the tiles, row by row, of a canvas with the image in its upper left corner."""
    counts = (inputs["aspect_ratio_ids"] > 0).sum(-1).tolist() if sizes else []
    indices = [index for count in counts for index in range(count)]  # of each image within its prompt
    return [
        _build_tiles(size, index, config.vision_config) for size, index in zip(sizes, indices, strict=True)
    ]


def _build_tiles(size: tuple[int, int], image: int, vision: Any) -> list[View]:
    """Return the tiles of the image with that index in its prompt."""
    from transformers.models.mllama.image_processing_pil_mllama import (
        get_image_size_fit_to_canvas,
        get_optimal_tiled_canvas,
    )

    edge, side = vision.image_size, vision.image_size // vision.patch_size
    canvas = get_optimal_tiled_canvas(*size, vision.max_num_tiles, edge)
    canvas_height, canvas_width = (int(length) for length in canvas)
    _, resized_width = get_image_size_fit_to_canvas(*size, canvas_height, canvas_width, edge)
    length = float(edge * size[1] / resized_width)  # of a tile, in pixels of the image's file
    columns = canvas_width // edge
    tiles = []
    for index in range(canvas_height // edge * columns):
        row, column = divmod(index, columns)
        keys_before = (image * vision.max_num_tiles + index) * (side**2 + 1)
        first_key = keys_before + 1  # after the tile's class token
        box = (column * length, row * length, length, length)
        tiles.append(View((side, side), box, first_key=first_key))
    return tiles


def _get_layer_parts(layer: Any) -> LayerParts:
    """Return the parts of a layer; those with `cross_attn` attend to the images and scale what they add."""
    if not hasattr(layer, "cross_attn"):
        return get_decoder_parts(layer)
    from mmprobe.models.devices import read_weight

    return LayerParts(
        attention=layer.cross_attn,
        update=layer.cross_attn,
        mid=layer.post_attention_layernorm,
        activation=layer.mlp.act_fn,
        gain=lambda: read_weight(layer, "cross_attn_attn_gate").tanh(),
        has_cross_attention=True,
    )


def get_encoder_layers(hf: Any) -> Sequence[Any]:
    """Return the layers that see one tile, then the layers that see all of an image."""
    vision = hf.model.vision_model
    return [*vision.transformer.layers, *vision.global_transformer.layers]


def find_patch_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return tile, row and column of each position.

    A tile is a class token, its patches, and padding to a multiple of eight. Empty tiles are among the tiles.
    """
    vision = hf.config.vision_config
    side = vision.image_size // vision.patch_size
    length = -(-(side**2 + 1) // 8) * 8
    cells = np.full((length, 2), -1, np.int32)
    cells[1 : side**2 + 1] = np.stack(np.divmod(np.arange(side**2), side), 1)
    has_image = inputs["aspect_ratio_mask"].flatten().bool().cpu().numpy()
    tile = np.repeat(np.arange(len(has_image), dtype=np.int32), length)
    positions = np.column_stack([tile, np.tile(cells, (len(has_image), 1))])
    positions[np.repeat(~has_image, length), 1:] = -1
    return positions


MLLAMA = Family(
    name="mllama",
    model_types=("mllama",),
    views=build_views,
    parts=_get_layer_parts,
    vision=VisionEncoder(
        layers=get_encoder_layers, attention="self_attn", patch_positions=find_patch_positions
    ),
    notes="Some layers attend only to images; without an image these do not run.",
)
