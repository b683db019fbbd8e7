"""Containers that die and come back under another host name: a dead process locks nothing, a live one does."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from attacks.processes import Command
from attacks.world import Case, World, check, check_same_run, run_command

from mmprobe import ledger


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: in turn a killed holder, a live one, and one on a file system without locks."""
    kinds = {"killed": _kill, "live": _keep, "no locks": _without_locks}
    for number in range(count):
        kind = list(kinds)[number % len(kinds)]
        seed = rng.random()
        yield Case(f"{kind} {seed}", lambda w, f, k=kind, s=seed: kinds[k](random.Random(s), w, f))


def _start(world: World, folder: Path, host: str) -> Command:
    """Start a trace on a host of this name."""
    with patch.object(socket, "gethostname", lambda: host):
        return Command(world.trace(folder / "out"), folder / "log")


def _hold(rng: random.Random, world: World, folder: Path) -> Command:
    """Start a trace and stop it while it holds the lock: SIGSTOP keeps the lock of a process."""
    command = _start(world, folder, f"host{rng.randrange(1000)}")
    os.read(command._ready, 1)
    note = folder / "out" / ".lock.json"
    while not note.exists() and not os.waitid(
        os.P_PID, command.process, os.WEXITED | os.WNOHANG | os.WNOWAIT
    ):
        pass
    os.kill(command.process, signal.SIGSTOP)
    return command


def _kill(rng: random.Random, world: World, folder: Path) -> None:
    """The run is continued under another name, without a word about the dead process."""
    command = _start(world, folder, f"host{rng.randrange(1000)}")
    command.stop(signal.SIGKILL, rng.uniform(0, 0.6))
    command.finish()
    check(run_command(*world.trace(folder / "out", "--resume")), 0)
    check_same_run(world, folder / "out")


def _keep(rng: random.Random, world: World, folder: Path) -> None:
    """A live process of another host name keeps everybody out, even with --take-over: the kernel knows that it lives."""
    command = _hold(rng, world, folder)
    try:
        if (folder / "out" / ".lock.json").exists():
            options = rng.choice([["--resume"], ["--resume", "--take-over"], ["--overwrite", "--take-over"]])
            done = check(run_command(*world.trace(folder / "out", *options)), 2)
            assert "is tracing into it since" in done.stderr, done.stderr
    finally:
        os.kill(command.process, signal.SIGCONT)
    check(command.finish(), 0)
    check_same_run(world, folder / "out")


def _without_locks(rng: random.Random, world: World, folder: Path) -> None:
    """Where the kernel cannot tell, another host's note stays in force until the user takes over."""
    command = _hold(rng, world, folder)
    was_held = (folder / "out" / ".lock.json").exists()
    os.kill(command.process, signal.SIGKILL)
    os.kill(command.process, signal.SIGCONT)
    command.finish()
    with patch.object(ledger, "_has_kernel_locks", lambda folder: False):
        if was_held:
            done = check(run_command(*world.trace(folder / "out", "--resume")), 2)
            assert "--take-over" in done.stderr, done.stderr
        check(run_command(*world.trace(folder / "out", "--resume", "--take-over")), 0)
    check_same_run(world, folder / "out")
