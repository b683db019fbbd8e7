"""Finish the current batch when the user presses Ctrl-C."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mmprobe.errors import option

log = logging.getLogger("mmprobe")


@contextmanager
def finish_batch_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed within the block.

    The first Ctrl-C raises nothing, so that the current batch can be finished. The second one raises
    KeyboardInterrupt at once. Outside the main thread, Ctrl-C is left alone.

    Example:
        >>> with finish_batch_on_interrupt() as interrupted:
        ...     interrupted()
        False
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def handle(number: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()
        log.warning("stopping after this sample; Ctrl-C again stops at once")

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, previous)


def stop_run(n_finished: int, total: int) -> KeyboardInterrupt:
    """Return the interrupt that ends a run, with a message that says how far it came.

    Example:
        >>> stop_run(28, 440)
        KeyboardInterrupt('28 of 440 samples are finished; continue with resume=True')
    """
    return KeyboardInterrupt(
        f"{n_finished} of {total} samples are finished; continue with {option('resume')}"
    )
