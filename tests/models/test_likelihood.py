"""The likelihood of texts after prompts, against eager passes of transformers over whole sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model

from mmprobe.models.likelihood import Spellings, score_spellings, share_prefixes, sum_spellings
from mmprobe.models.prompt import build_chat
from mmprobe.samples import Sample

WORDS = ["yes", "no", "the blue diamond", "A", "(A", "a red circle"]


@pytest.fixture(scope="module")
def samples(image_paths) -> list[Sample]:
    """Return eight questions, most of them about the same two images."""
    questions = [
        "Same?",
        "Which one moved: (A) the blue diamond (B) a red circle",
        "Is there a star in both?",
        "Why?",
    ]
    return [
        Sample(id=f"{number}-{shown}", images=image_paths[shown : shown + 2], question=question)
        for shown in (0, 1)
        for number, question in enumerate(questions)
    ]


def eager_logprob(model, sample: Sample, ids: tuple[int, ...]) -> float:
    """Return the sum of the log-probabilities of tokens after a prompt: log_softmax over the whole sequence, one row."""
    inputs = dict(model.prepare(sample))
    length = inputs["input_ids"].shape[1]
    added = torch.tensor([ids], device=model.device)
    for name, fill in (("input_ids", added), ("attention_mask", torch.ones_like(added))):
        inputs[name] = torch.cat([inputs[name], fill.to(inputs[name].dtype)], 1)
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in inputs:
            inputs[name] = torch.cat([inputs[name], torch.zeros_like(added)], 1)
    with torch.no_grad():
        logprobs = model.hf(**inputs, use_cache=False).logits[0].double().log_softmax(-1)
    return sum(logprobs[length - 1 + step, token].item() for step, token in enumerate(ids))


@pytest.mark.parametrize(
    "name", ["tiny-spd", "qwen2_5_vl", pytest.param("gemma3", marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("batch_size", first_fast([8, 1]))
def test_scores_are_those_of_an_eager_loop(name, batch_size, samples, tiny_spd):
    model = tiny_spd if name == "tiny-spd" else load_tiny_model(name)
    spellings = [each for word in WORDS for each in Spellings(model).of(word, exact=word.endswith("A"))]
    if name == "tiny-spd":
        assert max(map(len, spellings)) > 2  # texts of several pieces
    chats = [build_chat(sample, model) for sample in samples]
    prefixes = share_prefixes(model, chats)
    assert (prefixes is None) == (name == "gemma3")
    scores = score_spellings(model, chats, [spellings] * len(chats), batch_size, prefixes)
    for sample, own in zip(samples, scores, strict=True):
        assert list(own) == list(dict.fromkeys(spellings))
        for ids in spellings[:: 1 if sample in samples[:2] else 5]:
            assert own[ids] == pytest.approx(eager_logprob(model, sample, ids), abs=2e-4)


def test_spellings_are_all_tokens_that_are_the_word(tiny_spd):
    texts = [tiny_spd.tokenizer.decode([number]) for number in range(len(tiny_spd.tokenizer))]
    alone = {(number,) for number, text in enumerate(texts) if text.strip().casefold() == "yes"}
    found = Spellings(tiny_spd).of("yes")
    assert alone and alone <= set(found) and len(found) == len(set(found))
    assert {
        tiny_spd.tokenizer.decode(list(ids)).strip() for ids in Spellings(tiny_spd).of("A", exact=True)
    } == {"A"}


def test_an_answer_counts_for_the_longest_spelling_that_it_begins_with():
    scores = {(1,): 0.5, (1, 2): 0.2, (1, 2, 3): 0.05, (1, 4): 0.1, (5,): 0.25, (6,): 0.125}
    texts = {
        "A": [(1,), (6,)],
        "a cat": [(1, 2)],
        "a cat here": [(1, 2, 3)],
        "A too": [(1, 4), (6,)],
        "B": [(5,)],
    }
    logprobs = {ids: float(np.log(value)) for ids, value in scores.items()}
    sums = {name: np.exp(value) for name, value in sum_spellings(logprobs, texts).items()}
    assert sums == pytest.approx({"A": 0.2, "a cat": 0.15, "a cat here": 0.05, "A too": 0.1, "B": 0.25})


def test_less_memory_reads_fewer_at_a_time(samples, tiny_spd, monkeypatch):
    chats = [build_chat(sample) for sample in samples[:2]]
    spellings = [Spellings(tiny_spd).of("the blue diamond")] * 2
    expected = score_spellings(tiny_spd, chats, spellings, 1)
    batch = tiny_spd.hf.forward

    def forward(*args, **options):
        ids = options.get("input_ids")
        if ids is not None and len(ids) > 2:
            raise torch.OutOfMemoryError("too many")
        return batch(*args, **options)

    monkeypatch.setattr(tiny_spd.hf, "forward", forward)
    for own, other in zip(score_spellings(tiny_spd, chats, spellings, 8), expected, strict=True):
        assert own == pytest.approx(other, abs=1e-4)
