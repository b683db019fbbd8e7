"""Write traces while the model generates: one thread, a bounded queue, and copies on a GPU stream."""

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
from mmprobe.cache.hdf5 import Selection
from mmprobe.cache.schema import VARIABLES
from mmprobe.traces.asking import EndsRun
from mmprobe.traces.malloc_trim import give_back_memory

QUEUE_SIZE = 16  # calls that may wait for the disk
_WEIGHTS = ("attention/", "prompt/attention")  # between 0 and 1, so they never overflow float16
_IDLE_SECONDS = 0.25  # without a call, after which memory is given back


class WritingFailed(RuntimeError, EndsRun):
    """Writing failed for a reason other than the disk; the cause has the details."""


class WriterThread:
    """A thread that makes the calls submitted to it, in order.

    Once a call fails, no later call is made, and every later `submit` raises the error.

    Example:
        >>> with WriterThread() as thread:
        ...     thread.submit(print, "written")
        written
    """

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[Callable[..., None], tuple[Any, ...]] | None] = queue.Queue(QUEUE_SIZE)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="mmprobe-writer", daemon=True)
        self.streams: dict[torch.device, torch.cuda.Stream] = {}

    def __enter__(self) -> WriterThread:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.calls.put(None)
        self.thread.join()
        if kind is None:
            self._raise_error()

    def submit(self, function: Callable[..., None], *arguments: Any) -> None:
        """Queue a call. Tensors among the arguments are copied to the host, without waiting for the copies.

        Raises:
            OSError: the disk refused an earlier call.
            WritingFailed: an earlier call failed for another reason.
        """
        self._raise_error()
        self.calls.put((function, tuple(self._copy_to_host(value) for value in arguments)))

    def wait(self) -> None:
        """Wait until every queued call has been made, or skipped after an error."""
        self.calls.join()

    def _raise_error(self) -> None:
        error = self.error  # is kept: calls queued after the one that failed must not be made
        if isinstance(error, OSError):
            raise error
        if error is not None:
            raise WritingFailed(f"writing failed ({type(error).__name__}: {error})") from error

    def _run(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with suppress(OSError):
                    give_back_memory()
                continue
            try:
                if call is None:
                    return
                if self.error is None:
                    _make_call(*call)
            except BaseException as error:
                self.error = error
            finally:
                call = None  # frees its tensors before the thread waits for the next call
                self.calls.task_done()

    def _copy_to_host(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.device.type != "cuda":
            return value.cpu()
        if value.device not in self.streams:
            self.streams[value.device] = torch.cuda.Stream(value.device)
        stream = self.streams[value.device]
        stream.wait_stream(torch.cuda.current_stream(value.device))
        with torch.cuda.stream(stream):
            pinned = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            pinned.copy_(value, non_blocking=True)
            value.record_stream(stream)
            return _PendingCopy(pinned, stream.record_event())


class _PendingCopy:
    """A tensor on its way to the host."""

    def __init__(self, tensor: Tensor, arrived: torch.cuda.Event):
        self.tensor, self.arrived = tensor, arrived

    def wait(self) -> Tensor:
        """Return the tensor once it has arrived."""
        self.arrived.synchronize()
        return self.tensor


def _make_call(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    function(*(value.wait() if isinstance(value, _PendingCopy) else value for value in arguments))


class BackgroundWriter:
    """A `TraceWriter` that takes tensors and writes them in a `WriterThread`."""

    def __init__(self, writer: TraceWriter, thread: WriterThread):
        self.writer, self.thread = writer, thread

    def is_float16(self, name: str) -> bool:
        """Return whether a data set is stored in float16."""
        return self.writer.is_float16(name)

    def append(self, name: str, values: Tensor) -> None:
        """Add a block of steps to a data set whose first dimension is `step`."""
        self._submit(self.writer.append, name, values)

    def write(self, name: str, values: Tensor) -> None:
        """Write a whole data set."""
        self._submit(self.writer.write, name, values)

    def write_part(self, name: str, values: Tensor, selection: Selection, shape: tuple[int, ...]) -> None:
        """Write a part of a data set that has at least this shape."""
        self._submit(self.writer.write_part, name, values, selection, shape)

    def _submit(self, write: Callable[..., None], name: str, values: Tensor, *position: Any) -> None:
        """Queue a write.

        Values for a float16 data set are rounded on the model's device, so that less is copied. The original
        values are written if rounding made one of them infinite, or if the data set is float32 by then.
        """
        rounds = self.is_float16(name) and values.is_floating_point() and values.dtype != torch.float16
        original = values if rounds and not name.startswith(_WEIGHTS) else None

        def write_on_host(host: Tensor) -> None:
            array = to_disk(name, host)
            if original is not None and (_has_infinity(array) or not self.is_float16(name)):
                array = to_disk(name, original.cpu())
            write(name, array, *position)

        self.thread.submit(write_on_host, values.half() if rounds else values)


def to_disk(name: str, values: Tensor) -> np.ndarray:
    """Return a tensor on the host as the numpy array that the format stores; float16 stays float16.

    Example:
        >>> to_disk("residual/mid", torch.tensor([[[0.1]]], dtype=torch.bfloat16)).dtype
        dtype('float32')
    """
    if name == "ffn/active":
        return np.packbits(values.numpy(), axis=-1)
    if not values.is_floating_point():
        return values.numpy().astype(VARIABLES[name].dtype)
    return (values if values.dtype == torch.float16 else values.float()).numpy()


def _has_infinity(values: np.ndarray) -> bool:
    """Return whether a float16 array contains an infinity."""
    return bool((values.view(np.uint16) & 0x7FFF == 0x7C00).any())  # np.isinf takes five times as long
