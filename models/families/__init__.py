"""Model families: one small declaration each."""

from typing import Any

from mmprobe.models.families.base import Family, LayerParts, View, VisionEncoder
from mmprobe.models.families.deepseek_vl import DEEPSEEK_VL
from mmprobe.models.families.gemma3 import GEMMA3
from mmprobe.models.families.glm4v import GLM4V
from mmprobe.models.families.idefics3 import IDEFICS3, SMOLVLM
from mmprobe.models.families.internvl import INTERNVL
from mmprobe.models.families.llava import LLAVA
from mmprobe.models.families.llava_next import LLAVA_NEXT
from mmprobe.models.families.llava_onevision import LLAVA_ONEVISION
from mmprobe.models.families.mllama import MLLAMA
from mmprobe.models.families.paligemma import PALIGEMMA
from mmprobe.models.families.qwen2_5_vl import QWEN2_5_VL
from mmprobe.models.families.qwen2_vl import QWEN2_VL
from mmprobe.models.families.qwen3_vl import QWEN3_VL
from mmprobe.models.families.qwen3_vl_moe import QWEN3_VL_MOE
from mmprobe.plugins import find_added

FAMILIES: tuple[Family, ...] = (
    QWEN2_VL,
    QWEN2_5_VL,
    QWEN3_VL,
    QWEN3_VL_MOE,
    LLAVA,
    LLAVA_NEXT,
    LLAVA_ONEVISION,
    INTERNVL,
    GEMMA3,
    GLM4V,
    IDEFICS3,
    SMOLVLM,
    PALIGEMMA,
    MLLAMA,
    DEEPSEEK_VL,
)


def find_family(config: Any) -> Family:
    """Return the family of a model's config, or one made from the config if none is declared for it.

    Raises:
        InputError: no family is declared, and the config does not name a visual token.

    Example:
        >>> from transformers import LlavaConfig
        >>> find_family(LlavaConfig()).name
        'llava'
    """
    for family in (*find_added("families").values(), *FAMILIES):
        if config.model_type in family.model_types:
            return family
    from mmprobe.models.families.generic import build_generic_family

    return build_generic_family(config)


__all__ = ["FAMILIES", "Family", "LayerParts", "View", "VisionEncoder", "find_family"]
