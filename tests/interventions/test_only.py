"""ONLY by hand, and against a reference with whole matrices of weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.answers import STEPS, make_sample, prepare, run_methods
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model

from mmprobe.interventions import load_method
from mmprobe.interventions.methods.only import change_weights
from mmprobe.models import Group
from mmprobe.models.reading import append_answers


def test_only_by_hand():
    """p = (3/4, 1/4) and p' = (1/4, 3/4) are 1 apart: contrast; at a distance of 1.5 they agree."""
    main, other = torch.log(torch.tensor([[3.0, 1.0]])), torch.log(torch.tensor([[1.0, 3.0]]))
    apart = load_method("only", differ=1, agree=3, beta=0).combine(main, other)
    np.testing.assert_allclose(apart.exp().numpy(), [[9.0, 1 / 3]], rtol=1e-5)
    close = load_method("only", differ=1, agree=3, beta=0, distance=1.5).combine(main, other)
    np.testing.assert_allclose(close.exp().numpy(), [[3.0, 27.0]], rtol=1e-5)


def test_the_weights_by_hand():
    """Of four equal weights and one large on images the large one goes; the head with the lower ratio is left out."""
    text = torch.tensor([0.1, 0.1, 0.1, 0.1])
    images = torch.tensor([0.05, 0.05, 0.05, 0.05, 0.3])
    first = torch.cat([torch.tensor([0.1]), text, images])
    second = torch.cat([torch.tensor([0.1]), torch.tensor([0.39, 0.0, 0.0, 0.01]), images])
    visual = torch.arange(10) > 4
    keys = torch.arange(10)
    changed = change_weights(
        torch.stack([first, second])[None], visual[None], ((keys > 0) & (keys < 5))[None]
    )[0]
    np.testing.assert_allclose(changed[0], [0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.0], rtol=1e-6)
    assert not changed[1].any(), "its weights on text have no entropy: 0.39 is above mean + deviation"


@pytest.mark.parametrize("family", first_fast(["llava", "qwen2_5_vl"]))
def test_only_equals_a_reference_with_whole_matrices(family, image_paths):
    model = load_tiny_model(family)
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    method = load_method("only", agree=1.5, differ=0.8, distance=0.3, beta=0, layer=1)
    tokens, logits, _ = run_methods(model, [method], chats, batch)
    inputs = append_answers(model, batch.inputs, list(tokens))
    layers, kept = model.family.decoder(model.hf).layers, {}
    handles = [
        layers[1].self_attn.v_proj.register_forward_hook(lambda module, args, out: kept.update(value=out)),
        layers[-1].register_forward_pre_hook(lambda module, args: kept.update(stream=args[0]) or None),
        model.family.final_norm(model.hf).register_forward_hook(
            lambda module, args, out: kept.update(final=out)
        ),
    ]
    model.hf.set_attn_implementation("eager")
    with torch.no_grad():
        out = model.hf(**inputs, use_cache=False, output_attentions=True)
    model.hf.set_attn_implementation("sdpa")
    for handle in handles:
        handle.remove()
    rows, prompt = out.attentions[1][0], batch.prompts[0]
    heads, dim = rows.shape[0], model.hf.config.get_text_config().hidden_size // rows.shape[0]
    value = kept["value"][0].unflatten(-1, (-1, dim)).transpose(0, 1)
    value = value.repeat_interleave(heads // len(value), 0)
    is_visual = np.concatenate([prompt.group == Group.VISUAL, np.zeros(STEPS, bool)])
    for step in range(STEPS):
        query = len(prompt.ids) - 1 + step
        ratios, parts = [], []
        for head in range(heads):
            weights = rows[head, query, : query + 1].double().numpy().copy()
            entropies = []
            for keys in (~is_visual[: query + 1] & (np.arange(query + 1) > 0), is_visual[: query + 1]):
                own = weights[keys]
                own[own > own.mean() + own.std(ddof=1)] = 0
                weights[keys] = own
                share = own / own.sum()
                entropies.append(-(share * np.log(share + 1e-6)).sum())
            ratios.append(entropies[0] / entropies[1])
            parts.append(torch.from_numpy(weights).float() @ value[head, : query + 1])
        mean = np.mean(ratios)
        kept_heads = [part * (ratio >= mean) for part, ratio in zip(parts, ratios, strict=True)]
        with torch.no_grad():
            output = layers[1].self_attn.o_proj(torch.cat(kept_heads))
            mid = 0.2 * kept["stream"][0, query] + layers[-1].input_layernorm(output)
            post = mid + layers[-1].mlp(layers[-1].post_attention_layernorm(mid))
            state = model.family.final_norm(model.hf)(post) + 0.5 * kept["final"][0, query]
            other = model.hf.get_output_embeddings()(state)
        main = out.logits[0, query]
        apart = float((main.softmax(-1) - other.softmax(-1)).abs().sum())
        expected = main + 1.5 * other if apart < 0.3 else 1.8 * main - 0.8 * other
        torch.testing.assert_close(logits[0, step], expected, rtol=2e-3, atol=5e-3)
