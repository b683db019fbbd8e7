"""A run that is killed three times asks no question again whose answer was kept, and judges no answer again."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mmprobe.benchmarks.core.api_models import CONCURRENCY, api_answerer
from mmprobe.benchmarks.core.benchmark import Benchmark, Scored
from mmprobe.benchmarks.core.runner import run_benchmark
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.judges.judge import open_judging
from mmprobe.benchmarks.spd_faith.model_labels import claims_request
from mmprobe.samples import Sample

inspect_model = pytest.importorskip("inspect_ai.model", reason="the extra eval is not installed")

N_QUESTIONS = 900


class Noting(inspect_model.ModelAPI):
    """A model that notes in a log which question it was asked, or whose answer it judged."""

    log = Path()

    async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
        judges = input[0].role == "system"
        await asyncio.sleep(0.0005)
        name = re.search(r"Answer (\d+)", input[1].text)[1] if judges else input[-1].id
        with Noting.log.open("a") as log:
            log.write(f"{'judged' if judges else 'asked'} {name}\n")
        text = '{"claims": []}' if judges else f"Answer {name}."
        output = inspect_model.ModelOutput.from_content("noting", text)
        output.usage = inspect_model.ModelUsage()
        return output


inspect_model.modelapi(name="noting")(Noting)


class Noted(Benchmark):
    """Questions whose answers a judge reads."""

    name = "noted"
    judged_fields = ("id",)

    def score(self, truth: Any, responses: Mapping[str, str], judge: Judge | None = None) -> Scored:
        assert judge is not None
        judged = asyncio.run(judge.ask([claims_request(text) for text in responses.values()]))
        return {}, [{"id": str(len(judged))}]


def ask_and_judge(out: Path, log: Path) -> None:
    Noting.log = log
    samples = [Sample(id=f"{number:04}", question=f"What is {number}?") for number in range(N_QUESTIONS)]
    judging = open_judging(Noted(), "model:noting/judge", out / "judge.sqlite")
    answerer = api_answerer("noting/model")
    about = {"judging": judging.counts}
    run_benchmark(Noted(), samples, answerer, out, about, resume=True, judging=judging)


def start(out: Path, log: Path) -> multiprocessing.process.BaseProcess:
    """Start a process that shares what is imported."""
    process = multiprocessing.get_context("fork").Process(target=ask_and_judge, args=(out, log))
    process.start()
    return process


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


@pytest.mark.stress
def test_killed_runs_ask_and_judge_nothing_twice(tmp_path):
    out, log, rng = tmp_path / "out", tmp_path / "log", random.Random(0)
    n_calls_at_kills = [
        rng.randrange(1, N_QUESTIONS // 2),
        rng.randrange(N_QUESTIONS // 2, N_QUESTIONS),
        rng.randrange(N_QUESTIONS + 100, 2 * N_QUESTIONS - 100),
    ]
    for n_calls in n_calls_at_kills:
        kept_before, _ = read_kept(out)
        n_asked_before = len(read_log(log, "asked"))
        process = start(out, log)
        while process.is_alive() and (not log.exists() or log.read_bytes().count(b"\n") < n_calls):
            time.sleep(0.01)
        process.kill()
        process.join()
        assert process.exitcode == -9, "the run ended before it was killed"
        kept, n_replies = read_kept(out)
        assert not kept_before & set(read_log(log, "asked")[n_asked_before:])
        assert len(set(read_log(log, "asked")) - kept) <= CONCURRENCY, "answers were lost"
        assert len(set(read_log(log, "judged"))) - n_replies <= 8
    process = start(out, log)
    process.join(900)
    assert process.exitcode == 0
    kept, n_replies = read_kept(out)
    assert len(kept) == n_replies == N_QUESTIONS
    for kind, n_kills in (("asked", len(n_calls_at_kills)), ("judged", 1)):
        counts = Counter(read_log(log, kind))
        assert len(counts) == N_QUESTIONS
        assert counts.total() <= N_QUESTIONS + n_kills * CONCURRENCY
    results = json.loads((out / "results.json").read_text())
    assert results["judging"]["judged"] == N_QUESTIONS
    assert results["judging"]["calls"] < N_QUESTIONS, "the cache kept what was judged before the kill"
