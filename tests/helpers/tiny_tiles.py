"""Tiny random models and their processors: images cropped or cut into tiles; some are not declared."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import transformers as tf
from helpers.building import TEXT, VISION, Built, build_chat_template, build_model, build_tokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor


def _build_llava_like(
    config_class: type, model_class: type, sizes: dict[str, int] | None = None, **options: Any
) -> Built:
    tokenizer = build_tokenizer("<image>")
    config = config_class(
        text_config=tf.LlamaConfig(vocab_size=len(tokenizer), **TEXT | (sizes or {})),
        vision_config=tf.CLIPVisionConfig(image_size=32, **VISION | (sizes or {})),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        **options,
    )
    processor = tf.LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=build_chat_template(("USER: ", " "), "ASSISTANT:", ("", " "), image="<image>\n"),
    )
    return build_model(model_class, config), processor


def llava(**sizes: int) -> Built:
    """Sizes are those of the encoder and of the decoder."""
    return _build_llava_like(tf.LlavaConfig, tf.LlavaForConditionalGeneration, sizes)


def vipllava() -> Built:
    """Not declared, but built like LLaVA."""
    return _build_llava_like(
        tf.VipLlavaConfig,
        tf.VipLlavaForConditionalGeneration,
        vision_feature_layer=[-2, 1],
        image_seq_length=16,
    )


def llava_next() -> Built:
    """Its encoder reads 3 x 3 patches; up to 2 x 2 or 1 x 3 tiles."""
    tokenizer = build_tokenizer("<image>")
    pinpoints = [[24, 48], [48, 24], [48, 48], [72, 24], [24, 72]]
    config = tf.LlavaNextConfig(
        text_config=tf.MistralConfig(vocab_size=len(tokenizer), sliding_window=None, **TEXT),
        vision_config=tf.CLIPVisionConfig(image_size=24, **VISION),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=pinpoints,
    )
    processor = tf.LlavaNextProcessor(
        LlavaNextImageProcessorPil(
            size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}, image_grid_pinpoints=pinpoints
        ),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=build_chat_template(("[INST] ", " [/INST]"), "", ("", " "), image="<image>\n"),
    )
    return build_model(tf.LlavaNextForConditionalGeneration, config), processor


class PilLlavaOnevisionProcessor(LlavaOnevisionProcessor):
    """The processor without its video part, which needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str | None = None):
        self.num_image_tokens = 9
        self.vision_feature_select_strategy = "full"
        self.vision_aspect_ratio = "anyres_max_4"
        self.image_token, self.video_token = "<image>", None
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids("<image>"), None
        tf.ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def llava_onevision() -> Built:
    """Its encoder reads 3 x 3 patches; up to 3 x 3 tiles, scaled down to at most 4 x 9 tokens."""
    tokenizer = build_tokenizer("<image>", "<video>")
    pinpoints = [[height, width] for height in (24, 48, 72) for width in (24, 48, 72)]
    config = tf.LlavaOnevisionConfig(
        text_config=tf.Qwen2Config(vocab_size=len(tokenizer), **TEXT),
        vision_config=tf.SiglipVisionConfig(image_size=24, vision_use_head=False, **VISION),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=pinpoints,
        vision_aspect_ratio="anyres_max_4",
    )
    processor = PilLlavaOnevisionProcessor(
        LlavaOnevisionImageProcessorPil(size={"height": 24, "width": 24}, image_grid_pinpoints=pinpoints),
        tokenizer,
        chat_template=build_chat_template(
            ("<|im_start|>user ", "<|im_end|>"),
            "<|im_start|>assistant\n",
            ("<|im_start|>system ", "<|im_end|>"),
            image="<image>\n",
        ),
    )
    return build_model(tf.LlavaOnevisionForConditionalGeneration, config), processor


class PilInternVLProcessor(InternVLProcessor):
    """The processor without its video part, which needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str | None = None):
        super().__init__(image_processor, tokenizer, image_seq_length=9, chat_template=chat_template)


def internvl() -> Built:
    """Its encoder reads 6 x 6 patches and merges them two by two; up to four tiles and the whole."""
    tokenizer = build_tokenizer(
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    config = tf.InternVLConfig(
        text_config=tf.Qwen2Config(vocab_size=len(tokenizer), **TEXT),
        vision_config=tf.InternVLVisionConfig(**VISION | {"image_size": [48, 48], "patch_size": [8, 8]}),
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=9,
        tie_word_embeddings=False,
    )
    processor = PilInternVLProcessor(
        GotOcr2ImageProcessorPil(size={"height": 48, "width": 48}, min_patches=1, max_patches=4),
        tokenizer,
        chat_template=build_chat_template(
            ("<|im_start|>user\n", "<|im_end|>\n"),
            "<|im_start|>assistant\n",
            ("<|im_start|>system\n", "<|im_end|>\n"),
            image="<IMG_CONTEXT>\n",
            video="<video>\n",
        ),
    )
    return build_model(tf.InternVLForConditionalGeneration, config), processor


MARKS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", "<video>") + tuple(
    f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)
)


def _build_idefics3_like(
    config_class: type, model_class: type, processor_class: type, image_processor_class: type
) -> Built:
    """Its encoder reads 6 x 6 patches and merges them two by two; up to 2 x 2 tiles and the whole."""
    tokenizer = build_tokenizer(*MARKS)
    config = config_class(
        text_config=tf.LlamaConfig(vocab_size=len(tokenizer), **TEXT),
        vision_config={"image_size": 48, **VISION},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=0,
    )
    processor = processor_class(
        image_processor_class(size={"longest_edge": 96}, max_image_size={"longest_edge": 48}),
        tokenizer,
        image_seq_len=9,
        chat_template=build_chat_template(
            ("User:", "<end_of_utterance>\n"),
            "Assistant:",
            ("System: ", "<end_of_utterance>\n"),
            begin="<|im_start|>",
        ),
    )
    return build_model(model_class, config), processor


def idefics3() -> Built:
    return _build_idefics3_like(
        tf.Idefics3Config,
        tf.Idefics3ForConditionalGeneration,
        tf.Idefics3Processor,
        Idefics3ImageProcessorPil,
    )


class PilSmolVLMProcessor(SmolVLMProcessor):
    """The processor without its video part, which needs torchvision and num2words."""

    def __init__(
        self, image_processor: Any, tokenizer: Any, image_seq_len: int = 169, chat_template: str | None = None
    ):
        self.fake_image_token, self.global_image_token = "<fake_token_around_image>", "<global-img>"
        self.end_of_utterance_token = "<end_of_utterance>"
        self.image_token, self.video_token = "<image>", None
        self.image_token_id = tokenizer.convert_tokens_to_ids("<image>")
        self.image_seq_len = image_seq_len
        tf.ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
        self.video_processor = SimpleNamespace(num_frames=1, fps=1)


def smolvlm() -> Built:
    return _build_idefics3_like(
        tf.SmolVLMConfig, tf.SmolVLMForConditionalGeneration, PilSmolVLMProcessor, SmolVLMImageProcessorPil
    )


TINY_TILES: dict[str, Callable[[], Built]] = {
    "llava": llava,
    "llava_next": llava_next,
    "llava_onevision": llava_onevision,
    "internvl": internvl,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
    "vipllava": vipllava,
}
