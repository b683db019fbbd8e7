"""Writing beside the generation: one thread, a bounded queue, and copies that the GPU makes on its own stream."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmprobe.cache import TraceWriter
from mmprobe.cache.schema import VARIABLES
from mmprobe.traces.malloc_trim import give_back_memory

DEPTH = 16  # blocks that may wait for the disk
_SMALL = ("attention/", "prompt/attention")  # weights always fit into float16
_IDLE = 0.25  # seconds without a block, after which memory is given back


class WritingFailed(RuntimeError):
    """Something other than the disk went wrong in the background; the cause has the details."""


class Background:
    """A thread that does what it is given, in order, until something fails, which is raised at each later call here.

    Example:
        >>> with Background() as background:
        ...     background.do(print, "written")
        written
    """

    def __init__(self) -> None:
        self.jobs: queue.Queue[tuple[Callable[..., None], tuple[Any, ...]] | None] = queue.Queue(DEPTH)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, name="mmprobe-writer", daemon=True)
        self.streams: dict[torch.device, torch.cuda.Stream] = {}

    def __enter__(self) -> Background:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.jobs.put(None)
        self.thread.join()
        if kind is None:
            self._raise()

    def do(self, job: Callable[..., None], *arguments: Any) -> None:
        """Queue a call; tensors among the arguments are copied to the host first, without waiting for them."""
        self._raise()
        self.jobs.put((job, tuple(self._host(value) for value in arguments)))

    def settle(self) -> None:
        """Wait until everything queued so far is done, or was given up."""
        self.jobs.join()

    def _raise(self) -> None:
        error = self.error  # stays, so that nothing that was queued behind it is done
        if isinstance(error, OSError):
            raise error
        if error is not None:
            raise WritingFailed(f"writing failed ({type(error).__name__}: {error})") from error

    def _work(self) -> None:
        while True:
            try:
                job = self.jobs.get(timeout=_IDLE)
            except queue.Empty:
                with suppress(OSError):
                    give_back_memory()
                continue
            try:
                if job is None:
                    return
                if self.error is None:
                    _do(*job)
            except BaseException as error:
                self.error = error
            finally:
                job = None  # lets go of tensors before it waits for the next ones
                self.jobs.task_done()

    def _host(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device.type != "cuda":
            return value.cpu() if isinstance(value, Tensor) else value
        if value.device not in self.streams:
            self.streams[value.device] = torch.cuda.Stream(value.device)
        stream = self.streams[value.device]
        stream.wait_stream(torch.cuda.current_stream(value.device))
        with torch.cuda.stream(stream):
            pinned = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            pinned.copy_(value, non_blocking=True)
            value.record_stream(stream)
            return _Copy(pinned, stream.record_event())


def _do(call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    call(*(value() if isinstance(value, _Copy) else value for value in arguments))


class _Copy:
    """A tensor on its way to the host; calling it waits for its arrival."""

    def __init__(self, tensor: Tensor, arrived: torch.cuda.Event):
        self.tensor, self.arrived = tensor, arrived

    def __call__(self) -> Tensor:
        self.arrived.synchronize()
        return self.tensor


class BackgroundWriter:
    """A `TraceWriter` that takes tensors and does its work in the background."""

    def __init__(self, writer: TraceWriter, background: Background):
        self.writer, self.background = writer, background

    def halves(self, name: str) -> bool:
        """Whether a data set holds float16."""
        return self.writer.halves(name)

    def append(self, name: str, values: Tensor) -> None:
        self._later(self.writer.append, name, values)

    def write(self, name: str, values: Tensor) -> None:
        self._later(self.writer.write, name, values)

    def put(self, name: str, values: Tensor, where: tuple[Any, ...], shape: tuple[int, ...]) -> None:
        self._later(self.writer.put, name, values, where, shape)

    def _later(self, write: Callable[..., None], name: str, values: Tensor, *where: Any) -> None:
        """Queue a write. What is stored in float16 is rounded at once, where the model is; if it turns out to be
        too large for that, the values themselves are written."""
        rounds = self.halves(name) and values.is_floating_point() and values.dtype != torch.float16
        whole = values if rounds and not name.startswith(_SMALL) else None

        def job(host: Tensor) -> None:
            array = to_disk(name, host)
            if whole is not None and (_has_infinity(array) or not self.halves(name)):
                array = to_disk(name, whole.cpu())
            write(name, array, *where)

        self.background.do(job, values.half() if rounds else values)


def to_disk(name: str, values: Tensor) -> np.ndarray:
    """A tensor on the host as the numpy array that the format wants; float16 stays what it is.

    Example:
        >>> to_disk("residual/mid", torch.tensor([[[0.1]]], dtype=torch.bfloat16)).dtype
        dtype('float32')
    """
    if name == "ffn/active":
        return np.packbits(values.numpy(), axis=-1)
    if not values.is_floating_point():
        return values.numpy().astype(VARIABLES[name].dtype)
    return (values if values.dtype == torch.float16 else values.float()).numpy()


def _has_infinity(halves: np.ndarray) -> bool:
    return bool((halves.view(np.uint16) & 0x7FFF == 0x7C00).any())  # np.isinf takes five times as long
