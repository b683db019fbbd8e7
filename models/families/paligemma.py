"""PaliGemma: each image is stretched to one square, and all images come before the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View, VisionEncoder, find_tile_positions, get_tower_layers

IMAGES_THEN_TEXT = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% endif %}{% endfor %}{% endfor %}"
    "{% set texts = namespace(before=false) %}"
    "{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'text' %}"
    "{% if texts.before %}{{ '\\n' }}{% endif %}{{ part['text'] }}{% set texts.before = true %}"
    "{% endif %}{% endfor %}{% endfor %}"
)


def build_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    return [[View((side, side), (0, 0, width, height))] for height, width in sizes]


PALIGEMMA = Family(
    name="paligemma",
    model_types=("paligemma",),
    views=build_views,
    vision=VisionEncoder(layers=get_tower_layers, attention="self_attn", patch_positions=find_tile_positions),
    chat_template=IMAGES_THEN_TEXT,
    answer_token_type=1,  # 0 would let all tokens see the answer
    notes="Needs an image; tokens of its prompt all see each other. Not PaliGemma 2: its Gemma 2 has no sdpa.",
)
