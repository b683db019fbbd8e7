"""Tiny random models and their processors: images as merged patches, one square, or by cross-attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf
from helpers.building import TEXT, VISION, Built, build_chat_template, build_model, build_tokenizer
from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import DeepseekVLImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
TURNS: dict[str, Any] = {
    "user": ("<|im_start|>user\n", "<|im_end|>\n"),
    "assistant": "<|im_start|>assistant\n",
    "system": ("<|im_start|>system\n", "<|im_end|>\n"),
}
PATCHES = {"num_heads": 2, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}


def _drop_video(processor_class: type) -> type:
    """Return a processor class without its video part, which needs torchvision."""

    def init(self: Any, image_processor: Any, tokenizer: Any, image_token: str, chat_template: str) -> None:
        self.image_token, self.video_token = image_token, None
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids(image_token), None
        tf.ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
        self.video_start_id = self.video_end_id = -1

    return type(f"Pil{processor_class.__name__}", (processor_class,), {"__init__": init})


def _build_qwen_like(
    config_class: type, model_class: type, processor_class: type, text: dict[str, Any], vision: dict[str, Any]
) -> Built:
    tokenizer = build_tokenizer("<|video_pad|>")
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in
           ("image_pad", "video_pad", "vision_start", "vision_end")}  # fmt: skip
    config = config_class(
        text_config={**TEXT, "vocab_size": len(tokenizer), "rope_parameters": ROPE, **text},
        vision_config={**PATCHES, **vision},
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
    )
    processor = _drop_video(processor_class)(
        Qwen2VLImageProcessorPil(
            patch_size=8, merge_size=2, size={"shortest_edge": 32 * 32, "longest_edge": 72 * 72}
        ),
        tokenizer,
        "<|image_pad|>",
        build_chat_template(**TURNS, image="<|vision_start|><|image_pad|><|vision_end|>"),
    )
    return build_model(model_class, config), processor


def qwen2_vl() -> Built:
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
    return _build_qwen_like(
        tf.Qwen2VLConfig, tf.Qwen2VLForConditionalGeneration, Qwen2VLProcessor, {}, vision
    )


def qwen2_5_vl() -> Built:
    """Its encoder attends in windows of 2 x 2 merged patches in the first layer."""
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64,
              "fullatt_block_indexes": [1], "window_size": 32}  # fmt: skip
    return _build_qwen_like(
        tf.Qwen2_5_VLConfig, tf.Qwen2_5_VLForConditionalGeneration, Qwen2VLProcessor, {}, vision
    )


DEEPSTACK = {"depth": 3, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64,
             "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]}  # fmt: skip


def qwen3_vl() -> Built:
    """Features of two encoder layers are added after its first two decoder layers."""
    text = {"head_dim": 16}
    return _build_qwen_like(
        tf.Qwen3VLConfig, tf.Qwen3VLForConditionalGeneration, Qwen3VLProcessor, text, DEEPSTACK
    )


def qwen3_vl_moe() -> Built:
    text = {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
    return _build_qwen_like(
        tf.Qwen3VLMoeConfig, tf.Qwen3VLMoeForConditionalGeneration, Qwen3VLProcessor, text, DEEPSTACK
    )


def qwen3_5() -> Built:
    """Three of its four layers have linear attention; smaller weights, since kernels round it differently."""
    linear = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
              "linear_num_value_heads": 4}  # fmt: skip
    rope = {**ROPE, "partial_rotary_factor": 1.0, "mrope_interleaved": True}
    text = {**linear, "head_dim": 16, "num_hidden_layers": 4, "rope_parameters": rope}
    vision = {name: value for name, value in DEEPSTACK.items() if name != "deepstack_visual_indexes"}
    hf, processor = _build_qwen_like(
        tf.Qwen3_5Config, tf.Qwen3_5ForConditionalGeneration, Qwen3VLProcessor, text, vision
    )
    with torch.no_grad():
        for weight in hf.parameters():
            weight.mul_(0.5 if weight.ndim > 1 else 1)
    return hf, processor


def glm4v() -> Built:
    tokenizer = build_tokenizer("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>",
                                "<|begin_of_video|>", "<|end_of_video|>")  # fmt: skip
    names = {"image_token_id": "<|image|>", "video_token_id": "<|video|>",
             "image_start_token_id": "<|begin_of_image|>", "image_end_token_id": "<|end_of_image|>",
             "video_start_token_id": "<|begin_of_video|>", "video_end_token_id": "<|end_of_video|>"}  # fmt: skip
    config = tf.Glm4vConfig(
        text_config={**TEXT, "vocab_size": len(tokenizer), "rope_parameters": {**ROPE, "partial_rotary_factor": 1.0}},
        vision_config={**PATCHES, "depth": 2, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64,
                       "image_size": 72},
        **{name: tokenizer.convert_tokens_to_ids(token) for name, token in names.items()},
    )  # fmt: skip
    processor = _drop_video(Glm4vProcessor)(
        Glm4vImageProcessorPil(
            patch_size=8, merge_size=2, size={"shortest_edge": 32 * 32 * 2, "longest_edge": 72 * 72 * 2}
        ),
        tokenizer,
        "<|image|>",
        build_chat_template(**TURNS, image="<|begin_of_image|><|image|><|end_of_image|>"),
    )
    return build_model(tf.Glm4vForConditionalGeneration, config), processor


def gemma3() -> Built:
    """Layers with a window of 16 tokens and one without; wide images get crops as well."""
    tokenizer = build_tokenizer(
        boi_token="<start_of_image>",
        eoi_token="<end_of_image>",
        image_token="<image_soft_token>",
        bos_token="<bos>",
    )
    config = tf.Gemma3Config(
        text_config={**TEXT, "vocab_size": len(tokenizer), "head_dim": 16, "query_pre_attn_scalar": 16,
                     "sliding_window": 16,
                     "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        vision_config={"image_size": 48, "vision_use_head": False, **VISION},
        mm_tokens_per_image=9,
        image_token_index=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
    )  # fmt: skip
    processor = tf.Gemma3Processor(
        Gemma3ImageProcessorPil(size={"height": 48, "width": 48}),
        tokenizer,
        image_seq_length=9,
        chat_template=build_chat_template(
            ("<|im_start|>user\n", "<|im_end|>\n"),
            "<|im_start|>model\n",
            ("<|im_start|>system\n", "<|im_end|>\n"),
            begin="<bos>",
            image="<start_of_image>",
        ),
    )
    processor.images_kwargs = processor.images_kwargs | {
        "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 16, "pan_and_scan_max_num_crops": 3,
        "pan_and_scan_min_ratio_to_activate": 1.5,
    }  # fmt: skip
    return build_model(tf.Gemma3ForConditionalGeneration, config), processor


def paligemma() -> Built:
    """It has no chat template, and all tokens of a prompt see each other."""
    tokenizer = build_tokenizer("<image>", bos_token="<bos>")
    config = tf.PaliGemmaConfig(
        text_config={"model_type": "gemma", **TEXT, "vocab_size": len(tokenizer), "head_dim": 16},
        vision_config={
            "model_type": "siglip_vision_model",
            "image_size": 24,
            "vision_use_head": False,
            **VISION,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        projection_dim=64,
    )
    image_processor = SiglipImageProcessorPil(size={"height": 24, "width": 24})
    image_processor.image_seq_length = 9
    return build_model(tf.PaliGemmaForConditionalGeneration, config), tf.PaliGemmaProcessor(
        image_processor, tokenizer
    )


def deepseek_vl() -> Built:
    """Images are padded to a square."""
    tokenizer = build_tokenizer(image_token="<image_placeholder>")
    config = tf.DeepseekVLConfig(
        text_config={"model_type": "llama", **TEXT, "vocab_size": len(tokenizer)},
        vision_config={
            "model_type": "siglip_vision_model",
            "image_size": 32,
            "vision_use_head": False,
            **VISION,
        },
        image_token_id=tokenizer.image_token_id,
    )
    processor = tf.DeepseekVLProcessor(
        DeepseekVLImageProcessorPil(size={"height": 32, "width": 32}, min_size=8),
        tokenizer,
        chat_template=build_chat_template(
            ("User: ", "\n\n"), "Assistant:", ("", "\n\n"), image="<image_placeholder>"
        ),
        num_image_tokens=16,
    )
    return build_model(tf.DeepseekVLForConditionalGeneration, config), processor


def mllama() -> Built:
    """Two of its four layers attend to the images, and their gates are open."""
    tokenizer = build_tokenizer("<|image|>", "<|python_tag|>", bos_token="<bos>")
    text = {name: value for name, value in TEXT.items() if name != "num_hidden_layers"}
    config = tf.MllamaConfig(
        text_config={**text, "vocab_size": len(tokenizer), "bos_token_id": 1, "num_hidden_layers": 4, "cross_attention_layers": [1, 3],
                     "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        vision_config={"hidden_size": 32, "attention_heads": 2, "num_hidden_layers": 2, "num_global_layers": 1,
                       "intermediate_size": 48, "vision_output_dim": 64, "image_size": 32, "patch_size": 8,
                       "max_num_tiles": 4, "intermediate_layers_indices": [1],
                       "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]},
        image_token_index=tokenizer.convert_tokens_to_ids("<|image|>"),
    )  # fmt: skip
    processor = tf.MllamaProcessor(
        MllamaImageProcessorPil(size={"height": 32, "width": 32}, max_image_tiles=4),
        tokenizer,
        chat_template=build_chat_template(
            ("<|im_start|>user ", "<|im_end|>"),
            "<|im_start|>assistant\n",
            ("<|im_start|>system ", "<|im_end|>"),
            begin="<bos>",
            image="<|image|>",
        ),
    )
    hf = build_model(tf.MllamaForConditionalGeneration, config)
    with torch.no_grad():
        for name, gate in hf.named_parameters():
            if name.endswith("gate"):
                gate.fill_(0.7)
    return hf, processor


TINY_PATCHES: dict[str, Callable[[], Built]] = {
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "qwen3_vl_moe": qwen3_vl_moe,
    "qwen3_5": qwen3_5,
    "glm4v": glm4v,
    "gemma3": gemma3,
    "paligemma": paligemma,
    "deepseek_vl": deepseek_vl,
    "mllama": mllama,
}
