"""One small file a model family; each says where things are and nothing else."""

from typing import Any

from mmprobe.models.families.base import Family, LayerParts, View, VisionEncoder
from mmprobe.models.families.qwen2_5_vl import QWEN2_5_VL

FAMILIES: tuple[Family, ...] = (QWEN2_5_VL,)


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
