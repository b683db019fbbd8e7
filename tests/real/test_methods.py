"""Methods on the real model equal their slow definitions: passes over the whole text, without a cache."""

from __future__ import annotations

import pytest
import torch
from helpers.answers import compute_logits, prepare, replace_attention, run_methods
from helpers.slow_sage import SlowSage

from mmprobe.interventions import load_method
from mmprobe.interventions.base import MethodContext
from mmprobe.interventions.contrast import remove_images
from mmprobe.interventions.methods.vcd import add_noise
from mmprobe.models.prompt import build_batch

STEPS = 5


@pytest.fixture(scope="module")
def asked(real, samples):
    return prepare(real, samples["0001-color"])


def test_vcd_contrasts_with_noise(real, asked):
    chats, batch = asked
    tokens, logits, _ = run_methods(real, [load_method("vcd", alpha=1.0, beta=0)], chats, batch, STEPS)
    main = compute_logits(real, batch.inputs, tokens)[:, -STEPS - 1 : -1]
    noisy = compute_logits(real, add_noise(MethodContext(real, chats, batch), 500), tokens)[
        :, -STEPS - 1 : -1
    ]
    torch.testing.assert_close(logits, 2 * main - noisy, rtol=1e-3, atol=5e-3)
    assert torch.equal(tokens, logits.argmax(-1))
    assert (main - noisy).abs().max() > 0.5, "the test is void: noise changes nothing"


def test_pai_raises_scores_of_visual_tokens_and_contrasts_with_the_text(real, asked):
    chats, batch = asked
    alpha, gamma, first_layer = 0.5, 1.5, 2
    method = load_method("pai", alpha=alpha, gamma=gamma, beta=0, first_layer=first_layer)
    tokens, logits, _ = run_methods(real, [method], chats, batch, STEPS)
    length = batch.inputs["input_ids"].shape[1]
    visual = torch.from_numpy(batch.prompts[0].visual_positions)

    def attend(layer, query, key, value, mask, scale):
        scores = query @ key.transpose(2, 3) * scale
        if layer >= first_layer:
            raised = scores[:, :, length - 1 :, visual]
            scores[:, :, length - 1 :, visual] = raised + alpha * raised.abs()
        return (scores + mask[..., : key.shape[2]]).softmax(-1) @ value

    with replace_attention(real, attend):
        main = compute_logits(real, batch.inputs, tokens)[:, -STEPS - 1 : -1].log_softmax(-1)
    text = build_batch(real, [remove_images(chats[0])]).inputs
    without = compute_logits(real, text, tokens)[:, -STEPS - 1 : -1].log_softmax(-1)
    torch.testing.assert_close(logits, gamma * (main - without) + without, rtol=1e-3, atol=5e-3)
    plain = compute_logits(real, batch.inputs, tokens)[:, -STEPS - 1 : -1].log_softmax(-1)
    assert (main - plain).abs().max() > 0.5, "the test is void: scores change nothing"


def test_sage_suppresses_and_contrasts_as_its_slow_reference(real, asked):
    chats, batch = asked
    sage = load_method("sage", alpha=0.8, beta=0.5, eta=1, k=0.4)
    tokens, logits, report = run_methods(real, [sage], chats, batch, STEPS)
    reference = SlowSage(real, sage, chats, batch)
    expected_tokens, expected = reference.answer(STEPS)
    margins = [abs(conflict - reference.taus[step]) for (step, _), conflict in reference.conflicts.items()]
    assert min(margins) > 2e-3, "the test is void: rounding decides whether a conflict exceeds tau"
    suppressed = [
        [layer for (at, layer), conflict in reference.conflicts.items() if at == step and conflict > tau]
        for step, tau in enumerate(reference.taus)
    ]
    assert report(0)["sage"]["suppressed_layers"] == suppressed
    assert all(suppressed[1:]), "the test is void: nothing is suppressed"
    torch.testing.assert_close(logits[0], expected, rtol=1e-3, atol=5e-3)
    assert torch.equal(tokens[0], expected_tokens)
    plain = compute_logits(real, batch.inputs, tokens)[0, -STEPS - 1 : -1]
    assert (expected - plain).abs().max() > 0.5, "the test is void: the method changes nothing"
