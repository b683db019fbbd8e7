"""What the tests of methods share: tiny models, and slow and obvious ways to read a prompt and its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from helpers.tiny_patches import TINY_PATCHES
from helpers.tiny_tiles import TINY_TILES
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, LogitsProcessorList

from mmprobe.interventions import intervene
from mmprobe.interventions.base import Method
from mmprobe.models import Batch, Model, attention
from mmprobe.models.chat import Chat, build_chat
from mmprobe.models.families import find_family
from mmprobe.models.hooks import current_primary_rows, hooks_are_disabled
from mmprobe.models.prompt import build_batch
from mmprobe.samples import Sample

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "internvl"]
STEPS = 6


def tiny(name: str) -> Model:
    hf, processor = (TINY_PATCHES | TINY_TILES)[name]()
    return Model(name, name, None, hf.eval(), processor, find_family(hf.config))


def sample_of(
    pictures: Sequence[Path], question: str = "Compare the two pictures.", name: str = "a"
) -> Sample:
    return Sample(id=name, images=list(pictures), question=question)


def ready(model: Model, *samples: Sample) -> tuple[list[Chat], Batch]:
    chats = [build_chat(sample) for sample in samples]
    return chats, build_batch(model, chats)


def plain_tokens(model: Model, batch: Batch, steps: int = STEPS) -> Tensor:
    """As `generate` gives them, without anything of mmprobe's in place: [batch, step]."""
    with torch.no_grad():
        out = model.hf.generate(**batch.inputs, max_new_tokens=steps, do_sample=False, pad_token_id=0)
    return out[:, batch.inputs["input_ids"].shape[1] :]


def run(
    model: Model, methods: Sequence[Method], chats: Sequence[Chat], batch: Batch, steps: int = STEPS
) -> tuple[Tensor, Tensor, Callable[[int], dict[str, Any]]]:
    """Tokens [batch, step], the logits they were chosen by [batch, step, vocabulary], and the reports by row."""
    logits: list[Tensor] = []

    def keep(ids: Tensor, scores: Tensor) -> Tensor:
        logits.append(scores.clone())
        return scores

    with torch.inference_mode(), intervene(model, methods, chats, batch) as intervention:
        processors = LogitsProcessorList([*intervention.processors, keep])
        out = model.hf.generate(
            **batch.inputs, max_new_tokens=steps, do_sample=False, pad_token_id=0, logits_processor=processors
        )
    tokens = out[:, batch.inputs["input_ids"].shape[1] :]
    return tokens, torch.stack(logits, 1), lambda row: intervention.report(row, tokens.shape[1])


def read_whole(model: Model, inputs: dict[str, Any], generated: Tensor) -> Tensor:
    """Logits of all positions, from one pass over prompt and answer [batch, step], without a cache."""
    more = dict(inputs)
    more["input_ids"] = torch.cat([inputs["input_ids"], generated], 1)
    more["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(generated)], 1)
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in inputs:
            more[name] = torch.cat([inputs[name], inputs[name].new_zeros(generated.shape)], 1)
    with torch.no_grad():
        return model.hf(**more, use_cache=False).logits.float()


@contextmanager
def attending(model: Model, attend: Callable[..., Tensor]) -> Iterator[None]:
    """Within the block, decoder layers attend as `attend(layer, query, key, value, mask, scale)` does, which gets
    whole matrices (keys repeated for each head, a mask to add) and returns [batch, head, position, dim]."""
    from transformers.masking_utils import eager_mask

    def forward(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options: Any) -> Any:
        share = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        return attend(module.layer_idx, query, key, value, mask, scale).transpose(1, 2).contiguous(), None

    config = model.hf.config.get_text_config()
    before = config._attn_implementation
    AttentionInterface.register("by_the_test", forward)
    AttentionMaskInterface.register("by_the_test", eager_mask)
    config._attn_implementation = "by_the_test"
    try:
        yield
    finally:
        config._attn_implementation = before


def left_behind(model: Model) -> tuple[Any, ...]:
    """All places that a method could have written to."""
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
