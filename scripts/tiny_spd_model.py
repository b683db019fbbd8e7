"""The embedded model before training: its tokenizer, its sizes, and the folder that ships with mmprobe."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from mmprobe.benchmarks.synthetic.questions import SYSTEM, draw_questions
from mmprobe.benchmarks.synthetic.scene import DIFFICULTIES, GRID, IMAGE_PIXELS, draw_pair
from mmprobe.models.pil_processor import PilQwenProcessor

SPECIAL_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE in which every word of the drawn world is one token."""
    rng = np.random.default_rng(0)
    corpus = [SYSTEM, "system", "user", "assistant"]
    for index in range(3000):
        for question in draw_questions(rng, draw_pair(rng, DIFFICULTIES[index % 3], index % 4)):
            corpus += [question.text, question.answer]
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r" ?[\p{L}\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        min_frequency=1,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL_TOKENS[1:],
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLForConditionalGeneration:
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL_TOKENS}
    hidden = 192
    config = Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=512,
            num_hidden_layers=8,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[4, 6, 6]),
            bos_token_id=None,
            eos_token_id=ids["<|im_end|>"],
            pad_token_id=ids["<|endoftext|>"],
        ),
        vision_config=dict(
            depth=4,
            hidden_size=128,
            intermediate_size=256,
            num_heads=4,
            patch_size=14,
            spatial_merge_size=2,
            temporal_patch_size=2,
            window_size=IMAGE_PIXELS,
            out_hidden_size=hidden,
            fullatt_block_indexes=[1, 3],
        ),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    model.generation_config.bos_token_id = None
    return model


def image_processor() -> Qwen2VLImageProcessorPil:
    pixels = IMAGE_PIXELS**2
    return Qwen2VLImageProcessorPil(size={"shortest_edge": pixels, "longest_edge": pixels})


def processor(tokenizer: PreTrainedTokenizerFast) -> PilQwenProcessor:
    return PilQwenProcessor(image_processor(), tokenizer, chat_template=CHAT_TEMPLATE)


def pixels(images: Tensor) -> Tensor:
    """Return the tower's input, float32 [image * 64, 1176], for images uint8 [image, 112, 112, 3]."""
    processor = image_processor()
    mean = torch.tensor(processor.image_mean, device=images.device)
    std = torch.tensor(processor.image_std, device=images.device)
    pixels = (images.float() / 255 - mean) / std
    side = IMAGE_PIXELS // 28
    pixels = pixels.reshape(-1, side, 2, 14, side, 2, 14, 3)
    pixels = pixels.permute(0, 1, 4, 2, 5, 7, 3, 6)
    pixels = pixels.unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, 2, -1, -1)
    return pixels.reshape(-1, 3 * 2 * 14 * 14)


def encode_images(model: Qwen2_5_VLForConditionalGeneration, images: Tensor) -> Tensor:
    """Return the vision tower's features of many images of one size, [image, 16, hidden].

    transformers loops over images. These are all one window of 64 patches, so their attention is one batch.
    """
    tower = model.model.visual
    count, tokens = len(images), 64
    states = tower.patch_embed(pixels(images))
    heads = tower.blocks[0].attn.num_heads
    head_dim = states.shape[-1] // heads
    merged = torch.arange(GRID, device=states.device) * 2
    row = (merged[:, None, None, None] + torch.arange(2, device=states.device)[None, None, :, None]).expand(
        GRID, GRID, 2, 2
    )
    column = row.permute(1, 0, 3, 2)
    frequency = 10000.0 ** -(torch.arange(0, head_dim // 2, 2, device=states.device) / (head_dim // 2))
    angle = torch.cat([place.reshape(-1, 1) * frequency for place in (row, column)], dim=-1)
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()

    def rotate(x: Tensor) -> Tensor:
        left, right = x.float().chunk(2, dim=-1)
        return (x.float() * cos + torch.cat([-right, left], -1) * sin).to(x.dtype)

    for block in tower.blocks:
        projected = block.attn.qkv(block.norm1(states)).reshape(count, tokens, 3, heads, head_dim)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            rotate(query).to(value.dtype), rotate(key).to(value.dtype), value
        )
        states = states + block.attn.proj(mixed.transpose(1, 2).reshape(count * tokens, -1))
        states = states + block.mlp(block.norm2(states))
    return tower.merger(states).reshape(count, GRID * GRID, -1)
