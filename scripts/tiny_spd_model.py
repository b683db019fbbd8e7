"""The embedded model before training: its tokenizer, its sizes, and the folder that ships with mmprobe."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from mmprobe.benchmarks.synthetic.questions import SYSTEM, draw_questions
from mmprobe.benchmarks.synthetic.scene import DIFFICULTIES, IMAGE_PIXELS, draw_pair

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


def save(model: Qwen2_5_VLForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the folder that ships. Weights are stored as float16 and loaded as float32."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    config.dtype = "float32"
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image_processor().save_pretrained(folder)
    preprocessor = json.loads((folder / "preprocessor_config.json").read_text())
    preprocessor["processor_class"] = "PilQwenProcessor"
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    weights = {name: value.half().cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
