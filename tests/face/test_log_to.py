"""`--log-to`: metrics and settings reach the tracker, and one that is missing is one line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from helpers.command_line import assert_fails, run_in_process

from mmprobe.benchmarks.core.results import mean_metric
from mmprobe.cli import log_to

METRICS = {
    "accuracy": mean_metric([1.0, 0.0, 1.0, 1.0], "higher"),
    "unread[kind=words]": mean_metric([None], "lower"),
}


class Recorder:
    """A tracker that keeps what it gets."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.logged = settings, {}

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        self.logged |= values if step is None else {(step, name): value for name, value in values.items()}


def test_wandb_and_mlflow_get_values_and_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Recorder] = []
    wandb, mlflow, params = ModuleType("wandb"), ModuleType("mlflow"), {}

    def start(**settings: Any) -> Recorder:
        runs.append(Recorder(**settings))
        return runs[-1]

    wandb.init, mlflow.start_run = start, start  # type: ignore[attr-defined]
    mlflow.set_experiment = lambda name: params.update(experiment=name)  # type: ignore[attr-defined]
    mlflow.log_params = params.update  # type: ignore[attr-defined]
    mlflow.log_metrics = lambda values, step=None: runs[-1].log(values, step)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    for tracker in ("wandb", "mlflow"):
        log_to.log_metrics(
            tracker, tmp_path / "vqa", {"model": "tiny-spd", "limit": 4}, METRICS, [(3, {"train/loss": 0.5})]
        )
    first, second = runs
    assert first.settings == {
        "project": "mmprobe",
        "name": "vqa",
        "config": {"model": "tiny-spd", "limit": 4},
    }
    assert params == {"experiment": "mmprobe", "model": "tiny-spd", "limit": "4"}
    assert first.logged["accuracy"] == second.logged["accuracy"] == 0.75
    assert first.logged[3, "train/loss"] == second.logged[3, "train/loss"] == 0.5
    assert first.logged["accuracy/low"] == METRICS["accuracy"].low and first.logged["accuracy/n"] == 4
    assert "unread[kind=words]" not in first.logged, "undefined"
    assert not any(set("[]=") & set(name) for name in second.logged if isinstance(name, str)), (
        "mlflow refuses these"
    )


def test_a_missing_tracker_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_to, "find_spec", lambda name: None)
    finished = run_in_process(
        "bench", "vqa", "--model", "tiny-spd", "--log-to", "mlflow", "--out", tmp_path / "out"
    )
    assert_fails(finished, "--log-to mlflow: is not installed; pip install mlflow")
    assert not (tmp_path / "out").exists()


def test_a_tracker_that_fails_gets_no_key_and_costs_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MADE_UP_API_KEY", "sk-0123456789")
    wandb, got = ModuleType("wandb"), list[Any]()

    def fail(**settings: Any) -> Recorder:
        got.append(settings)
        raise RuntimeError("no network\nfor sk-0123456789")

    wandb.init = fail  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with pytest.raises(typer.Exit) as ended:
        log_to.log_metrics(
            "wandb", tmp_path / "sk-0123456789", {"data": Path("sk-0123456789.jsonl"), "n": [1]}, METRICS
        )
    assert ended.value.exit_code == 1
    assert got == [
        {
            "project": "mmprobe",
            "name": "[MADE_UP_API_KEY]",
            "config": {"data": "[MADE_UP_API_KEY].jsonl", "n": [1]},
        }
    ]
    said = capsys.readouterr().err
    assert said.startswith("mmprobe: --log-to wandb: ")
    assert "(RuntimeError: no network for [MADE_UP_API_KEY])" in said
    assert said.count("\n") == 1
