"""Run `mmprobe` commands: in this process, which is quick, or in a new one, as a user does."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import typer.main

from mmprobe.cli import main

# typer builds all commands anew for each call.
typer.main.get_command = cache(typer.main.get_command)

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class Finished(NamedTuple):
    """Exit code and output of a command."""

    code: int
    stdout: str
    stderr: str


def run_in_process(*arguments: object) -> Finished:
    """Run the command line's `main` with these arguments."""
    stdout, stderr = io.StringIO(), io.StringIO()
    argv = ["mmprobe", *map(str, arguments)]
    with (
        patch.object(sys, "argv", argv),
        _no_log_handlers(),
        _quiet_transformers(),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        try:
            main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
    return Finished(code, stdout.getvalue(), stderr.getvalue())


@contextmanager
def _no_log_handlers() -> Iterator[None]:
    """Remove pytest's log handlers within the block, so that `main` sets up its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Let transformers log errors alone within the block, as in a process in which `main` runs before its import."""
    if "transformers" not in sys.modules:
        yield
        return
    from transformers.utils import logging as levels

    level = levels.get_verbosity()
    levels.set_verbosity_error()
    try:
        yield
    finally:
        levels.set_verbosity(level)


def run_subprocess(*arguments: object, cwd: Path | None = None) -> Finished:
    """Run `python -m mmprobe` with these arguments, and without the current folder on the path."""
    command = [sys.executable, "-P", "-m", "mmprobe", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300, cwd=cwd)
    return Finished(done.returncode, done.stdout, done.stderr)


def run_in_new_process(*calls: Sequence[object]) -> list[Finished]:
    """Run commands in turn in one new process, which has loaded nothing before the first."""
    command = [sys.executable, "-c", _RUN_CALLS, json.dumps([list(map(str, call)) for call in calls])]
    tests = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=600, cwd=tests)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return [Finished(*json.loads(line)) for line in done.stdout.splitlines()]


_RUN_CALLS = """
import json, sys
from helpers.command_line import run_in_process
for call in json.loads(sys.argv[1]):
    print(json.dumps(run_in_process(*call)))
"""


def read_result(finished: Finished) -> dict[str, Any]:
    """Return what a successful command printed for `--json`; stderr has only notes of skipped analyses."""
    assert finished.code == 0, finished.stderr
    lines = [line for line in finished.stderr.splitlines() if " left out: " not in line]
    assert not lines, "a command is silent when stderr is not a terminal"
    return json.loads(finished.stdout)


def assert_fails(finished: Finished, message: str, code: int = 2) -> None:
    """Check that a command failed with one line on stderr that contains the message."""
    assert finished.code == code, finished.stderr
    assert message in finished.stderr, finished.stderr
    assert finished.stderr.count("\n") == 1, f"one line, not:\n{finished.stderr}"
    assert finished.stderr.startswith("mmprobe: ")
