"""What servers of models send: outputs without a reply, and the key that they were called with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import run_in_process
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from tenacity import Future, RetryError

from mmprobe.benchmarks import evaluate
from mmprobe.benchmarks.core import api_models
from mmprobe.benchmarks.core.benchmark import BENCHMARKS

KEY = "sk-made-up-0123456789"


def serve(*texts: str | None):
    """Return a model that gives these replies in turn; None is an output without choices."""
    outputs = [
        ModelOutput(model="mockllm/model", choices=[])
        if text is None
        else ModelOutput.from_content("mockllm/model", text)
        for text in texts
    ]
    for output in outputs:
        output.usage = ModelUsage()  # else the mock fetches a tokenizer to count tokens
    return get_model("mockllm/model", custom_outputs=outputs, memoize=False)


@pytest.fixture
def questions(tmp_path: Path) -> list[str]:
    truth = BENCHMARKS["vqa"]().read(BENCHMARKS["vqa"]().draw(tmp_path / "vqa", 4, 7))
    return [sample.id for sample in BENCHMARKS["vqa"]().ask(truth)]


def ask(monkeypatch, model, tmp_path: Path, **options) -> list[dict]:
    monkeypatch.setattr(api_models, "open_model", lambda name, use: model)
    evaluate("vqa", "mockllm/model", tmp_path / "out", data=tmp_path / "vqa" / "samples.jsonl", **options)
    file = tmp_path / "out" / "responses.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_an_output_without_choices_is_a_named_failure_and_is_asked_again(
    questions, tmp_path, caplog, monkeypatch
):
    rest = ["yes"] * (len(questions) - 1)
    answers = ask(monkeypatch, serve(None, *rest), tmp_path)
    assert len(answers) == len(rest), "no answer is made up for it"
    assert "unanswered (no reply)" in caplog.text
    (failure,) = map(json.loads, (tmp_path / "out" / "failures.jsonl").read_text().splitlines())
    assert failure["id"] in questions and "no reply" in json.dumps(failure)
    answers = ask(monkeypatch, serve("no"), tmp_path, resume=True)
    assert {line["id"] for line in answers} == set(questions)
    assert next(line["response"] for line in answers if line["id"] == failure["id"]) == "no"


def test_a_failure_names_the_error_of_the_last_attempt(questions, tmp_path, caplog, monkeypatch):
    """Where every attempt failed, inspect-ai raises an error of the library that repeats them."""
    attempt = Future(3)
    attempt.set_exception(ConnectionRefusedError("with a key"))

    def refuse(*_):
        raise RetryError(attempt)

    model = get_model("mockllm/model", memoize=False, custom_outputs=refuse)
    assert ask(monkeypatch, model, tmp_path) == []
    failures = list(map(json.loads, (tmp_path / "out" / "failures.jsonl").read_text().splitlines()))
    assert {each["id"] for each in failures} == set(questions)
    assert {each["error"] for each in failures} == {"ConnectionRefusedError"}
    assert "with a key" not in caplog.text + json.dumps(failures)


def test_a_key_that_a_server_repeats_is_in_no_file(questions, tmp_path, monkeypatch):
    monkeypatch.setenv("MADE_UP_API_KEY", KEY)
    ask(monkeypatch, serve(*[f"yes, {KEY}"] * len(questions)), tmp_path)
    texts = {file.name: file.read_text() for file in (tmp_path / "out").iterdir()}
    assert {"responses.jsonl", "samples.jsonl", "results.json"} <= texts.keys()
    assert not [name for name, text in texts.items() if KEY in text]
    assert "[MADE_UP_API_KEY]" in texts["responses.jsonl"] and "[MADE_UP_API_KEY]" in texts["samples.jsonl"]


def test_a_key_in_answers_and_in_a_judges_replies_is_in_no_file(tmp_path, monkeypatch):
    """The answers are a file of another tool, which kept the key; the judge repeats it."""
    monkeypatch.setenv("MADE_UP_API_KEY", KEY)
    truth = BENCHMARKS["mirage"]().read(BENCHMARKS["mirage"]().draw(tmp_path / "mirage", 2, 7))
    ids = [sample.id for sample in BENCHMARKS["mirage"]().ask(truth)]
    lines = [json.dumps({"id": name, "response": f"A red star. {KEY} Answer: 1"}) + "\n" for name in ids]
    (tmp_path / "responses.jsonl").write_text("".join(lines))
    monkeypatch.setattr(api_models, "open_model", lambda name, use: serve(*[f"not JSON {KEY}"] * 500))
    out = tmp_path / "out"
    call = ["score", "mirage", "--data", tmp_path / "mirage" / "samples.jsonl", "--out", out]
    done = run_in_process(
        *call, "--responses", tmp_path / "responses.jsonl", "--judge", "model:mockllm/model"
    )
    assert done.code == 0, done.stderr
    shown = run_in_process("report", out, "--out", tmp_path / "out" / "report.html")
    assert shown.code == 0, shown.stderr
    files = {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert {"results.json", "samples.jsonl", "judge.sqlite", "report.html"} <= files.keys()
    assert not [name for name, content in files.items() if KEY.encode() in content]
    assert KEY not in done.stdout + done.stderr + shown.stdout + shown.stderr
