"""OPERA against a slow reference that reads the whole text again for each candidate, without a cache."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from helpers.answers import compute_logits, generate_plain, make_sample, prepare, replace_attention
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model
from torch import Tensor

import mmprobe.interventions.methods.opera as opera
from mmprobe.interventions import generate, load_method
from mmprobe.models import Model, attention

LIMIT = 9


def compute_penalty(attention: list[list[float]], scale: float) -> tuple[float, int]:
    """Return the largest product down a column, and that column."""
    products = []
    for column in range(len(attention)):
        product = 1.0
        for row in range(column, len(attention)):
            product *= scale * attention[row][column]
        products.append(1e-7 * product)
    return max(products), products.index(max(products))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_penalty_is_the_largest_product_down_a_column(size):
    attention = torch.rand(3, size, size, generator=torch.Generator().manual_seed(size))
    penalty, column = opera.column_penalty(attention, 7.0)
    for index in range(3):
        expected_penalty, expected_column = compute_penalty(attention[index].tolist(), 7.0)
        assert penalty[index].item() == pytest.approx(expected_penalty, rel=1e-4)
        assert column[index] == expected_column


def test_the_penalty_is_finite():
    assert math.isfinite(opera.column_penalty(torch.ones(1, 200, 200), 50.0)[0].item())
    assert opera.column_penalty(torch.zeros(1, 3, 3), 50.0)[0].item() == 0


class Reference:
    """The search written with lists, as it is defined; a beam is (tokens, score)."""

    def __init__(self, model: Model, method: Any, batch: Any):
        self.model, self.method, self.batch = model, method, batch
        self.length = batch.inputs["input_ids"].shape[1]
        self.visual = batch.prompts[0].visual_positions
        self.rollbacks: list[list[int]] = []

    def read(self, tokens: list[int]) -> tuple[Tensor, Tensor]:
        """Return the next token's logits, and the last layer's largest attention over heads, normalised [query, key]."""
        rows = []

        def attend(
            layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
        ) -> Tensor:
            weights = (query @ key.transpose(2, 3) * scale + mask[..., : key.shape[2]]).softmax(-1)
            rows.append(weights[0].amax(0))
            return weights @ value

        with replace_attention(self.model, attend):
            logits = compute_logits(self.model, self.batch.inputs, torch.tensor([tokens], dtype=torch.long))[
                0, -1
            ]
        return logits, rows[-1] / rows[-1].sum(-1, keepdim=True)

    def answer(self, limit: int) -> list[int]:
        method, beams, step = self.method, [([], 0.0)], 0
        beams_before: list[Any] = []  # for each step
        chosen: list[set[Any]] = []  # for each step
        columns: list[int] = []  # for each step
        rejected: dict[int, set[Any]] = {}  # by step
        n_rollbacks_to: Counter[int] = Counter()  # by step
        while step < limit:
            candidates, candidate_columns = [], []
            for number, (tokens, score) in enumerate(beams):
                logits = self.read(tokens)[0]
                for beam, token in rejected.get(step, set()):
                    if beam == number:
                        logits[token] = -math.inf
                values, ids = logits.topk(method.candidates)
                penalised = []
                for value, token in zip(values.tolist(), ids.tolist(), strict=True):
                    rows = self.read([*tokens, token])[1]
                    attention = rows[self.length :, self.length :].tolist()
                    penalty, column = compute_penalty(attention, method.scale)
                    candidate_columns.append(column)
                    if step < opera.WARM_UP:
                        penalty = -float(rows[-1, self.visual].sum())
                    penalised.append(value - method.weight * penalty)
                for token, logprob in zip(
                    ids.tolist(), torch.tensor(penalised).log_softmax(0).tolist(), strict=True
                ):
                    candidates.append((score + logprob, number, token))
            beams_before.append(beams)
            counts = Counter(candidate_columns)
            columns.append(min(column for column in counts if counts[column] == max(counts.values())))
            target = None
            if columns[-1] >= opera.WARM_UP and columns.count(columns[-1]) > method.threshold:
                options = [
                    at
                    for at in (columns[-1] + 1, columns[-1])
                    if at < step and n_rollbacks_to[at] < method.candidates
                ]
                target = options[0] if options else None
            if target is None:
                best = sorted(candidates, key=lambda candidate: -candidate[0])[: method.beams]
                chosen.append({(number, token) for _, number, token in best})
                beams = [([*beams[number][0], token], total) for total, number, token in best]
                step += 1
                continue
            self.rollbacks.append([step, target])
            n_rollbacks_to[target] += 1
            beams = beams_before[target]
            rejected = {at: pairs for at, pairs in rejected.items() if at < target} | {
                target: rejected.get(target, set()) | chosen[target]
            }
            for history in (beams_before, chosen, columns):
                del history[target:]
            step = target
        return max(beams, key=lambda beam: beam[1])[0]


def answer_with_both(model: Model, image_paths: Any, **parameters: Any) -> tuple[Any, Reference, list[int]]:
    method = load_method("opera", **parameters)
    sample = make_sample(image_paths[:2])
    answer = generate(model, sample, method, max_new_tokens=LIMIT)
    reference = Reference(model, method, prepare(model, sample)[1])
    return answer, reference, reference.answer(LIMIT)


@pytest.mark.parametrize("family", first_fast(["qwen2_5_vl", "llava", "internvl", "gemma3"]))
def test_it_equals_the_slow_reference(family, image_paths):
    """Gemma 3's last layer keeps the last 16 keys, fewer than its prompt has."""
    answer, _, expected = answer_with_both(
        load_tiny_model(family), image_paths, beams=3, candidates=3, weight=4.0
    )
    assert answer.token_ids == expected
    assert answer.diagnostics["opera"]["rollbacks"] == []


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_no_step_repeats_the_keys_of_the_prompt(family, image_paths, monkeypatch):
    attend, repeated = attention.sdpa_attention_forward, list[tuple[int, ...]]()

    def count(module: Any, query: Tensor, key: Tensor, *others: Any, **options: Any) -> Any:
        if len(key) > 1 and query.shape[2] == 1:
            repeated.append(tuple(key.shape))
        return attend(module, query, key, *others, **options)

    monkeypatch.setattr(attention, "sdpa_attention_forward", count)
    model = load_tiny_model(family)
    answer = generate(model, make_sample(image_paths[:2]), "opera", max_new_tokens=LIMIT)
    assert len(answer.diagnostics["opera"]["penalty"]) > 1 and not repeated


