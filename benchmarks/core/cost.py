"""What it costs to answer: seconds, and memory beyond what was taken before."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from mmprobe.models import Model


@dataclass
class Cost:
    """Of one method on all benchmarks; NaN where it is not known.

    Attributes:
        seconds: on the clock.
        tokens: answered.
        extra_mb: largest memory less that at the beginning, in 2^20 bytes: on a GPU its own, else that of the
            process, which Linux alone tells.
    """

    seconds: float = math.nan
    tokens: float = math.nan
    extra_mb: float = math.nan

    def write(self, path: Path) -> None:
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps({name: _number(value) for name, value in asdict(self).items()}) + "\n")
        os.replace(part, path)

    @classmethod
    def read(cls, path: Path) -> Cost:
        """What was written; nothing is known where there is no such file.

        Example:
            >>> Cost.read(Path("nowhere")).seconds
            nan
        """
        try:
            found = json.loads(path.read_text())
            return cls(**{name: math.nan if found[name] is None else found[name] for name in asdict(cls())})
        except (OSError, ValueError, KeyError, TypeError):
            return cls()


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def measuring(model: Model) -> Iterator[Cost]:
    """Fills in seconds and memory of the block when it ends.

    Example:
        >>> with measuring(model) as cost:                          # doctest: +SKIP
        ...     answers = generate_batch(model, samples)
        >>> cost.seconds > 0                                        # doctest: +SKIP
        True
    """
    cost, cuda = Cost(), model.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(model.device)
        before: float | None = torch.cuda.memory_allocated(model.device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # makes the peak that of now
        before = _status("VmRSS")
    began = time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated(model.device) if cuda else _status("VmHWM")
    if before is not None and peak is not None:
        cost.extra_mb = (peak - before) / 2**20


def _status(name: str) -> float | None:
    """Bytes of an entry of this process's status."""
    try:
        found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
