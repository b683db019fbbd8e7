"""MIRAGE from questions to metrics: files, prompts, hints, records, the drawn set, and the embedded model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.core.prompts import default_prompts
from mmprobe.benchmarks.mirage.benchmark import Mirage, MirageTruth
from mmprobe.benchmarks.mirage.data import MirageQuestion
from mmprobe.benchmarks.mirage.prompts import MiragePrompts
from mmprobe.errors import InputError

SEED = 11
BASE = {"question": "How long?", "topic": "geometry", "type": "free_form", "answer": "7 cm"}


def question(name: str, **fields: object) -> MirageQuestion:
    return MirageQuestion.model_validate({"id": name} | BASE | fields)


def write_questions(folder: Path, *lines: dict[str, object]) -> Path:
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_instructions_are_left_out_for_questions_with_a_system_prompt():
    choice = {"type": "multiple_choice", "choices": {"A": "2 cm", "B": "7 cm"}, "answer": "B"}
    plain, own = Mirage().ask(MirageTruth([question("1", **choice), question("2", system="S", **choice)]))
    assert plain.question.startswith("How long?\n(A) 2 cm\n(B) 7 cm\n\n")
    assert "letter" in plain.question and plain.system is None
    assert own.question == "How long?" and own.system == "S"


def test_a_topic_is_asked_then_the_hinted_question():
    truth = MirageTruth([question("1", question_hint="Mind the scale."), question("2")])
    assert [sample.id for sample in Mirage().ask(truth)] == ["1", "2", "1--topic"]
    assert Mirage().follow_up(truth, {"1": "7 cm", "2": "7 cm"}) == []
    (hinted,) = Mirage().follow_up(truth, {"1--topic": "Statistical."})
    assert hinted.id == "1--hinted"
    first, middle, *_, last = hinted.question.split("\n\n")
    assert (first, middle, last) == (
        default_prompts(MiragePrompts).topic_hints.statistical,
        "How long?",
        "Mind the scale.",
    )


def test_metrics_by_hand():
    # plain: right, wrong, no answer, not asked; hinted: right, right, wrong, none
    # named topics: right, wrong, right
    rows = [
        question(str(number), question_hint="H", topic=topic)
        for number, topic in enumerate(["geometry", "geometry", "spatial", "spatial"], 1)
    ]
    responses = {
        "1": "7 cm",
        "2": "5 cm",
        "3": " ",
        "1--hinted": "7 cm",
        "2--hinted": "7 cm",
        "3--hinted": "1 cm",
    }
    responses |= {"1--topic": "geometry", "2--topic": "algebra", "3--topic": "spatial"}
    metrics, records = Mirage().score(MirageTruth(rows), responses)
    values = {name: (metric.value, metric.n, metric.coverage) for name, metric in metrics.items()}
    assert values["accuracy"] == (pytest.approx(1 / 3), 3, 0.75)
    assert values["accuracy[read]"] == (0.5, 2, 0.5)
    assert values["accuracy_hinted"] == (pytest.approx(2 / 3), 3, 0.75)
    assert values["hint_gain"] == (pytest.approx((0 + 1 + 0) / 3), 3, 0.75)
    assert values["topic_accuracy"] == (pytest.approx(2 / 3), 3, 0.75)
    assert values["accuracy[topic=geometry]"] == (0.5, 2, 1.0)
    assert values["accuracy[topic=spatial]"] == (0.0, 1, 0.5)
    assert values["hint_gain[topic=geometry]"] == (0.5, 2, 1.0)
    assert not any("type=" in name for name in values), "there is one type of answer"
    assert not {"f_step", "lhs", "any_rate"} & set(values), "without annotations and without a judge"
    assert [record["correct"] for record in records] == [True, False, None, None]
    assert records[1]["topic_told"] == "algebra" and records[3]["response"] is None
    assert metrics["accuracy"].parts.ids == ("1", "2", "3", "4")


def test_questions_are_asked_again_with_a_corrected_chain():
    truth = MirageTruth(
        [
            question("1", references=["Half of 14 cm is 7 cm."], topic_hint="H"),
            question("2", steps=["Halve 14.", "That is 7."]),
            question("3"),
            question("4", steps=["Halve 14."]),
        ],
    )
    responses = {"1": "I double 7: 14 cm.", "2": "7 cm", "3": "7 cm", "4": " ", "1--topic": "geometry"}
    assert [sample.id for sample in Mirage().follow_up(truth, responses)] == ["1--hinted"]
    samples = {sample.id: sample for sample in Mirage(corrected=True).follow_up(truth, responses)}
    assert list(samples) == ["1--hinted", "1--corrected", "1--own-chain", "2--corrected", "2--own-chain"]
    first = Mirage().ask(truth)[0].question
    assert samples["1--corrected"].question.startswith(first + "\n\n")
    assert "Half of 14 cm is 7 cm." in samples["1--corrected"].question
    assert "I double 7: 14 cm." in samples["1--own-chain"].question
    assert "Halve 14.\nThat is 7." in samples["2--corrected"].question


def test_the_paired_change_by_corrected_chains():
    """Table 4 by hand: six questions; one is not asked again, and one lacks an answer to the corrected chain."""
    first = {"1": "5 cm", "2": "5 cm", "3": "5 cm", "4": "7 cm", "5": "7 cm", "6": "5 cm"}
    corrected = {"1": "7 cm", "2": "7 cm", "3": "5 cm", "4": "5 cm", "5": "7 cm"}
    own = {"1": "5 cm", "2": "7 cm", "3": "5 cm", "4": "7 cm"}
    responses = first | {f"{name}--corrected": text for name, text in corrected.items()}
    responses |= {f"{name}--own-chain": text for name, text in own.items()}
    rows = [question(name, steps=["Halve 14."]) for name in first]
    metrics, records = Mirage().score(MirageTruth(rows), responses)
    values = {name: (metric.value, metric.n) for name, metric in metrics.items()}
    assert values["accuracy"] == (pytest.approx(2 / 6), 6)
    assert values["accuracy_corrected"] == (pytest.approx(3 / 5), 5)
    assert values["accuracy_own_chain"] == (0.5, 4)
    assert values["correction_gain"] == (pytest.approx((1 + 1 + 0 - 1 + 0) / 5), 5)
    assert values["correction_gain_own_chain"] == (pytest.approx((1 + 0 + 0 - 1) / 4), 4)
    assert values["correction_repairs"] == (pytest.approx(2 / 3), 3)
    assert values["correction_harms"] == (0.5, 2)
    assert metrics["correction_gain"].parts.ids == ("1", "2", "3", "4", "5"), "6 was not asked again"
    assert records[1]["again"]["own-chain"] == {"response": "7 cm", "correct": True}
    benchmark = BENCHMARKS["mirage"]()
    faithful = benchmark.label(MirageTruth(rows), records)
    assert faithful["1"] is False and faithful["1--corrected"] is True and "6--corrected" not in faithful
    assert not any("correct" in name for name in Mirage().score(MirageTruth(rows), first)[0])


def test_unread_answers_are_wrong_and_counted():
    choice = {"type": "multiple_choice", "choices": {"A": "2 cm", "B": "7 cm"}, "answer": "B"}
    rows = [question(name, **choice) for name in "abcd"]
    responses = {"a": "B", "b": "A", "c": "Both A and B have their merits.", "d": ""}
    metrics, records = Mirage().score(MirageTruth(rows), responses)
    assert metrics["accuracy"].value == 0.25, "empty and unread answers are wrong"
    assert metrics["accuracy"].n == 4 and metrics["accuracy"].bounds == (0.25, 0.75)
    assert metrics["accuracy[read]"].value == 0.5 and metrics["accuracy[read]"].n == 2
    assert metrics["unread"].value == 0.25 and metrics["unread"].n == 4
    assert [record["unscored"] for record in records] == [{}, {}, {"correct": "unread"}, {}]


def test_steps_and_claims_by_rules():
    truth = MirageTruth(
        [
            question("1", steps=["Halve 14."], claims=["AB is 7 cm."]),
            question("2", claims=["x is 2."]),
            question("3"),
        ]
    )
    metrics, records = Mirage().score(
        truth, {"1": "Halve 14. AB is 7 cm. The star is red.", "2": "", "3": "No."}
    )
    # question 1: one of two steps (Halve 14, the star) and of two claims (AB is 7 cm, the star) is true
    # so P = 1/2, R = 1, F = 2/3
    assert metrics["f_step"].value == pytest.approx(2 / 3) and metrics["f_step"].coverage == 1
    assert metrics["f_claim"].value == pytest.approx(2 / 3) and metrics["f_claim"].coverage == 0.5
    assert metrics["recall_claim"].value == 0.5, "an empty answer states no claim"
    assert records[0]["steps"] == {
        "predicted": [["Halve 14.", "MATCH"], ["The star is red.", "CONFLICT"]],
        "true": [["Halve 14.", "MATCH"]],
    }
    assert records[1]["steps"] is None and records[1]["claims"]["true"] == [["x is 2.", "CONFLICT"]]
    json.dumps(records)


def test_responses_without_a_question_are_refused():
    with pytest.raises(InputError, match="'1--hinted'"):
        Mirage().score(MirageTruth([question("1")]), {"1--hinted": "7 cm"})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([BASE | {"id": "1", "question_hint": "H"}, BASE | {"id": "1--topic"}], "'1--topic'.* is taken"),
        ([BASE | {"id": "1" * 121, "topic_hint": "H"}], "is too long"),
        ([BASE], "line 1: field 'id'"),
    ],
)
def test_invalid_files_are_refused(tmp_path, lines, message):
    with pytest.raises(InputError, match=message) as caught:
        Mirage().read(write_questions(tmp_path, *lines))
    assert "\n" not in str(caught.value)


def test_a_file_of_questions_is_not_synthetic(tmp_path):
    truth = Mirage().read(write_questions(tmp_path, BASE | {"id": "1", "metadata": {"source": "own"}}))
    assert not truth.synthetic and [question.id for question in truth.questions] == ["1"]


def test_true_answers_of_the_drawn_set_score_1(tmp_path):
    benchmark = BENCHMARKS["mirage"]()
    truth = benchmark.read(benchmark.draw(tmp_path / "pairs", 12, SEED))
    true = {
        sample["id"]: sample["answer"]
        for sample in map(json.loads, (tmp_path / "pairs" / "samples.jsonl").read_text().splitlines())
    }
    responses = {sample.id: true[sample.id] for sample in Mirage().ask(truth)}
    metrics, records = benchmark.score(truth, responses)
    for name in ("accuracy", "f_step", "f_claim", "f_step_micro", "f_claim_micro", "accuracy[topic=spatial]"):
        assert metrics[name].value == 1.0 and metrics[name].coverage == 1.0, name
    assert {question.topic for question in truth.questions} == {"logical", "arithmetic", "spatial"}
    assert {question.type for question in truth.questions} == {"multiple_choice", "free_form", "approximate"}
    assert {len(question.references) for question in truth.questions} == {3}
    assert all(benchmark.label(truth, records).values())
    assert [sample.id for sample in Mirage().follow_up(truth, responses)] == [
        f"{name}--hinted" for name in responses
    ]
    wrong = {name: "Perhaps. The moon changed." for name in responses}
    metrics, _ = benchmark.score(truth, wrong)
    assert metrics["unread"].value == 1 / 3, "of the numbers; other words are wrong"
    assert metrics["accuracy"].value == 0 and metrics["f_step"].value is metrics["f_claim"].value is None


@pytest.mark.slow
def test_the_embedded_model_is_asked_and_scored(tmp_path):
    from mmprobe.benchmarks.core.runner import run_benchmark
    from mmprobe.models import load_model
    from mmprobe.settings import AskSettings

    benchmark = BENCHMARKS["mirage"]()
    truth = benchmark.read(benchmark.draw(tmp_path / "pairs", 2, SEED))
    model = load_model("tiny-spd", device="cpu")
    settings = AskSettings(max_new_tokens=benchmark.max_new_tokens, batch_size=8)
    metrics, records = run_benchmark(benchmark, truth, model, tmp_path / "out", {}, settings)
    assert metrics["accuracy"].value > 0.5 and metrics["accuracy_hinted"].coverage > 0.5
    answers = [(record["correct"], record["correct_hinted"]) for record in records]
    gains = [hinted - plain for plain, hinted in answers if None not in (plain, hinted)]
    assert metrics["hint_gain"].n == len(gains) > 2
    assert metrics["hint_gain"].value == pytest.approx(sum(gains) / len(gains))
    assert len(records) == len(truth.questions)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["benchmark"] == "mirage"
