"""Ctrl-C ends every command with one line that says how to continue."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import weakref

import numpy as np
import pytest
from helpers.command_line import run_in_process
from helpers.runs import write_run

import mmprobe.cli as cli
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import pack
from mmprobe.cache.hdf5 import CheckedFile

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
    assert finished.stderr.splitlines() == [
        "mmprobe: stopping after this sample; Ctrl-C again stops at once",
        "mmprobe: interrupted; 2 of 5 samples are finished; continue with --resume",
    ]


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
    assert finished.stderr == "mmprobe: interrupted; what was finished is kept\n"


def test_an_interrupt_that_python_loses_is_repeated(monkeypatch, capfd):
    """Python only prints a KeyboardInterrupt that is raised in a callback of a weak reference."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job of the background ignores it
    cli._repeat_lost_interrupts()

    class Thing:
        pass

    def press(_):
        raise KeyboardInterrupt

    thing = Thing()
    reference = weakref.ref(thing, press)
    try:
        with pytest.raises(KeyboardInterrupt):
            del thing
            for _ in range(500):
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGINT, before)
    assert reference() is None and capfd.readouterr().err == ""


def test_an_interrupt_while_hdf5_reads_waits_until_hdf5_is_done(tmp_path, monkeypatch):
    """`pack` visits a trace within HDF5, and crashed when the Ctrl-C was raised there."""
    run = write_run(tmp_path / "run", {"a": {"residual/pre": np.ones((9, 3, 4096), np.float16)}}).path
    original, calls = CheckedFile.seek, []

    def seek(self, *arguments):
        calls.append(1)
        if len(calls) == press_at:
            signal.raise_signal(signal.SIGINT)
        return original(self, *arguments)

    monkeypatch.setattr(CheckedFile, "seek", seek)
    press_at = 0
    pack(run, tmp_path / "whole.h5")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cli._repeat_lost_interrupts()
        for press_at in range(1, len(calls) + 1, max(len(calls) // 20, 1)):
            calls.clear()
            with pytest.raises(KeyboardInterrupt):
                pack(run, tmp_path / f"{press_at}.h5")
                time.sleep(5)
    finally:
        signal.signal(signal.SIGINT, before)
