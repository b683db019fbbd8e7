"""A BLIP for image-text retrieval with random weights, saved as a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import BertTokenizerFast, BlipConfig, BlipForImageTextRetrieval, BlipProcessor
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "is",
    "there",
    "a",
    "red",
    "star",
    "in",
    "the",
    "two",
    "pictures",
    "?",
    "compare",
    "what",
]
ENC = len(WORDS) + 1  # id of [ENC], which follows [DEC] as in the published checkpoints


def build_tiny_blip_config() -> BlipConfig:
    sizes = {"hidden_size": 24, "intermediate_size": 40, "initializer_range": 0.2}
    text = {
        "vocab_size": len(WORDS) + 2,
        "encoder_hidden_size": 24,
        "num_hidden_layers": 8,
        "num_attention_heads": 3,
        "max_position_embeddings": 40,
        "bos_token_id": len(WORDS),
        "sep_token_id": 3,
    }
    vision = {"num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 64, "patch_size": 16}
    return BlipConfig(
        text_config=sizes | text,
        vision_config=sizes | vision,
        image_text_hidden_size=16,
        initializer_range=0.2,
    )


def save_tiny_blip(folder: Path, model_class: type = BlipForImageTextRetrieval) -> Path:
    torch.manual_seed(1)  # the images of the tests match a little, so shares are below 1
    model_class(build_tiny_blip_config()).save_pretrained(folder)
    tokenizer = BertTokenizerFast(vocab={word: index for index, word in enumerate(WORDS)})
    images = BlipImageProcessorPil(size={"height": 64, "width": 64})
    BlipProcessor(images, tokenizer).save_pretrained(folder)
    return folder
