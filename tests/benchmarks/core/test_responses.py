"""Files of answers that any system gave: their lines, and how they are scored."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from mmprobe.benchmarks.core.benchmark import BENCHMARKS, read_responses
from mmprobe.benchmarks.core.runner import run_benchmark
from mmprobe.cli import app
from mmprobe.errors import InputError


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2: not JSON"),
        ('{"response": "Yes."}', "line 2: has no 'id'"),
        ('{"id": "b"}', "line 2: has no 'response'"),
        ('{"id": "b", "response": 3}', "line 2: has no 'response'"),
        ('{"id": "a", "response": "Yes."}', "line 2: a was answered before"),
    ],
)
def test_malformed_responses_are_named(line, message, tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_text('{"id": "a", "response": null}\n' + line + "\n")
    with pytest.raises(InputError, match=message):
        read_responses(file)


def test_a_response_that_is_null_is_an_empty_answer(tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_text('{"id": 7, "response": null}\n\n{"id": 7, "question_type": "same", "response": "No"}\n')
    assert read_responses(file) == {"7": "", "7/same": "No"}


def test_half_an_emoji_is_stored_as_a_question_mark(tmp_path):
    """The answer was cut within a surrogate pair. It comes from a model, or from a file."""
    benchmark = BENCHMARKS["pope"]()
    truth = benchmark.read(benchmark.draw(tmp_path / "data", 8, 7))

    def answer(samples, settings):
        for sample in samples:
            yield sample.id, "Yes \ud83d"

    run_benchmark(benchmark, truth, answer, tmp_path / "out", {})
    assert set(read_responses(tmp_path / "out" / "responses.jsonl").values()) == {"Yes ?"}
    lines = [json.dumps({"id": sample.id, "response": "No \udc00"}) + "\n" for sample in benchmark.ask(truth)]
    (tmp_path / "answers.jsonl").write_text("".join(lines))
    data, answers, out = tmp_path / "data" / "samples.jsonl", tmp_path / "answers.jsonl", tmp_path / "scored"
    invoke("score", "pope", "--data", data, "--responses", answers, "--out", out)
    assert '"No ?"' in (out / "samples.jsonl").read_text()


@pytest.mark.parametrize("name", ["pope", "mirage-effect"])
def test_two_answers_to_one_question_are_refused(name, tmp_path):
    """The answers differ only in their question_type, which only spd-faith has."""
    benchmark = BENCHMARKS[name]()
    truth = benchmark.read(benchmark.draw(tmp_path / "data", 8, 7))
    asked = benchmark.ask(truth)[0].id
    with pytest.raises(InputError, match=f"{asked}' was answered before"):
        benchmark.score(truth, {f"{asked}/random": "Yes.", f"{asked}/popular": "No."})


def test_published_pairs_are_scored_by_pair_and_question_type(tmp_path):
    rows = [{"image_id": 7, "num_differences": 1, "differences": [{"type": "remove", "category": "dog"}]}]
    data = tmp_path / "easy.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [
        {"id": 7, "question_type": "same", "response": "Yes, they are."},
        {"id": 7, "question_type": "different", "response": "Yes, the dog is gone."},
        {"id": 7, "question_type": "count", "response": "There is 1 difference."},
        {"id": 7, "question_type": "find", "response": "The dog was removed. The cat turned red."},
    ]
    responses = tmp_path / "answers.jsonl"
    responses.write_text("".join(json.dumps(line) + "\n" for line in lines))
    invoke("score", "spd-faith", "--data", data, "--responses", responses, "--out", tmp_path / "out")
    metrics = json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]
    assert {name: metrics[name]["value"] for name in ("contradiction_rate", "dqr_exact", "drf")} == {
        "contradiction_rate": 1.0,
        "dqr_exact": 1.0,
        "drf": 0.5,
    }


@pytest.mark.parametrize("name", ["spd-faith", "pope"])
def test_files_that_are_not_text_are_named(name, tmp_path):
    (tmp_path / "data.jsonl").write_bytes(b'{"question": "\xff"}\n')
    with pytest.raises(InputError, match="data.jsonl: .*UTF-8"):
        BENCHMARKS[name]().read(tmp_path / "data.jsonl")
    pope = BENCHMARKS["pope"]()
    (tmp_path / "answers.jsonl").write_bytes(b'{"id": "a", "response": "\xff"}\n')
    assert pope.read_answers(tmp_path / "answers.jsonl", []) is None
    with pytest.raises(InputError, match="answers.jsonl: .*UTF-8"):
        read_responses(tmp_path / "answers.jsonl")
