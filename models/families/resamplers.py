"""Families whose visual tokens are learned queries: traced without a map of patches.

A query reads all of an image, or all of a crop. So its token belongs to the image, but shows no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.errors import InputError
from mmprobe.models.families.base import Family, LayerParts, View, get_decoder_parts

QUERIES = "visual tokens are learned queries, which show no part of an image"
QUESTION = (
    "{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'text' %}"
    "{% if message['role'] == 'system' %}{{ part['text'] + ' ' }}"
    "{% else %}{{ 'Question: ' + part['text'] + ' Answer:' }}{% endif %}{% endif %}{% endfor %}{% endfor %}"
)


def _build_no_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return no view of any image."""
    return [[] for _ in sizes]


def check_one_image(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return no view of the only image.

    Raises:
        InputError: there are several images.
    """
    if len(sizes) > 1:
        raise InputError(
            f"{config.model_type}: takes one image a prompt, and here are {len(sizes)}; show one, or use another model"
        )
    return [[] for _ in sizes]


def _get_opt_parts(layer: Any) -> LayerParts:
    """Return the parts of a layer of the text model, which is OPT in some checkpoints of BLIP-2."""
    if not hasattr(layer, "fc1"):
        return get_decoder_parts(layer)
    return LayerParts(layer.self_attn, layer.self_attn, None, None)


def _declare(name: str, **options: Any) -> Family:
    options = {"views": _build_no_views} | options
    return Family(name=name, model_types=(name,), without_map=QUERIES, **options)


ONE_IMAGE = "Takes one image a prompt, and one prompt at a time. Not with T5, which has an encoder."
IDEFICS2 = _declare("idefics2", shares_prefixes=True)
ARIA = _declare("aria")
OF_BLIP: dict[str, Any] = {
    "views": check_one_image,
    "chat_template": QUESTION,
    "batches": False,
    "answers_by": "language_model",
    "notes": ONE_IMAGE,
}
BLIP_2 = _declare("blip-2", parts=_get_opt_parts, **OF_BLIP)
INSTRUCTBLIP = _declare("instructblip", **OF_BLIP)
