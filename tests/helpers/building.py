"""Sizes, tokenizer, weights and chat template of the tiny models."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import torch
import transformers as tf

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 8,
}
Built = tuple[Any, Any]  # a transformers model and its processor


def build_tokenizer(*tokens: str, **named: str) -> Any:
    """Return the embedded model's tokenizer with special tokens; processors read `named` ones as attributes."""
    folder = resources.files("mmprobe.models") / "tiny_spd"
    tokenizer = tf.PreTrainedTokenizerFast.from_pretrained(str(folder))
    tokenizer.add_tokens([tf.AddedToken(token, special=True) for token in (*tokens, *named.values())])
    for name, token in named.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    return tokenizer


def build_model(model_class: type, config: Any) -> Any:
    """Return a model with weights so large that attention is uneven, and that never stops early."""
    torch.manual_seed(11)
    hf = model_class(config)
    for name, weight in hf.named_parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.5 if "embed" in name else 0.15)
        elif "norm" in name:
            weight.data += 0.3 * torch.randn(weight.shape)
    hf.set_attn_implementation("sdpa")
    hf.generation_config.eos_token_id = None
    hf.generation_config.pad_token_id = 0
    return hf.eval()


def build_chat_template(
    user: tuple[str, str],
    assistant: str,
    system: tuple[str, str],
    begin: str = "",
    image: str = "<image>",
    video: str | None = None,
) -> str:
    """Return a chat template, given the texts before and after the parts of each role.

    It shows a video by its own text, or by that of an image with another word. It takes `tools` and `enable_thinking`, shows calls of tools, and thoughts of the turn before last are left out.
    """
    turns = {"user": user, "system": system, "assistant": (assistant, user[1])}
    turns["tool"] = (f"{user[0]}<result>", f"</result>{user[1]}")
    shown = {"image": image, "video": video or image.replace("image", "video")}
    part = f"{json.dumps(shown)}[part['type']] if 'text' not in part else part['text'].split('</think>')[-1]"
    return (
        f"{begin}{{% set turns = {json.dumps(turns)} %}}{{% if tools %}}Tools: {{{{ tools | tojson }}}}\n{{% endif %}}"
        "{% for message in messages %}{{ turns[message['role']][0] }}"
        f"{{% for part in message['content'] %}}{{{{ {part} }}}}{{% endfor %}}"
        "{% if message.tool_calls %}<call>{{ message.tool_calls | tojson }}</call>{% endif %}"
        "{{ turns[message['role']][1] }}{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ {json.dumps(assistant)} }}}}"
        "{% if enable_thinking is defined %}{{ '<think>' if enable_thinking else '<think></think>' }}{% endif %}"
        "{% endif %}"
    )
