"""One small file a model family; each says where things are and nothing else."""

from typing import Any

from mmprobe.models.families.base import Family, LayerParts, View, VisionEncoder
from mmprobe.models.families.idefics3 import IDEFICS3, SMOLVLM
from mmprobe.models.families.internvl import INTERNVL
from mmprobe.models.families.llava import LLAVA
from mmprobe.models.families.llava_next import LLAVA_NEXT
from mmprobe.models.families.llava_onevision import LLAVA_ONEVISION
from mmprobe.models.families.qwen2_5_vl import QWEN2_5_VL

FAMILIES: tuple[Family, ...] = (
    QWEN2_5_VL,
    LLAVA,
    LLAVA_NEXT,
    LLAVA_ONEVISION,
    INTERNVL,
    IDEFICS3,
    SMOLVLM,
)


def family_of(config: Any) -> Family:
    """The family that a model's config belongs to; one made from the config where none is declared.

    Raises:
        InputError: the config lacks what every family must have.
    """
    for family in FAMILIES:
        if config.model_type in family.model_types:
            return family
    from mmprobe.models.families.generic import generic_family

    return generic_family(config)


__all__ = ["FAMILIES", "Family", "LayerParts", "View", "VisionEncoder", "family_of"]
