"""Run cases in forked processes: a case that crashes or hangs costs only itself."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from attacks.world import Case, World

N_WORKERS = 4  # many cases wait
CASE_SECONDS = 120  # the machine may be busy; no case needs ten
_MEMORY = 24 * 2**30  # of addresses, most of which torch only reserves


def run_cases(world: World, cases: Sequence[Case], folder: Path) -> list[str | None]:
    """Return for each case what did not hold, or None."""
    problems: list[str | None] = [None] * len(cases)
    waiting = list(range(len(cases)))[::-1]
    workers = [_Worker(world, cases, folder) for _ in range(N_WORKERS)]
    while waiting or any(worker.index is not None for worker in workers):
        for worker in workers:
            if worker.index is None and waiting:
                worker.give(waiting.pop())
        busy = [worker for worker in workers if worker.index is not None]
        wait([worker.connection for worker in busy], timeout=1)
        for number, worker in enumerate(workers):
            if worker.index is not None and (outcome := worker.poll()) is not None:
                problems[worker.index] = outcome or None
                worker.index = None
                if worker.is_dead:
                    workers[number] = _Worker(world, cases, folder)
    for worker in workers:
        worker.stop()
    return problems


class _Worker:
    def __init__(self, world: World, cases: Sequence[Case], folder: Path):
        self.connection, other = multiprocessing.get_context("fork").Pipe()
        self.process: BaseProcess = multiprocessing.get_context("fork").Process(
            target=_work, args=(other, world, cases, folder)
        )
        self.process.start()
        other.close()
        self.index: int | None = None
        self.is_dead, self.began = False, 0.0

    def give(self, index: int) -> None:
        self.index, self.began = index, time.monotonic()
        self.connection.send(index)

    def poll(self) -> str | None:
        """Return the outcome of the case: empty if it held; None while it runs."""
        try:
            if self.connection.poll():
                return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.is_dead = True
            self.process.join()
            return f"ended by signal {-(self.process.exitcode or 0)}"
        if time.monotonic() - self.began > CASE_SECONDS:
            self.is_dead = True
            self.stop()
            return f"still at work after {CASE_SECONDS} seconds"
        return None

    def stop(self) -> None:
        with suppress(OSError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)  # with the commands that it started
        self.process.kill()  # if it is not in its own group yet
        self.process.join()


def _work(connection: Connection, world: World, cases: Sequence[Case], folder: Path) -> None:
    os.setsid()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    while True:
        index = connection.recv()
        place = folder / f"case{index}"
        place.mkdir()
        try:
            cases[index].attack(world, place)
            problem = ""
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        os.chdir(folder)
        shutil.rmtree(place, ignore_errors=True)
        connection.send(problem)
