"""Checkpoints, settings and the log of a training, from which a killed training can continue."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from mmprobe.errors import InputError, option
from mmprobe.files import check_no_link, json_lines, write_atomic
from mmprobe.ledger import Ledger

SETTINGS, LOG = "training.json", "log.jsonl"
_COMPLETE = "complete"  # a file in each checkpoint that is whole


class WholeCheckpoints:
    """Mark each checkpoint of a TRL trainer when it is whole. Nothing is sent anywhere.

    A checkpoint contains the weights as safetensors, and the optimiser's and random numbers' states as tensors, which
    are read without pickle's code (`weights_only`).
    """

    args: Any
    state: Any

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing reads
        (folder / _COMPLETE).touch()

    def create_model_card(self, *args: Any, **options: Any) -> None:
        """Write no card."""

    def _send_telemetry(self) -> None:
        """Send nothing."""


class LogWriter(TrainerCallback):
    """Append what a trainer logs to `log.jsonl`: one line a step, with the stage and all numbers."""

    def __init__(self, out: Path, stage: int = 0, done: int = 0):
        """Keep the lines of earlier stages, and those of this one up to step `done`."""
        self.file, self.stage = out / LOG, stage
        self.lines = [line for line in read_log(out) if (line["stage"], line["step"]) < (stage, done + 1)]

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **options: Any) -> None:
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        self.lines.append({"stage": self.stage, "step": state.global_step} | numbers)
        write_atomic(self.file, "".join(json.dumps(line) + "\n" for line in self.lines))


def read_log(out: Path) -> list[dict[str, Any]]:
    """Return the lines of a training's log; none before the first."""
    return [line for _, line in json_lines(out / LOG)] if (out / LOG).exists() else []


def silence(trainer: Any) -> None:
    """Take away what a trainer prints: its losses. The progress bar stays, where stderr is a terminal."""
    trainer.remove_callback(PrinterCallback)
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, ProgressCallback):
            callback.on_log = lambda *args, **options: None  # type: ignore[method-assign]


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last whole checkpoint of a folder, and remove those that a kill cut off."""
    for part in folder.glob("checkpoint-*"):
        if not (part / _COMPLETE).exists():
            shutil.rmtree(part)
    found = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    return Path(found) if found else None


def place_model(save: Callable[[Path], None], folder: Path) -> None:
    """Let a function write a model to a folder, which appears when it is whole.

    Args:
        save: writes the model's files to a new folder.

    Raises:
        InputError: a link is in its place.
    """
    part = check_no_link(folder.with_name(f"{folder.name}.part"))
    shutil.rmtree(part, ignore_errors=True)  # of a training that was killed
    part.mkdir()
    save(part)
    part.replace(check_no_link(folder))


def training_ledger(out: Path) -> Ledger:
    """Return what a training keeps in its folder, which contains nothing else."""
    return Ledger(
        out,
        settings=SETTINGS,
        holds="a training",
        differs="was trained with {name} {old!r}, not {new!r}",
        remedy="give the same, or choose another folder",
        offer=f"continue with {option('resume')}, or choose another folder",
    )


def start_training(out: Path, settings: Mapping[str, Any], used: Mapping[str, Any], resume: bool) -> None:
    """Write the settings of a new training, or check that an earlier one had the same.

    Args:
        used: fingerprint of the model and the images.

    Raises:
        InputError: the folder contains a training and `resume` is false, or one with other settings, of another model
            or on other images.
    """
    ledger = training_ledger(out)
    if not ledger.begun and not ledger.is_empty():
        raise InputError(f"{out}: exists and contains no training; choose another folder")
    ledger.check(resume)
    out.mkdir(parents=True, exist_ok=True)
    ledger.begin(settings, used)
