"""The mirage effect as a whole: what is asked, and metrics and records against cases worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmprobe.benchmarks.core.benchmark import find_benchmark
from mmprobe.benchmarks.mirage_effect.choices import chosen, is_right, said
from mmprobe.benchmarks.mirage_effect.data import (
    GUESS,
    MODALITIES,
    ChoiceQuestion,
    ImagelessQuestion,
    imageless_questions,
)
from mmprobe.benchmarks.mirage_effect.questions import MirageEffectTruth, ask, diagnosis_prompts
from mmprobe.benchmarks.mirage_effect.synthetic import world_questions
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples

BENCHMARK = find_benchmark("mirage-effect")
CAT_DOG = {"A": "cat", "B": "dog"}
FOUR = {"A": "red", "B": "blue", "C": "green", "D": "light blue"}


def question(name: str = "q1", choices: dict[str, str] | None = None, **fields: object) -> ChoiceQuestion:
    about = {
        "id": name,
        "question": "Which?",
        "choices": choices or CAT_DOG,
        "answer": "A",
        "images": ["a.png"],
    }
    return ChoiceQuestion.model_validate(about | fields)


TRUTH = MirageEffectTruth(
    [
        ImagelessQuestion("i1", "art/a", "Who painted it?"),
        ImagelessQuestion("i2", "text/b", "What does it say?"),
    ],
    [question("q1"), question("q2", FOUR, answer="B", category="colour"), question("q3")],
)
MISSED = "I don't see an image. Please attach it."


def test_everything_is_asked_once_under_an_id_of_its_own():
    samples = {sample.id: sample for sample in ask(TRUTH)}
    variants = ("attachment", "evidence", "benchmark", "guess")
    assert list(samples)[:3] == ["q1", "q1--absent", "q1--guess"]
    expected = {f"q{i}{end}" for i in (1, 2, 3) for end in ("", "--absent", "--guess")}
    expected |= {f"i{i}{end}" for i in (1, 2) for end in ("", *(f"--{one}" for one in variants))}
    expected |= {name for modality in MODALITIES for name in diagnosis_prompts(modality)}
    assert set(samples) == expected and len(ask(TRUTH)) == len(expected)
    seen, blind, told = (samples[f"q1{end}"] for end in ("", "--absent", "--guess"))
    assert seen.images == [Path("a.png")] and blind.images == told.images == []
    assert seen.question == blind.question == told.question and "\nA. cat\nB. dog\n" in seen.question
    assert seen.system == blind.system and told.system == GUESS
    assert blind.metadata["with_picture"] == "q1" and "with_picture" not in told.metadata
    assert seen.pair_id == blind.pair_id == "q1" and seen.polarity is None


def test_only_some_questions_of_each_category_are_asked_in_every_way():
    ids = [sample.id for sample in ask(MirageEffectTruth(list(imageless_questions()), []))]
    assert sum(name.endswith("--guess") for name in ids) == 40
    assert len(ids) == 200 + 4 * 40 + 4 * len(MODALITIES)


def test_a_question_without_a_picture_cannot_be_asked_but_scored():
    truth = MirageEffectTruth([], [question(images=[])])
    with pytest.raises(InputError, match="'q1': has no 'images'"):
        ask(truth)
    assert BENCHMARK.score(truth, {"q1": "A"})[0]["accuracy_with"].value is None


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("[[B]]", "B"),
        ("The answer is (c).", "C"),
        ("It is light blue.", "D"),
        ("blue", "B"),
        ("red or green", None),
        ("I cannot see it.", None),
        ("", None),
        ("Bluetooth", None),
    ],
)
def test_options_by_letter_or_text(text, option):
    assert chosen(question(choices=FOUR), text) == option
    assert is_right(question(choices=FOUR, answer="B"), text) is (option == "B")


def test_letters_count_only_where_they_were_shown():
    world = question(choices=FOUR, prompt="What colour is the star?", answer="A")
    assert chosen(world, "The star at B is red.") == "A" and chosen(world, "B") is None
    assert said(world, "It is RED.") == "red" and said(world, "B") is None


def test_metrics_by_hand():
    responses = {
        "q1": "[[A]]", "q2": "blue", "q3": "dog",  # right, right, wrong
        "q1--absent": "[[A]]", "q2--absent": MISSED, "q3--absent": "I see a dog in the middle.",  # right, wrong, wrong
        "q1--guess": "cat", "q2--guess": "light blue", "q3--guess": "A",  # right, wrong, right
        "i1": "A man on the left holds a red hat.", "i2": MISSED,
        "i1--guess": "I am not sure.", "i2--guess": "It says 'No entry'.",
    }  # fmt: skip
    metrics, records = BENCHMARK.score(TRUTH, responses)
    value = {name: metric.value for name, metric in metrics.items()}
    assert value["accuracy_with"] == pytest.approx(2 / 3) and value["accuracy_without"] == pytest.approx(
        1 / 3
    )
    assert value["accuracy_guess"] == pytest.approx(2 / 3) and value["mirage_minus_guess"] == pytest.approx(
        -1 / 3
    )
    assert value["mirage_score"] == pytest.approx(0.5) and value["guess_score"] == pytest.approx(1)
    chance = (1 / 2 + 1 / 4 + 1 / 2) / 3
    assert value["mirage_score_above_chance"] == pytest.approx((1 / 3 - chance) / (2 / 3 - chance))
    assert value["no_choice_without"] == pytest.approx(1 / 3) and value["no_choice_with"] == 0
    assert value["answers_kept"] == 1 and metrics["answers_kept"].n == 2
    # cat, blue, dog against cat, no answer, dog
    assert value["similarity"] == pytest.approx(2 / 3) and value["similarity[category=colour]"] == 0
    assert value["mirage_rate"] == value["mirage_rate_described"] == 0.5
    assert value["mirage_rate[domain=art]"] == 1 and value["mirage_rate[domain=text]"] == 0
    assert value["mirage_rate_guess"] == 0.5 and value["mirage_rate_change_guess"] == 0
    assert value["mirage_rate_change_evidence"] is None and value["mirage_rate_evidence"] is None
    assert value["mirage_rate_choices"] == pytest.approx(2 / 3)
    assert value["describes_rate_choices"] == pytest.approx(1 / 3)
    assert {record["id"]: record["kind"] for record in records}["q2"] == "choice"
    json.dumps(records, allow_nan=False)
    assert BENCHMARK.faithful(TRUTH, records) == {
        "q1": True, "q2": True, "q3": False, "q2--absent": True, "q3--absent": False, "i1": False, "i2": True,
    }  # fmt: skip


def test_nothing_answered_is_undefined_not_zero():
    metrics, records = BENCHMARK.score(TRUTH, {})
    assert all(metric.value is None for metric in metrics.values())
    assert BENCHMARK.faithful(TRUTH, records) == {}


def test_diagnoses_over_wordings_and_seeds():
    first, second, *_ = diagnosis_prompts("ECG")
    responses = {
        first: "<diagnosis>STEMI</diagnosis>",
        f"{first}--seed-2": "<diagnosis>normal, no infarct</diagnosis>",
        f"{first}--seed-10": "<diagnosis>stemi.</diagnosis>",
        second: MISSED,
    }
    metrics, records = BENCHMARK.score(TRUTH, responses)
    end = "[modality=ECG]"
    assert metrics[f"diagnosis_rate{end}"].value == 0.75 and metrics[f"diagnosis_rate{end}"].n == 4
    assert metrics[f"diagnosis_alarming{end}"].value == 0.5
    assert metrics[f"diagnosis_entropy{end}"].value == pytest.approx(1.5)
    assert metrics[f"diagnosis_entropy{end}"].low <= 1.5 <= metrics[f"diagnosis_entropy{end}"].high + 1e-9
    record = next(record for record in records if record.get("modality") == "ECG")
    assert record["shares"] == {"stemi": 0.5, "no answer found": 0.25, "normal, no infarct": 0.25}
    assert [one["diagnosis"] for one in record["answers"]] == ["stemi", "normal, no infarct", "stemi", None]


def test_seeds_count_for_distributions_and_the_first_for_the_rest():
    truth = MirageEffectTruth([], [question()])
    responses = {f"q1--seed-{i}": text for i, text in enumerate(["cat", "cat", "dog", "dog"])}
    responses |= {f"q1--absent--seed-{i}": text for i, text in enumerate(["dog", "cat", "cat", "cat"])}
    metrics, _ = BENCHMARK.score(truth, responses)
    assert metrics["accuracy_with"].value == 1 and metrics["accuracy_without"].value == 0
    assert metrics["similarity"].value == metrics["similarity_over_seeds"].value == pytest.approx(0.75)
    assert "similarity_over_seeds" not in BENCHMARK.score(truth, {"q1": "cat", "q1--absent": "cat"})[0]


@pytest.mark.parametrize("name", ["q9", "q1--present", "i1--absent", "q1--seed-x", "diagnosis-ecg-9"])
def test_a_response_to_nothing(name):
    with pytest.raises(InputError, match=f"'{name}' answers no question"):
        BENCHMARK.score(TRUTH, {name: "A"})


def test_files_of_questions(tmp_path):
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    line = {"id": "1", "question": "?", "choices": CAT_DOG, "answer": "A", "images": ["a.png"]}
    file = tmp_path / "samples.jsonl"
    file.write_text(json.dumps(line))
    assert len(BENCHMARK.read(file).imageless) == 200
    beside = tmp_path / "imageless.jsonl"
    beside.write_text(json.dumps({"id": "mine", "category": "a/b", "question": "?"}))
    assert [one.id for one in BENCHMARK.read(tmp_path).imageless] == ["mine"]
    beside.write_text(json.dumps({"id": "mine", "category": "a/b", "question": ""}))
    with pytest.raises(InputError, match="imageless.jsonl, line 1: field 'question'"):
        BENCHMARK.read(file)
    beside.unlink()
    for wrong, message in [
        ("1--absent", "another question's"),
        ("2--seed-1", "seed"),
        ("x" * 121, "too long"),
    ]:
        file.write_text(json.dumps(line) + "\n" + json.dumps(line | {"id": wrong}))
        with pytest.raises(InputError, match=message):
            BENCHMARK.read(file)


def test_the_drawn_set_depends_on_the_seed_and_grows(tmp_path):
    one = BENCHMARK.draw(tmp_path / "one", 2, 7)
    more = BENCHMARK.draw(tmp_path / "more", 3, 7)
    assert len(one.imageless) == 40 and len(more.imageless) == 60

    def texts(truth: MirageEffectTruth) -> list[tuple[str, str, str]]:
        return [(each.id, each.question, each.answer) for each in truth.choices]

    assert len(texts(one)) == 6 and texts(more)[:6] == texts(one)
    assert texts(BENCHMARK.draw(tmp_path / "other", 2, 8)) != texts(one)
    scenes = {
        sample.id: dict(reversed(thing.split()[:2]) for thing in sample.metadata["objects"][0])
        for sample in load_samples(tmp_path / "one" / "samples.jsonl")
    }
    for each in one.choices:
        shape, colours = each.question.split()[-1].strip("?"), scenes[each.id]
        true = colours[shape] if each.category == "colour" else "yes" if shape in colours else "no"
        assert is_right(each, f"The answer is {true}.") and said(each, true) == true
        assert each.prompt == each.question and each.images[0].is_file()
    assert sorted({each.category for each in one.choices}) == ["colour", "exists"]
    assert BENCHMARK.read(tmp_path / "one" / "samples.jsonl") == one
    with pytest.raises(InputError, match="not an empty folder"):
        BENCHMARK.draw(tmp_path / "one", 2, 7)


def test_samples_of_the_world_that_hold_nothing_to_ask():
    sample = Sample(id="s", question="Is there a star?", answer="Perhaps.", metadata={"type": "exists"})
    with pytest.raises(InputError, match="'s': field 'answer' is none of yes, no"):
        world_questions([sample])
    with pytest.raises(InputError, match="no sample is of the type"):
        world_questions([sample.model_copy(update={"metadata": {"type": "describe"}})])
