"""Causal language models that read text alone: loading them, their prompts, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import transformers

from mmprobe.errors import InputError
from mmprobe.models.checkpoints import EMBEDDED, find_gguf, locate
from mmprobe.models.finite import watch_finite
from mmprobe.models.loading import GREEDY, Model, load_model, load_pretrained
from mmprobe.models.prompt import decode_answer, list_control_tokens, split_control_tokens


class TextModel(NamedTuple):
    """A causal language model with its tokenizer.

    Attributes:
        name: the name that it was loaded by.
        hf: a `transformers` model for causal language modelling.
        tokenizer: its tokenizer, with a padding token.
    """

    name: str
    hf: Any
    tokenizer: Any


def load_text_model(name: str) -> TextModel:
    """Load a causal language model. Code that comes with a checkpoint is never run.

    Args:
        name: a local folder, an id on the hub, a GGUF file or a folder with one, or `tiny-spd` for the embedded model's
            decoder.

    Raises:
        InputError: the model does not exist, or is not a causal language model.

    Example:
        >>> type(load_text_model("tiny-spd").hf).__name__
        'Qwen2ForCausalLM'
    """
    source, path = locate(name)
    if source.startswith(EMBEDDED):
        return _load_embedded_decoder(name)
    gguf = find_gguf(path)
    options: dict[str, Any] = {"use_safetensors": True}
    if gguf is not None:
        if find_spec("gguf") is None:
            raise InputError(f"model {name!r}: is a GGUF; pip install gguf, with which transformers reads it")
        path, options = str(gguf.parent), {"gguf_file": gguf.name}
    own = {"gguf_file": gguf.name} if gguf is not None else {}
    tokenizer = load_pretrained(name, transformers.AutoTokenizer.from_pretrained, path, **own)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    hf = load_pretrained(
        name,
        transformers.AutoModelForCausalLM.from_pretrained,
        path,
        dtype=torch.bfloat16 if torch.cuda.is_available() else torch.float32,
        **options,
    )
    return TextModel(name, hf.eval(), tokenizer)


def _load_embedded_decoder(name: str) -> TextModel:
    """Return the decoder of `tiny-spd` as a separate model. On text, its mRoPE is the usual RoPE."""
    model = load_model(name, device="cpu")
    text = model.hf.config.get_text_config()
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
        "max_position_embeddings rms_norm_eps bos_token_id eos_token_id pad_token_id"
    )
    config = transformers.Qwen2Config(
        **{name: getattr(text, name) for name in names.split()},
        rope_parameters={"rope_type": "default", "rope_theta": text.rope_parameters["rope_theta"]},
        tie_word_embeddings=False,
    )
    hf = transformers.Qwen2ForCausalLM(config)
    hf.model.load_state_dict(model.family.decoder(model.hf).state_dict())
    hf.lm_head.load_state_dict(model.hf.lm_head.state_dict())
    hf.generation_config.eos_token_id = model.hf.generation_config.eos_token_id
    return TextModel(name, hf.eval(), model.tokenizer)


def load_any(name: str) -> Model | TextModel:
    """Load a model of either kind: with images where its family is a vision-language one, otherwise for text alone.

    Raises:
        InputError: as `load_model` and `load_text_model`.

    Example:
        >>> type(load_any("tiny-spd")).__name__
        'Model'
    """
    _, path = locate(name)
    if find_gguf(path) is not None:
        return load_text_model(name)
    config = load_pretrained(name, transformers.AutoConfig.from_pretrained, path)
    is_text = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    sees = type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if sees or not is_text:
        return load_model(name)
    model = load_text_model(name)
    model.hf.to("cuda" if torch.cuda.is_available() else "cpu")
    return model


def render_text(text: str, system: str | None, tokenizer: Any, name: str) -> str:
    """Return a text as a prompt: in the tokenizer's chat template, or as lines where it has none.

    Control tokens in the texts are split, as in a chat with images (`models/prompt.py`). `name` is where the text is
    from, for messages.
    """
    tokens = list_control_tokens(tokenizer)
    text, system = (split_control_tokens(part or "", tokens, name) for part in (text, system))
    if tokenizer.chat_template is None:
        return f"{system}\n{text}\n" if system else f"{text}\n"
    messages = [{"role": "user", "content": text}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def answer_texts(model: TextModel, prompts: Sequence[str], max_new_tokens: int) -> list[str]:
    """Return the model's greedy answers to rendered prompts, in one batch.

    Raises:
        InputError: the model computed NaN.
    """
    tokenizer = model.tokenizer
    inputs = tokenizer(
        list(prompts),
        return_tensors="pt",
        padding=True,
        padding_side="left",
        add_special_tokens=tokenizer.chat_template is None,
    )
    inputs = {name: inputs[name].to(model.hf.device) for name in ("input_ids", "attention_mask")}
    with torch.inference_mode(), watch_finite(model, inputs):
        ids = model.hf.generate(
            **inputs, **GREEDY, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.pad_token_id
        )
    return [
        decode_answer(tokenizer, each).strip() for each in ids[:, inputs["input_ids"].shape[1] :].tolist()
    ]
