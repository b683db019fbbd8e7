"""GLM-4V and GLM-4.1V."""

from mmprobe.models.families.base import Family, VisionEncoder
from mmprobe.models.families.patches import merged_grids, qwen_patch_positions

GLM4V = Family(
    name="glm4v",
    model_types=("glm4v",),
    views=merged_grids,
    needs=("hub",),
    vision=VisionEncoder(lambda hf: hf.model.visual.blocks, "attn", qwen_patch_positions),
)
