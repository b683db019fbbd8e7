"""GLM-4V and GLM-4.1V: one view of each image, whose patches are merged in squares."""

from mmprobe.models.families.base import Family, VisionEncoder
from mmprobe.models.families.views import (
    build_merged_views,
    find_merged_patch_positions,
    get_encoder_blocks,
)

GLM4V = Family(
    name="glm4v",
    model_types=("glm4v",),
    views=build_merged_views,
    extras=("hub",),
    vision=VisionEncoder(
        layers=get_encoder_blocks, attention="attn", patch_positions=find_merged_patch_positions
    ),
    shares_prefixes=True,
)
