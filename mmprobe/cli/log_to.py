"""The option `--log-to`: metrics to a tracker of experiments that is installed here; none is a dependency."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from mmprobe.cli.options import warn
from mmprobe.errors import InputError, printable
from mmprobe.files import make_subfolder, redact

Tracker = Literal["wandb", "mlflow", "tensorboard"]
LogTo = Annotated[
    Tracker | None,
    typer.Option("--log-to", help="Also log the metrics to this tracker, as it is set up here."),
]
PROJECT = "mmprobe"
_LONGEST_SETTING = 250  # characters; mlflow takes no longer values everywhere
_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]")  # characters of a metric's name


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

    No key of the environment is logged. The results are in their files, so a tracker that fails is said, and ends the
    command with 1.

    Args:
        folder: the result folder. Its name is that of the tracker's run, and TensorBoard's events are written into it.
        settings: how the metrics came about.
        metrics: by name, each with value, low, high and n; undefined numbers are left out.
        steps: of a training, the number of each step and what was logged at it, by name.

    Raises:
        InputError: a link is in the place of TensorBoard's folder.
        typer.Exit: the tracker failed.
    """
    flat = {
        printable(redact(f"{name}/{end}" if end != "value" else name)): float(number)
        for name, metric in metrics.items()
        for end in ("value", "low", "high", "n")
        if (number := getattr(metric, end)) is not None
    }
    safe = json.loads(redact(json.dumps(dict(settings), default=str)))
    texts = {
        name: (value if isinstance(value, str) else json.dumps(value))[:_LONGEST_SETTING]
        for name, value in safe.items()
    }
    log = {"wandb": _log_to_wandb, "mlflow": _log_to_mlflow, "tensorboard": _log_to_tensorboard}[tracker]
    if tracker == "tensorboard":
        make_subfolder(folder / "tensorboard")
    try:
        log(folder, _Logged(printable(redact(folder.name)), safe, texts, list(steps), flat))
    except (Exception, SystemExit) as error:  # of a library that is none of ours, and of its server
        warn(
            f"--log-to {tracker}: the metrics were not logged ({type(error).__name__}: {error}); they are in {folder}"
        )
        raise typer.Exit(1) from None


class _Logged(NamedTuple):
    """What a tracker gets.

    Attributes:
        name: of the tracker's run.
        settings: as they are.
        texts: the settings as texts.
        steps: what was logged at each step of a training.
        metrics: all numbers of the metrics, by name.
    """

    name: str
    settings: Mapping[str, Any]
    texts: Mapping[str, str]
    steps: Sequence[tuple[int, Mapping[str, float]]]
    metrics: Mapping[str, float]


def _log_to_wandb(folder: Path, logged: _Logged) -> None:
    import wandb

    with wandb.init(project=PROJECT, name=logged.name, config=dict(logged.settings)) as run:
        for step, values in logged.steps:
            run.log(dict(values), step=step)
        run.log(dict(logged.metrics))


def _log_to_mlflow(folder: Path, logged: _Logged) -> None:
    import mlflow

    mlflow.set_experiment(PROJECT)
    with mlflow.start_run(run_name=logged.name):
        mlflow.log_params(logged.texts)
        for step, values in logged.steps:
            mlflow.log_metrics({_allow(name): value for name, value in values.items()}, step=step)
        mlflow.log_metrics({_allow(name): value for name, value in logged.metrics.items()})


def _log_to_tensorboard(folder: Path, logged: _Logged) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:
        writer.add_text("settings", "\n".join(f"    {name}: {text}" for name, text in logged.texts.items()))
        for step, values in logged.steps:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
        for name, value in logged.metrics.items():
            writer.add_scalar(name, value)


def _allow(name: str) -> str:
    """Return a name that mlflow allows."""
    return _NOT_IN_MLFLOW.sub("-", name.replace("[", "/").replace("]", ""))
