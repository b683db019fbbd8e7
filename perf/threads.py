"""Time of `mmprobe demo` beside a process that keeps one core busy, against the same demo alone."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from paired import in_turn

COLUMNS = ("command", "alone, s", "beside a busy process, s", "ratio", "middle half", "rounds", "goal")
GOAL = 1.3
BUSY = "while True: pass"


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep one core busy within the block."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run_command(arguments: list[str]) -> None:
    """Run an mmprobe command in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "mmprobe", *arguments]
        subprocess.run(command, check=True, cwd=Path(folder), stdout=subprocess.DEVNULL)


def run_beside_busy_process(arguments: list[str]) -> None:
    with busy_process():
        run_command(arguments)


def rows(quick: bool = False) -> Iterator[Sequence[object]]:
    """Yield the cells of the only row."""
    arguments, rounds = (["--version"], 1) if quick else (["demo", "--out", "demo"], 3)
    times = in_turn(
        {"alone": partial(run_command, arguments), "beside": partial(run_beside_busy_process, arguments)},
        rounds,
    )
    alone, beside = times["alone"], times["beside"]
    seconds = f"{alone.seconds:.1f}", f"{beside.seconds:.1f}"
    yield f"mmprobe {arguments[0]}", *seconds, *beside.cells[1:], GOAL
