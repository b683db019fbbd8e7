"""A disk that fills up: a small file system in memory, or a limit on the size of files where nobody may mount one."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def mount_disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount a file system of `size` bytes at a new folder; skip the test where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("NOT TESTED on a full disk: mounting a small one needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)  # a judge keeps its cache open


def fill_disk(disk: Path, free: int) -> Path:
    """Write a file that leaves `free` bytes of a disk, and return it."""
    stats = os.statvfs(disk)
    with open(disk / "filler", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(stats.f_bavail * stats.f_frsize - free, 1))
    return disk / "filler"


def call_in_child(function: Callable[[], Any], largest_file: int | None = None) -> str:
    """Call a function in a forked process. Return `done`, its error in one line, or `signal N` if it crashed."""
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)

    def call() -> None:
        if largest_file is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
        try:
            function()
            sender.send("done")
        except Exception as error:
            sender.send(f"{type(error).__name__}: {error}")

    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        result = ""
    process.join()
    return f"signal {-process.exitcode}" if process.exitcode else result
