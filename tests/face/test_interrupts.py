"""Ctrl-C ends every command with one line that says how to continue."""

from __future__ import annotations

import importlib
import os
import signal

import pytest
from helpers.command_line import run_in_process

import mmprobe.cli as cli
from mmprobe.benchmarks.synthetic.pairs import make_pairs

batch = importlib.import_module("mmprobe.interventions.generate")


@pytest.fixture
def press_in_batch(monkeypatch):
    """Press Ctrl-C when the second batch is built."""
    original, calls = batch.build_batch, []

    def build(*arguments):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(batch, "build_batch", build)


def test_an_interrupted_trace_says_how_far_it_came(press_in_batch, tiny_spd, tmp_path, monkeypatch):
    monkeypatch.setattr("mmprobe.models.load_model", lambda *_, **__: tiny_spd)
    data = make_pairs(tmp_path / "pairs", 1, 0)
    call = ["trace", "--model", "tiny-spd", "--data", data, "--out", tmp_path / "run", "--max-new-tokens", 2]
    finished = run_in_process(*call, "--limit", 5)
    assert finished.code == 130
    first, last = finished.stderr.splitlines()
    assert "Ctrl-C" in first and "2 of 5 samples" in last and "--resume" in last


@pytest.mark.parametrize("place", ["before the command", "within the command"])
def test_an_interrupt_is_one_line(place, monkeypatch, tmp_path):
    def press(*_, **__):
        raise KeyboardInterrupt

    if place == "before the command":
        monkeypatch.setattr(cli.typer.core.TyperGroup, "invoke", press)
    else:
        (tmp_path / "run.json").write_text("{}")
        monkeypatch.setattr("mmprobe.cache.verify", press)
    finished = run_in_process("verify", tmp_path)
    assert finished.code == 130
    assert finished.stderr.startswith("mmprobe: interrupted") and finished.stderr.count("\n") == 1
