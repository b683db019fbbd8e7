"""A plain benchmark of one's own is one file, which an entry point names: the command line runs it as any other."""

from __future__ import annotations

import json
import sys

import pytest
from helpers.command_line import assert_fails, read_result, run_in_process

from mmprobe import registry
from mmprobe.samples import load_samples

CODE = '''
from typing import ClassVar
from mmprobe.benchmarks.core.benchmark import Benchmark
from mmprobe.benchmarks.core.results import mean_metric, with_ids

class Beginning(Benchmark):
    """How many answers begin as the true one."""

    name: ClassVar[str] = "beginning"
    headline: ClassVar[tuple[str, ...]] = ("begins",)
    max_new_tokens: ClassVar[int] = 4
    letters: int = 2

    def score(self, truth, responses, judge=None):
        records = [
            {"id": each.id, "correct": responses[each.id][: self.letters] == (each.answer or "")[: self.letters]}
            for each in truth if each.id in responses
        ]
        values = [float(each["correct"]) for each in records]
        return with_ids({"begins": mean_metric(values, "higher")}, [each["id"] for each in records]), records
'''
POINTS = "[mmprobe.benchmarks]\nbeginning = beginning_benchmark:Beginning\n"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    folder = tmp_path / "package"
    (folder / "beginning_benchmark-1.0.dist-info").mkdir(parents=True)
    (folder / "beginning_benchmark.py").write_text(CODE)
    (folder / "beginning_benchmark-1.0.dist-info" / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "beginning_benchmark", raising=False)
    for cached in (registry._entry_points, registry._load_entry):
        cached.cache_clear()
    yield
    for cached in (registry._entry_points, registry._load_entry):
        cached.cache_clear()


def test_one_file_is_a_benchmark(installed, tmp_path):
    pytest.importorskip(
        "importlib_metadata"
    )  # it then finds packages, with entry points of a class of its own

    data, out = tmp_path / "pairs" / "samples.jsonl", tmp_path / "out"
    run_in_process("make-pairs", "--n", 1, "--seed", 3, "--out", data.parent)
    call = ("bench", "beginning", "--model", "tiny-spd", "--limit", 3, "--data", data, "--out", out)
    result = read_result(run_in_process(*call, "--trace", "--json"))
    answers = [json.loads(line) for line in (out / "responses.jsonl").read_text().splitlines()]
    true = {sample.id: sample.answer for sample in load_samples(data)}
    begins = [each["response"][:2] == true[each["id"]][:2] for each in answers]
    assert len(answers) == 3 and result["metrics"]["begins"] == sum(begins) / 3
    labels = [
        json.loads(line)["faithful"] for line in (out / "run" / "labels.jsonl").read_text().splitlines()
    ]
    assert labels == begins

    for letters, value in ((0, 1.0), (999, 0.0)):
        scored = run_in_process(
            *(
                "score",
                "beginning",
                "--data",
                data,
                "--responses",
                out / "responses.jsonl",
                "--letters",
                letters,
            ),
            *("--out", tmp_path / f"scored-{letters}", "--json"),
        )
        assert read_result(scored)["metrics"]["begins"] == value
    other = ("bench", "beginning", "--model", "tiny-spd", "--data", data, "--out", tmp_path / "other")
    for option, message in (
        (("--letter", 1), "has no option 'letter'; its own are letters"),
        (("--judge", "model:openai/gpt-4o"), "is scored by rules and needs no judge"),
    ):
        assert_fails(run_in_process(*other, *option), message)
    listed = run_in_process("list", "benchmarks", "--json")
    rows = {row["name"]: row["about"] for row in read_result(listed)["benchmarks"]}
    assert rows["beginning"] == "How many answers begin as the true one."
