"""A benchmark's own options, from Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import assert_fails, read_result, run_in_process

import mmprobe
from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.cli.options import parse_benchmark_options
from mmprobe.errors import InputError

PAGES = Path(__file__).parents[3] / "docs" / "benchmarks"
LINE = {"id": "1", "question": "How long?", "topic": "statistical", "type": "approximate", "answer": "100"}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "questions.jsonl").write_text(json.dumps(LINE) + "\n")
    (tmp_path / "answers.jsonl").write_text('{"id": "1", "response": "108"}\n')
    return ("--data", tmp_path / "questions.jsonl", "--responses", tmp_path / "answers.jsonl")


def test_options_follow_the_name_and_are_recorded(files, tmp_path):
    out = tmp_path / "out"
    call = ("score", "mirage", *files, "--out", out, "--json")
    assert read_result(run_in_process(*call))["metrics"]["accuracy"] == 0
    result = read_result(
        run_in_process("score", "mirage", "--threshold", 0.1, *files, "--out", out, "--json")
    )
    assert result["metrics"]["accuracy"] == 1
    assert json.loads((out / "results.json").read_text())["options"] == {"threshold": "0.1"}
    result = read_result(run_in_process(*call, "--threshold=0.09", "--judge-decides", "all"))
    assert result["metrics"]["accuracy"] == 1


def test_options_from_python(files, tmp_path):
    out = tmp_path / "out"
    evaluation = mmprobe.benchmarks.score("mirage", files[1], {"1": "108"}, out, options={"threshold": 0.1})
    assert evaluation.metrics["accuracy"].value == 1
    assert BENCHMARKS["mirage"]().threshold == 0.05, "another call has the default again"


@pytest.mark.parametrize(
    ("name", "extra", "message"),
    [
        ("mirage", ["--treshold", "0.1"], "has no option 'treshold'; its own are threshold, reasonable"),
        ("mirage", ["--threshold", "much"], "option 'threshold': Input should be a valid number"),
        ("mirage", ["--threshold", "-1"], "option 'threshold': Input should be greater than 0"),
        ("mirage", ["--judge-decides", "some"], "option 'judge_decides'"),
        ("mirage", ["extra"], "'extra': belongs to no option"),
        ("pope", ["--threshold", "0.1"], "has no option 'threshold'; its own are profile"),
    ],
)
def test_wrong_options_are_one_line(files, tmp_path, name, extra, message):
    assert_fails(run_in_process("score", name, *files, "--out", tmp_path / "out", *extra), message)
    assert not (tmp_path / "out").exists()


def test_words_become_options():
    assert parse_benchmark_options(["--a-b", "1", "--flag", "--c=2"]) == {
        "a_b": "1",
        "flag": "true",
        "c": "2",
    }
    with pytest.raises(InputError, match="belongs to no option"):
        parse_benchmark_options(["--a", "1", "2"])


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_page_of_a_benchmark_lists_its_options(name):
    page = PAGES / f"{name}.md"
    for option in BENCHMARKS[name].model_fields if page.exists() else ():
        assert f"--{option.replace('_', '-')}" in page.read_text(), option
