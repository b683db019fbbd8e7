"""Model families: one small declaration each."""

from collections.abc import Collection
from typing import Any

from mmprobe.errors import InputError
from mmprobe.models.families.base import Family, LayerParts, View, VisionEncoder
from mmprobe.models.families.refused import REFUSED
from mmprobe.registry import Registry

FAMILIES: Registry[Family] = Registry(
    "family",
    "families",
    {
        "qwen2_vl": "mmprobe.models.families.merged_patches:QWEN2_VL",
        "qwen2_5_vl": "mmprobe.models.families.merged_patches:QWEN2_5_VL",
        "qwen3_vl": "mmprobe.models.families.merged_patches:QWEN3_VL",
        "qwen3_vl_moe": "mmprobe.models.families.merged_patches:QWEN3_VL_MOE",
        "qwen3_5": "mmprobe.models.families.merged_patches:QWEN3_5",
        "qwen3_5_moe": "mmprobe.models.families.merged_patches:QWEN3_5_MOE",
        "qwen2_5_omni_thinker": "mmprobe.models.families.merged_patches:QWEN2_5_OMNI",
        "qwen3_omni_moe_thinker": "mmprobe.models.families.merged_patches:QWEN3_OMNI",
        "glm4v": "mmprobe.models.families.merged_patches:GLM4V",
        "glm46v": "mmprobe.models.families.merged_patches:GLM46V",
        "glm4v_moe": "mmprobe.models.families.merged_patches:GLM4V_MOE",
        "glm_ocr": "mmprobe.models.families.merged_patches:GLM_OCR",
        "paddleocr_vl": "mmprobe.models.families.merged_patches:PADDLEOCR_VL",
        "video_llama_3": "mmprobe.models.families.merged_patches:VIDEO_LLAMA_3",
        "exaone4_5": "mmprobe.models.families.merged_patches:EXAONE4_5",
        "hyperclovax_vision_v2": "mmprobe.models.families.merged_patches:HYPERCLOVAX",
        "ernie4_5_vl_moe": "mmprobe.models.families.merged_patches:ERNIE4_5_VL",
        "minimax_m3_vl": "mmprobe.models.families.merged_patches:MINIMAX_M3_VL",
        "muse_glimmer": "mmprobe.models.families.merged_patches:MUSE_GLIMMER",
        "cosmos3_edge": "mmprobe.models.families.merged_patches:COSMOS3_EDGE",
        "cosmos3_omni": "mmprobe.models.families.merged_patches:COSMOS3_OMNI",
        "cohere_compass": "mmprobe.models.families.merged_patches:COHERE_COMPASS",
        "hunyuan_vl": "mmprobe.models.families.merged_patches:HUNYUAN_VL",
        "kimi_k25": "mmprobe.models.families.merged_patches:KIMI_K25",
        "llava": "mmprobe.models.families.llava:LLAVA",
        "llava_next": "mmprobe.models.families.llava_next:LLAVA_NEXT",
        "llava_onevision": "mmprobe.models.families.llava_onevision:LLAVA_ONEVISION",
        "internvl": "mmprobe.models.families.internvl:INTERNVL",
        "gemma3": "mmprobe.models.families.gemma3:GEMMA3",
        "idefics3": "mmprobe.models.families.idefics3:IDEFICS3",
        "smolvlm": "mmprobe.models.families.idefics3:SMOLVLM",
        "paligemma": "mmprobe.models.families.paligemma:PALIGEMMA",
        "mllama": "mmprobe.models.families.mllama:MLLAMA",
        "deepseek_vl": "mmprobe.models.families.deepseek_vl:DEEPSEEK_VL",
        "vipllava": "mmprobe.models.families.llava:VIPLLAVA",
        "fast_vlm": "mmprobe.models.families.llava:FAST_VLM",
        "video_llava": "mmprobe.models.families.llava:VIDEO_LLAVA",
        "mistral3": "mmprobe.models.families.pixtral:MISTRAL3",
        "lighton_ocr": "mmprobe.models.families.pixtral:LIGHTON_OCR",
        "gemma4": "mmprobe.models.families.gemma4:GEMMA4",
        "gemma4_unified": "mmprobe.models.families.gemma4:GEMMA4_UNIFIED",
        "deepseek_vl_hybrid": "mmprobe.models.families.deepseek_vl:DEEPSEEK_VL_HYBRID",
        "janus": "mmprobe.models.families.deepseek_vl:JANUS",
        "llava_next_video": "mmprobe.models.families.llava_next:LLAVA_NEXT_VIDEO",
        "qianfan_ocr": "mmprobe.models.families.internvl:QIANFAN_OCR",
        "ovis2": "mmprobe.models.families.ovis2:OVIS2",
        "molmo2": "mmprobe.models.families.molmo2:MOLMO2",
        "step3p7": "mmprobe.models.families.step3p7:STEP3P7",
        "aya_vision": "mmprobe.models.families.internvl:AYA_VISION",
        "cohere2_vision": "mmprobe.models.families.internvl:COHERE2_VISION",
        "llama4": "mmprobe.models.families.llama4:LLAMA4",
        "perception_lm": "mmprobe.models.families.perception_lm:PERCEPTION_LM",
        "chameleon": "mmprobe.models.families.codes:CHAMELEON",
        "emu3": "mmprobe.models.families.codes:EMU3",
        "granite4_vision": "mmprobe.models.families.granite_vision:GRANITE4_VISION",
        "idefics2": "mmprobe.models.families.resamplers:IDEFICS2",
        "aria": "mmprobe.models.families.resamplers:ARIA",
        "blip-2": "mmprobe.models.families.resamplers:BLIP_2",
        "instructblip": "mmprobe.models.families.resamplers:INSTRUCTBLIP",
        "lfm2_vl": "mmprobe.models.families.lfm2_vl:LFM2_VL",
        "lfm3_vl": "mmprobe.models.families.merged_patches:LFM3_VL",
        "minicpmv4_6": "mmprobe.models.families.minicpm:MINICPMV4_6",
        "minicpmv4_7": "mmprobe.models.families.minicpm:MINICPMV4_7",
        "minicpm_ocr": "mmprobe.models.families.minicpm:MINICPM_OCR",
        "granite_docling": "mmprobe.models.families.internvl:GRANITE_DOCLING",
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
        InputError: the type cannot be traced; or no family is declared, and the config does not say what is needed.

    Example:
        >>> from transformers import LlavaConfig
        >>> find_family(LlavaConfig()).name
        'llava'
    """
    for _, family in FAMILIES.working():
        if isinstance(family.model_types, Collection) and config.model_type in family.model_types:
            return family
    if config.model_type in REFUSED:
        raise InputError(
            f"models of type {config.model_type!r} cannot be traced: {REFUSED[config.model_type]} (docs/models.md)"
        )
    from mmprobe.models.families.generic import build_generic_family

    return build_generic_family(config)


__all__ = ["FAMILIES", "Family", "LayerParts", "View", "VisionEncoder", "find_family", "register_family"]
