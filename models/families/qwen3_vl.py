"""Qwen3-VL."""

from mmprobe.models.families.base import Family, VisionEncoder
from mmprobe.models.families.patches import merged_grids, qwen_patch_positions

QWEN3_VL = Family(
    name="qwen3_vl",
    model_types=("qwen3_vl",),
    views=merged_grids,
    needs=("hub",),
    vision=VisionEncoder(lambda hf: hf.model.visual.blocks, "attn", qwen_patch_positions),
    notes="Its first layers add picture features again (DeepStack), so resid_post is not the next resid_pre there.",
)
