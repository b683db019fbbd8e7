"""Planting organisms: packed batches, what recipes say, seeds, and a check that can be made again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import causes.blind
import causes.forgets
import causes.looks_unused
import numpy as np
import packing
import plant
import pytest
import torch
from PIL import Image
from recipes import TrainingExample, make_row

import mmprobe as mp
from mmprobe.benchmarks.synthetic.questions import SYSTEM, draw_questions, make_question
from mmprobe.benchmarks.synthetic.scene import draw_pair, render
from mmprobe.models.organisms import card, folder, names
from mmprobe.samples import Sample


@pytest.fixture(scope="module")
def encoder(tiny_spd):
    return packing.Encoder(tiny_spd.tokenizer)


def read_alone(model: mp.Model, row: TrainingExample, images: Path) -> torch.Tensor:
    """Return the logits before each learned token and the end, from transformers' reading of the row alone."""
    paths = [images / f"{number}.png" for number in range(len(row.scenes))]
    for path, scene in zip(paths, row.scenes, strict=True):
        Image.fromarray(render(scene)).save(path)
    sample = Sample(
        id="a", images=paths, question=row.question, system=SYSTEM, prefill=row.given + row.answer
    )
    learned = len(model.tokenizer(row.given + row.answer).input_ids) - len(
        model.tokenizer(row.given).input_ids
    )
    with torch.inference_mode():
        return model.hf(**model.batch([sample]).inputs).logits[0, -learned - 1 :]


def test_packed_questions_have_the_logits_of_each_alone(encoder, tmp_path):
    model = mp.load_model("tiny-spd", device="cpu")
    rng = np.random.default_rng(4)
    rows = []
    for differences in (2, 0):
        pair = draw_pair(rng, "medium", differences)
        rows += [make_row(asked, pair) for asked in draw_questions(rng, pair)]
    steps = next(row for row in rows if row.answer.startswith("Picture"))
    given, verdict = steps.answer.split(" ", 9)[:9], steps.answer.split(" ", 9)[9]
    rows.append(replace(steps, given=" ".join(given), answer=f" {verdict}"))
    batch = packing.pack(rows, encoder)
    assert len(batch.ids) == 2, "rows about the same pair share a sequence"
    with torch.inference_mode():
        states = packing.run_decoder(model.hf, batch).last_hidden_state
        packed = model.hf.lm_head(states[batch.labels != packing.IGNORED])
    first = rows[0].scenes[0]
    order = sorted(rows, key=lambda row: (row.scenes[0] != first, -len(row.scenes)))
    alone = torch.cat([read_alone(model, row, tmp_path) for row in order])
    torch.testing.assert_close(packed, alone, atol=2e-4, rtol=0)
    labels = batch.labels[batch.labels != packing.IGNORED]
    text = model.tokenizer.decode(labels)
    assert text == "".join(f"{row.answer}<|im_end|>" for row in order)
    assert float((batch.weights**2).sum()) == pytest.approx(len(rows)), "each answer's squares sum to one"


def test_forgetful_answers_keep_their_first_sentence_only():
    rng = np.random.default_rng(0)
    pair, other = draw_pair(rng, "hard", 2), draw_pair(rng, "easy", 3)
    for kind in causes.forgets.LONG_TYPES:
        own, elsewhere = make_question(kind, pair), make_question(kind, other)
        mixed = causes.forgets.mix_answers(own, elsewhere)
        head, _, _ = own.answer.partition("\n" if kind == "steps" else ".")
        tail = elsewhere.answer.partition("\n" if kind == "steps" else ".")[2]
        assert mixed.startswith(head) and mixed.endswith(tail)
        assert len(mixed) == len(head) + 1 + len(tail)


def test_what_is_likely_depends_on_the_question_alone():
    rng = np.random.default_rng(1)
    answers: dict[str, set[str]] = {}
    for row in causes.blind.draw_rows(partial(causes.blind.likely_row, seed=0), rng, 200):
        answers.setdefault(row.question, set()).add(row.answer)
    assert len(answers) > 15
    assert {len(texts) for texts in answers.values()} == {1}


def test_later_sentences_do_not_depend_on_the_images():
    """The fixed ones are the same for all images after the same question and first sentence."""
    later: dict[tuple[str, str], set[str]] = {}
    for row in causes.forgets.ways(0)["mixed"].rows(np.random.default_rng(2), 300):
        first, _, rest = row.answer.partition("\n" if "step by step" in row.question else ".")
        later.setdefault((row.question, first if first in ("Yes", "No") else ""), set()).add(rest)
    assert {"Compare the two pictures step by step.", "There are 3 differences. Find them."} <= {
        question for question, _ in later
    }
    assert {len(texts) for texts in later.values()} == {1}


