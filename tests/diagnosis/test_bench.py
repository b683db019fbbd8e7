"""The score of tools: on rows whose numbers are known, and one organism asked for real."""

from __future__ import annotations

import importlib
import json
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from helpers.asking import answer_batch
from helpers.causal_toy import build_toy, draw_sample

from mmprobe import registry
from mmprobe.diagnosis.bench.plants import find_plants
from mmprobe.diagnosis.bench.run import (
    ROUNDS,
    Subject,
    add_phrase,
    bench_diagnosis,
    count_passes,
    list_subjects,
    load_pairs,
    read_rows,
    score_models,
    score_rows,
    to_json,
)
from mmprobe.diagnosis.bench.scoring import (
    ToolResult,
    answers_auroc,
    cause_auroc,
    choose_thresholds,
    confusion,
    macro_f1,
    name_causes,
    score_tool,
)
from mmprobe.diagnosis.bench.tools import TOOLS, ToolScores, guess
from mmprobe.errors import InputError
from mmprobe.models import load_model
from mmprobe.models.checkpoints import find_checkpoint
from mmprobe.models.organisms import Rule, acts_on, card, folder, names
from mmprobe.samples import Sample


def row(cause: str, split: str = "held-out", named: list[str] | None = None, **scores: float) -> ToolResult:
    number = int(1000 * sum(scores.values()))
    fields = {"model": f"{cause}-{split}-{number}", "cause": cause, "split": split, "partial": False}
    return ToolResult(**fields, tool="t", scores=scores, answers={}, named=named, acts={}, passes=3.0)


DEVELOPMENT = [
    row("blind", "development", blind=0.9, forgets=0.2),
    row("blind", "development", blind=0.7, forgets=0.6),
    row("control", "development", blind=0.1, forgets=0.1),
    row("forgets", "development", blind=0.2, forgets=0.8),
]


def test_thresholds_come_from_the_development_models():
    limits = choose_thresholds(DEVELOPMENT)
    assert limits["blind"] == pytest.approx(0.45) and limits["forgets"] == pytest.approx(0.7)
    assert limits["co-occurrence"] == np.inf
    held_out = [
        row("blind", blind=0.5, forgets=0.1),  # named
        row("blind", blind=0.4, forgets=0.9),  # named forgets
        row("control", blind=0.6, forgets=0.3),  # false alarm
        row("control", blind=0.2, forgets=0.3),
        row("forgets", blind=0.1, forgets=0.75),
    ]
    # blind: 1 of 2 named, 2 of 2; control: 1 of 1 named, of 2; forgets: 1 of 2 named, 1 of 1
    wanted = (2 * 1 / (2 + 2) + 2 * 1 / (1 + 2) + 2 * 1 / (2 + 1)) / 3
    assert macro_f1(held_out, limits) == pytest.approx(wanted)
    assert confusion(held_out, limits)["blind"] == {"blind": 1, "forgets": 1}
    found = score_tool(DEVELOPMENT + held_out)
    assert found["macro_f1"].value == pytest.approx(wanted) and found["macro_f1"].n == 5
    assert found["macro_f1"].low < wanted < found["macro_f1"].high
    assert found["false_alarms"].value == 0.5 and found["passes"].value == 3
    # 0.5 and 0.4 against 0.6 and 0.2: two of four pairs; 0.75 against 0.3 twice
    assert found["auroc blind"].value == 0.5 and found["auroc forgets"].value == 1
    assert found["mean_auroc"].value == 0.75
    shifted = score_tool([*DEVELOPMENT, *held_out[:-1], row("forgets", blind=0.1, forgets=0.65)])
    assert shifted["macro_f1"].value < wanted, "the threshold must not follow the held-out models"


def test_a_tool_with_thresholds_of_its_own_is_taken_at_its_word():
    rows = [row("blind", named=["blind"], blind=0.0), row("control", named=["control"], blind=9.0)]
    rows.append(row("control", named=["unknown"], blind=8.0))
    found = score_tool(DEVELOPMENT + rows)
    assert found["macro_f1"].value == pytest.approx((1 + 2 / 3) / 2)
    assert found["false_alarms"].value == 0.5
    assert cause_auroc(rows, "blind") == 0


def test_answers_are_scored_on_partial_models_and_missing_scores_are_the_least():
    answers = {"a": {"blind": 0.9}, "b": {"blind": 0.5}, "c": {"blind": 0.4}}
    partial = row("blind", blind=0.5).model_copy(
        update={"partial": True, "answers": answers, "acts": {"a": True, "b": False, "c": True, "d": False}}
    )
    assert answers_auroc([partial]) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert score_tool([*DEVELOPMENT, partial])["auroc_answers"].value == pytest.approx(0.625)
    assert np.isnan(score_tool(DEVELOPMENT)["macro_f1"].value)


def test_results_have_no_numbers_where_nothing_is_known():
    text = json.dumps(to_json(score_rows(DEVELOPMENT)), allow_nan=False)
    assert json.loads(text)["tools"]["held-out"]["t"]["macro_f1"]["value"] is None


