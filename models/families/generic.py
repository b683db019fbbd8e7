"""Models of families that are not declared, as far as their config and their modules tell what is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.errors import InputError
from mmprobe.models.families.base import Family, View, build_merged_views, find_crop

GUIDE = "docs/adding-a-family.md"
RESAMPLERS = ("qformer_config", "perceiver_config", "resampler_config", "num_query_tokens")
SQUARE_INPUTS = {
    "pixel_values",
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "mm_token_type_ids",
    "labels",
}


def build_generic_family(config: Any) -> Family:
    """Return a family for one config, in which each image is one grid of tokens.

    Raises:
        InputError: the config does not name a visual token, or its visual tokens are learned queries.
    """
    family = Family(
        name=config.model_type,
        model_types=(config.model_type,),
        views=build_views,
        notes="Not declared: each image is taken to be one grid of tokens.",
    )
    try:
        family.image_token_id(config)
    except LookupError as error:
        raise _undeclared(config, str(error)) from None
    if resampler := _find_resampler(config):
        raise _undeclared(config, resampler)
    return family


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image: the grid that the processor returns, or one square if it returns none.

    Whoever builds a prompt compares each image's grid with its number of visual tokens.

    Raises:
        InputError: neither a grid nor a square can be read from what the processor returns.
    """
    if not sizes:
        return []
    if inputs.get("image_grid_thw") is not None:
        return build_merged_views(inputs, sizes, processor, config)
    return _build_squares(inputs, sizes, processor, config)


def _build_squares(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one square view of each image, if the processor returns one square of pixels and no more of it."""
    pixels = inputs.get("pixel_values")
    if pixels is None:
        raise _undeclared(config, "its processor returns no pixel_values")
    if pixels.ndim != 4 or len(pixels) != len(sizes) or pixels.shape[-1] != pixels.shape[-2]:
        raise _undeclared(
            config,
            f"its processor does not make one square of each image: pixel_values have the shape "
            f"{list(pixels.shape)} for {len(sizes)} images",
        )
    others = sorted(name for name, value in inputs.items() if value is not None and name not in SQUARE_INPUTS)
    if others:  # such as image_sizes: then the squares of a batch are padding around images of any shape
        raise _undeclared(
            config, f"its processor also returns {', '.join(others)}, so images may not be squares"
        )
    n_tokens = int((inputs["input_ids"] == Family.image_token_id(config)).sum())
    side = math.isqrt(n_tokens // len(sizes))
    if side == 0 or side * side * len(sizes) != n_tokens:
        raise _undeclared(
            config, f"{n_tokens} visual tokens for {len(sizes)} images are not a square grid each"
        )
    patch_size = getattr(getattr(config, "vision_config", None), "patch_size", None)
    if isinstance(patch_size, int) and pixels.shape[-1] // patch_size % side:
        n_patches = pixels.shape[-1] // patch_size
        raise _undeclared(
            config, f"the {side} visual tokens of a row do not share its {n_patches} patches evenly"
        )
    return [[View((side, side), find_crop(processor.image_processor, size))] for size in sizes]


def _find_resampler(config: Any) -> str | None:
    for name in RESAMPLERS:
        if getattr(config, name, None):
            return (
                f"its config has a {name}: visual tokens are learned queries, which show no part of an image"
            )
    return None


def _undeclared(config: Any, reason: str) -> InputError:
    return InputError(f"models of type {config.model_type!r} are not declared, and {reason}; see {GUIDE}")
