"""MagiC: questions, a set scored by hand, Self-Heal, traces, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.magic.benchmark import Magic
from mmprobe.cache import open_run
from mmprobe.cli import app
from mmprobe.errors import InputError

RED, BLUE = {"box": [0, 0, 9, 9], "relevant": True}, {"box": [20, 0, 9, 9], "relevant": False}
STEPS = [
    {"text": "It is a street.", "correct": True},
    {"text": "R1 is a bus.", "correct": False, "correction": "R1 is a tram."},
    {"text": "It is red.", "correct": True},
    {"text": "It stands still.", "correct": True},
]
QUESTIONS = [
    {"id": "q1", "answer": "tram", "full_answer": "It is a tram.", "boxes": [RED, BLUE], "steps": STEPS},
    {"id": "q2", "answer": "yes", "full_answer": "Yes, it is.", "boxes": [BLUE, RED, RED, BLUE]},
    {"id": "q3", "answer": "left", "boxes": [RED, BLUE]},
]
RESPONSES = {
    "q1": "It is a street. R1 is a bus. It is red.\nAnswer: A red bus.",
    "q1-heal1": "No: R1 is a tram.\nAnswer: It is a tram.",
    "q2": "R1 and R2 count, R9 does not.\nAnswer: Yes, it is.",
}


def write_questions(folder: Path, *lines: dict) -> Path:
    Image.new("RGB", (40, 20)).save(folder / "a.png")
    file = folder / "samples.jsonl"
    common = {"image": "a.png", "question": "What is it?"}
    file.write_text("".join(json.dumps(common | line) + "\n" for line in lines or QUESTIONS))
    return file


@pytest.fixture
def truth(tmp_path):
    return Magic().read(write_questions(tmp_path))


def test_questions_and_their_prompts(truth):
    first, second, _ = Magic().ask(truth)
    assert (first.id, len(first.images), first.prefill) == ("q1", 1, None)
    assert "picture: R1, R2. " in first.question
    assert "What is it?" in first.question and "Answer:" in first.question
    assert "picture: R1, R2, R3, R4. " in second.question
    assert [region.box for region in second.regions] == [(0, 0, 9, 9)] * 2
    assert first.answer == "It is a tram."


def test_self_heal_asks_about_answered_questions(truth):
    (prefilled,) = Magic().follow_up(truth, RESPONSES)
    assert (prefilled.id, prefilled.prefill) == ("q1-heal1", "It is a street. R1 is a bus.")
    (plain, *_) = Magic().ask(truth)
    assert prefilled.images == plain.images and prefilled.question != plain.question
    assert "wrong" in prefilled.question and "wrong" not in plain.question
    assert Magic().follow_up(truth, {"q2": ""}) == []


def test_a_set_scored_by_hand(truth):
    metrics, records = Magic().score(truth, RESPONSES)
    expected = {
        "accuracy_short": 1 / 2,  # q1 says bus, where the truth is tram; q2 is right; q3 is not answered
        "accuracy_full": 1 / 2,  # of q2; other words than the true sentence are unread, and count as wrong
        "unread": 0.0,
        # q1 cites R1 (right); q2 cites R1 (wrong) and R2 (right), of R2 and R3
        "magiscore_micro_precision": 2 / 3,
        "magiscore_micro_recall": 2 / 3,
        "magiscore_macro_f1": (1 + 1 / 2) / 2,
        "cites_missing_box_rate": 1 / 2,
        "stepsense": 2 / 3,  # q1's steps are the annotated ones
        "self_heal_answer": 1.0,
    }
    assert {name: metrics[name].value for name in expected} == pytest.approx(expected)
    assert metrics["accuracy_short"].coverage == pytest.approx(2 / 3)
    assert metrics["stepsense"].n == 1 and "self_heal" not in metrics
    first, second, third = records
    assert first["steps"] == ["It is a street.", "R1 is a bus.", "It is red."]
    assert (first["cited"], first["correct_steps"]) == ([1], [True, False, True])
    assert (second["cited"], second["cited_beyond"], second["relevant"]) == ([1, 2], 1, [2, 3])
    assert third["answer"] is third["cited"] is third["correct"] is None
    assert first["self_heal"] == [
        {
            "id": "q1-heal1",
            "injected": ["It is a street.", "R1 is a bus."],
            "corrections": ["R1 is a tram."],
            "continuation": RESPONSES["q1-heal1"],
            "right_answer": True,
            "healed": None,
            "healed_explicit": None,
        }
    ]
    assert Magic().label(truth, records) == {"q1": False, "q2": True, "q1-heal1": True}


def test_a_box_is_cited_by_its_name(tmp_path):
    named = {"id": "q", "answer": "cat", "boxes": [BLUE, RED | {"names": ["B2"]}]}
    truth = Magic().read(write_questions(tmp_path, named))
    _, (record,) = Magic().score(truth, {"q": "At B2 there is a cat."})
    assert record["cited"] == record["relevant"] == [2]


def test_missing_answers_are_undefined_and_empty_answers_are_wrong(truth):
    metrics, _ = Magic().score(truth, {})
    assert metrics.pop("self_heal_answer_judged").value == 0
    assert {(metric.value, metric.n) for metric in metrics.values()} == {(None, 0)}
    metrics, _ = Magic().score(truth, {"q1": "", "q1-heal1": ""})
    assert metrics["accuracy_short"].value == metrics["self_heal_answer"].value == 0
    assert metrics["magiscore_macro_f1"].value == 0 and metrics["magiscore_macro_f1_cited"].value is None
    assert metrics["stepsense"].value is None
    assert metrics["cites_none_rate"].value == 1


def test_bad_input_is_named(tmp_path, truth):
    with pytest.raises(InputError, match="response 'q9' answers no question"):
        Magic().score(truth, {"q9": "Yes."})
    for name in ("q1-heal2", "q2-heal1"):
        with pytest.raises(InputError, match="answers no question"):
            Magic().score(truth, {name: "Yes."})
    with pytest.raises(InputError, match="question q .*'boxes'.* mmprobe data number-boxes"):
        Magic().read(write_questions(tmp_path, {"id": "q", "answer": "x", "objects": [[0, 0, 5, 5]]}))
    with pytest.raises(InputError, match="'q1-heal1'"):
        Magic().read(write_questions(tmp_path, QUESTIONS[0], QUESTIONS[1] | {"id": "q1-heal1"}))
    with pytest.raises(InputError, match="too long"):
        Magic().read(write_questions(tmp_path, QUESTIONS[0] | {"id": "q" * 126}))


@pytest.mark.slow
def test_the_command_line_runs_traces_and_scores(tmp_path):
    out = tmp_path / "out"
    common = ["--batch-size", "8", "--trace", "--out", str(out)]
    run = CliRunner().invoke(app, ["bench", "magic", "--model", "tiny-spd", "--n", "2", *common])
    assert run.exit_code == 0, run.output
    metrics = json.loads((out / "results.json").read_text())["metrics"]
    assert metrics["accuracy_short"]["n"] == metrics["self_heal_answer"]["n"] == 6
    truth = Magic().read(out / "data" / "samples.jsonl")
    records = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert metrics["attention_magiscore_micro_f1"]["n"] == 6 and all(record["attended"] for record in records)
    trace_metrics, rows = BENCHMARKS["magic"]().score_traces(truth, records, open_run(out / "run"))
    assert {name: metric.value for name, metric in trace_metrics.items()}.items() <= {
        name: metric["value"] for name, metric in metrics.items()
    }.items()
    assert all(len(row["lift"]) == len(q.boxes) for row, q in zip(rows, truth.questions, strict=True))
    healed = [trace for trace in open_run(out / "run") if trace.id.endswith("-heal1")]
    assert healed and all(trace.sample.prefill for trace in healed)
    again = tmp_path / "again"
    data = ["--data", str(out / "data" / "samples.jsonl"), "--responses", str(out / "responses.jsonl")]
    run = CliRunner().invoke(app, ["score", "magic", *data, "--out", str(again)])
    assert run.exit_code == 0, run.output
    scored = json.loads((again / "results.json").read_text())["metrics"]
    assert scored.items() <= metrics.items()
