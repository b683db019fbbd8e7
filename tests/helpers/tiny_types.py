"""Tiny random models of the types that transformers lists, from the declarations in tiny_types.yaml."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers as tf
import yaml
from helpers.building import TEXT, Built, build_chat_template, build_model, build_tokenizer

VOCABULARY = 700
TURNS = (
    ("<|im_start|>user\n", "<|im_end|>\n"),
    "<|im_start|>assistant\n",
    ("<|im_start|>system\n", "<|im_end|>\n"),
)


@cache
def read_declarations() -> dict[str, dict[str, Any]]:
    """Return the declaration of each tiny model: `config`, `processor`, and where needed

    - `ids`: token ids that are set in the config
    - `scale`: a factor of the weights, where kernels of linear attention would round them too differently
    """
    text = (Path(__file__).parent / "tiny_types.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def list_tiny_types() -> list[str]:
    """Return the names of the declared models: a type, or a type and what is special."""
    return list(read_declarations())


def build_type(name: str) -> Built:
    """Return a tiny random model and its processor."""
    declaration = read_declarations()[name]
    config = _build(declaration["config"])
    for key, value in declaration.get("ids", {}).items():
        setattr(config, key, value)
    processor = _build(declaration["processor"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hf = build_model(find_model_class(config), config)
    with torch.no_grad():
        for weight in hf.parameters():
            weight.mul_(declaration.get("scale", 1.0) if weight.ndim > 1 else 1.0)
    return hf, processor


def find_model_class(config: Any) -> type:
    """Return the class of an image-text-to-text model."""
    return tf.AutoModelForImageTextToText._model_mapping[type(config)]


def _build(node: Any) -> Any:
    """Return the object that a node declares: `is` names its class, the other entries are its arguments."""
    if isinstance(node, list):
        return [_build(each) for each in node]
    if not isinstance(node, dict):
        return node
    entries = {name: _build(value) for name, value in node.items() if name not in ("is", "args")}
    if "is" not in node:
        return entries
    if node["is"] == "tokenizer":
        return _build_tokenizer(**entries)
    template = entries.pop("chat_template", None)
    if "text_config" in entries and not entries["text_config"].pop("plain", False):
        entries["text_config"] = {**TEXT, "vocab_size": VOCABULARY, **entries["text_config"]}
    arguments = _build(node.get("args", []))
    built = getattr(tf, node["is"])(*arguments, **entries)
    if template is not None:  # not all processors take it as an argument
        built.chat_template = build_chat_template(*TURNS, **template)
    return built


def _build_tokenizer(ids: dict[int, str], names: dict[str, str] | None = None, **options: Any) -> Any:
    """Return the embedded model's tokenizer with special tokens at their ids; `names` become its attributes."""
    base = build_tokenizer()
    fillers = [ids.get(index, f"<f{index}>") for index in range(len(base), VOCABULARY)]
    base.add_tokens([tf.AddedToken(token, special=True) for token in fillers])
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=base._tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        extra_special_tokens=names or {},
        **options,
    )
