"""Return freed memory to the operating system."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

_MARGIN_KB = 2**13  # memory returned far below the peak would have to be taken and cleared again


def give_back_memory() -> None:
    """Return freed memory to the system, if the process is about as large as it ever was.

    Recording keeps small tensors that are between large temporary ones. glibc cannot join the freed memory
    around them, so the process would take new memory for the next large tensors and grow. On systems without
    glibc this does nothing.

    Example:
        >>> give_back_memory()
    """
    if _trim is None:
        return
    sizes = dict(re.findall(r"(VmHWM|VmRSS):\s+(\d+) kB", Path("/proc/self/status").read_text()))
    if "VmHWM" in sizes and int(sizes["VmRSS"]) + _MARGIN_KB > int(
        sizes["VmHWM"]
    ):  # not every kernel has VmHWM
        _trim(0)


def _find_malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # no glibc
        return None


_trim = _find_malloc_trim()