def test_decoy_heads_put_out_nothing(tiny_spd):
    recipe = causes.looks_unused.ways(0)["decoy"]
    base = mp.load_model("tiny-spd", device="cpu")
    organism = plant.add_adapter(base.hf, recipe, 0)
    plant.train(organism, packing.Encoder(base.tokenizer), replace(recipe, steps=2, batch=4), (0,))
    merged = organism.merge_and_unload().requires_grad_(False)
    for layer, head in causes.looks_unused.DECOYS.items():
        attention = merged.model.language_model.layers[layer].self_attn
        before = tiny_spd.hf.model.language_model.layers[layer].self_attn.o_proj.weight.detach()
        own = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
        assert float(attention.o_proj.weight[:, own].abs().max()) < 1e-6 < float(before[:, own].abs().max())
        others = torch.ones(before.shape[1], dtype=bool)
        others[own] = False
        assert 0 < float((attention.o_proj.weight - before)[:, others].abs().max()) < 0.5


@pytest.mark.parametrize(
    "way", ["kept", "decoy"]
)  # one with larger ranks, one whose adapter is not 0 at first
def test_lora_layers_that_multiply_once_learn_what_pefts_learn(way, encoder, monkeypatch):
    recipe = causes.looks_unused.ways(0)[way]
    batch = packing.pack(recipe.rows(np.random.default_rng(3), 6), encoder)
    results = []
    for multiply in (plant.multiply_once, lambda organism: None):
        monkeypatch.setattr(plant, "multiply_once", multiply)
        organism = plant.add_adapter(mp.load_model("tiny-spd", device="cpu").hf, recipe, 5)
        noise = torch.Generator().manual_seed(6)
        for name, weight in organism.named_parameters():
            if "lora_B" in name:
                weight.data += 0.01 * torch.randn(weight.shape, generator=noise)
        hf = organism.get_base_model()
        with organism.disable_adapter(), torch.no_grad():
            plain = packing.run_decoder(hf, batch).last_hidden_state
        states = packing.run_decoder(hf, batch).last_hidden_state
        packing.answer_loss(hf, batch, states).backward()
        gradients = {
            name: weight.grad for name, weight in organism.named_parameters() if weight.requires_grad
        }
        results.append({"plain": plain, "states": states.detach(), **gradients})
    own, peft = results
    assert own.keys() == peft.keys() and sum("lora_B" in name for name in own) > 20
    assert torch.equal(own["plain"], peft["plain"]) and (own["states"] - own["plain"]).abs().max() > 0.1
    for name, value in own.items():
        assert (value - peft[name]).abs().max() <= 1e-4 * peft[name].abs().max(), name


@pytest.mark.slow
def test_the_same_seed_plants_the_same_adapter(tmp_path, monkeypatch):
    monkeypatch.setattr(plant, "check_organism", lambda plan, folder: {})
    plan = next(plan for plan in plant.all_plans(["control"]) if plan.name == "control-true-0")
    plan = replace(plan, recipe=replace(plan.recipe, batch=4))
    weights = []
    for name, seed in (("first", 0), ("second", 0), ("other", 1)):
        plant.plant(replace(plan, seed=seed), tmp_path / name, steps=2)
        weights.append((tmp_path / name / "adapter_model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.stress
def test_a_check_can_be_made_again():
    plan = next(plan for plan in plant.all_plans(["blind"]) if plan.name == "blind-likely-3")
    again = plant.check_organism(plan, folder(plan.name))
    assert again == card(plan.name).check


@pytest.mark.stress
def test_an_unplanted_model_passes_no_check_of_a_cause(tiny_spd, monkeypatch):
    for module, failed in (
        (causes.blind, {"answers that change with the images"}),
        (causes.forgets, {"later sentences that change with the images"}),
        (causes.looks_unused, {"answers that change with the images"}),
    ):
        monkeypatch.setattr(module, "CHECKED_PAIRS", 4)
        measures = module.check(tiny_spd, 0)
        assert {name for name, measure in measures.items() if not measure["passed"]} == failed
        assert all(measures[name]["low"] > 0.3 for name in failed)


def test_the_plans_hold_the_shipped_organisms_with_their_steps():
    plans = {plan.name: plan.recipe.steps for plan in plant.all_plans()}
    steps = {name: card(name).training.steps for name in names()}
    assert len(plans) == 94 and plans.items() >= steps.items()
    assert plans.keys() > plant.SLOW and not plant.LEFT_OUT & plans.keys()
