"""Checkpoints and settings of a training, from which a killed training can continue."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PrinterCallback, ProgressCallback

from mmprobe.errors import InputError, option
from mmprobe.files import check_no_link, hash_file, read_json, write_atomic
from mmprobe.ledger import Ledger, lock_folder

log = logging.getLogger("mmprobe")

SETTINGS = "training.json"
_COMPLETE = "complete"  # a file in each checkpoint that is whole: hashes of the others, by name
_NUMBER = re.compile(r"checkpoint-(\d+)")
_LEAST_FREE = 1 << 16  # bytes; where torch cannot write and fewer are left, the disk is full


class WholeCheckpoints:
    """Mark each checkpoint of a TRL trainer when it is whole. Nothing is sent anywhere.

    A checkpoint contains the weights as safetensors, and the optimiser's and random numbers' states as tensors, which
    are read without pickle's code (`weights_only`).
    """

    args: Any
    state: Any

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with _no_remains(folder):
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
            (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing reads
            write_atomic(folder / _COMPLETE, json.dumps(_hash_files(folder), indent=1) + "\n")

    def create_model_card(self, *args: Any, **options: Any) -> None:
        """Write no card."""

    def _send_telemetry(self) -> None:
        """Send nothing."""


def silence(trainer: Any) -> None:
    """Take away what a trainer prints: its losses. The progress bar stays, where stderr is a terminal."""
    trainer.remove_callback(PrinterCallback)
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, ProgressCallback):
            callback.on_log = lambda *args, **options: None  # type: ignore[method-assign]


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last whole checkpoint of a folder, and remove those that a kill cut off, or a disk damaged.

    Raises:
        InputError: the folder, or one in it, is a link.
    """
    whole: dict[int, Path] = {}
    for part in check_no_link(folder).glob("checkpoint-*"):
        if (number := _NUMBER.fullmatch(part.name)) and _is_whole(check_no_link(part)):
            whole[int(number[1])] = part
        else:
            shutil.rmtree(part)
    return whole[max(whole)] if whole else None


def _is_whole(folder: Path) -> bool:
    """Return whether a checkpoint was finished, and its files are as they were then."""
    mark = folder / _COMPLETE
    if not mark.exists():
        return False
    try:
        is_whole = not mark.stat().st_size or read_json(mark) == _hash_files(
            folder
        )  # earlier versions: empty
    except (OSError, InputError):
        is_whole = False
    if not is_whole:
        log.warning("%s: is damaged, and left out", folder)
    return is_whole


def _hash_files(folder: Path) -> dict[str, str]:
    files = (check_no_link(path) for path in sorted(folder.rglob("*")) if path != folder / _COMPLETE)
    return {str(path.relative_to(folder)): hash_file(path) for path in files if path.is_file()}


@contextmanager
def _no_remains(folder: Path) -> Iterator[None]:
    """Remove what was written to a folder within the block if it fails, and name a full disk.

    Raises:
        OSError: a library could not write. Those in C++ and Rust raise errors of their own.
    """
    try:
        yield
    except BaseException as error:
        free = shutil.disk_usage(folder.parent).free
        shutil.rmtree(folder, ignore_errors=True)
        if number := _find_number(error, free):
            raise OSError(number, os.strerror(number), str(folder)) from None
        raise


def _find_number(error: BaseException, free: int) -> int | None:
    """Extract the errno from a library's write error; None if it has none."""
    if isinstance(error, SafetensorError):
        found = re.search(r"os error (\d+)", str(error))
        return int(found[1]) if found else None
    if isinstance(error, RuntimeError) and re.search("inline_container|PytorchStreamWriter", str(error)):
        return errno.ENOSPC if free < _LEAST_FREE else errno.EIO
    return None


def place_model(save: Callable[[Path], None], folder: Path) -> None:
    """Let a function write a model to a folder, which appears when it is whole.

    Args:
        save: writes the model's files to a new folder.

    Raises:
        InputError: a link is in its place.
        OSError: the disk is full or fails.
    """
    part = check_no_link(folder.with_name(f"{folder.name}.part"))
    shutil.rmtree(part, ignore_errors=True)  # of a training that was killed
    part.mkdir()
    with _no_remains(part):
        save(part)
        part.replace(check_no_link(folder))


def _training_ledger(out: Path) -> Ledger:
    """Return what a training keeps in its folder, which contains nothing else."""
    return Ledger(
        out,
        settings=SETTINGS,
        holds="a training",
        differs="was trained with {name} {old!r}, not {new!r}",
        remedy="give the same, or choose another folder",
        offer=f"continue with {option('resume')}, or choose another folder",
    )


@contextmanager
def hold_training(out: Path, resume: bool, overwrite: bool = False, offer: str = "") -> Iterator[None]:
    """Let only this process train into a folder. With `overwrite`, remove the training that is there.

    Args:
        offer: what the caller can do about an earlier training, for the message; by default what Python's caller can.

    Raises:
        InputError: another process trains into it, or it contains a training and neither option is given, or both
            are, or it contains something else.
    """
    ledger = _training_ledger(out)
    ledger = replace(ledger, offer=offer or ledger.offer)
    with lock_folder(out, "training into it"):
        ledger.check(resume, overwrite)
        if not ledger.begun and not ledger.is_empty():
            raise InputError(f"{out}: exists and contains no training; choose another folder")
        if overwrite and ledger.begun:
            ledger.clear()
        yield


def start_training(out: Path, settings: Mapping[str, Any], used: Mapping[str, Any]) -> None:
    """Write the settings of a new training, or check that an earlier one had the same. The caller holds the folder.

    Args:
        used: fingerprint of the model and the images.

    Raises:
        InputError: the earlier training has other settings, or is of another model or on other images.
    """
    _training_ledger(out).begin(settings, used)
