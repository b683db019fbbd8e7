"""The scripts that made the embedded model run, and interrupted training ends in the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.forked import run_script

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
pytestmark = pytest.mark.stress


def run(script: str, *arguments: str) -> str:
    done = run_script(SCRIPTS / script, *arguments)
    assert done.code == 0, done.stderr
    return done.stdout


def train(out: Path, *arguments: str) -> bytes:
    sizes = ["--steps", "3", "--batch", "8", "--tower-steps", "2", "--tower-batch", "4"]
    run("train_tiny_spd.py", "--out", str(out), *sizes, "--workers", "0", "--device", "cpu", *arguments)
    return (out / "model" / "model.safetensors").read_bytes()


def test_interrupted_training_ends_in_the_same_weights(tmp_path):
    stopped = train(tmp_path / "stopped", "--minutes", "0")
    resumed = train(tmp_path / "stopped")
    assert stopped != resumed
    assert resumed == train(tmp_path / "whole")


def test_evaluation_prints_its_tables():
    printed = run("evaluate_tiny_spd.py", "--pairs", "1", "--device", "cpu")
    assert "| question | n | correct % | exact % | faithful % |" in printed
    assert "| exists | 2 |" in printed
