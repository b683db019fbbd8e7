"""Model families: one small declaration each."""

from collections.abc import Collection
from typing import Any

from mmprobe.models.families.base import Family, LayerParts, View, VisionEncoder
from mmprobe.registry import Registry

FAMILIES: Registry[Family] = Registry(
    "family",
    "families",
    {
        "qwen2_vl": "mmprobe.models.families.qwen2_vl:QWEN2_VL",
        "qwen2_5_vl": "mmprobe.models.families.qwen2_5_vl:QWEN2_5_VL",
        "qwen3_vl": "mmprobe.models.families.qwen3_vl:QWEN3_VL",
        "qwen3_vl_moe": "mmprobe.models.families.qwen3_vl_moe:QWEN3_VL_MOE",
        "llava": "mmprobe.models.families.llava:LLAVA",
        "llava_next": "mmprobe.models.families.llava_next:LLAVA_NEXT",
        "llava_onevision": "mmprobe.models.families.llava_onevision:LLAVA_ONEVISION",
        "internvl": "mmprobe.models.families.internvl:INTERNVL",
        "gemma3": "mmprobe.models.families.gemma3:GEMMA3",
        "glm4v": "mmprobe.models.families.glm4v:GLM4V",
        "idefics3": "mmprobe.models.families.idefics3:IDEFICS3",
        "smolvlm": "mmprobe.models.families.idefics3:SMOLVLM",
        "paligemma": "mmprobe.models.families.paligemma:PALIGEMMA",
        "mllama": "mmprobe.models.families.mllama:MLLAMA",
        "deepseek_vl": "mmprobe.models.families.deepseek_vl:DEEPSEEK_VL",
    },
    form="mmprobe.models.families.base:Family",
    added_first=True,
)
"""Every declared family by its name. Those that were added come first, and may replace one that ships."""


def register_family(family: Family) -> None:
    """Add the declaration of a model family; it comes before those that ship with mmprobe.

    A package does the same with an entry point of the group `mmprobe.families` whose object is the family.

    Raises:
        InputError: another family was registered under its name.

    Example:
        >>> mp.register_family(Family(name="mine", model_types=("my_vlm",), ...))    # doctest: +SKIP
    """
    FAMILIES.register(family.name, family)


def find_family(config: Any) -> Family:
    """Return the family of a model's config, or one made from the config if none is declared for it.

    Raises:
        InputError: no family is declared, and the config does not name a visual token.

    Example:
        >>> from transformers import LlavaConfig
        >>> find_family(LlavaConfig()).name
        'llava'
    """
    for _, family in FAMILIES.working():
        if isinstance(family.model_types, Collection) and config.model_type in family.model_types:
            return family
    from mmprobe.models.families.generic import build_generic_family

    return build_generic_family(config)


__all__ = ["FAMILIES", "Family", "LayerParts", "View", "VisionEncoder", "find_family", "register_family"]
