"""Qwen3-VL with mixtures of experts."""

from mmprobe.models.families.base import Family, VisionEncoder
from mmprobe.models.families.patches import merged_grids, qwen_patch_positions

QWEN3_VL_MOE = Family(
    name="qwen3_vl_moe",
    model_types=("qwen3_vl_moe",),
    views=merged_grids,
    needs=("hub",),
    vision=VisionEncoder(lambda hf: hf.model.visual.blocks, "attn", qwen_patch_positions),
    notes="As qwen3_vl; gates are not recorded, since experts take turns.",
)