@pytest.mark.slow
def test_it_rolls_back_like_the_slow_reference(image_paths, monkeypatch):
    monkeypatch.setattr(opera, "WARM_UP", 1)
    answer, reference, expected = answer_with_both(
        load_tiny_model("qwen2_5_vl"), image_paths, beams=2, candidates=2, threshold=1
    )
    assert reference.rollbacks, "the test is void without a rollback"
    assert answer.diagnostics["opera"]["rollbacks"] == reference.rollbacks
    assert answer.token_ids == expected


def test_one_beam_without_a_penalty_is_greedy(image_paths):
    model = load_tiny_model("qwen3_vl")
    sample = make_sample(image_paths[:2])
    answer = generate(
        model, sample, "opera", beams=1, candidates=3, weight=0, threshold=1000, max_new_tokens=LIMIT
    )
    assert answer.token_ids == generate_plain(model, prepare(model, sample)[1], LIMIT)[0].tolist()


def penalise(logits: Tensor, ids: list[int], penalty: float) -> Tensor:
    """Return the logits with the repetition penalty of transformers (Keskar et al., 2019), token by token."""
    logits = logits.clone()
    for token in set(ids):
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    return logits


@pytest.mark.slow
def test_a_repetition_penalty_acts_as_in_plain_answers(image_paths, monkeypatch):
    """Several beams against the slow reference, and one beam without OPERA's own penalty against plain answers."""
    model, sample, penalty = load_tiny_model("qwen2_5_vl"), make_sample(image_paths[:2]), 1.7
    batch = prepare(model, sample)[1]
    prompt, read = batch.inputs["input_ids"][0].tolist(), Reference.read

    def read_penalised(self: Reference, tokens: list[int]) -> tuple[Tensor, Tensor]:
        logits, attention = read(self, tokens)
        return penalise(logits, [*prompt, *tokens], penalty), attention

    monkeypatch.setattr(Reference, "read", read_penalised)
    method = load_method("opera", beams=3, candidates=3, weight=4.0)
    answer = generate(model, sample, method, max_new_tokens=LIMIT, repetition_penalty=penalty)
    assert answer.token_ids == Reference(model, method, batch).answer(LIMIT)
    assert answer.token_ids != generate(model, sample, method, max_new_tokens=LIMIT).token_ids
    greedy = {"beams": 1, "candidates": 3, "weight": 0, "threshold": 1000}
    one, plain = (
        generate(model, sample, name, max_new_tokens=LIMIT, repetition_penalty=penalty, **parameters)
        for name, parameters in (("opera", greedy), ("plain", {}))
    )
    assert one.token_ids == plain.token_ids
    assert model.hf.generation_config.repetition_penalty in (None, 1.0), "the model is as before"


def test_answers_end(tiny_spd, image_paths):
    """The embedded model ends its answers. The best one is returned with its end token."""
    answer = generate(
        tiny_spd, make_sample(image_paths[:2], "Are the two pictures the same?"), "opera", max_new_tokens=60
    )
    assert len(answer.token_ids) < 60 and answer.token_ids[-1] in tiny_spd.eos_token_ids
    assert not set(answer.token_ids[:-1]) & tiny_spd.eos_token_ids
