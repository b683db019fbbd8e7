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
    - attention [step, layer, head, token]: 0 for later tokens, and for tokens before a sliding window; NaN in layers
      without rows, and for heads that a layer does not have
    - cross_attention [step, layer, head, key]: rows of layers that attend to images; NaN for other layers
    - pre, mid, post [step, layer, hidden]: the residual stream; gate [step, layer, neuron]. NaN where a layer
      does not run.
    """
    hf = copy.deepcopy(model.hf)
    hf.set_attn_implementation("eager")
    layers = list(model.family.decoder(hf).layers)
    parts = [model.family.parts(layer) for layer in layers]
    names = ("pre", "mid", "post", "gate", "update")
    records: dict[str, dict[int, list[torch.Tensor]]] = {name: {} for name in names}
    weights: dict[int, list[torch.Tensor]] = {}

    def keep(name: str, index: int, values: Any) -> None:
        values = values[0] if isinstance(values, tuple) else values
        records[name].setdefault(index, []).append(values[0, -1].detach().float().cpu())

    def read_input(name: str, index: int) -> Any:
        return lambda m, a, k: keep(name, index, a[0] if a else k["hidden_states"])

    for index, (layer, part) in enumerate(zip(layers, parts, strict=True)):
        layer.register_forward_pre_hook(read_input("pre", index), with_kwargs=True)
        layer.register_forward_hook(lambda m, a, out, i=index: keep("post", i, out))
        if part.mid is not None:
            part.mid.register_forward_pre_hook(read_input("mid", index), with_kwargs=True)
        elif part.update is not None:
            part.update.register_forward_hook(lambda m, a, out, i=index: keep("update", i, out))
        if part.activation is not None:
            part.activation.register_forward_hook(lambda m, a, out, i=index: keep("gate", i, out))
        if part.attention is not None:
            part.attention.register_forward_hook(
                lambda m, a, out, i=index: weights.setdefault(i, []).append(
                    out[1][0, :, -1].detach().float().cpu()
                )
            )
    with torch.no_grad():
        out = hf.generate(
            **inputs, max_new_tokens=steps, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    for index, part in enumerate(parts):  # layers in which no module reads resid_mid
        pre = records["pre"].get(index, [])
        if part.mid is None and part.update is None:
            records["mid"][index] = pre
        elif part.mid is None:
            updates = records["update"].get(index, [])
            records["mid"][index] = [stream + each for stream, each in zip(pre, updates, strict=True)]
    del records["update"]
    tokens = out.sequences.shape[1]
    heads = max(len(rows) for by_step in weights.values() for rows in by_step)
    attention = np.full((steps, len(layers), heads, tokens), np.nan, np.float32)
    n_keys = max(rows.shape[-1] for by_step in weights.values() for rows in by_step)
    cross_attention = np.full((steps, len(layers), heads, n_keys), np.nan, np.float32)
    prompt = tokens - steps
    for index, by_step in weights.items():
        for step, row in enumerate(by_step):
            if parts[index].has_cross_attention:
                cross_attention[step, index, :, : row.shape[-1]] = row
            else:
                end = prompt + step
                attention[step, index, : len(row)] = 0
                attention[step, index, : len(row), end - row.shape[-1] : end] = row
    arrays = {
        "attention": attention,
        "cross_attention": cross_attention,
        "ids": out.sequences[0, prompt:].cpu().numpy(),
        "logits": torch.stack(out.logits)[:, 0].float().cpu().numpy(),
    }
    for name, by_index in records.items():
        if by_index:
            width = max(values[0].shape[-1] for values in by_index.values())
            filled = np.full((steps, len(layers), width), np.nan, np.float32)
            for index, values in by_index.items():
                filled[:, index, : values[0].shape[-1]] = torch.stack(values).float().numpy()
            arrays[name] = filled
    return arrays
