"""Give memory that was freed back to the system."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

_NEAR_KB = 2**13  # to the peak; what is given back earlier would have to be cleared and taken again


def give_back_memory() -> None:
    """Return what the process has freed to the system if it is about as large as it ever was.

    Recording keeps small tensors that lie between large temporary ones. glibc cannot join what is freed around
    them, so the process would take new memory for the next large ones and grow. Other systems go without.

    Example:
        >>> give_back_memory()
    """
    if _trim is None:
        return
    sizes = dict(re.findall(r"(VmHWM|VmRSS):\s+(\d+) kB", Path("/proc/self/status").read_text()))
    if "VmHWM" in sizes and int(sizes["VmRSS"]) + _NEAR_KB > int(sizes["VmHWM"]):  # some systems do not tell
        _trim(0)


def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # no glibc
        return None


_trim = _malloc_trim()
