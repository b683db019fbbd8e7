"""A run of 3,000 questions that is killed again and again: no answer that was kept is asked for twice, nor judged twice."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from mmprobe.benchmarks.core.api_models import CONCURRENCY

pytest.importorskip("inspect_ai", reason="the extra eval is not installed")

QUESTIONS = 3_000
RUN = """
import asyncio, os, re, sys
from pathlib import Path
from inspect_ai.model import ModelAPI, ModelOutput, ModelUsage, get_model, modelapi
from mmprobe.benchmarks.core.runner import run_benchmark
from mmprobe.benchmarks.core.api_models import api
from mmprobe.benchmarks.core.benchmark import Benchmark
from mmprobe.benchmarks.judges.registry import with_judge
from mmprobe.samples import Sample

out, count = Path(sys.argv[1]), int(sys.argv[2])
log = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@modelapi(name="noting")
class Noting(ModelAPI):
    async def generate(self, input, tools, tool_choice, config):
        judges = input[0].role == "system"
        await asyncio.sleep(0.0005)
        name = re.search(r"Answer (\\d+)", input[1].text)[1] if judges else input[-1].id
        os.write(log, f"{'judged' if judges else 'asked'} {name}\\n".encode())
        text = '{"claims": []}' if judges else f"Answer {name}."
        output = ModelOutput.from_content("noting", text)
        output.usage = ModelUsage()
        return output

def judged(truth, responses, judge):
    return {}, [{"id": str(len(asyncio.run(judge.extract(list(responses.values())))))}]

samples = [Sample(id=f"{number:04}", question=f"What is {number}?") for number in range(count)]
benchmark = Benchmark("noted", "", lambda path: None, lambda *drawn: None, lambda truth: samples, judged, judged)
benchmark, judging = with_judge(benchmark, "model:noting/judge", out / "judge.sqlite")
run_benchmark(benchmark, None, api("noting/model", 8), out, {"judging": judging}, resume=True)
"""


def calls(log: Path, kind: str) -> list[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [name for said, name in (line.split() for line in lines) if said == kind]


def kept(out: Path) -> tuple[set[str], int]:
    """Ids of the answers on disk, and the number of replies in the judge's cache."""
    file, cache = out / "responses.jsonl", out / "judge.sqlite"
    whole = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
    replies = (
        sqlite3.connect(cache).execute("SELECT count(*) FROM replies").fetchone()[0] if cache.exists() else 0
    )
    return {json.loads(line)["id"] for line in whole}, replies


def test_killed_runs_ask_nothing_twice_that_they_kept(tmp_path):
    out, log, rng = tmp_path / "out", tmp_path / "log", random.Random(0)
    command = [sys.executable, "-P", "-c", RUN, str(out), str(QUESTIONS), str(log)]
    moments = [
        rng.randrange(1, QUESTIONS // 2),
        rng.randrange(QUESTIONS // 2, QUESTIONS),
        rng.randrange(QUESTIONS + 100, 2 * QUESTIONS - 100),
    ]
    for moment in moments:
        before, _ = kept(out)
        earlier = len(calls(log, "asked"))
        process = subprocess.Popen(command)
        while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < moment):
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -9, "it was to be killed before it ended"
        answers, replies = kept(out)
        assert not before & set(calls(log, "asked")[earlier:])
        assert len(set(calls(log, "asked")) - answers) <= CONCURRENCY, "answers that were given and lost"
        assert len(set(calls(log, "judged"))) - replies <= 8
    assert subprocess.run(command, timeout=900).returncode == 0
    answers, replies = kept(out)
    assert len(answers) == replies == QUESTIONS
    for kind, others in (("asked", len(moments)), ("judged", 1)):
        counted = Counter(calls(log, kind))
        assert len(counted) == QUESTIONS
        assert counted.total() <= QUESTIONS + others * CONCURRENCY
    results = json.loads((out / "results.json").read_text())
    assert results["judging"]["judged"] == QUESTIONS
    assert results["judging"]["calls"] < QUESTIONS, "the cache knew what was judged before the kill"
