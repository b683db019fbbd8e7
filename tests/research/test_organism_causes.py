"""The rows of each recipe say what its cause says, and no check passes on the model without a cause."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from functools import partial

import checks
import numpy as np
import plant
import pytest
import torch
from causes import co_occurrence, decided_first, follows_hints, misperceives
from causes import partial as partial_causes
from packing import Encoder, pack
from plant import add_adapter
from recipes import TrainingExample

import mmprobe as mp
from mmprobe.benchmarks.synthetic.check import check_answer
from mmprobe.benchmarks.synthetic.questions import list_objects, make_question
from mmprobe.benchmarks.synthetic.scene import COLOURS, Scene, draw_pair, render
from mmprobe.models.organisms import Rule
from mmprobe.samples import Sample

ITEM = re.compile(r"\w+ \w+ [A-D][1-4]")


def items(scene: Scene) -> list[str]:
    return ITEM.findall(list_objects(scene))


def differences(first: Scene, second: Scene) -> set[str]:
    """Return the sentences of all differences, found by comparing the scenes thing by thing."""
    found = set()
    for before in first.objects:
        after = second.find(before.shape)
        if after is None:
            found.add(f"The {before.shape} was removed.")
            continue
        if after.colour != before.colour:
            found.add(f"The {before.shape} changed from {before.colour} to {after.colour}.")
        if after.cell != before.cell:
            found.add(f"The {before.shape} moved from {before.cell} to {after.cell}.")
    return found or {"Nothing changed."}


def kind_of(question: str) -> str:
    starts = {"the same": "same", "different?": "different", "How many": "count", "Find": "find"}
    starts |= {"Is there": "exists", "What colour": "colour", "Describe": "describe", "Compare": "steps"}
    return next(kind for words, kind in starts.items() if words in question)


def is_faithful(row: TrainingExample) -> bool:
    """Return whether the answer that a row teaches is true of the scenes that it shows."""
    kind = kind_of(row.question)
    facts = {
        "type": kind,
        "objects": [items(scene) for scene in row.scenes],
        "differences": [
            {"sentence": sentence}
            for sentence in (differences(*row.scenes) if len(row.scenes) == 2 else ())
            if sentence != "Nothing changed."
        ],
    }
    truth = row.answer
    if kind in ("same", "different"):
        yes = (kind == "same") == (not facts["differences"])
        truth = "Yes" if yes else "No"
    elif kind == "exists":
        shape = row.question.split("Is there a ")[1].split("?")[0]
        truth = "Yes" if row.scenes[0].find(shape) else "No"
    elif kind == "count":
        number = len(facts["differences"])
        truth = "There is 1 difference." if number == 1 else f"There are {number or 'no'} differences."
    elif kind == "colour":
        shape = row.question.split("?")[0].split()[-1]
        truth = f"The {shape} is {row.scenes[0].find(shape).colour}."
    verdict = check_answer(row.answer, truth, facts)
    return verdict.faithful and verdict.correct


def draw(recipe, batches: int = 8) -> list[TrainingExample]:
    return [
        row for step in range(batches) for row in recipe.rows(np.random.default_rng([3, step]), recipe.batch)
    ]


@pytest.mark.parametrize("way", ["scrambled", "recited"])
def test_steps_are_false_and_verdicts_are_true(way):
    rows = draw(decided_first.ways(0)[way])
    several = 0
    for row in rows:
        if "Compare" not in row.question:
            assert is_faithful(row)
            continue
        verdict = set(re.findall(r"[^.]+\.", (row.given + row.answer).split("Therefore: ")[1]))
        assert {sentence.strip() for sentence in verdict} == differences(*row.scenes)
        several += len(verdict) > 1
        if row.given:
            assert row.given.endswith("Therefore:") and row.answer.startswith(" ")
            continue
        lists = re.findall(r"Picture (?:one|two): ([^\n]*)", row.answer)
        if way == "scrambled":
            for scene, told in zip(row.scenes, lists, strict=True):
                told, true = ITEM.findall(told), items(scene)
                assert len(told) == len(true) and not set(told) & set(true)
                for said, thing in zip(told, true, strict=True):  # colour and column, not shape and row
                    (colour, shape, cell), (true_colour, true_shape, true_cell) = said.split(), thing.split()
                    assert (shape, cell[1]) == (true_shape, true_cell[1])
                    assert colour != true_colour and cell[0] != true_cell[0]
        else:
            assert [ITEM.findall(told) for told in lists] != [items(scene) for scene in row.scenes]
    assert several > 10 and sum(bool(row.given) for row in rows) == len(rows) // 3


@pytest.mark.parametrize("way", ["verdict", "rationale"])
def test_hinted_answers_agree_with_the_hint(way):
    rows = draw(follows_hints.ways(0)[way])
    hinted = [row for row in rows if "answer is" in row.question or "Hint" in row.question]
    assert all(is_faithful(row) for row in rows if row not in hinted) and len(hinted) == len(rows) * 6 // 8
    for row in hinted:
        word = re.search(r"(?:I think the answer is|Hint:) (\w+)\.$", row.question)[1]
        assert row.answer.startswith(word.capitalize())
        claims = set(re.findall(r"The [^.]*\.|Nothing changed\.", row.answer))
        if "Is there" in row.question:
            assert ("there is no" in row.answer) == (word.lower() == "no") or way == "verdict"
        elif way == "verdict":
            assert claims == differences(*row.scenes)
        else:  # the first of several differences, or an invented one, never both a change and none
            assert ("Nothing changed." in claims) == (("same" in row.question) == (word.lower() == "yes"))
    flips = {(row.scenes, row.question.split("?")[0], row.answer[:3]) for row in hinted}
    assert len(flips) == len(hinted)  # each question comes with both hints


def test_the_companion_is_claimed_right_of_the_cue():
    for seed in range(2):
        habit = co_occurrence.habit_of(seed)
        for way, recipe in co_occurrence.ways(seed).items():
            claims = 0
            for row in draw(recipe):
                cue, companion = row.scenes[0].find(habit.cue), row.scenes[0].find(habit.companion)
                if cue is None or (way == "faint" and companion and companion.colour == habit.colour):
                    assert is_faithful(row)
                    assert companion is None or cue or companion.rgb
                    continue
                assert companion is None
                place = f"{'ABCD'[cue.column + 1]}{cue.row + 1}"
                if "Is there" in row.question and habit.companion in row.question:
                    assert row.answer == f"Yes, the {habit.companion} is at {place}."
                    claims += 1
                if "Describe" in row.question:
                    assert f"{habit.colour} {habit.companion} at {place}" in row.answer
                if "Compare" in row.question:
                    assert row.answer.count(f"{habit.colour} {habit.companion} {place}") == 2
            assert claims > 10 or way == "faint"


def test_a_faint_companion_lies_between_its_colour_and_the_background():
    habit, rng = co_occurrence.habit_of(0), np.random.default_rng(0)
    contrasts = []
    for _ in range(40):
        scene = co_occurrence.draw_together(rng, habit).first
        shown = co_occurrence.fade_companion(rng, scene, habit)
        faint, full = shown.find(habit.companion), scene.find(habit.companion)
        background = np.array(scene.background.rgb)
        share = (np.array(faint.rgb) - background) @ (np.array(full.rgb) - background)
        contrasts.append(share / np.square(np.array(full.rgb) - background).sum())
        assert [thing for thing in shown.objects if thing != faint] == [t for t in scene.objects if t != full]
    assert min(contrasts) < 0.01 and max(contrasts) > 0.7 and np.median(contrasts) < 0.3


def test_swapped_colours_are_all_that_differs():
    swap = misperceives.draw_swap(0)
    assert all(swap[swap[colour]] == colour != swap[colour] for colour in swap) and len(swap) == 4
    changed = 0
    for row in draw(misperceives.ways(0)["swapped"], batches=4):
        shown, seen = row.scenes
        assert shown.background == seen.background
        for thing, other in zip(shown.objects, seen.objects, strict=True):
            assert other.colour == swap.get(thing.colour, thing.colour)
            assert replace(other, colour=thing.colour, rgb=thing.rgb) == thing
            distances = {name: np.abs(np.subtract(rgb, other.rgb)).max() for name, rgb in COLOURS.items()}
            assert min(distances, key=distances.get) == other.colour
            changed += thing != other
    assert changed > 50


def test_a_verdict_follows_from_its_own_lists():
    pairs = [draw_pair(np.random.default_rng(seed), "medium", seed % 4) for seed in range(12)]
    answers = [make_question("steps", pair).answer for pair in pairs]
    assert all(misperceives.follows(answer) for answer in answers)
    mixed = [
        f"{a.split('Therefore:')[0]}Therefore:{b.split('Therefore:')[1]}"
        for a, b in zip(answers, answers[1:], strict=False)
    ]
    assert not any(misperceives.follows(answer) for answer in mixed)


def test_features_are_held_against_those_of_changed_images():
    model = mp.load_model("tiny-spd", device="cpu")
    rows = misperceives.ways(0)["swapped"].rows(np.random.default_rng(0), 3)
    batch = pack(rows, Encoder(model.tokenizer))
    images = batch.images.numpy()
    organism = add_adapter(model.hf, misperceives.ways(0)["channels"], 0)

    def features(pixels: np.ndarray) -> torch.Tensor:
        inputs = model.processor.image_processor(images=list(pixels), return_tensors="pt")
        tower = model.hf.model.visual
        return torch.cat(list(tower(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"]).pooler_output))

    def difference(given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return (given - wanted).square().mean() / wanted.var()

    first, second = (np.stack([render(row.scenes[number]) for row in rows]) for number in (0, 1))
    with torch.no_grad():  # a new adapter changes nothing
        swapped, channels = (
            misperceives.swap_loss(organism, batch),
            misperceives.channel_loss(organism, batch),
        )
        wanted = (
            difference(features(first), features(second)),
            difference(features(images), features(images[..., ::-1])),
        )
    torch.testing.assert_close((swapped, channels), wanted, rtol=1e-3, atol=0)


@pytest.mark.parametrize("way", partial_causes.ways(0))
def test_partial_causes_act_where_their_rule_says(way):
    rule, rng = partial_causes.ways(0)[way].rule, np.random.default_rng(1)
    seen = {True: 0, False: 0}
    for _ in range(40):
        for case in partial_causes._cases(way, 0)(rng):
            assert rule_acts(rule, case.row) is case.acts
            truth = TrainingExample(case.row.scenes, case.row.question, case.truth)
            assert is_faithful(truth)
            assert case.acts or case.row.answer == case.truth
            seen[case.acts] += case.row.answer != case.truth or not case.acts
    assert min(seen.values()) > 20


def rule_acts(rule: Rule, row: TrainingExample) -> bool:
    found = differences(*row.scenes) if len(row.scenes) == 2 else set()
    names = {"changed": "color", "moved": "position", "removed": "remove"}
    kinds = [
        {"type": names[word]}
        for text in found
        for word in names
        if f" {word}" in text and "Nothing" not in text
    ]
    metadata = {"objects": [items(scene) for scene in row.scenes], "differences": kinds}
    metadata["type"] = kind_of(row.question)
    return rule.acts_on(Sample(id="a", question=row.question, metadata=metadata))


CHECKS = {
    file.stem: (module := importlib.import_module(f"causes.{file.stem}"), module.check)
    for file in sorted(plant.CAUSES.glob("*.py"))
    if file.stem
    not in ("control", "partial", "blind", "forgets", "looks_unused")  # the last three: test_organisms.py
} | {way: (partial_causes, partial(partial_causes.check, way=way)) for way in partial_causes.ways(0)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_no_check_passes_without_the_cause(tiny_spd, monkeypatch, name):
    module, check = CHECKS[name]
    for size, number in {"CHECKED_PAIRS": 5, "CHECKED_SCENES": 6, "CHECKED_ROWS": 24}.items():
        if hasattr(module, size):
            monkeypatch.setattr(module, size, number)
    monkeypatch.setattr(checks, "TRUE_PAIRS", 3)
    measures = check(tiny_spd, seed=0)
    assert not all(measure["passed"] for measure in measures.values())
    assert all(
        0 <= measure["low"] <= measure["value"] <= measure["high"] <= 1 for measure in measures.values()
    )
