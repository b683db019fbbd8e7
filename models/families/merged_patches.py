"""Families that show each image in one view, as large as the image allows, and merge its patches in squares.

Their processors return the grid of each image's patches, `image_grid_thw`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mmprobe.models.families.base import (
    Family,
    View,
    VisionEncoder,
    build_merged_video_views,
    build_merged_views,
    find_merged_patch_positions,
    get_encoder_blocks,
    get_image_token_id,
    get_parallel_parts,
)

DEEPSTACK = (
    "Its first layers add image features again (DeepStack): there, resid_post is not the next resid_pre."
)
NO_GATES = "Gates are not recorded, since its FFNs are mixtures of experts."
LINEAR = "Three of four layers have linear attention: they have no rows, and are recorded otherwise."


def _find_window_positions(inputs: Mapping[str, Any], hf: Any) -> np.ndarray:
    """Return image, row and column of each patch; the encoder sorts its patches by attention window."""
    from transformers.vision_utils import get_vision_window_index

    vision = hf.config.vision_config
    windows, _ = get_vision_window_index(
        inputs["image_grid_thw"],
        spatial_merge_size=vision.spatial_merge_size,
        window_size=vision.window_size,
        patch_size=vision.patch_size,
    )
    squares = find_merged_patch_positions(inputs, hf).reshape(-1, vision.spatial_merge_size**2, 3)
    return squares[windows.cpu().numpy()].reshape(-1, 3)


def _build_framed_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image, with a token before it, after each row and after it (HunyuanVL)."""
    merged = build_merged_views(inputs, sizes, processor, config)
    return [[view._replace(start_tokens=1, row_end_tokens=1, end_tokens=1)] for (view,) in merged]


def _build_padded_views(
    inputs: Mapping[str, Any], sizes: Sequence[tuple[int, int]], processor: Any, config: Any
) -> list[list[View]]:
    """Return one view of each image, which is scaled down and then padded at its right and lower end (Kimi K2.5)."""
    if not sizes:
        return []
    from transformers.models.kimi_k25.image_processing_kimi_k25 import navit_resize  # needs torchvision

    image_processor, views = processor.image_processor, []
    merged = build_merged_views(inputs, sizes, processor, config)
    for (height, width), (view,) in zip(sizes, merged, strict=True):
        resized, padded = navit_resize(
            height=height,
            width=width,
            patch_size=image_processor.patch_size,
            merge_kernel_size=image_processor.merge_size,
            max_patches=image_processor.max_patches,
            max_size_per_side=image_processor.size["max_height"],
        )
        box = (0, 0, width * padded[1] / resized[1], height * padded[0] / resized[0])
        views.append([view._replace(box=box)])
    return views


MERGED = VisionEncoder(
    layers=get_encoder_blocks, attention="attn", patch_positions=find_merged_patch_positions
)
WINDOWED = MERGED._replace(patch_positions=_find_window_positions)


def _declare(name: str, *others: str, **options: Any) -> Family:
    """Return a family of merged patches, whose processors need torchvision."""
    defaults: dict[str, Any] = {"views": build_merged_views, "extras": ("hub",), "shares_prefixes": True}
    return Family(name=name, model_types=(name, *others), **(defaults | options))


_watches = partial(_declare, video_views=build_merged_video_views)
QWEN2_VL = _watches("qwen2_vl", vision=MERGED)
QWEN2_5_VL = _watches("qwen2_5_vl", vision=WINDOWED)
QWEN3_VL = _watches("qwen3_vl", vision=MERGED, adds_between_layers=True, notes=DEEPSTACK)
QWEN3_VL_MOE = _watches(
    "qwen3_vl_moe", vision=MERGED, adds_between_layers=True, notes=f"{DEEPSTACK} {NO_GATES}"
)
QWEN3_5 = _watches("qwen3_5", vision=MERGED, shares_prefixes=False, notes=LINEAR)
QWEN3_5_MOE = _watches("qwen3_5_moe", vision=MERGED, shares_prefixes=False, notes=f"{LINEAR} {NO_GATES}")
QWEN2_5_OMNI = _watches(
    "qwen2_5_omni_thinker",
    notes="The part of Qwen2.5-Omni that reads and writes text: of a whole checkpoint, it alone is loaded.",
)
QWEN3_OMNI = _watches(
    "qwen3_omni_moe_thinker",
    adds_between_layers=True,
    notes=f"The part of Qwen3-Omni that reads and writes text: of a whole checkpoint, it alone is loaded. {NO_GATES}",
)
# frames have an image's tokens, and their times between them
_marks_frames = partial(_watches, video_token_id=get_image_token_id, videos_alone=True, vision=MERGED)
GLM4V = _marks_frames("glm4v")
GLM46V = _marks_frames("glm46v", "glmga")
GLM4V_MOE = _marks_frames("glm4v_moe", notes=NO_GATES)
GLM_OCR = _marks_frames("glm_ocr")
PADDLEOCR_VL = _declare("paddleocr_vl")
VIDEO_LLAMA_3 = _watches(
    "video_llama_3",
    video_options={"use_token_compression": False},
    notes="It sees all tokens of a video: none is left out because it is like the frame before.",
)
EXAONE4_5 = _watches("exaone4_5")
HYPERCLOVAX = _watches("hyperclovax_vision_v2")
ERNIE4_5_VL = _declare("ernie4_5_vl_moe", shares_prefixes=False, notes=NO_GATES)
MINIMAX_M3_VL = _declare("minimax_m3_vl", notes=f"Not with layers of sparse attention. {NO_GATES}")
MUSE_GLIMMER = _declare("muse_glimmer")
COSMOS3_EDGE = _watches("cosmos3_edge", video_options={"return_metadata": True})
COSMOS3_OMNI = _watches("cosmos3_omni", adds_between_layers=True, notes=DEEPSTACK)
COHERE_COMPASS = _watches(
    "cohere_compass", parts=get_parallel_parts, adds_between_layers=True, notes=DEEPSTACK
)
HUNYUAN_VL = _declare(
    "hunyuan_vl", views=_build_framed_views, batches=False, notes="Takes one prompt at a time."
)
KIMI_K25 = _declare("kimi_k25", views=_build_padded_views, notes=NO_GATES)
LFM3_VL = _watches(
    "lfm3_vl",
    shares_prefixes=False,
    notes="Layers with a convolution have no rows, and are recorded otherwise.",
)
