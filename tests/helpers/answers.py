"""Samples, and slow and simple ways to compute answers, for the tests of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, LogitsProcessorList

from mmprobe.interventions import intervene
from mmprobe.interventions.base import Method
from mmprobe.models import Batch, Model, attention
from mmprobe.models.hooks import current_primary_rows, hooks_are_disabled
from mmprobe.models.prompt import Chat, build_batch, build_chat
from mmprobe.samples import Sample

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "internvl"]
STEPS = 6


def make_sample(
    image_paths: Sequence[Path], question: str = "Compare the two pictures.", name: str = "a"
) -> Sample:
    return Sample(id=name, images=list(image_paths), question=question)


def prepare(model: Model, *samples: Sample) -> tuple[list[Chat], Batch]:
    chats = [build_chat(sample) for sample in samples]
    return chats, build_batch(model, chats)


def generate_plain(model: Model, batch: Batch, steps: int = STEPS) -> Tensor:
    """Return the tokens of transformers' `generate` without any method, [batch, step]."""
    with torch.no_grad():
        out = model.hf.generate(**batch.inputs, max_new_tokens=steps, do_sample=False, pad_token_id=0)
    return out[:, batch.inputs["input_ids"].shape[1] :]


def run_methods(
    model: Model, methods: Sequence[Method], chats: Sequence[Chat], batch: Batch, steps: int = STEPS
) -> tuple[Tensor, Tensor, Callable[[int], dict[str, Any]]]:
    """Answer with methods.

    Returns:
        Tokens [batch, step], the logits that they were chosen by [batch, step, vocabulary], and a function from
        a row to the methods' diagnostics.
    """
    logits: list[Tensor] = []

    def record_logits(ids: Tensor, scores: Tensor) -> Tensor:
        logits.append(scores.clone())
        return scores

    with torch.inference_mode(), intervene(model, methods, chats, batch) as intervention:
        processors = LogitsProcessorList([*intervention.processors, record_logits])
        out = model.hf.generate(
            **batch.inputs, max_new_tokens=steps, do_sample=False, pad_token_id=0, logits_processor=processors
        )
    tokens = out[:, batch.inputs["input_ids"].shape[1] :]
    return tokens, torch.stack(logits, 1), lambda row: intervention.report(row, tokens.shape[1])


def compute_logits(model: Model, inputs: dict[str, Any], generated: Tensor) -> Tensor:
    """Return the logits of all positions from one pass over prompts and answers, without a cache.

    Args:
        model: the model.
        inputs: inputs of the prompts.
        generated: tokens of the answers, [batch, step].
    """
    longer = dict(inputs)
    longer["input_ids"] = torch.cat([inputs["input_ids"], generated], 1)
    longer["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(generated)], 1)
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in inputs:
            longer[name] = torch.cat([inputs[name], inputs[name].new_zeros(generated.shape)], 1)
    with torch.no_grad():
        return model.hf(**longer, use_cache=False).logits.float()


@contextmanager
def replace_attention(model: Model, attend: Callable[..., Tensor]) -> Iterator[None]:
    """Within the block, compute the attention of decoder layers with a function.

    Args:
        model: the model.
        attend: called as `attend(layer, query, key, value, mask, scale)` with keys and values repeated for each
            head and a mask to add. It returns [batch, head, position, dim].
    """
    from transformers.masking_utils import eager_mask

    def forward(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options: Any) -> Any:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        return attend(module.layer_idx, query, key, value, mask, scale).transpose(1, 2).contiguous(), None

    config = model.hf.config.get_text_config()
    before = config._attn_implementation
    AttentionInterface.register("test_attention", forward)
    AttentionMaskInterface.register("test_attention", eager_mask)
    config._attn_implementation = "test_attention"
    try:
        yield
    finally:
        config._attn_implementation = before


def snapshot(model: Model) -> tuple[Any, ...]:
    """Return everything in a model and in the registries that a method could have changed."""
    config = model.hf.config.get_text_config()
    modules = list(model.hf.modules())
    return (
        [name for module in modules for name in vars(module) if name == "forward"],
        sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules),
        config._attn_implementation,
        len(attention._bias_functions),
        len(attention._observers),
        sorted(AttentionInterface._global_mapping),
        sorted(AttentionMaskInterface._global_mapping),
        hooks_are_disabled(),
        current_primary_rows(),
        {name: value for name, value in vars(model.hf.generation_config).items() if not name.startswith("_")},
    )