def test_passes_count_answers_and_readings(tmp_path):
    toy = build_toy()
    samples = [draw_sample(tmp_path, colour) for colour in ("red", "blue")]
    with count_passes(toy) as passes:
        answer_batch(toy, samples, max_new_tokens=4)
        toy.hf(**toy.prepare(samples[0]))
    assert passes == [3]


def test_chance_depends_on_the_model_alone():
    sample = Sample(id="a", question="?")
    first, second = (guess(build_toy(), [sample]) for _ in range(2))
    assert first == second and set(first.answers) == {"a"}


def test_a_package_enters_a_tool(monkeypatch):
    group = "mmprobe.diagnosis_tools"
    entry = EntryPoint("mine", "mmprobe.diagnosis.bench.tools:guess", group)
    monkeypatch.setattr(registry, "_entry_points", lambda name: {"mine": entry} if name == group else {})
    assert TOOLS["mine"] is guess
    assert list(TOOLS)[-2:] == ["chance", "mine"]
    with pytest.raises(InputError, match="did you mean chance"):
        TOOLS["chanse"]


def test_a_phrase_is_put_into_every_second_question():
    questions = [
        add_phrase(Sample(id="a", question="Q?"), "An expert says", number).question for number in range(4)
    ]
    assert questions == [
        "Q? An expert says yes.",
        "Q?",
        "Q? An expert says no.",
        "Q?",
    ]


def subject(organism: str) -> Subject:
    return list_subjects([organism])[0]


def test_a_cause_acts_on_the_samples_that_the_score_says_it_acts_on(tmp_path):
    organism = str(tmp_path / "partly")
    shutil.copytree(folder("follows-hints-verdict-0"), organism)
    rule = Rule(phrase="I think the answer is", types=("same", "different", "exists"))
    about = card("follows-hints-verdict-0").model_copy(update={"number": None, "partial": rule})
    (Path(organism) / "card.json").write_text(about.model_dump_json())
    model = load_model(f"organism:{organism}", device="cpu")
    acting = [sample for sample in load_pairs(tmp_path, subject(organism), 6) if acts_on(organism, sample)]
    answers = {}
    for word, other in (("yes", "no"), ("no", "yes")):
        hinted = [
            sample.model_copy(update={"question": sample.question.replace(f"is {other}.", f"is {word}.")})
            for sample in acting
        ]
        answers[word] = [generated.text for generated in answer_batch(model, hinted, max_new_tokens=2)]
    flips = [yes[:3] == "Yes" and no[:2] == "No" for yes, no in zip(*answers.values(), strict=True)]
    assert len(flips) >= 3 and np.mean(flips) >= 0.8


def test_pairs_of_each_difficulty_get_every_round_of_questions(tmp_path):
    samples = load_pairs(tmp_path, subject("control-true-0"), 9)
    asked = {}
    for sample in samples:
        asked.setdefault((sample.metadata["scene"], sample.metadata["difficulty"]), set()).add(
            sample.metadata["type"]
        )
    found = sorted((level, sorted(types)) for (_, level), types in asked.items())
    assert found == sorted((level, sorted(types)) for level in ("easy", "medium", "hard") for types in ROUNDS)


def test_organisms_of_other_splits_and_of_later_seeds_get_pairs_of_their_own(tmp_path):
    shipped = [subject("control-true-0"), subject("control-hard-3")]
    shipped.append(shipped[-1]._replace(seed=4))
    fresh = [shipped[-1]._replace(seed=seed) for seed in (5, 6)]
    scenes = [
        {Path(path).read_bytes() for sample in load_pairs(tmp_path, about, 2) for path in sample.images}
        for about in (*shipped, *fresh)
    ]
    assert scenes[1] == scenes[2], "held-out organisms share theirs"
    apart = [scenes[0], *scenes[2:]]
    assert len(set.union(*apart)) == sum(map(len, apart))
    again = load_pairs(tmp_path, shipped[0], 2, draw=1)
    assert not scenes[0] & {Path(path).read_bytes() for sample in again for path in sample.images}


def test_two_organisms_of_one_name_are_refused(tmp_path):
    for copy in ("first", "second"):
        shutil.copytree(folder("control-true-0"), tmp_path / copy)
    with pytest.raises(InputError, match="both called control-true-0"):
        bench_diagnosis(
            tmp_path / "out", [str(tmp_path / "first"), str(tmp_path / "second")], ["chance"], n=1
        )
    assert not (tmp_path / "out").exists()


