"""The whole demo, as the README's first command runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import read_result, run_in_process

import mmprobe as mp

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "demo"
    read_result(run_in_process("demo", "--out", out, "--json"))
    return out


def test_the_run_is_whole_and_labelled(demo):
    assert mp.verify(demo / "run") == []
    run = mp.open_run(demo / "run")
    assert len(run) == 120
    labels = [run.faithful(name) for name in run.ids]
    assert labels.count(True) > 90
    assert labels.count(False) >= 1, "the demo needs an error to show"


def test_the_model_sees_in_the_demo(demo):
    """It describes most images word for word, which it cannot do without looking."""
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
    assert read_result(run_in_process("demo", "--out", demo, "--json"))["samples"] == len(before)
    assert {file.name: file.stat().st_mtime_ns for file in (demo / "run" / "samples").iterdir()} == before
