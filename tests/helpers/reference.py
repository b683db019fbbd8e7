"""The internals of eager transformers during `generate`, by its own flags and plain torch hooks."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from mmprobe.models import Model


def eager_generate(model: Model, inputs: dict[str, Any], steps: int) -> dict[str, np.ndarray]:
    """Return arrays [step, layer, ...] at the query of each step, for a batch of one.

    - ids [step], logits [step, vocabulary]
    - attention [step, layer, head, token]: 0 for later tokens, and for tokens before a sliding window
    - cross_attention [step, layer, head, key]: rows of layers that attend to images; NaN for other layers
    - pre, mid, post [step, layer, hidden]: the residual stream; gate [step, layer, neuron]. NaN where a layer
      does not run.
    """
    hf = copy.deepcopy(model.hf)
    hf.set_attn_implementation("eager")
    layers = list(model.family.decoder(hf).layers)
    parts = [model.family.parts(layer) for layer in layers]
    records: dict[str, dict[int, list[torch.Tensor]]] = {name: {} for name in ("pre", "mid", "post", "gate")}

    def keep(name: str, index: int, values: Any) -> None:
        values = values[0] if isinstance(values, tuple) else values
        records[name].setdefault(index, []).append(values[0, -1].detach().float().cpu())

    for index, (layer, part) in enumerate(zip(layers, parts, strict=True)):
        layer.register_forward_pre_hook(
            lambda m, a, k, i=index: keep("pre", i, a[0] if a else k["hidden_states"]), with_kwargs=True
        )
        layer.register_forward_hook(lambda m, a, out, i=index: keep("post", i, out))
        part.mid.register_forward_pre_hook(lambda m, a, i=index: keep("mid", i, a[0]))
        if part.activation is not None:
            part.activation.register_forward_hook(lambda m, a, out, i=index: keep("gate", i, out))
    with torch.no_grad():
        out = hf.generate(
            **inputs, max_new_tokens=steps, do_sample=False, return_dict_in_generate=True,
            output_attentions=True, output_logits=True,
        )  # fmt: skip
    tokens = out.sequences.shape[1]
    heads = hf.config.get_text_config().num_attention_heads
    attention = np.zeros((steps, len(layers), heads, tokens), np.float32)
    n_keys = max(rows.shape[-1] for step in out.attentions for rows in step if rows is not None)
    cross_attention = np.full((steps, len(layers), heads, n_keys), np.nan, np.float32)
    prompt = tokens - steps
    for step, by_layer in enumerate(out.attentions):
        ran = [i for i in range(len(layers)) if len(records["pre"].get(i, [])) > step]
        for index, rows in zip(ran, by_layer, strict=True):
            row = rows[0, :, -1].float().cpu().numpy()
            if parts[index].has_cross_attention:
                cross_attention[step, index, :, : row.shape[-1]] = row
            else:
                end = prompt + step
                attention[step, index, :, end - row.shape[-1] : end] = row
    arrays = {
        "attention": attention,
        "cross_attention": cross_attention,
        "ids": out.sequences[0, prompt:].cpu().numpy(),
        "logits": torch.stack(out.logits)[:, 0].float().cpu().numpy(),
    }
    for name, by_index in records.items():
        if by_index:
            example = next(iter(by_index.values()))[0]
            missing = [torch.full_like(example, torch.nan)] * steps
            by_layer = [torch.stack(by_index.get(i, missing)) for i in range(len(layers))]
            arrays[name] = torch.stack(by_layer, 1).float().numpy()
    return arrays
