"""OPERA against a slow reference that reads everything anew for each candidate, without a cache."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from helpers.answering import attending, plain_tokens, read_whole, ready, sample_of, tiny
from torch import Tensor

import mmprobe.interventions.methods.opera as opera
from mmprobe.interventions import generate, load_method
from mmprobe.models import Model

LIMIT = 9


def by_hand(local: list[list[float]], scale: float) -> tuple[float, int]:
    products = []
    for column in range(len(local)):
        product = 1.0
        for row in range(column, len(local)):
            product *= scale * local[row][column]
        products.append(1e-7 * product)
    return max(products), products.index(max(products))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_penalty_is_the_largest_product_down_a_column(size):
    local = torch.rand(3, size, size, generator=torch.Generator().manual_seed(size))
    penalty, column = opera.column_penalty(local, 7.0)
    for index in range(3):
        wanted = by_hand(local[index].tolist(), 7.0)
        assert penalty[index].item() == pytest.approx(wanted[0], rel=1e-4) and column[index] == wanted[1]


def test_the_penalty_stays_a_number():
    assert math.isfinite(opera.column_penalty(torch.ones(1, 200, 200), 50.0)[0].item())
    assert opera.column_penalty(torch.zeros(1, 3, 3), 50.0)[0].item() == 0


class Reference:
    """The search as its definition reads, with lists; beams are (tokens, score)."""

    def __init__(self, model: Model, method: Any, batch: Any):
        self.model, self.method, self.batch = model, method, batch
        self.length = batch.inputs["input_ids"].shape[1]
        self.visual = batch.prompts[0].visual_positions
        self.rollbacks: list[list[int]] = []

    def read(self, tokens: list[int]) -> tuple[Tensor, Tensor]:
        """The next token's logits, and the last layer's normalised rows [query, key], maximum over heads."""
        rows = []

        def attend(
            layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
        ) -> Tensor:
            weights = (query @ key.transpose(2, 3) * scale + mask[..., : key.shape[2]]).softmax(-1)
            rows.append(weights[0].amax(0))
            return weights @ value

        with attending(self.model, attend):
            logits = read_whole(self.model, self.batch.inputs, torch.tensor([tokens], dtype=torch.long))[
                0, -1
            ]
        return logits, rows[-1] / rows[-1].sum(-1, keepdim=True)

    def answer(self, limit: int) -> list[int]:
        method, beams, step = self.method, [([], 0.0)], 0
        before: list[Any] = []
        chosen: list[set[Any]] = []
        columns: list[int] = []
        rejected: dict[int, set[Any]] = {}
        times: Counter[int] = Counter()
        while step < limit:
            found, places = [], []
            for number, (tokens, score) in enumerate(beams):
                logits = self.read(tokens)[0]
                for beam, token in rejected.get(step, set()):
                    if beam == number:
                        logits[token] = -math.inf
                values, ids = logits.topk(method.candidates)
                penalised = []
                for value, token in zip(values.tolist(), ids.tolist(), strict=True):
                    rows = self.read([*tokens, token])[1]
                    local = rows[self.length :, self.length :].tolist()
                    penalty, column = by_hand(local, method.scale)
                    places.append(column)
                    if step < opera.WARM_UP:
                        penalty = -float(rows[-1, self.visual].sum())
                    penalised.append(value - method.weight * penalty)
                for token, logprob in zip(
                    ids.tolist(), torch.tensor(penalised).log_softmax(0).tolist(), strict=True
                ):
                    found.append((score + logprob, number, token))
            before.append(beams)
            most = Counter(places)
            columns.append(min(place for place in most if most[place] == max(most.values())))
            target = None
            if columns[-1] >= opera.WARM_UP and columns.count(columns[-1]) > method.threshold:
                options = [
                    at for at in (columns[-1] + 1, columns[-1]) if at < step and times[at] < method.candidates
                ]
                target = options[0] if options else None
            if target is None:
                best = sorted(found, key=lambda each: -each[0])[: method.beams]
                chosen.append({(number, token) for _, number, token in best})
                beams = [([*beams[number][0], token], total) for total, number, token in best]
                step += 1
                continue
            self.rollbacks.append([step, target])
            times[target] += 1
            beams = before[target]
            rejected = {at: pairs for at, pairs in rejected.items() if at < target} | {
                target: rejected.get(target, set()) | chosen[target]
            }
            before, chosen, columns = before[:target], chosen[:target], columns[:target]
            step = target
        return max(beams, key=lambda each: each[1])[0]


def found_and_wanted(model: Model, pictures: Any, **parameters: Any) -> tuple[Any, Reference, list[int]]:
    method = load_method("opera", **parameters)
    sample = sample_of(pictures[:2])
    found = generate(model, sample, method, max_new_tokens=LIMIT)
    reference = Reference(model, method, ready(model, sample)[1])
    return found, reference, reference.answer(LIMIT)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava", "internvl", "gemma3"])
def test_it_equals_the_slow_reference(family, image_paths):
    """Gemma 3's last layer keeps the last 16 keys, fewer than its prompt has."""
    found, _, wanted = found_and_wanted(tiny(family), image_paths, beams=3, candidates=3, weight=4.0)
    assert found.token_ids == wanted
    assert found.diagnostics["opera"]["rollbacks"] == []


def test_it_goes_back_as_the_slow_reference_does(image_paths, monkeypatch):
    monkeypatch.setattr(opera, "WARM_UP", 1)
    found, reference, wanted = found_and_wanted(
        tiny("qwen2_5_vl"), image_paths, beams=2, candidates=2, threshold=1
    )
    assert reference.rollbacks, "the case is void: it never goes back"
    assert found.diagnostics["opera"]["rollbacks"] == reference.rollbacks
    assert found.token_ids == wanted


def test_one_beam_without_a_penalty_is_greedy(image_paths):
    model = tiny("qwen3_vl")
    sample = sample_of(image_paths[:2])
    found = generate(
        model, sample, "opera", beams=1, candidates=3, weight=0, threshold=1000, max_new_tokens=LIMIT
    )
    assert found.token_ids == plain_tokens(model, ready(model, sample)[1], LIMIT)[0].tolist()


def test_answers_end(tiny_spd, image_paths):
    """The embedded model ends its answers; the best one is kept, with its end."""
    found = generate(
        tiny_spd, sample_of(image_paths[:2], "Are the two pictures the same?"), "opera", max_new_tokens=60
    )
    assert len(found.token_ids) < 60 and found.token_ids[-1] in tiny_spd.eos_token_ids
    assert not set(found.token_ids[:-1]) & tiny_spd.eos_token_ids
