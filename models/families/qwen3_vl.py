"""Qwen3-VL."""

from mmprobe.models.families.base import Family, VisionEncoder
from mmprobe.models.families.patches import merged_grids, patch_places

QWEN3_VL = Family(
    name="qwen3_vl",
    model_types=("qwen3_vl",),
    views=merged_grids,
    needs=("hub",),
    vision=VisionEncoder(lambda hf: hf.model.visual.blocks, "attn", patch_places),
    notes="Its first layers add picture features again (DeepStack), so resid_post is not the next resid_pre there.",
)
