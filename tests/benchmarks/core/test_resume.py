"""A run that is killed three times asks no question again whose answer was kept, and judges no answer again."""

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

N_QUESTIONS = 900
RUN = """
import asyncio, os, re, sys
from pathlib import Path
from inspect_ai.model import ModelAPI, ModelOutput, ModelUsage, get_model, modelapi
from mmprobe.benchmarks.core.runner import run_benchmark
from mmprobe.benchmarks.core.api_models import api_answerer
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

def score_with_judge(truth, responses, judge):
    return {}, [{"id": str(len(asyncio.run(judge.extract(list(responses.values())))))}]

samples = [Sample(id=f"{number:04}", question=f"What is {number}?") for number in range(count)]
benchmark = Benchmark(
    name="noted", about="", read_data=None, draw_data=None, take=None, ask_questions=lambda truth: samples,
    score_answers=None, score_with_judge=score_with_judge,
)
benchmark, judging = with_judge(benchmark, "model:noting/judge", out / "judge.sqlite")
run_benchmark(benchmark, None, api_answerer("noting/model", 8), out, {"judging": judging}, resume=True)
"""


def read_log(log: Path, kind: str) -> list[str]:
    """Return the ids that the model was asked, or whose answers it judged, in order."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [name for line_kind, name in (line.split() for line in lines) if line_kind == kind]


def read_kept(out: Path) -> tuple[set[str], int]:
    """Return the ids of the answers on disk, and the number of replies in the judge's cache."""
    file, cache = out / "responses.jsonl", out / "judge.sqlite"
    lines = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
    n_replies = 0
    if cache.exists():
        n_replies = sqlite3.connect(cache).execute("SELECT count(*) FROM replies").fetchone()[0]
    return {json.loads(line)["id"] for line in lines}, n_replies


@pytest.mark.slow
def test_killed_runs_ask_and_judge_nothing_twice(tmp_path):
    out, log, rng = tmp_path / "out", tmp_path / "log", random.Random(0)
    command = [sys.executable, "-P", "-c", RUN, str(out), str(N_QUESTIONS), str(log)]
    n_calls_at_kills = [
        rng.randrange(1, N_QUESTIONS // 2),
        rng.randrange(N_QUESTIONS // 2, N_QUESTIONS),
        rng.randrange(N_QUESTIONS + 100, 2 * N_QUESTIONS - 100),
    ]
    for n_calls in n_calls_at_kills:
        kept_before, _ = read_kept(out)
        n_asked_before = len(read_log(log, "asked"))
        process = subprocess.Popen(command)
        while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < n_calls):
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -9, "the run ended before it was killed"
        kept, n_replies = read_kept(out)
        assert not kept_before & set(read_log(log, "asked")[n_asked_before:])
        assert len(set(read_log(log, "asked")) - kept) <= CONCURRENCY, "answers were lost"
        assert len(set(read_log(log, "judged"))) - n_replies <= 8
    assert subprocess.run(command, timeout=900).returncode == 0
    kept, n_replies = read_kept(out)
    assert len(kept) == n_replies == N_QUESTIONS
    for kind, n_kills in (("asked", len(n_calls_at_kills)), ("judged", 1)):
        counts = Counter(read_log(log, kind))
        assert len(counts) == N_QUESTIONS
        assert counts.total() <= N_QUESTIONS + n_kills * CONCURRENCY
    results = json.loads((out / "results.json").read_text())
    assert results["judging"]["judged"] == N_QUESTIONS
    assert results["judging"]["calls"] < N_QUESTIONS, "the cache kept what was judged before the kill"
