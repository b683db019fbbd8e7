"""Single edges by plain torch hooks on the transformers model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from mmprobe.models import Model
from mmprobe.probes import patch_edges
from mmprobe.probes.answers import read_answer


def test_edges_equal_plain_hooks(tiny_spd, drawn):
    """One edge into a head's queries, into shared values, into an FFN and into the logits, by torch hooks."""
    clean, corrupt = drawn[0][2], drawn[1][2]
    edges = [("head 5.4", "q 6.1"), ("image 1", "v 5.0"), ("ffn 4", "ffn 7"), ("head 7.0", "logits")]
    ds = patch_edges(tiny_spd, clean, corrupt, edges, metric=_first_logit)
    reading = read_answer(tiny_spd, clean, clean.answer)
    stored = [_record(tiny_spd, each) for each in (reading, read_answer(tiny_spd, corrupt, clean.answer))]
    decoder = tiny_spd.hf.model.language_model
    is_second = torch.zeros(stored[0]["embeddings"].shape[1], 1)
    is_second[: len(reading.row.prompt.ids)] = torch.from_numpy(reading.row.prompt.image == 1)[:, None]

    def difference(name: str) -> torch.Tensor:
        return stored[0][name] - stored[1][name]

    def head(layer: int, number: int) -> torch.Tensor:
        part = slice(32 * number, 32 * (number + 1))
        return (
            difference(f"heads {layer}")[..., part] @ decoder.layers[layer].self_attn.o_proj.weight[:, part].T
        )

    def measure() -> torch.Tensor:
        with torch.no_grad():
            return _first_logit(tiny_spd.hf(**reading.inputs).logits[0, -len(reading.row.ids) - 1 : -1])

    before = measure()
    for index, change in enumerate(
        [
            _change_part(decoder.layers[6], "q_proj", 1, stored[0]["pre 6"] - head(5, 4)),
            _change_part(
                decoder.layers[5], "v_proj", 0, stored[0]["pre 5"] - difference("embeddings") * is_second
            ),
            _change_input(decoder.layers[7].post_attention_layernorm, difference("ffn 4")),
            _change_input(decoder.norm, head(7, 0)),
        ]
    ):
        handle = change()
        expected = before - measure()
        handle.remove()
        assert abs(expected) > 5e-4
        np.testing.assert_allclose(ds.effect[index], expected, atol=2e-5, rtol=1e-4)


def _first_logit(logits: torch.Tensor) -> torch.Tensor:
    return logits[0, 7]


def _record(model: Model, reading) -> dict[str, torch.Tensor]:
    """Return embeddings, streams, heads' outputs and FFNs' outputs of one pass, from torch hooks."""
    stored, handles = {}, []
    for layer, module in enumerate(model.hf.model.language_model.layers):

        def keep(name):
            return lambda module, args, output=None: stored.__setitem__(name, args[0])

        handles.append(module.register_forward_pre_hook(keep(f"pre {layer}")))
        handles.append(module.self_attn.o_proj.register_forward_pre_hook(keep(f"heads {layer}")))
        handles.append(
            module.mlp.register_forward_hook(
                lambda module, args, output, layer=layer: stored.__setitem__(f"ffn {layer}", output)
            )
        )
    reading.logprobs()
    for handle in handles:
        handle.remove()
    return stored | {"embeddings": stored["pre 0"]}


def _change_part(layer: torch.nn.Module, name: str, head: int, stream: torch.Tensor) -> Callable:
    """Return what adds a hook by which one head's part of a projection reads another stream."""
    projection, part = getattr(layer.self_attn, name), slice(32 * head, 32 * (head + 1))

    def put(module, args, output):
        other = torch.nn.functional.linear(layer.input_layernorm(stream), module.weight, module.bias)
        changed = output.clone()
        changed[..., part] = other[..., part]
        return changed

    return lambda: projection.register_forward_hook(put)


def _change_input(module: torch.nn.Module, difference: torch.Tensor) -> Callable:
    return lambda: module.register_forward_pre_hook(lambda module, args: (args[0] - difference,))
