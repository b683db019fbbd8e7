"""The whole demo, as the README's first command runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mmprobe as mp


def run_demo(out: Path) -> dict:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mmprobe", "demo", "--out", str(out), "--json"],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "demo"
    run_demo(out)
    return out


def test_the_run_is_whole_and_labelled(demo):
    assert mp.verify(demo / "run") == []
    run = mp.open_run(demo / "run")
    assert len(run) == 120
    labels = [run.faithful(name) for name in run.ids]
    assert labels.count(True) > 90
    assert labels.count(False) >= 1, "the embedded model errs now and then, and the demo is to show it"


def test_the_model_sees_in_the_demo(demo):
    """It describes most pictures word for word, which it cannot without looking."""
    run = mp.open_run(demo / "run")
    described = [run[name] for name in run.ids if name.endswith("describe")]
    exact = [trace.answer == trace.sample.answer for trace in described]
    assert np.mean(exact) > 0.8


def test_report_and_analyses_are_there(demo):
    assert "attention_decay.nc" in {file.name for file in (demo / "analyses").iterdir()}
    report = (demo / "report.html").read_text()
    assert "Content-Security-Policy" in report


def test_a_second_call_keeps_what_was_traced(demo):
    before = {file.name: file.stat().st_mtime_ns for file in (demo / "run" / "samples").iterdir()}
    assert run_demo(demo)["samples"] == len(before)
    assert {file.name: file.stat().st_mtime_ns for file in (demo / "run" / "samples").iterdir()} == before
