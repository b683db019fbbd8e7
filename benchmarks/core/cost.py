"""Time and memory that answers take."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from mmprobe.files import write_atomic
from mmprobe.models import Model


@dataclass
class Cost:
    """Seconds and tokens of one method on all benchmarks, and its extra memory in 2^20 bytes; NaN if unknown.

    Extra memory is the peak less the memory at the start: of a GPU, else of the process, which only Linux
    reports.
    """

    seconds: float = math.nan
    tokens: float = math.nan
    extra_mb: float = math.nan

    def write(self, path: Path) -> None:
        """Write the numbers as JSON, null where one is not known."""
        numbers = {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}
        write_atomic(path, json.dumps(numbers) + "\n")

    @classmethod
    def read(cls, path: Path) -> Cost:
        """Return the cost in a file. Nothing is known if there is no such file.

        Example:
            >>> Cost.read(Path("nowhere")).seconds
            nan
        """
        try:
            numbers = json.loads(path.read_text())
            known = {name: numbers[name] for name in asdict(cls())}
            return cls(**{name: math.nan if value is None else value for name, value in known.items()})
        except (OSError, ValueError, KeyError, TypeError):
            return cls()


@contextmanager
def measure_cost(model: Model) -> Iterator[Cost]:
    """Within the block, measure time and memory. The cost is complete when the block ends."""
    cost = Cost()
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(model.device)
        before: float | None = torch.cuda.memory_allocated(model.device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present size
        before = _process_memory("VmRSS")
    start = time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated(model.device) if on_gpu else _process_memory("VmHWM")
    if before is not None and peak is not None:
        cost.extra_mb = (peak - before) / 2**20


def _process_memory(entry: str) -> float | None:
    """Return an entry of this process's status in bytes. None where the system does not report it."""
    try:
        match = re.search(rf"{entry}:\s+(\d+)", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None
