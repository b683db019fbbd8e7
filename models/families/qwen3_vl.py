"""Qwen3-VL: one view of each image, whose patches are merged in squares."""

from mmprobe.models.families.base import Family, VisionEncoder
from mmprobe.models.families.views import (
    build_merged_views,
    find_merged_patch_positions,
    get_encoder_blocks,
)

QWEN3_VL = Family(
    name="qwen3_vl",
    model_types=("qwen3_vl",),
    views=build_merged_views,
    extras=("hub",),
    vision=VisionEncoder(
        layers=get_encoder_blocks, attention="attn", patch_positions=find_merged_patch_positions
    ),
    adds_between_layers=True,
    shares_prefixes=True,
    notes="Its first layers add image features again (DeepStack): there, resid_post is not the next resid_pre.",
)
