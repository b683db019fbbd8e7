"""The demo, as the README's first command runs it, on a fifth of its images."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from helpers.command_line import read_result, run_in_process

import mmprobe as mp

N_PAIRS = 5


@pytest.mark.exhaustive
def test_the_demo_shows_a_model_that_sees_and_errs(tmp_path, monkeypatch):
    """One test, since each process that runs a part of it would make the demo anew."""
    from mmprobe.cli import demo

    for name, value in {"PAIRS": N_PAIRS, "DIAGNOSED_PAIRS": 4}.items():
        monkeypatch.setattr(sys.modules[demo.__module__], name, value)
    out = tmp_path / "demo"
    read_result(run_in_process("demo", "--out", out, "--json"))
    assert mp.verify(out / "run") == []
    run = mp.open_run(out / "run")
    assert len(run) == 5 * N_PAIRS
    labels = [run.faithful(name) for name in run.ids]
    assert labels.count(True) > 3 * N_PAIRS
    assert labels.count(False) >= 1, "the demo needs an error to show"

    described = [run[name] for name in run.ids if name.endswith("describe")]
    exact = [trace.answer == trace.sample.answer for trace in described]
    assert np.mean(exact) > 0.8, "it cannot describe most images word for word without looking"

    assert "attention_decay.nc" in {file.name for file in (out / "analyses").iterdir()}
    exchanged = json.loads((out / "analyses" / "image_interchange.json").read_text())
    measured = exchanged["coords"]["sample"]["data"]
    assert measured == run.ids, "every answer that the report shows has its cause measured"
    assert "Content-Security-Policy" in (out / "report.html").read_text()
    assert (out / "diagnosis.html").exists()

    before = {file.name: file.stat().st_mtime_ns for file in (out / "run" / "samples").iterdir()}
    assert read_result(run_in_process("demo", "--out", out, "--json"))["samples"] == len(before)
    assert {file.name: file.stat().st_mtime_ns for file in (out / "run" / "samples").iterdir()} == before
