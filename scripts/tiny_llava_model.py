"""The embedded model `tiny-llava` before training: LLaVA's shape, and a decoder that starts from that of tiny-spd.

A tower of CLIP's shape reads each cell as one patch and knows its place by a learned embedding; a projector of two layers
follows, then a Llama decoder with the places of tokens in one dimension. That decoder has one layer fewer than tiny-spd's.
"""

from __future__ import annotations

import tiny_spd_model
import torch
from torch import Tensor
from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from mmprobe.benchmarks.synthetic.scene import CELL_PIXELS, IMAGE_PIXELS
from mmprobe.models import load_model

DROPPED_LAYER = 6  # of tiny-spd's eight: without it the loss of answers rises least (0.004 to 0.34 nat)
TAUGHT_LAYERS = (0, 1, 2, 3, 4, 6, 7)  # the sixth learns to do what two of tiny-spd's do


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    spd = load_model("tiny-spd").hf
    theirs = spd.config.text_config
    config = LlavaConfig(
        text_config=dict(
            model_type="llama",
            vocab_size=len(tokenizer),
            hidden_size=theirs.hidden_size,
            intermediate_size=theirs.intermediate_size,
            num_hidden_layers=theirs.num_hidden_layers - 1,
            num_attention_heads=theirs.num_attention_heads,
            num_key_value_heads=theirs.num_key_value_heads,
            max_position_embeddings=theirs.max_position_embeddings,
            rms_norm_eps=theirs.rms_norm_eps,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0),
            attention_bias=True,
            bos_token_id=None,
            eos_token_id=theirs.eos_token_id,
            pad_token_id=theirs.pad_token_id,
        ),
        vision_config=dict(
            model_type="clip_vision_model",
            image_size=IMAGE_PIXELS,
            patch_size=CELL_PIXELS,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
        ),
        image_token_index=spd.config.image_token_id,
        image_seq_length=(IMAGE_PIXELS // CELL_PIXELS) ** 2,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    model = LlavaForConditionalGeneration(config)
    _start_from(model, spd)
    model.generation_config.eos_token_id = theirs.eos_token_id
    model.generation_config.pad_token_id = theirs.pad_token_id
    model.generation_config.bos_token_id = None
    return model


def _start_from(model: LlavaForConditionalGeneration, spd: torch.nn.Module) -> None:
    """Copy tiny-spd's decoder without one layer. Llama has one bias more, of the attention's output: it starts at 0."""
    ours, theirs = model.model.language_model, spd.model.language_model
    ours.embed_tokens.load_state_dict(theirs.embed_tokens.state_dict())
    ours.norm.load_state_dict(theirs.norm.state_dict())
    model.lm_head.load_state_dict(spd.lm_head.state_dict())
    kept = [layer for index, layer in enumerate(theirs.layers) if index != DROPPED_LAYER]
    for mine, layer in zip(ours.layers, kept, strict=True):
        missing, unexpected = mine.load_state_dict(layer.state_dict(), strict=False)
        assert missing == ["self_attn.o_proj.bias"] and not unexpected
        torch.nn.init.zeros_(mine.self_attn.o_proj.bias)


def image_processor() -> CLIPImageProcessorPil:
    side = IMAGE_PIXELS
    return CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side})


def processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    return LlavaProcessor(
        image_processor(),
        tokenizer,
        patch_size=CELL_PIXELS,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<|image_pad|>",
        chat_template=tiny_spd_model.CHAT_TEMPLATE,
    )


def pixels(images: Tensor) -> Tensor:
    """Return the tower's input, float32 [image, 3, 112, 112], for images uint8 [image, 112, 112, 3]."""
    processor = image_processor()
    mean = torch.tensor(processor.image_mean, device=images.device)
    std = torch.tensor(processor.image_std, device=images.device)
    return ((images.float() / 255 - mean) / std).permute(0, 3, 1, 2)


def encode_images(model: LlavaForConditionalGeneration, images: Tensor) -> Tensor:
    """Return the projected features of images, [image, 16, hidden]."""
    states = model.model.vision_tower(pixels(images)).last_hidden_state
    return model.model.multi_modal_projector(states[:, 1:])
