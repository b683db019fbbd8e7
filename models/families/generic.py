"""Models of families that are not declared, as far as their config and their modules tell what is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from inspect import unwrap
from typing import Any

from mmprobe.errors import InputError
from mmprobe.models.families.base import Family, View, build_merged_views, find_crop

GUIDE = "docs/adding-a-family.md"
LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention", "linear_attention", "conv", "mlp"}
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


def find_structure_errors(hf: Any, family: Family) -> list[str]:
    """Return the reasons in a model's config and modules why it cannot be traced.

    Example:
        >>> from mmprobe.models import load_model
        >>> model = load_model("tiny-spd", device="cpu")
        >>> find_structure_errors(model.hf, model.family)
        []
    """
    errors = []
    try:
        family.image_token_id(hf.config)
    except LookupError as error:
        errors.append(str(error))
    if hf.config.is_encoder_decoder or hf.config.get_text_config().is_encoder_decoder:
        errors.append(f"{type(hf).__name__} has a text encoder beside its decoder")
    if hf.get_output_embeddings() is None:
        errors.append(f"{type(hf).__name__} has no output embeddings")
    if not hasattr(hf, "get_decoder"):
        return [*errors, f"{type(hf).__name__} has no get_decoder"]
    decoder = family.decoder(hf)
    try:
        family.final_norm(hf)
    except LookupError:
        errors.append(f"its decoder, {type(decoder).__name__}, has no final norm")
    if not hasattr(decoder, "layers"):
        return [*errors, f"its decoder, {type(decoder).__name__}, has no layers"]
    unknown = set(getattr(hf.config.get_text_config(), "layer_types", None) or LAYER_TYPES) - LAYER_TYPES
    if unknown:
        errors.append(f"it has layers of {' and '.join(sorted(unknown))}, whose rows cannot be recorded")
    if not any(_has_rows(layer, family) for layer in decoder.layers):
        errors.append("none of its layers has attention")
    return errors + sorted({error for layer in decoder.layers for error in _find_layer_errors(layer, family)})


def _has_rows(layer: Any, family: Family) -> bool:
    try:
        return family.parts(layer).attention is not None
    except (LookupError, AttributeError):
        return True  # another error says what is missing


def _find_resampler(config: Any) -> str | None:
    for name in RESAMPLERS:
        if getattr(config, name, None):
            return (
                f"its config has a {name}: visual tokens are learned queries, which show no part of an image"
            )
    return None


def _find_layer_errors(layer: Any, family: Family) -> list[str]:
    try:
        attention = family.parts(layer).attention
    except (LookupError, AttributeError) as error:
        return [f"its layers have an unknown structure: {error}"]
    if attention is not None and not _calls_registry(type(attention)):
        return [f"{type(attention).__name__} does not call transformers' attention registry"]
    return []


def _calls_registry(attention: type) -> bool:
    methods = [
        unwrap(value) for base in attention.__mro__ for value in vars(base).values() if callable(value)
    ]
    codes = [method.__code__ for method in methods if hasattr(method, "__code__")]
    return any("ALL_ATTENTION_FUNCTIONS" in code.co_names for code in codes)


def _undeclared(config: Any, reason: str) -> InputError:
    return InputError(f"models of type {config.model_type!r} are not declared, and {reason}; see {GUIDE}")
