"""Chameleon and Emu3: each cell of an image is one code of a vector quantiser, a token of the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.models.families.base import Family, View, find_crop

CHATS_WITH_IMAGES = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{{ '\\n' }}{% endfor %}"
)


def _build_chameleon_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one square view of each image, whose ends are cropped."""
    side = math.isqrt(processor.image_seq_length)
    return [[View((side, side), find_crop(processor.image_processor, size))] for size in sizes]


def _build_emu_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image in its own shape; a token ends each row."""
    cell = processor.downsample_ratio
    return [
        [View((int(rows) // cell, int(columns) // cell), (0, 0, width, height), row_end_tokens=1)]
        for (rows, columns), (height, width) in zip(inputs.get("image_sizes", []), sizes, strict=True)
    ]


CHAMELEON = Family(
    name="chameleon",
    model_types=("chameleon",),
    views=_build_chameleon_views,
    chat_template=CHATS_WITH_IMAGES,
    image_token_id=lambda config: config.image_token_id,
    shares_prefixes=True,
    notes="The ends of an image that is not square are cropped: the model does not see them.",
)
EMU3 = Family(
    name="emu3",
    model_types=("emu3",),
    views=_build_emu_views,
    infers_axes=True,
    extras=("hub",),
    batches=False,
    shares_prefixes=True,
    notes="Takes one prompt at a time: images of several sizes are padded, which changes their codes.",
)
