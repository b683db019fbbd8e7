"""Models of families that are not declared, as far as their config and their modules tell what is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from inspect import unwrap
from typing import Any

from mmprobe.errors import InputError
from mmprobe.models.families.base import Family, View
from mmprobe.models.families.views import find_crop

GUIDE = "docs/adding-a-family.md"
LAYER_TYPES = {"full_attention", "sliding_attention"}
RESAMPLERS = ("qformer_config", "perceiver_config", "resampler_config", "num_query_tokens")


def build_generic_family(config: Any) -> Family:
    """Return a family for one config, in which each image is one square grid of tokens.

    Raises:
        InputError: the config does not name a visual token.
    """
    family = Family(
        name=config.model_type,
        model_types=(config.model_type,),
        views=build_views,
        notes="Not declared: each image is taken to be one square grid of tokens.",
    )
    try:
        family.image_token_id(config)
    except LookupError as error:
        raise _undeclared(config, str(error)) from None
    return family


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image, as large as the number of visual tokens in the prompts says.

    Raises:
        InputError: the visual tokens cannot be one square grid for each image, in the order of its patches.
    """
    if not sizes:
        return []
    if resampler := _find_resampler(config):
        raise _undeclared(config, resampler)
    pixels = inputs.get("pixel_values")
    if pixels is None:
        raise _undeclared(config, "its processor returns no pixel_values")
    if pixels.ndim != 4 or len(pixels) != len(sizes) or pixels.shape[-1] != pixels.shape[-2]:
        raise _undeclared(
            config,
            f"its processor does not make one square of each image: pixel_values have the shape "
            f"{list(pixels.shape)} for {len(sizes)} images",
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
    if family.views is build_views and (resampler := _find_resampler(hf.config)):
        errors.append(resampler)
    if hf.config.is_encoder_decoder:
        errors.append(f"{type(hf).__name__} has a text encoder beside its decoder")
    if hf.get_output_embeddings() is None:
        errors.append(f"{type(hf).__name__} has no output embeddings")
    if not hasattr(hf, "get_decoder"):
        return [*errors, f"{type(hf).__name__} has no get_decoder"]
    decoder = family.decoder(hf)
    if not hasattr(decoder, "norm"):
        errors.append(f"its decoder, {type(decoder).__name__}, has no final norm named norm")
    if not hasattr(decoder, "layers"):
        return [*errors, f"its decoder, {type(decoder).__name__}, has no layers"]
    unknown = set(getattr(hf.config.get_text_config(), "layer_types", None) or LAYER_TYPES) - LAYER_TYPES
    if unknown:
        errors.append(f"it has layers of {' and '.join(sorted(unknown))}, whose rows cannot be recorded")
    return errors + sorted({error for layer in decoder.layers for error in _find_layer_errors(layer, family)})


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
    if not _calls_registry(type(attention)):
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
