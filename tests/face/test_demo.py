"""The demo, as the README's first command runs it, on a third of its images."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import read_result, run_in_process

import mmprobe as mp

N_PAIRS = 8

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    from mmprobe.cli import demo

    out = tmp_path_factory.mktemp("demo") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PAIRS": N_PAIRS, "DIAGNOSED_PAIRS": 4, "EXCHANGED": 4}.items():
            patch.setattr(sys.modules[demo.__module__], name, value)
        read_result(run_in_process("demo", "--out", out, "--json"))
        yield out


def test_the_run_is_whole_and_labelled(demo):
    assert mp.verify(demo / "run") == []
    run = mp.open_run(demo / "run")
    assert len(run) == 5 * N_PAIRS
    labels = [run.faithful(name) for name in run.ids]
    assert labels.count(True) > 3 * N_PAIRS
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
