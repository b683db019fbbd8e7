"""The log of a training: written at each step, and read as a data set for its figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from transformers import TrainerCallback

from mmprobe.errors import InputError
from mmprobe.files import json_lines, write_atomic

LOG = "log.jsonl"
_COLUMNS = {
    "reward": "reward",
    "accuracy": "rewards/accuracy_reward/mean",
    "format": "rewards/format_reward/mean",
    "variance_free": "frac_reward_zero_std",
    "length": "completions/mean_length",
    "kl": "kl",
    "loss": "loss",
    "validation_loss": "eval_loss",
}


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


def training_history(out: str | Path) -> xr.Dataset:
    """Return what a training logged, by step, its stages one after another.

    Args:
        out: the folder of the training.

    Returns:
        A data set with dimension `step` and what was logged of: reward, accuracy, format (means over a batch),
        variance_free (share of groups with equal rewards), length (mean, tokens), kl, loss, validation_loss;
        and stage (step), from 1.

    Raises:
        InputError: nothing was logged.

    Example:
        >>> training_history("logos").reward.values                       # doctest: +SKIP
        array([0.94, 1.12, 1.5 ])
    """
    lines = [line for line in read_log(Path(out)) if any(name in line for name in _COLUMNS.values())]
    if not lines:
        raise InputError(f"{out}: contains no log of a training")
    ends: dict[int, int] = {}
    for line in lines:
        ends[line["stage"]] = max(line["step"], ends.get(line["stage"], 0))
    before = {stage: sum(ends[other] for other in ends if other < stage) for stage in ends}
    rows: dict[int, dict[str, float]] = {}
    for line in lines:
        rows.setdefault(before[line["stage"]] + line["step"], {}).update(line)
    ds = xr.Dataset(coords={"step": list(rows)}, attrs={"analysis": "training", "out": str(out)})
    ds["stage"] = "step", [int(row["stage"]) + 1 for row in rows.values()]
    for name, column in _COLUMNS.items():
        values = np.array([row.get(column, np.nan) for row in rows.values()], float)
        if np.isfinite(values).any():
            ds[name] = "step", values
    return ds