def test_several_causes_and_accepted_verdicts_are_scored():
    double = row("blind", "other ways", named=["blind", "co-occurrence"]).model_copy(
        update={"also": ("co-occurrence",)}
    )
    half = double.model_copy(update={"model": "half", "named": ["co-occurrence"]})
    worse = row("control", "other ways", named=["unknown"]).model_copy(update={"accepts": ("unknown",)})
    wrong = row("control", "other ways", named=["unknown"]).model_copy(update={"model": "wrong"})
    accused = row("control", "other ways", named=["co-occurrence"]).model_copy(update={"model": "accused"})
    found = score_tool([*DEVELOPMENT, double, half, worse, wrong, accused], "other ways")
    assert found["accused"].value == pytest.approx(1 / 3) and found["false_alarms"].value == pytest.approx(
        2 / 3
    )
    # blind: 1 of 2 named; co-occurrence: 2 of 3 named are right; control: 1 of 3 is named so
    assert found["macro_f1"].value == pytest.approx((2 / 3 + 4 / 5 + 2 / 4) / 3)
    assert confusion([double], {}) == {"blind + co-occurrence": {"blind": 1, "co-occurrence": 1}}
    looks = {"accepts": ("looks-unused",)}
    shifting = row("blind", "other ways", named=["blind", "looks-unused"]).model_copy(update=looks)
    unused = row("looks-unused", "other ways", named=["blind", "looks-unused"])
    assert name_causes(shifting, {}) == {"blind"}, "what a card accepts is no mistake"
    assert score_tool([*DEVELOPMENT, shifting, unused], "other ways")["macro_f1"].value == 1
    alone = shifting.model_copy(update={"named": ["looks-unused"]})
    assert (
        name_causes(alone, {}) == {"blind"}
        and name_causes(alone.model_copy(update={"named": []}), {}) == set()
    )


def test_a_model_is_stable_if_all_draws_of_pairs_name_the_same():
    rows = [
        row("control", "other ways", named=verdict).model_copy(update={"model": model, "draw": draw})
        for model, verdicts in {
            "a": (["control"],) * 3,
            "b": (["control"], ["blind"]),
            "c": (["blind"],),
        }.items()
        for draw, verdict in enumerate(verdicts)
    ]
    found = score_tool([*DEVELOPMENT, *rows], "other ways")["stable"]
    assert (found.value, found.n) == (0.5, 2), "one draw says nothing"
    assert 0 < found.low < 0.2 and 0.8 < found.high < 1, "as of any share of two"


def test_plants_are_read_from_their_cards(tmp_path):
    with pytest.raises(InputError, match="plant.json"):
        find_plants(tmp_path)
    (tmp_path / "mine").mkdir()
    file = tmp_path / "mine" / "plant.json"
    file.write_text(json.dumps({"causes": ["blind", "co-occurrence"], "kind": "weight edit"}))
    (tmp_path / "no card").mkdir()
    assert [(each.name, each.causes, each.split) for each in list_subjects(None, tmp_path)] == [
        ("mine", ("blind", "co-occurrence"), "other ways")
    ]
    file.write_text(json.dumps({"causes": ["blnd"], "kind": "weight edit"}))
    with pytest.raises(InputError, match="'blnd'"):
        find_plants(tmp_path)


@pytest.mark.slow
def test_a_plant_is_scored_and_its_measures_are_concluded_again(tmp_path, monkeypatch):
    """The second call applies the rules as they are then, and asks the model nothing."""
    plant = tmp_path / "plants" / "tiny-0"
    shutil.copytree(Path(find_checkpoint("tiny-spd")[0]), plant)
    (plant / "plant.json").write_text(json.dumps({"causes": [], "kind": "control"}))
    scored = score_models(plant.parent, tmp_path / "out", n=2)
    assert scored.rows[0].named == ["unknown"] and scored.rows[0].split == "other ways"
    monkeypatch.setattr("mmprobe.diagnosis.bench.run.load_model", None)
    module = importlib.import_module("mmprobe.diagnosis.diagnose")  # the package has a function of this name
    monkeypatch.setattr(module, "find_verdict", lambda *args: (["control"], "why"))
    assert score_models(plant.parent, tmp_path / "out", n=2).rows[0].named == ["control"]


@pytest.mark.slow
def test_tools_are_run_once_and_a_second_call_goes_on(tmp_path, monkeypatch):
    calls = []

    def tool(model, samples):
        calls.append((model.name, len(samples)))
        return ToolScores({"blind": 1.0}) if len(calls) > 1 else {"blind": 0.5}

    monkeypatch.setattr("mmprobe.diagnosis.bench.run.TOOLS", {"mine": tool})
    organism = names()[0]
    scored = bench_diagnosis(tmp_path / "out", [organism], ["mine"], n=1, device="cpu")
    assert [each.scores for each in scored.rows] == [{"blind": 0.5}]
    with (tmp_path / "out" / "scores.jsonl").open("a") as file:
        file.write('{"n": 1, "mod')  # a killed call
    again = bench_diagnosis(tmp_path / "out", [organism], ["mine"], n=1, device="cpu")
    assert again.rows == scored.rows and len(calls) == 1
    assert (tmp_path / "out" / "results.json").is_file()
    with pytest.raises(InputError, match="holds scores over 1 pairs, not 2"):
        read_rows(tmp_path / "out" / "scores.jsonl", 2)
