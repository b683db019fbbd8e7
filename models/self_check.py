"""A quick check, when a model is loaded, that its family's declaration fits it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.models.attention import AttentionCall, observe_attention
from mmprobe.models.families import Family
from mmprobe.models.families.generic import find_problems
from mmprobe.models.hooks import observe

TOKENS = 6


def find_mistakes(hf: Any, family: Family) -> list[str]:
    """What a forward pass over a few tokens of text shows of each layer that does not fit the declaration.

    Softmax rows times values must be what the attention kernel returned, and resid_pre plus the attention's
    update must be resid_mid.

    Example:
        >>> from mmprobe.models import load_model
        >>> model = load_model("tiny-spd", device="cpu")
        >>> find_mistakes(model.hf, model.family)
        []
    """
    decoder = family.decoder(hf)
    parts = [family.parts(layer) for layer in decoder.layers]
    seen: dict[tuple[int, str], Any] = {}
    observers = {}

    def keep(index: int, name: str) -> Callable[[Any], None]:
        return lambda value: seen.__setitem__((index, name), value)

    with ExitStack() as stack:
        for index, (layer, part) in enumerate(zip(decoder.layers, parts, strict=True)):
            stack.enter_context(observe(layer, inputs=keep(index, "pre")))
            stack.enter_context(observe(part.update, outputs=keep(index, "update")))
            stack.enter_context(observe(part.mid, inputs=keep(index, "mid")))
            observers[part.attention] = keep(index, "call")
        stack.enter_context(observe_attention([hf.config.get_text_config()], observers))
        _read_some_text(hf)
    tolerance = 1e-4 if hf.dtype == torch.float32 else 3e-2
    mistakes = []
    for index, part in enumerate(parts):
        if (index, "pre") not in seen:
            continue  # a layer that attends to pictures, of which there are none
        if (index, "call") not in seen:
            mistakes.append(f"layer {index}: its attention does not go through transformers' registry")
            continue
        pre, update, mid = (seen[index, name][:, -1].float() for name in ("pre", "update", "mid"))
        gain = 1 if part.gain is None else part.gain().float()
        if _off(pre + gain * update, mid) > tolerance:
            mistakes.append(f"layer {index}: resid_pre and the attention's update do not add up to resid_mid")
        if _off(_attended(seen[index, "call"]), seen[index, "call"].output[0, -1].float()) > tolerance:
            mistakes.append(f"layer {index}: softmax rows do not give what its attention returned")
    return mistakes


def has_plain_logits(hf: Any, family: Family) -> bool:
    """Whether the unembedding of the final norm's output is the logits, with no scale or cap behind it."""
    states: list[Tensor] = []
    with observe(family.decoder(hf).norm, outputs=states.append):
        logits = _read_some_text(hf).logits
    with torch.inference_mode():
        return _off(states[-1] @ hf.get_output_embeddings().weight.T, logits) < 3e-2


def _read_some_text(hf: Any) -> Any:
    ids = torch.arange(TOKENS, device=hf.device)[None] + 10
    with torch.inference_mode():
        return hf(input_ids=ids, use_cache=False)


def check(hf: Any, family: Family, name: str) -> None:
    """Raises InputError if the declaration does not fit the model, naming family and layer, or it computes NaN."""
    broken: list[Tensor] = []
    with observe(hf, outputs=lambda output: broken.append(output.logits.isnan().any())):
        mistakes = find_problems(hf, family) or find_mistakes(hf, family)
    if mistakes:
        more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
        raise InputError(f"model {name!r}: {family.name}: {mistakes[0]}{more}; see docs/adding-a-family.md")
    if any(broken):  # of which nothing above can say that it is wrong
        dtype = str(hf.dtype).removeprefix("torch.")
        raise InputError(
            f"model {name!r}: computes what is not a number; its weights are damaged, or too large for --dtype {dtype}"
        )


def _attended(call: AttentionCall) -> Tensor:
    """Rows of the last query times the values: [head, dim]."""
    query, key, value = call.query[0, :, -1].float(), call.key[0].float(), call.value[0].float()
    share = len(query) // len(key)
    key, value = key.repeat_interleave(share, 0), value.repeat_interleave(share, 0)
    rows = torch.einsum("hd,hkd->hk", query * call.scale, key).softmax(-1)
    return torch.einsum("hk,hkd->hd", rows, value)


def _off(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))
