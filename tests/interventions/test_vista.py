"""VISTA against a reference of torch's own hooks over the whole sequence, without a cache."""

from __future__ import annotations

import pytest
import torch
from helpers.answers import FAMILIES, make_sample, prepare, run_methods
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model

from mmprobe.interventions import load_method
from mmprobe.interventions.contrast import remove_images
from mmprobe.models.prompt import build_batch
from mmprobe.models.reading import append_answers


def run_with_outputs(model, inputs, change=None):
    """Return the outputs of the layers [row, position, hidden], and the logits, given what is done to each FFN's output."""
    layers, kept, handles = model.family.decoder(model.hf).layers, [], []
    for number, layer in enumerate(layers):
        handles.append(
            layer.register_forward_hook(
                lambda module, args, output: kept.append(output[0] if isinstance(output, tuple) else output)
            )
        )
        if change is not None:
            hook = lambda module, args, output, number=number: change(number, output)  # noqa: E731
            handles.append(layer.mlp.register_forward_hook(hook))
    with torch.no_grad():
        logits = model.hf(**inputs, use_cache=False).logits
    for handle in handles:
        handle.remove()
    return kept, logits


@pytest.mark.parametrize("family", first_fast(FAMILIES))
def test_vista_equals_a_reference_without_a_cache(family, image_paths):
    model = load_tiny_model(family)
    chats, batch = prepare(model, make_sample(image_paths[1:3]))
    method = load_method("vista", strength=0.3, mix=0.35, first=0, last=1)
    tokens, logits, _ = run_methods(model, [method], chats, batch, 2)
    with_images, _ = run_with_outputs(model, batch.inputs)
    without, _ = run_with_outputs(model, build_batch(model, [remove_images(chats[0])]).inputs)
    vectors = [own[:, -1] - other[:, -1] for own, other in zip(with_images, without, strict=True)]

    def turn(number, x):
        v = vectors[number][0]
        cosine = (x @ -v) / x.norm(dim=-1) / v.norm()
        y = 0.3 * (1 + cosine.clamp(min=0))[..., None] * v / v.norm()
        turned = x / x.norm(dim=-1, keepdim=True) + y
        return turned / turned.norm(dim=-1, keepdim=True) * x.norm(dim=-1, keepdim=True)

    inputs = append_answers(model, batch.inputs, list(tokens))
    streams, expected = run_with_outputs(model, inputs, turn)
    chosen = method.layers(model.n_layers)
    early = torch.stack([model.hf.get_output_embeddings()(streams[layer]) for layer in chosen]).mean(0)
    mixed = (0.65 * expected + 0.35 * early)[:, -3:-1]
    torch.testing.assert_close(logits, mixed, rtol=1e-3, atol=2e-3)
    _, plain = run_with_outputs(model, inputs)
    assert (plain - expected)[:, -3:-1].abs().max() > 0.02, "the test is void: nothing is steered"
