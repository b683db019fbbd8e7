"""Readings of known tokens, against plain forward passes of transformers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from helpers.counters import count_rows
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model

from mmprobe.models import reading as module
from mmprobe.models.hooks import wrap_forward
from mmprobe.models.points import change_component
from mmprobe.models.prompt import build_chat
from mmprobe.models.reading import (
    PrefixStore,
    Reading,
    float32_logits,
    no_logits,
    own_logits,
    read_chats,
)
from mmprobe.samples import Sample

# deep features, sliding windows, tiles, cross-attention
FAMILIES = ["qwen2_5_vl", "qwen3_vl", "gemma3", "llava_next", "mllama"]


@pytest.fixture(scope="module")
def samples(image_paths) -> list[Sample]:
    """Return three samples about the same images with questions of different lengths."""
    questions = ["Same?", "What is different in the second picture?", "Why?"]
    return [
        Sample(id=str(number), images=image_paths[1:], question=question)
        for number, question in enumerate(questions)
    ]


ANSWERS = [[11, 12, 13, 14, 15, 16, 17], [21], [31, 32, 33]]


def plain_logprobs(model, sample: Sample, answer: list[int]) -> torch.Tensor:
    """Return the log-probabilities of an answer, by decoding it token by token without a cache."""
    logprobs = []
    for step, token in enumerate(answer):
        read = module.append_answers(model, model.prepare(sample), [answer[:step]] if step else [()])
        with torch.no_grad():
            logprobs.append(model.hf(**read, use_cache=False).logits[0, -1].float().log_softmax(-1)[token])
    return torch.stack(logprobs)


@pytest.mark.parametrize("name", first_fast(FAMILIES))
def test_rows_of_a_batch_are_single_readings(name, samples):
    model = load_tiny_model(name)
    reading = Reading(model, model.batch(samples), ANSWERS)
    said = reading.predict()
    for sample, answer, row, prediction in zip(samples, ANSWERS, reading.rows, said, strict=True):
        assert row.ids.tolist() == answer and prediction.likeliest.shape == (len(answer),)
        torch.testing.assert_close(
            prediction.logprobs, plain_logprobs(model, sample, answer), atol=2e-5, rtol=0
        )
        torch.testing.assert_close(prediction.last.exp().sum(), torch.tensor(1.0))
    assert reading.count == 1
    again = reading.predict()  # from the decoder on
    for one, other in zip(said, again, strict=True):
        torch.testing.assert_close(one.logprobs, other.logprobs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", first_fast(["paligemma", *FAMILIES], 2))
def test_no_token_sees_those_after_it_in_an_answer(name, samples):
    model, states = load_tiny_model(name), []
    for answer in ([11, 12, 13, 14], [11, 12, 15, 16]):
        reading = Reading(model, model.batch(samples[:1]), [answer])
        reading.logits(observers={("normed", -1): states.append})
    torch.testing.assert_close(states[0][:, :-3], states[1][:, :-3], atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", first_fast(FAMILIES))
def test_blocks_of_steps_are_the_whole_and_bound_the_logits(name, samples, monkeypatch):
    model, sizes = load_tiny_model(name), []
    expected = Reading(model, model.batch(samples), ANSWERS).predict()
    vocabulary = model.hf.config.get_text_config().vocab_size
    monkeypatch.setitem(
        module.LOGITS_BYTES, "cpu", 2 * len(samples) * vocabulary * 4
    )  # two steps of all rows
    head = model.hf.get_output_embeddings()
    handle = head.register_forward_hook(lambda _, args, output: sizes.append(output.shape[1]))
    reading = Reading(model, model.batch(samples), ANSWERS)
    for changes in (None, {("ffn", 0): lambda update: update}):  # the first pass, and a later one
        for one, other in zip(reading.predict(changes), expected, strict=True):
            torch.testing.assert_close(one.logprobs, other.logprobs, atol=2e-5, rtol=0)
            torch.testing.assert_close(one.last, other.last, atol=2e-5, rtol=0)
            assert one.likeliest.tolist() == other.likeliest.tolist()
    handle.remove()
    assert max(sizes) == 2 and reading.count == 2


def test_shared_beginnings_in_blocks(random_qwen, samples, monkeypatch):
    chats = list(map(build_chat, samples))
    expected = read_chats(random_qwen, chats, ANSWERS).logprobs()
    store = PrefixStore(random_qwen, frozenset(), keeps_states=False)
    shared = read_chats(random_qwen, chats, ANSWERS, store)
    vocabulary = random_qwen.hf.config.get_text_config().vocab_size
    monkeypatch.setitem(module.LOGITS_BYTES, "cpu", 3 * vocabulary * 4)
    for one, other in zip(shared.logprobs(), expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=0)
    assert shared.count == 1 and len(store.prefixes) == 1
    changed = {("ffn", 1): lambda update: 0 * update}  # whole prompts are read where something is changed
    expected = read_chats(random_qwen, chats, ANSWERS).logprobs(changed)
    for one, other in zip(shared.logprobs(changed), expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=0)


def test_what_follows_the_beginnings_of_other_images_is_read_in_one_pass(random_qwen, samples):
    """Rows about four sets of images, whose beginnings have several lengths and are read in one pass, too."""
    images = samples[0].images
    shown = [images, images[::-1], [images[0]] * 2, images[:1]]
    chats = [
        build_chat(sample.model_copy(update={"images": paths})) for paths in shown for sample in samples[:2]
    ]
    answers = [ANSWERS[number % 2] for number in range(len(chats))]
    expected = read_chats(random_qwen, chats, answers).logprobs()
    store, unembedded = PrefixStore(random_qwen, frozenset(), keeps_states=False), []

    def count(forward):
        return lambda states: unembedded.append(states.shape[:-1].numel()) or forward(states)

    with count_rows(random_qwen) as rows, wrap_forward(random_qwen.hf.lm_head, count):
        shared = read_chats(random_qwen, chats, answers, store)
        found = shared.logprobs()
    assert rows == [4, 8] and shared.count == 1
    assert unembedded == [sum(map(len, answers))], "what predicts the answers, in one product"
    lengths = {len(prefix.ids) for prefix in store.prefixes.values()}
    assert len(store.prefixes) == 4 and len(lengths) > 1
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", first_fast(FAMILIES))
def test_copies_of_a_reading_are_changed_each_by_itself(name, samples):
    model = load_tiny_model(name)
    reading = Reading(model, model.batch(samples), ANSWERS)
    expected = [reading.unchanged]
    scales = torch.tensor([1.0, 0.5, 0.0])
    for scale in scales[1:].tolist():
        expected.append(reading.logits({("attention", 1): lambda update, scale=scale: scale * update}))
    assert reading.can_repeat is (not model.has_cross_attention)
    if model.has_cross_attention:
        return  # the states of its images have no row for each prompt that is known
    copies = reading.repeat(3)
    each = scales.repeat_interleave(len(samples))[:, None, None]
    found = copies.logits({("attention", 1): lambda update: each * update})
    torch.testing.assert_close(found, torch.cat(expected), atol=2e-4, rtol=1e-4)
    assert copies.count == 1 and reading.count == 3, "images are encoded once"
    reading.begin_at(5)
    later = reading.repeat(2)
    change = {("attention", 1): lambda update: 0.5 * update}
    torch.testing.assert_close(
        later.logits(change), reading.logits(change).repeat(2, 1, 1), atol=2e-4, rtol=1e-4
    )


def test_layers_before_a_change_are_not_computed_again(random_qwen, samples):
    model, ran = random_qwen, []
    reading = Reading(model, model.batch(samples), ANSWERS)
    before = reading.unchanged
    layers = model.family.decoder(model.hf).layers
    handles = [
        layer.self_attn.register_forward_hook(lambda *args, n=number: ran.append(n))
        for number, layer in enumerate(layers)
    ]
    change = lambda update: 2 * update  # noqa: E731
    measured = {}
    for layer in (1, 1, 2, 0):
        ran.clear()
        measured[layer] = reading.logits({("attention", layer): change})
        assert ran == {1: ran, 2: [1, 2], 0: [0, 1, 2]}[layer]
    ran.clear()
    reading.logits({("attention", 1): change}, {("residual", 0): lambda value: None})
    assert ran == [0, 1, 2], "what is observed is computed"
    for handle in handles:
        handle.remove()
    for layer, logits in measured.items():
        with torch.no_grad(), change_component(model, "attention", layer, change):
            whole = Reading(model, model.batch(samples), ANSWERS).logits()
        assert torch.equal(logits, whole) and not torch.equal(logits, before)


def test_a_reading_without_answers_reads_what_comes_next(random_qwen, samples):
    reading = Reading(random_qwen, random_qwen.batch(samples), [()] * 3)
    for sample, logits in zip(samples, reading.logits(), strict=True):
        with torch.no_grad():
            expected = random_qwen.hf(**random_qwen.prepare(sample)).logits[0, -1:]
        torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)


def test_gradients_are_those_of_the_first_pass_too(random_qwen, samples):
    """Nothing was read before; the gradient of a component is that of an added constant."""
    model = random_qwen
    metric = lambda logits: logits[0, 2, 5] + logits[2, 1, 7]  # noqa: E731
    fresh = Reading(model, model.batch(samples), ANSWERS).gradients(["ffn"], metric, [1])["ffn"][1]
    reading = Reading(model, model.batch(samples), ANSWERS)
    assert reading.unchanged.requires_grad is False
    torch.testing.assert_close(reading.gradients(["ffn"], metric, [1])["ffn"][1], fresh, atol=1e-6, rtol=1e-4)
    assert all(value.grad is None for value in model.hf.parameters())
    bump = torch.zeros_like(fresh)
    bump[0, -8, 3] = 1e-2  # before the step: its padding and the longest answer count
    with torch.no_grad():
        up, down = (metric(reading.logits({("ffn", 1): partial(torch.add, s * bump)})) for s in (1, -1))
    torch.testing.assert_close((up - down) / 2e-2, fresh[0, -8, 3], atol=2e-3, rtol=2e-2)


def test_logits_are_those_of_the_innermost_block(samples):
    model = load_tiny_model("llava_next")
    model.hf.to(torch.bfloat16)
    head = model.hf.get_output_embeddings()
    states = torch.randn(2, head.in_features, generator=torch.Generator().manual_seed(0)).bfloat16()
    own, precise = head(states), states.float() @ head.weight.float().T
    with float32_logits(model):
        with float32_logits(model), own_logits(model):
            torch.testing.assert_close(head(states), own, rtol=0, atol=0)
        with no_logits(model):
            assert head(states).shape == own.shape and not head(states).any()
        torch.testing.assert_close(head(states), precise)
        assert Reading(model, model.batch(samples[:1]), ANSWERS[:1]).logits().dtype == torch.float32
    torch.testing.assert_close(head(states), own, rtol=0, atol=0)
