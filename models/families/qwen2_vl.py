"""Qwen2-VL."""

from mmprobe.models.families.base import Family, VisionEncoder
from mmprobe.models.families.patches import merged_grids, qwen_patch_positions

QWEN2_VL = Family(
    name="qwen2_vl",
    model_types=("qwen2_vl",),
    views=merged_grids,
    needs=("hub",),
    vision=VisionEncoder(lambda hf: hf.model.visual.blocks, "attn", qwen_patch_positions),
)
