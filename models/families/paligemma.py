"""PaliGemma: one square a picture, all pictures before the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View, VisionEncoder
from mmprobe.models.families.tiles import tower_layers, tower_patch_positions

PICTURES_THEN_TEXT = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% endif %}{% endfor %}{% endfor %}"
    "{% set texts = namespace(before=false) %}"
    "{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'text' %}"
    "{% if texts.before %}{{ '\\n' }}{% endif %}{{ part['text'] }}{% set texts.before = true %}"
    "{% endif %}{% endfor %}{% endfor %}"
)


def one_square(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """The stretched whole."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    return [[View((side, side), (0, 0, width, height))] for height, width in sizes]


PALIGEMMA = Family(
    name="paligemma",
    model_types=("paligemma",),
    views=one_square,
    vision=VisionEncoder(
        tower_layers, "self_attn", lambda inputs, hf: tower_patch_positions(len(inputs["pixel_values"]), hf)
    ),
    chat_template=PICTURES_THEN_TEXT,
    notes="Needs a picture; its prompt's tokens all see each other. Not PaliGemma 2, whose Gemma 2 has no sdpa.",
)
