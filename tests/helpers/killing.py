"""Forked processes that share what is loaded, to be killed or to run at the same time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch


def start(function: Callable[[], Any], delay: float = 0.0) -> tuple[BaseProcess, Connection]:
    """Call a function in a forked process after a delay. The connection receives its error, or None."""
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)

    def call() -> None:
        torch.set_num_threads(1)
        time.sleep(delay)
        try:
            function()
            sender.send(None)
        except Exception as error:
            sender.send(f"{type(error).__name__}: {error}")

    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    sender.close()  # so that a process that dies without a word ends the wait for one
    return process, receiver


def run_at_once(functions: list[Callable[[], Any]], delays: list[float]) -> list[str | None]:
    """Call functions in separate processes, and return the error of each."""
    started = [start(function, delay) for function, delay in zip(functions, delays, strict=True)]
    errors = [receiver.recv() for _, receiver in started]
    for process, _ in started:
        process.join()
    return errors


def kill_after(function: Callable[[], Any], seconds: float) -> bool:
    """Call a function in a process, kill it after some time, and return whether it was killed in time."""
    process, receiver = start(function)
    process.join(seconds)
    if process.exitcode is None:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        return True
    error = receiver.recv()
    assert error is None, error
    return False
