"""Answers of a server that speaks the OpenAI protocol are traced by a local model."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.equal_runs import assert_equal_runs
from helpers.openai_server import serve_openai

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs

pytest.importorskip("openai", reason="the provider's package is not installed")
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "served-answers.md"


class Questions:
    """What the server was asked, and its answer to each question; it refuses the first so many questions."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refuses = 0

    def answer(self, text: str, n_images: int) -> str | None:
        self.texts.append(text)
        if len(self.texts) <= self.refuses:
            return None
        return f"Yes, {n_images} pictures show it, in {len(text)} letters."


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[Questions]:
    """Serve within an empty folder with one pair, and let inspect-ai's providers find the server."""
    monkeypatch.chdir(tmp_path)
    make_pairs("pairs", n=1, seed=3)
    questions = Questions()
    with serve_openai(questions.answer) as address:
        for provider in ("OPENAI", "VLLM"):
            monkeypatch.setenv(f"{provider}_BASE_URL", address)
            monkeypatch.setenv(f"{provider}_API_KEY", "none")
        yield questions


def run(*arguments: object) -> None:
    finished = run_in_process(*arguments)
    assert finished.code == 0, finished.stderr


def responses(folder: str) -> dict[str, str]:
    lines = Path(folder, "responses.jsonl").read_text().splitlines()
    return {line["id"]: line["response"] for line in map(json.loads, lines)}


def read_traces() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path("out/run/samples").glob("*.h5")}


BENCH = ("bench", "spd-faith", "--model", "openai/gpt-4o", "--data", "pairs/samples.jsonl", "--out", "out")


def test_one_command_does_what_two_do(server):
    run(*BENCH, "--trace-with", "tiny-spd")
    assert server.texts and len(set(responses("out").values())) > 1
    read = mp.open_run("out/run")
    assert {trace.id: trace.answer for trace in read} == responses("out")
    assert all("2 pictures" in trace.answer for trace in read)
    assert any(name.endswith("same") for name in read.labels), "answers are labelled as with --trace"
    assert json.loads(Path("out/results.json").read_text())["metrics"]
    run("trace", "--model", "tiny-spd", "--answers", "out", "--out", "again")
    assert_equal_runs(mp.open_run("again"), read)
    assert json.loads(Path("out/run/run.json").read_text())["model"]["name"] == "tiny-spd"


def test_a_refused_question_is_asked_and_traced_by_the_next_call(server):
    server.refuses = 1
    refused = run_in_process(*BENCH, "--trace-with", "tiny-spd")
    assert "1 questions failed" in refused.stderr
    before = read_traces()
    assert len(before) == len(server.texts) - 1 == len(responses("out"))
    run(*BENCH, "--trace-with", "tiny-spd", "--resume")
    second = mp.open_run("out/run")
    assert len(second) == len(before) + 1 == len(responses("out")) and not second.failures
    assert read_traces().items() > before.items()


def test_where_no_question_is_answered_nothing_is_traced(server):
    server.refuses = 1000
    refused = run_in_process(*BENCH, "--trace-with", "tiny-spd")
    assert refused.code == 1 and "questions failed, see out/failures.jsonl" in refused.stderr
    assert not Path("out/run").exists() and not responses("out")
    server.refuses = 0
    run(*BENCH, "--trace-with", "tiny-spd", "--resume")
    assert len(mp.open_run("out/run")) == len(responses("out")) > 0


def test_disturbed_questions_are_read_as_they_were_asked(server):
    run(*BENCH, "--perturb", "mask-100", "--trace-with", "tiny-spd")
    samples = [trace.sample for trace in mp.open_run("out/run")]
    assert samples and all("perturbed" in str(path) for sample in samples for path in sample.images)


def test_the_reader_of_answers_is_checked_before_anything_is_asked(server):
    for options, message in [
        (("--trace-with", "openai/other"), "trace_with openai/other: is served through an API"),
        (("--trace-with", "tiny-spd", "--trace"), "trace_with: goes neither with trace"),
        (("--trace-with", "./nowhere"), "nowhere"),
    ]:
        call = [each if each != "openai/gpt-4o" or "--trace" not in options else "tiny-spd" for each in BENCH]
        assert_fails(run_in_process(*call, *options), message)
    assert not server.texts


@pytest.mark.slow
def test_the_guide_runs(server):
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("mmprobe ")]
    assert sum("vllm/" in command for command in commands) == 2
    for command in commands:
        arguments = shlex.split(command.replace("qwen2.5-vl-7b", "tiny-spd"))[1:]
        run(*arguments)
    assert len(mp.open_run("results/traced/run")) == len(mp.open_run("runs/served")) > 0
