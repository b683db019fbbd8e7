"""Qwen3-VL with mixtures of experts: one view of each image, whose patches are merged in squares."""

from mmprobe.models.families.base import Family, VisionEncoder
from mmprobe.models.families.views import (
    build_merged_views,
    find_merged_patch_positions,
    get_encoder_blocks,
)

QWEN3_VL_MOE = Family(
    name="qwen3_vl_moe",
    model_types=("qwen3_vl_moe",),
    views=build_merged_views,
    extras=("hub",),
    vision=VisionEncoder(
        layers=get_encoder_blocks, attention="attn", patch_positions=find_merged_patch_positions
    ),
    adds_between_layers=True,
    shares_prefixes=True,
    notes="As qwen3_vl; gates are not recorded, since its FFNs are mixtures of experts.",
)
