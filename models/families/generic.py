"""Models that no declaration covers, as far as their config and their modules tell what is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from inspect import unwrap
from typing import Any

from mmprobe.errors import InputError
from mmprobe.models.families.base import Family, View
from mmprobe.models.families.tiles import cropped

GUIDE = "docs/adding-a-family.md"
ATTENTIONS = {"full_attention", "sliding_attention"}
RESAMPLERS = ("qformer_config", "perceiver_config", "resampler_config", "num_query_tokens")


def generic_family(config: Any) -> Family:
    """A family of the config's own, whose pictures are one square grid of tokens each.

    Raises:
        InputError: the config does not say which token is a visual one.
    """
    family = Family(
        name=config.model_type,
        model_types=(config.model_type,),
        views=one_square,
        notes="Not declared: its pictures are taken to be one square grid of tokens each.",
    )
    try:
        family.image_token_id(config)
    except LookupError as error:
        raise _refusal(config, str(error)) from None
    return family


def one_square(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """One view a picture, as large as the number of visual tokens in the prompts says.

    Raises:
        InputError: the tokens cannot be one square grid a picture, in the order of its patches.
    """
    if not sizes:
        return []
    if resampler := _resampler(config):
        raise _refusal(config, resampler)
    pixels = inputs.get("pixel_values")
    if pixels is None:
        raise _refusal(config, "its processor gives no pixel_values")
    if pixels.ndim != 4 or len(pixels) != len(sizes) or pixels.shape[-1] != pixels.shape[-2]:
        raise _refusal(
            config,
            f"its processor does not make one square of each picture (of {len(sizes)}, it made pixel_values of "
            f"shape {list(pixels.shape)})",
        )
    count = int((inputs["input_ids"] == Family.image_token_id(config)).sum())
    side = math.isqrt(count // len(sizes))
    if side == 0 or side * side * len(sizes) != count:
        raise _refusal(config, f"{count} visual tokens for {len(sizes)} pictures are not a square grid each")
    patch = getattr(getattr(config, "vision_config", None), "patch_size", None)
    if isinstance(patch, int) and pixels.shape[-1] // patch % side:
        raise _refusal(
            config,
            f"the {side} visual tokens of a row do not share its {pixels.shape[-1] // patch} patches evenly",
        )
    return [[View((side, side), cropped(processor.image_processor, size))] for size in sizes]


def find_problems(hf: Any, family: Family) -> list[str]:
    """What keeps a model from being traced; nothing where it is put together as most are.

    Example:
        >>> from mmprobe.models import load_model
        >>> model = load_model("tiny-spd", device="cpu")
        >>> find_problems(model.hf, model.family)
        []
    """
    problems = []
    try:
        family.image_token_id(hf.config)
    except LookupError as error:
        problems.append(str(error))
    if family.views is one_square and (resampler := _resampler(hf.config)):
        problems.append(resampler)
    if hf.config.is_encoder_decoder:
        problems.append(f"{type(hf).__name__} has an encoder of text beside its decoder")
    if hf.get_output_embeddings() is None:
        problems.append(f"{type(hf).__name__} has no output embeddings")
    if not hasattr(hf, "get_decoder"):
        return [*problems, f"{type(hf).__name__} has no get_decoder"]
    decoder = family.decoder(hf)
    if not hasattr(decoder, "norm"):
        problems.append(f"its decoder, {type(decoder).__name__}, has no final norm of the name norm")
    if not hasattr(decoder, "layers"):
        return [*problems, f"its decoder, {type(decoder).__name__}, has no layers"]
    kinds = set(getattr(hf.config.get_text_config(), "layer_types", None) or ATTENTIONS) - ATTENTIONS
    if kinds:
        problems.append(f"it has layers of {' and '.join(sorted(kinds))}, whose rows cannot be recorded")
    return problems + sorted({found for layer in decoder.layers for found in _problems_of(layer, family)})


def _resampler(config: Any) -> str | None:
    for name in RESAMPLERS:
        if getattr(config, name, None):
            return (
                f"its config has a {name}: visual tokens are learned queries, which show no part of a picture"
            )
    return None


def _problems_of(layer: Any, family: Family) -> list[str]:
    try:
        attention = family.parts(layer).attention
    except (LookupError, AttributeError) as error:
        return [f"its layers are not put together as known: {error}"]
    if not _calls_registry(type(attention)):
        return [f"{type(attention).__name__} does not call transformers' attention registry"]
    return []


def _calls_registry(attention: type) -> bool:
    methods = [
        unwrap(value) for kind in attention.__mro__ for value in vars(kind).values() if callable(value)
    ]
    codes = [method.__code__ for method in methods if hasattr(method, "__code__")]
    return any("ALL_ATTENTION_FUNCTIONS" in code.co_names for code in codes)


def _refusal(config: Any, reason: str) -> InputError:
    return InputError(f"models of type {config.model_type!r} are not declared, and {reason}; see {GUIDE}")
