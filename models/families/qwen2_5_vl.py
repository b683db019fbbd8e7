"""Qwen2.5-VL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmprobe.models.families.base import Family


def _merged_grids(inputs: Mapping[str, Any], config: Any) -> list[tuple[int, int]]:
    merge = config.vision_config.spatial_merge_size
    return [(int(h) // merge, int(w) // merge) for _, h, w in inputs.get("image_grid_thw", [])]


QWEN2_5_VL = Family(
    name="qwen2_5_vl",
    model_types=("qwen2_5_vl",),
    architecture="Qwen2_5_VLForConditionalGeneration",
    needs=("hub",),
    image_token_id=lambda config: config.image_token_id,
    image_grids=_merged_grids,
    decoder=lambda model: model.model.language_model,
)
