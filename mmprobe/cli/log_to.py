"""The option `--log-to`: metrics to a tracker of experiments that is installed here; none is a dependency."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mmprobe.errors import InputError

Tracker = Literal["wandb", "mlflow", "tensorboard"]
LogTo = Annotated[
    Tracker | None,
    typer.Option("--log-to", help="Also log the metrics to this tracker, as it is set up here."),
]
PROJECT = "mmprobe"
_LONGEST_SETTING = 250  # characters; mlflow takes no longer values everywhere


def check_tracker(tracker: Tracker | None) -> None:
    """Check that a tracker is installed, before the work begins.

    Raises:
        InputError: it is not.
    """
    if tracker is not None and find_spec(tracker) is None:
        raise InputError(f"--log-to {tracker}: is not installed; pip install {tracker}")


Steps = Iterable[tuple[int, Mapping[str, float]]]


def log_metrics(
    tracker: Tracker,
    folder: Path,
    settings: Mapping[str, Any],
    metrics: Mapping[str, Any],
    steps: Steps = (),
) -> None:
    """Log metrics once: each value with the ends of its interval and n, and the settings beside them.

    Args:
        folder: the result folder. Its name is that of the tracker's run, and TensorBoard's events are written into it.
        settings: how the metrics came about.
        metrics: by name, each with value, low, high and n; undefined numbers are left out.
        steps: of a training, the number of each step and what was logged at it, by name.
    """
    flat = {
        f"{name}/{end}" if end != "value" else name: float(number)
        for name, metric in metrics.items()
        for end in ("value", "low", "high", "n")
        if (number := getattr(metric, end)) is not None
    }
    texts = {
        name: (value if isinstance(value, str) else json.dumps(value))[:_LONGEST_SETTING]
        for name, value in settings.items()
    }
    if tracker == "wandb":
        import wandb

        with wandb.init(project=PROJECT, name=folder.name, config=dict(settings)) as run:
            for step, values in steps:
                run.log(dict(values), step=step)
            run.log(flat)
    elif tracker == "mlflow":
        import mlflow

        mlflow.set_experiment(PROJECT)
        with mlflow.start_run(run_name=folder.name):
            mlflow.log_params(texts)
            for step, values in steps:
                mlflow.log_metrics({_allow(name): value for name, value in values.items()}, step=step)
            mlflow.log_metrics({_allow(name): value for name, value in flat.items()})
    else:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(folder / "tensorboard")) as writer:
            writer.add_text("settings", "\n".join(f"    {name}: {text}" for name, text in texts.items()))
            for step, values in steps:
                for name, value in values.items():
                    writer.add_scalar(name, value, step)
            for name, value in flat.items():
                writer.add_scalar(name, value)


def _allow(name: str) -> str:
    """Return a name that mlflow allows."""
    return name.replace("[", "/").replace("]", "").replace("=", "-")
