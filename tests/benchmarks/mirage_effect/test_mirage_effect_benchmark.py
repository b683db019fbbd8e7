"""The mirage effect: samples, and metrics and records compared with hand-computed cases."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.core.prompts import default_prompts
from mmprobe.benchmarks.mirage_effect.benchmark import MirageEffect
from mmprobe.benchmarks.mirage_effect.data import (
    ChoiceQuestion,
    ImagelessQuestion,
    MirageEffectTruth,
    imageless_questions,
)
from mmprobe.benchmarks.mirage_effect.prompts import MODALITIES, MirageEffectPrompts
from mmprobe.benchmarks.mirage_effect.rule_labels import find_option, is_correct, normalize_answer
from mmprobe.benchmarks.mirage_effect.samples import diagnosis_prompts
from mmprobe.benchmarks.mirage_effect.synthetic import synthetic_questions
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples

BENCHMARK = BENCHMARKS["mirage-effect"]()
CAT_DOG = {"A": "cat", "B": "dog"}
FOUR = {"A": "red", "B": "blue", "C": "green", "D": "light blue"}


def question(name: str = "q1", choices: dict[str, str] | None = None, **fields: object) -> ChoiceQuestion:
    line = {
        "id": name,
        "question": "Which?",
        "choices": choices or CAT_DOG,
        "answer": "A",
        "images": ["a.png"],
    }
    return ChoiceQuestion.model_validate(line | fields)


TRUTH = MirageEffectTruth(
    [
        ImagelessQuestion("i1", "art/a", "Who painted it?"),
        ImagelessQuestion("i2", "text/b", "What does it say?"),
    ],
    [question("q1"), question("q2", FOUR, answer="B", category="colour"), question("q3")],
)
MISSED = "I don't see an image. Please attach it."


def test_every_sample_has_its_own_id():
    samples = {sample.id: sample for sample in MirageEffect().ask(TRUTH)}
    variants = ("attachment", "evidence", "benchmark", "guess")
    assert list(samples)[:3] == ["q1", "q1--absent", "q1--guess"]
    expected = {f"q{i}{suffix}" for i in (1, 2, 3) for suffix in ("", "--absent", "--guess")}
    expected |= {
        f"i{i}{suffix}" for i in (1, 2) for suffix in ("", *(f"--{variant}" for variant in variants))
    }
    expected |= {name for modality in MODALITIES for name in diagnosis_prompts(modality)}
    assert set(samples) == expected and len(MirageEffect().ask(TRUTH)) == len(expected)
    present, absent, guess = (samples[f"q1{suffix}"] for suffix in ("", "--absent", "--guess"))
    assert present.images == [Path("a.png")] and absent.images == guess.images == []
    assert present.question == absent.question == guess.question and "\nA. cat\nB. dog\n" in present.question
    assert present.system == absent.system and guess.system == default_prompts(MirageEffectPrompts).guess
    assert absent.metadata["with_picture"] == "q1" and "with_picture" not in guess.metadata
    assert present.pair_id == absent.pair_id == "q1" and present.polarity is None


def test_some_questions_of_each_category_are_asked_in_every_variant():
    ids = [sample.id for sample in MirageEffect().ask(MirageEffectTruth(list(imageless_questions()), []))]
    assert sum(name.endswith("--guess") for name in ids) == 40
    assert len(ids) == 200 + 4 * 40 + 4 * len(MODALITIES)


def test_a_question_without_an_image_can_be_scored_but_not_asked():
    truth = MirageEffectTruth([], [question(images=[])])
    with pytest.raises(InputError, match="'q1': has no 'images'"):
        MirageEffect().ask(truth)
    assert BENCHMARK.score(truth, {"q1": "A"})[0]["accuracy_with"].value is None


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("[[B]]", "B"),
        ("The answer is (c).", "C"),
        ("Light blue.", "D"),
        ("blue", "B"),
        ("B is red.", None),
        ("It is light blue.", "D"),
        ("The answer is not C.", None),
        ("B is correct; A, C and D are wrong.", "B"),
        ("red or green", None),
        ("Bluetooth", None),
    ],
)
def test_options_by_letter_or_text(text, option):
    assert find_option(question(choices=FOUR), text) == option
    right = None if option is None else option == "B"
    assert is_correct(question(choices=FOUR, answer="B"), text) is right


@pytest.mark.parametrize("text", ["I cannot see it.", "", "There is no image attached, so I cannot answer."])
def test_a_refusal_is_never_right(text):
    no = question(choices={"A": "yes", "B": "no"}, answer="B")
    assert find_option(no, text) is None and is_correct(no, text) is False


def test_letters_count_only_if_the_model_saw_them():
    synthetic = question(choices=FOUR, prompt="What colour is the star?", answer="A")
    assert find_option(synthetic, "The star is red.") == "A" and find_option(synthetic, "B") is None
    assert normalize_answer(synthetic, "RED.") == "red" and normalize_answer(synthetic, "B") is None


def test_metrics_by_hand():
    responses = {
        "q1": "[[A]]", "q2": "blue", "q3": "dog",  # right, right, wrong
        "q1--absent": "[[A]]", "q2--absent": MISSED, "q3--absent": "There is a dog in the middle. [[dog]]",  # right, wrong, wrong
        "q1--guess": "cat", "q2--guess": "light blue", "q3--guess": "A",  # right, wrong, right
        "i1": "There is a man on the left with a red hat.", "i2": MISSED,
        "i1--guess": "I am not sure.", "i2--guess": "The sign says OPEN.",
    }  # fmt: skip
    metrics, records = BENCHMARK.score(TRUTH, responses)
    values = {name: metric.value for name, metric in metrics.items()}
    assert values["accuracy_with"] == pytest.approx(2 / 3) and values["accuracy_without"] == pytest.approx(
        1 / 3
    )
    assert values["accuracy_guess"] == pytest.approx(2 / 3) and values["mirage_minus_guess"] == pytest.approx(
        -1 / 3
    )
    # figure 4: q1 and q3, without a category, are guessed rightly, q2 wrongly; without an image q3 was wrong
    by_category = [values[f"accuracy_guess[category={each}]"] for each in ("", "colour")]
    assert by_category == [1.0, 0.0] and values["mirage_minus_guess[category=]"] == pytest.approx(-0.5)
    assert values["mirage_score"] == pytest.approx(0.5) and values["guess_score"] == pytest.approx(1)
    chance = (1 / 2 + 1 / 4 + 1 / 2) / 3
    assert values["mirage_score_above_chance"] == pytest.approx((1 / 3 - chance) / (2 / 3 - chance))
    assert values["no_choice_without"] == pytest.approx(1 / 3) and values["no_choice_with"] == 0
    assert values["answers_kept"] == 1 and metrics["answers_kept"].n == 2
    # cat, blue, dog against cat, no answer, dog
    assert values["similarity"] == pytest.approx(2 / 3) and values["similarity[category=colour]"] == 0
    assert values["mirage_rate"] == values["mirage_rate_described"] == 0.5
    assert values["mirage_rate[domain=art]"] == 1 and values["mirage_rate[domain=text]"] == 0
    assert values["mirage_rate_guess"] == 0.5 and values["mirage_rate_change_guess"] == 0
    assert values["mirage_rate_change_evidence"] is None and values["mirage_rate_evidence"] is None
    assert values["mirage_rate_choices"] == pytest.approx(2 / 3)
    assert values["describes_rate_choices"] == 0.5  # of q2 and q3; "[[A]]" alone tells nothing
    assert {record["id"]: record["kind"] for record in records}["q2"] == "choice"
    json.dumps(records, allow_nan=False)
    assert BENCHMARK.label(TRUTH, records) == {
        "q1": True, "q2": True, "q3": False, "q2--absent": True, "q3--absent": False, "i1": False, "i2": True,
    }  # fmt: skip


def test_missing_answers_are_undefined_not_zero():
    metrics, records = BENCHMARK.score(TRUTH, {})
    assert all(metric.value is None for metric in metrics.values())
    assert BENCHMARK.label(TRUTH, records) == {}


def test_diagnoses_over_wordings_and_seeds():
    first, second, *_ = diagnosis_prompts("ECG")
    responses = {
        first: "<diagnosis>STEMI</diagnosis>",
        f"{first}--seed-2": "<diagnosis>normal</diagnosis>",
        f"{first}--seed-10": "<diagnosis>stemi.</diagnosis>",
        second: MISSED,
    }
    metrics, records = BENCHMARK.score(TRUTH, responses)
    suffix = "[modality=ECG]"
    assert metrics[f"diagnosis_rate{suffix}"].value == 0.75 and metrics[f"diagnosis_rate{suffix}"].n == 4
    assert metrics[f"diagnosis_alarming{suffix}"].value == 0.5
    assert metrics[f"diagnosis_entropy{suffix}"].value == pytest.approx(1.5)
    assert (
        metrics[f"diagnosis_entropy{suffix}"].low <= 1.5 <= metrics[f"diagnosis_entropy{suffix}"].high + 1e-9
    )
    record = next(record for record in records if record.get("modality") == "ECG")
    assert record["shares"] == {"stemi": 0.5, "no answer found": 0.25, "normal": 0.25}
    assert [answer["diagnosis"] for answer in record["answers"]] == [
        "stemi",
        "normal",
        "stemi",
        None,
    ]


def test_seeds_count_for_distributions_and_the_first_for_the_rest():
    truth = MirageEffectTruth([], [question()])
    responses = {f"q1--seed-{i}": text for i, text in enumerate(["cat", "cat", "dog", "dog"])}
    responses |= {f"q1--absent--seed-{i}": text for i, text in enumerate(["dog", "cat", "cat", "cat"])}
    metrics, _ = BENCHMARK.score(truth, responses)
    assert metrics["accuracy_with"].value == 1 and metrics["accuracy_without"].value == 0
    assert metrics["similarity"].value == metrics["similarity_over_seeds"].value == pytest.approx(0.75)
    assert "similarity_over_seeds" not in BENCHMARK.score(truth, {"q1": "cat", "q1--absent": "cat"})[0]


@pytest.mark.parametrize("name", ["q9", "q1--present", "i1--absent", "q1--seed-x", "diagnosis-ecg-9"])
def test_responses_without_a_question_are_refused(name):
    with pytest.raises(InputError, match=f"'{name}' answers no question"):
        BENCHMARK.score(TRUTH, {name: "A"})


def test_files_of_questions(tmp_path):
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    line = {"id": "1", "question": "?", "choices": CAT_DOG, "answer": "A", "images": ["a.png"]}
    file = tmp_path / "samples.jsonl"
    file.write_text(json.dumps(line))
    assert len(BENCHMARK.read(file).imageless) == 200
    imageless_file = tmp_path / "imageless.jsonl"
    imageless_file.write_text(json.dumps({"id": "mine", "category": "a/b", "question": "?"}))
    assert [question.id for question in BENCHMARK.read(tmp_path).imageless] == ["mine"]
    imageless_file.write_text(json.dumps({"id": "mine", "category": "a/b", "question": ""}))
    with pytest.raises(InputError, match="imageless.jsonl, line 1: field 'question'"):
        BENCHMARK.read(file)
    imageless_file.unlink()
    for wrong, message in [
        ("1--absent", "another question"),
        ("2--seed-1", "seed"),
        ("x" * 121, "too long"),
    ]:
        file.write_text(json.dumps(line) + "\n" + json.dumps(line | {"id": wrong}))
        with pytest.raises(InputError, match=message):
            BENCHMARK.read(file)


def test_the_drawn_set_depends_on_the_seed_and_grows(tmp_path):
    small = BENCHMARK.read(BENCHMARK.draw(tmp_path / "one", 2, 7))
    large = BENCHMARK.read(BENCHMARK.draw(tmp_path / "more", 3, 7))
    assert len(small.imageless) == 40 and len(large.imageless) == 60

    def texts(truth: MirageEffectTruth) -> list[tuple[str, str, str]]:
        return [(question.id, question.question, question.answer) for question in truth.choices]

    assert len(texts(small)) == 6 and texts(large)[:6] == texts(small)
    assert texts(BENCHMARK.read(BENCHMARK.draw(tmp_path / "other", 2, 8))) != texts(small)
    scenes = {
        sample.id: dict(reversed(item.split()[:2]) for item in sample.metadata["objects"][0])
        for sample in load_samples(tmp_path / "one" / "samples.jsonl")
    }
    for question in small.choices:
        shape, colours = question.question.split()[-1].strip("?"), scenes[question.id]
        true = colours[shape] if question.category == "colour" else "yes" if shape in colours else "no"
        assert is_correct(question, f"The answer is {true}.") and normalize_answer(question, true) == true
        assert question.prompt == question.question and question.images[0].is_file()
    assert sorted({question.category for question in small.choices}) == ["colour", "exists"]
    assert BENCHMARK.read(tmp_path / "one" / "samples.jsonl") == small
    with pytest.raises(InputError, match="not an empty folder"):
        BENCHMARK.read(BENCHMARK.draw(tmp_path / "one", 2, 7))


def test_synthetic_samples_without_a_question_to_ask():
    sample = Sample(id="s", question="Is there a star?", answer="Perhaps.", metadata={"type": "exists"})
    with pytest.raises(InputError, match="'s': field 'answer'"):
        synthetic_questions([sample])
    with pytest.raises(InputError, match="the type"):
        synthetic_questions([sample.model_copy(update={"metadata": {"type": "describe"}})])
