"""A run's folder: made, resumed or replaced, with what is written beside the traces."""

from __future__ import annotations

import json
import os
import platform
import shutil
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mmprobe.cache import open_run
from mmprobe.cache.schema import FORMAT_VERSION
from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.traces.capture import CaptureSpec


def describe(
    model: Model, ids: list[str], spec: CaptureSpec, engine: str, batch_size: int, generate: dict[str, Any]
) -> dict[str, Any]:
    """A run's `run.json`."""
    libraries = ("torch", "transformers", "h5py", *{"native": ()}.get(engine, (engine.replace("_", "-"),)))
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
        "generate": generate,
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
    """Make a run's folder and say which samples are finished already.

    Raises:
        InputError: something else is there, or a run that is not to be touched or cannot be resumed.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; choose another folder for the run")
    there = out.is_dir() and any(out.iterdir())
    if there and not (out / "run.json").is_file():
        if {entry.name for entry in out.iterdir()} - {"samples", "run.json.part"} or any(
            out.glob("samples/*")
        ):
            raise InputError(f"{out}: is not empty and holds no run; choose another folder")
        there = False  # a run that was stopped before it began
    if there and not resume and not overwrite:
        raise InputError(
            f"{out}: holds a run already; use --resume to finish it or --overwrite to replace it"
        )
    try:
        if there and overwrite:
            shutil.rmtree(out)
            there = False
        if there:
            return _resumed(out, config)
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


def _resumed(out: Path, config: dict[str, Any]) -> set[str]:
    earlier = open_run(out)
    for part in ("model", "capture", "generate", "engine", "batch_size", "order"):
        if earlier.config.get(part) != config[part]:
            raise InputError(
                f"{out}: was traced with another {part.replace('_', ' ')}; --resume needs the same, or use --overwrite"
            )
    (out / "failures.jsonl").unlink(missing_ok=True)
    remove_torn(out)
    return set(earlier.ids)


def remove_torn(out: Path) -> None:
    """Remove what was begun and not finished."""
    for torn in (out / "samples").glob("*.part"):
        with suppress(OSError):
            torn.unlink()


def check_space(out: Path, needed: int) -> None:
    """Raises InputError if the disk that holds a folder has less room than this many bytes."""
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise InputError(
            f"{out}: the run can take {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; "
            "choose another folder, a smaller capture, --limit or fewer --max-new-tokens"
        )


def note_failure(out: Path, sample_id: str, error: BaseException) -> None:
    """Add a sample to `failures.jsonl`, with the first line of what went wrong."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = {"id": sample_id, "error": type(error).__name__, "message": lines[0]}
    with open(out / "failures.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
