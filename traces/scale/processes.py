"""Worker processes on this machine: started, sent batches, listened to and stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

import torch

from mmprobe.errors import InputError
from mmprobe.registry import describe_error, find_plug_in
from mmprobe.samples import Sample


class Job(Protocol):
    """What every worker does. It is sent to the workers, so it contains no model."""

    def open(self, device: str) -> AbstractContextManager[tuple[Any, Callable[[list[Sample]], Any]]]:
        """Load the model; yield what the worker reports then, and the function that works on a batch."""


class Event(NamedTuple):
    """News of a worker.

    Attributes:
        worker: its number.
        kind: `ready`, `done` (a batch), `ended`, `failed` (an error that ends the run) or `died`.
        content: the job's report, the function's result, the error, or the exit code.
    """

    worker: int
    kind: str
    content: Any


class Processes:
    """Worker processes: one a GPU, or one a group of cores where the model runs on a CPU.

    Args:
        count: number of workers.
        device: `auto`, or a device that all workers share.
    """

    def __init__(self, count: int, device: str = "auto"):
        self.count, self.device = count, device
        self.running: dict[int, tuple[BaseProcess, Connection]] = {}

    def start(self, worker: int, job: Job) -> None:
        """Start a worker, or another one in the place of one that died."""
        context = multiprocessing.get_context("spawn")  # CUDA and threads do not survive a fork
        here, there = context.Pipe()
        arguments = (job, self._device_of(worker), self.count, there)
        process = context.Process(target=_work, args=arguments, name=f"mmprobe-worker-{worker}", daemon=True)
        with _block_interrupts():  # workers stop when they are told to
            process.start()
        there.close()
        self.running[worker] = process, here

    def _device_of(self, worker: int) -> str:
        if self.device in ("auto", "cuda") and torch.cuda.is_available():
            return f"cuda:{worker % torch.cuda.device_count()}"
        return self.device

    def send(self, worker: int, batch: list[Sample] | None) -> None:
        """Give a worker a batch, or None to let it end. A worker that died meanwhile is reported by `wait`."""
        with suppress(OSError):
            self.running[worker][1].send(batch)

    def wait(self) -> list[Event]:
        """Wait until a worker has something to say, and return the news."""
        by_connection = {connection: worker for worker, (_, connection) in self.running.items()}
        events = []
        for connection in wait(list(by_connection)):
            assert isinstance(connection, Connection)
            worker = by_connection[connection]
            try:
                event = Event(worker, *connection.recv())
            except (EOFError, OSError):
                process = self.running[worker][0]
                process.join()
                event = Event(worker, "died", process.exitcode)
            if event.kind in ("ended", "died"):
                del self.running[worker]
            events.append(event)
        return events

    def stop(self) -> None:
        """End all workers at once."""
        for process, _ in self.running.values():
            process.kill()
            process.join()
        self.running.clear()


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Within the block, block Ctrl-C. Processes that are started there never get it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would let signals through when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(job: Job, device: str, n_workers: int, connection: Connection) -> None:
    """Do a job, batch by batch, in this process. It stops when it is told to, not at Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max((os.cpu_count() or 1) // n_workers, 1))
    for news in do_job(job, device, connection.recv):
        connection.send(news)


def do_job(job: Job, device: str, next_batch: Callable[[], list[Sample] | None]) -> Iterator[tuple[str, Any]]:
    """Do a job, batch by batch; yield the kind and the content of each `Event`."""
    try:
        with job.open(device) as (report, work_on):
            yield "ready", report
            while (batch := next_batch()) is not None:
                yield "done", work_on(batch)
        yield "ended", None
    except (InputError, OSError) as error:
        yield "failed", error
    except (Exception, SystemExit) as error:  # a plug-in may call sys.exit
        yield "failed", RuntimeError(f"{find_plug_in(error) or 'a worker'}: {describe_error(error)}")


def _end_with_parent() -> None:
    """End this process when its parent is gone, even where the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
