"""One small file a model family; each says where things are and nothing else."""

from mmprobe.models.families.base import Family, LayerParts, View, VisionEncoder
from mmprobe.models.families.qwen2_5_vl import QWEN2_5_VL

FAMILIES: tuple[Family, ...] = (QWEN2_5_VL,)

__all__ = ["FAMILIES", "Family", "LayerParts", "View", "VisionEncoder"]
