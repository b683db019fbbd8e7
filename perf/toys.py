"""Models of several sizes with random weights, which read prompts as the embedded model does, and samples for them."""

from __future__ import annotations

import argparse
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import Qwen2_5_VLForConditionalGeneration

from mmprobe.models import Model, load_model
from mmprobe.samples import Sample

TOYS: dict[str, dict[str, Any]] = {
    "12 layers": {"layers": 12, "hidden": 256, "neurons": 704, "heads": 8, "kv": 2, "mrope": [4, 6, 6], "side": 476},
    "28 layers": {"layers": 28, "hidden": 64, "neurons": 128, "heads": 4, "kv": 2, "mrope": [2, 3, 3], "side": 112},
    "3B": {"layers": 36, "hidden": 2048, "neurons": 11008, "heads": 16, "kv": 2, "mrope": [16, 24, 24], "side": 672, "vocabulary": 151936},
    "7B": {"layers": 28, "hidden": 3584, "neurons": 18944, "heads": 28, "kv": 4, "mrope": [16, 24, 24], "side": 672, "vocabulary": 152064},
}  # fmt: skip
LONG_SIDE = 1120  # pixels of images that make a prompt of about 3,200 tokens
GREEDY = {
    "do_sample": False,
    "temperature": None,
    "top_p": None,
    "top_k": None,
}  # of plain `generate`, whatever a checkpoint says


def toy(name: str, device: str = "cpu", side: int | None = None, dtype: torch.dtype | None = None) -> Model:
    """Return `tiny-spd`, or one of `TOYS`. Their answers never end early.

    Args:
        side: pixels that images are enlarged to; None for the toy's own size.
        dtype: of the random weights; None for bfloat16 on a GPU and float32 elsewhere.
    """
    tiny = load_model("tiny-spd", device=device)
    tiny.hf.generation_config.eos_token_id = None
    if name == "tiny-spd":
        return tiny
    size, config = TOYS[name], copy.deepcopy(tiny.hf.config)
    text = config.text_config
    text.num_hidden_layers = size["layers"]
    text.hidden_size = size["hidden"]
    text.intermediate_size = size["neurons"]
    text.num_attention_heads = size["heads"]
    text.num_key_value_heads = size["kv"]
    text.layer_types = ["full_attention"] * size["layers"]
    text.rope_parameters["mrope_section"] = size["mrope"]
    text.vocab_size = size.get("vocabulary", text.vocab_size)
    config.vision_config.out_hidden_size = size["hidden"]
    torch.manual_seed(0)
    for part in (
        config,
        text,
        config.vision_config,
    ):  # each part is built in the dtype of its own configuration
        part.dtype = dtype or (torch.bfloat16 if device.startswith("cuda") else torch.float32)
    with torch.device(device):
        hf = Qwen2_5_VLForConditionalGeneration._from_config(config).eval()
    hf.generation_config.eos_token_id = None
    edge = (side or size["side"]) ** 2
    tiny.processor.image_processor.size = {"shortest_edge": edge, "longest_edge": edge}
    return replace(tiny, hf=hf, name=name)


def samples(folder: Path, count: int) -> list[Sample]:
    """Return samples with two images of noise each."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{index}.png" for index in range(2)]
    for path in paths:
        Image.fromarray(rng.integers(0, 255, (112, 112, 3), np.uint8)).save(path)
    return [
        Sample(id=f"s{index}", images=paths, question="Compare the two pictures step by step.")
        for index in range(count)
    ]


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that every script here has."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--device", default="cpu")
    options.add_argument("--quick", action="store_true", help="the smallest setting, to see that it works")
    return options
