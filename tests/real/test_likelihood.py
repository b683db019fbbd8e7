"""Closed questions of the real model by likelihood, against a log-softmax of each spelling by plain transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import pytest
import torch

from mmprobe.benchmarks.core.likelihood import describe, find_closed, read_likelihoods
from mmprobe.models import Model
from mmprobe.samples import Sample

LETTERS = "\nA. {A}\nB. {B}\nC. {C}\nD. {D}\nAnswer with the letter of the option."


@pytest.fixture(scope="module")
def asked(samples: dict[str, Sample]) -> list[Sample]:
    """Yes and no, letters, and candidates, of one pair."""
    closed = []
    for pair in ("0000",):
        closed += [samples[f"{pair}-{kind}"] for kind in ("same", "different", "exist")]
        colour = samples[f"{pair}-color"]
        others = [each for each in ("red", "blue", "green", "yellow", "orange") if each != colour.answer][:3]
        options = dict(zip("ABCD", [*others[:2], colour.answer, others[2]], strict=True))
        printed = colour.question + LETTERS.format(**options)
        closed.append(colour.model_copy(update={"id": f"{pair}-letters", "question": printed, "answer": "C"}))
        told = {"metadata": {**colour.metadata, "candidates": list(options.values())}}
        closed.append(colour.model_copy(update={"id": f"{pair}-candidates", **told}))
    return closed


@pytest.fixture(scope="module")
def written(real: Model) -> dict[int, str]:
    """The text of each token that is not special."""
    tokenizer = real.tokenizer
    numbers = sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids))
    return {number: tokenizer.decode([number]).strip() for number in numbers}


def spell(model: Model, written: dict[int, str], text: str, exact: bool = False) -> set[tuple[int, ...]]:
    """Write a text in all ways: as it stands, with other initials, after a space, and as a single token of any case."""
    tokenizer = model.tokenizer
    forms = {text} if exact else {text, text[0].lower() + text[1:], text[0].upper() + text[1:]}
    ways = {
        tuple(tokenizer.encode(space + form, add_special_tokens=False))
        for form in forms
        for space in ("", " ")
    }
    for number, own in written.items():
        if own == text or (not exact and own.casefold() == text.casefold()):
            ways.add((number,))
    return ways


def predict(model: Model, sample: Sample, ids: tuple[int, ...]) -> torch.Tensor:
    """Return the log-probabilities of the token after the prompt and some tokens, by one whole eager pass without a cache."""
    inputs = model.prepare(sample)
    tokens = torch.cat([inputs["input_ids"], torch.tensor([ids], dtype=torch.long)], 1)
    own = {**inputs, "input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    with torch.no_grad():
        return model.hf(**own, use_cache=False).logits[0, -1].double().log_softmax(-1)


def sum_by_hand(ways: set[tuple[int, ...]], after: Callable[[tuple[int, ...]], torch.Tensor]) -> float:
    """Return the log of the summed probability of the spellings; one that begins with another has its probability."""
    total = 0.0
    for ids in ways:
        if not any(ids[:length] in ways for length in range(1, len(ids))):
            total += math.exp(sum(after(ids[:place])[each].item() for place, each in enumerate(ids)))
    return math.log(total)


def test_each_answer_has_the_probability_that_plain_transformers_give(
    real: Model, asked: list[Sample], written: dict[int, str], tmp_path
) -> None:
    lines = read_likelihoods(real, asked, tmp_path)
    real.hf.set_attn_implementation("eager")
    try:
        for sample in asked:
            closed = find_closed(sample)
            by_hand = {}
            after = cache(partial(predict, real, sample))
            for name, text in closed.answers.items():
                ways = spell(real, written, text)
                if closed.lettered:
                    ways |= spell(real, written, name, exact=True) | spell(
                        real, written, f"({name}", exact=True
                    )
                by_hand[name] = sum_by_hand(ways, after)
            assert lines[sample.id]["logprob"] == pytest.approx(by_hand, abs=1e-3), sample.id
            best = max(by_hand, key=by_hand.__getitem__)
            told = describe(sample, lines[sample.id])
            assert told["chosen"] == best and told["correct"] == (best in closed.right)
            right, wrong = (
                max(value for name, value in by_hand.items() if (name in closed.right) == is_right)
                for is_right in (True, False)
            )
            assert told["margin"] == pytest.approx(right - wrong, abs=1e-3)
    finally:
        real.hf.set_attn_implementation("sdpa")
    assert len({find_closed(sample).kind for sample in asked}) == 3
