"""Benchmarks that run into one folder at the same time, or that are killed, write every answer once."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import run_in_process
from helpers.killing import kill_after, run_at_once

import mmprobe as mp
from mmprobe.benchmarks import compare, evaluate, score
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.ledger import lock_folder
from mmprobe.models import Model

PAIRS = 8
KILLS = 12
SET = {"n": 1, "max_new_tokens": 3}


def read_answers(out: Path) -> dict[str, str]:
    """Return the answers on disk by id; each must be there once."""
    lines = (out / "responses.jsonl").read_text(encoding="utf-8").splitlines()
    answers = {line["id"]: line["response"] for line in map(json.loads, lines)}
    assert len(answers) == len(lines), "an answer was written twice"
    return answers


@pytest.fixture(scope="module")
def undisturbed(tiny_spd: Model, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    evaluate("spd-faith", tiny_spd, out, trace=True, **SET)
    return out


@pytest.mark.slow
def test_each_command_refuses_a_folder_that_another_process_writes(tiny_spd, tmp_path):
    out, data = tmp_path / "out", make_pairs(tmp_path / "pairs", n=1, seed=5)
    calls = [
        lambda: evaluate("pope", tiny_spd, out, resume=True),
        lambda: compare(tiny_spd, out),
        lambda: score("spd-faith", data, {}, out),
        lambda: run_command("bench", "pope", "--model", "tiny-spd", "--out", out),
    ]
    with lock_folder(out, "answering into it"):
        for call in calls:
            with pytest.raises(InputError, match="process .* answering"):
                call()
    assert not out.exists()


def run_command(*arguments: object) -> None:
    finished = run_in_process(*arguments)
    assert finished.code == 2
    raise InputError(finished.stderr)


@pytest.mark.stress
def test_two_benches_write_every_answer_once(tiny_spd, undisturbed, tmp_path):
    rng = np.random.default_rng(7)
    for pair in range(PAIRS):
        out = tmp_path / f"out{pair}"
        options = {**SET, "resume": pair % 2 == 1, "trace": pair % 4 > 1}
        calls = [lambda out=out, o=options: evaluate("spd-faith", tiny_spd, out, **o)] * 2
        refusals = [error for error in run_at_once(calls, [0, rng.uniform(0, 1)]) if error is not None]
        assert len(refusals) < 2, refusals
        assert all(
            "is answering into it since" in text or "already contains answers" in text for text in refusals
        ), refusals
        assert read_answers(out) == read_answers(undisturbed)
        evaluate("spd-faith", tiny_spd, out, **options | {"resume": True})


@pytest.mark.stress
def test_a_traced_bench_that_is_killed_equals_an_undisturbed_one(tiny_spd, undisturbed, tmp_path):
    rng, killed, attempt, kept = np.random.default_rng(8), 0, 0, {}
    began = time.perf_counter()
    evaluate("spd-faith", tiny_spd, tmp_path / "timing", trace=True, **SET)
    seconds = time.perf_counter() - began

    def check(out: Path) -> None:
        assert read_answers(out) == read_answers(undisturbed)
        assert (out / "samples.jsonl").read_text() == (undisturbed / "samples.jsonl").read_text()
        assert mp.verify(out / "run") == []

    def go_on() -> None:
        evaluate("spd-faith", tiny_spd, tmp_path / f"out{attempt}", trace=True, resume=True, **SET)

    while killed < KILLS:
        out = tmp_path / f"out{attempt}"
        if kill_after(go_on, rng.uniform(0, 0.8 * seconds)):
            killed += 1
            traced = {path.name: path.stat().st_ino for path in out.glob("run/samples/*.h5")}
            assert kept.items() <= traced.items(), "a finished trace was lost or made again"
            kept = traced
        else:  # it finished before it was killed: start again
            check(out)
            attempt, kept = attempt + 1, {}
    go_on()
    check(out)
