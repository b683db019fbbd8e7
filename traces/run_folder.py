"""A run's folder: made, resumed or replaced; and the files in it that are not traces."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mmprobe.cache import open_run
from mmprobe.cache.schema import FORMAT_VERSION
from mmprobe.errors import InputError
from mmprobe.interventions.base import Method
from mmprobe.models import Model
from mmprobe.traces.capture import CaptureSpec


def run_config(
    model: Model,
    ids: list[str],
    spec: CaptureSpec,
    engine: str,
    batch_size: int,
    generation: dict[str, Any],
    methods: Sequence[Method] = (),
) -> dict[str, Any]:
    """Return the content of `run.json`."""
    libraries = ["torch", "transformers", "h5py"]
    if engine != "native":
        libraries.append(engine.replace("_", "-"))
    if methods:
        generation = generation | {"methods": {method.name: asdict(method) for method in methods}}
    return {
        "format": FORMAT_VERSION,
        "model": {
            "name": model.name,
            "source": model.source,
            "revision": model.revision,
            "family": model.family.name,
            "dtype": str(model.hf.dtype).removeprefix("torch."),
            "layers": model.n_layers,
        },
        "capture": spec.model_dump(),
        "generate": generation,
        "engine": engine,
        "batch_size": batch_size,
        "versions": {
            "python": platform.python_version(),
            "mmprobe": version("mmprobe"),
            **{name: version(name) for name in libraries},
        },
        "order": ids,
    }


def open_folder(out: Path, config: dict[str, Any], resume: bool, overwrite: bool) -> set[str]:
    """Make a run's folder, or open it again, and return the ids of the finished samples.

    Raises:
        InputError: `out` is a file, holds other files, holds a run and neither `resume` nor `overwrite` is
            set, holds a run that cannot be resumed, or cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; choose another folder for the run")
    holds_run = (out / "run.json").is_file()
    if not holds_run and out.is_dir() and not _is_unstarted(out):
        raise InputError(f"{out}: is not empty and holds no run; choose another folder")
    if holds_run and not resume and not overwrite:
        raise InputError(
            f"{out}: holds a run already; use resume=True to finish it or overwrite=True to replace it"
        )
    try:
        if holds_run and not overwrite:
            return _resume(out, config)
        if holds_run:
            shutil.rmtree(out)
        (out / "samples").mkdir(parents=True, exist_ok=True)
        part_file = out / "run.json.part"
        with open(part_file, "w", encoding="utf-8") as file:
            file.write(json.dumps(config, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part_file, out / "run.json")
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror})") from None
    return set()


def _is_unstarted(out: Path) -> bool:
    """Return whether a folder is empty, or was left by a run that stopped before it wrote `run.json`."""
    names = {entry.name for entry in out.iterdir()}
    return names <= {"samples", "run.json.part"} and not any(out.glob("samples/*"))


def _resume(out: Path, config: dict[str, Any]) -> set[str]:
    earlier = open_run(out)
    for key in ("model", "capture", "generate", "engine", "batch_size", "order"):
        if earlier.config.get(key) != config[key]:
            raise InputError(
                f"{out}: was traced with another {key.replace('_', ' ')}; "
                "resume=True needs the same, or use overwrite=True"
            )
    (out / "failures.jsonl").unlink(missing_ok=True)
    remove_partial_files(out)
    return set(earlier.ids)


def remove_partial_files(out: Path) -> None:
    """Remove the files of unfinished traces."""
    for path in (out / "samples").glob("*.part"):
        with suppress(OSError):
            path.unlink()


def check_space(out: Path, needed: int) -> None:
    """Raise InputError if the disk that holds `out` has less free space than `needed` bytes."""
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise InputError(
            f"{out}: the run can take {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; "
            "choose another folder, a smaller capture, fewer samples or a smaller max_new_tokens"
        )


def append_failure(out: Path, sample_id: str, error: BaseException) -> None:
    """Add a sample to `failures.jsonl`, with the error's class and the first line of its message."""
    name = type(error).__name__
    message = (str(error).strip().splitlines() or [name])[0]
    with open(out / "failures.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"id": sample_id, "error": name, "message": message}) + "\n")
