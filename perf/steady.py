"""Memory and speed of a long run with workers: whether the thousandth trace costs what the last one does.

python perf/steady.py                 # 3,000 traces of tiny-spd by two workers, packed every 500: some minutes
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from toys import parser

N_TRACES, N_QUICK = 3_000, 60
N_WORKERS = 2
QUESTIONS = 9  # of a pair, at most
FIRST, WINDOW = 500, 250  # traces before the first reading, and of a reading
GOAL_MB = 2.0
HEADER = "| traces | traces a second | {names} |"


class Reading(NamedTuple):
    """What was seen at one moment.

    Attributes:
        seconds: since the start.
        traces: finished by then.
        megabytes: resident memory of each process: the parent and its workers.
    """

    seconds: float
    traces: int
    megabytes: dict[int, float]


def watch(run: Path, command: list[str]) -> list[Reading]:
    """Run a command that traces into a folder, and return a reading every half second."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    began, readings = time.monotonic(), []
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        packed: dict[Path, int] = {}
        while process.poll() is None:
            time.sleep(0.5)
            sizes = {number: read_memory(number) for number in [process.pid, *find_children(process.pid)]}
            memory = {number: size for number, size in sizes.items() if size}
            readings.append(Reading(time.monotonic() - began, count_traces(run, packed), memory))
    if process.returncode:
        raise SystemExit(f"the run failed with {process.returncode}")
    return readings


def count_traces(run: Path, packed: dict[Path, int]) -> int:
    """Return the number of finished traces of a run that is being written.

    Args:
        packed: number of traces of each pack; it is updated.
    """
    import h5py

    for pack in (run / "packs").glob("*.h5"):
        if pack not in packed:
            with h5py.File(pack, "r", locking=False) as file:
                packed[pack] = len(file["samples"])
    return sum(packed.values()) + len(list((run / "samples").glob("*.h5")))


def find_children(parent: int) -> list[int]:
    """Return the processes that a process started and that work for it, in the order of their start."""
    found = []
    for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
        found += [int(number) for number in tasks.read_text().split()]
    return sorted(found)


def read_memory(process: int) -> float | None:
    """Return the resident memory of a process in MB; None if it ended, or keeps nothing of its own."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return None
    return int(found[1]) / 1024 if found and int(found[1]) > 50_000 else None


def summarise(readings: list[Reading], first: int, window: int) -> tuple[list[str], dict[int, float]]:
    """Return the rows of the table, and what each process grew by, in MB, from the first window to the last.

    A window's memory is the median of its readings, since batches come and go.
    """
    total = readings[-1].traces
    processes = sorted({number for reading in readings for number in reading.megabytes})
    processes = [
        n for n in processes if sum(n in reading.megabytes for reading in readings) > len(readings) / 2
    ]
    rows, medians = [], []
    for end in range(first, total + 1, window):
        part = [each for each in readings if end - window <= each.traces < end] or readings[-1:]
        medians.append({n: statistics.median(each.megabytes.get(n, 0.0) for each in part) for n in processes})
        seconds = part[-1].seconds - part[0].seconds
        speed = (part[-1].traces - part[0].traces) / seconds if seconds else float("nan")
        numbers = " | ".join(f"{medians[-1][n]:.1f}" for n in processes)
        rows.append(f"| {end - window}-{end} | {speed:.1f} | {numbers} |")
    names = " | ".join(["parent, MB", *(f"worker {n}, MB" for n in range(1, len(processes)))])
    rows = [HEADER.format(names=names), "|---" * (len(processes) + 2) + "|", *rows]
    return rows, {n: medians[-1][n] - medians[0][n] for n in processes}


def table(quick: bool = False) -> str:
    from mmprobe.benchmarks.synthetic.pairs import make_pairs

    total = N_QUICK if quick else N_TRACES
    first, window = (20, 20) if quick else (FIRST + WINDOW, WINDOW)
    with tempfile.TemporaryDirectory() as folder:
        pairs = make_pairs(Path(folder) / "pairs", -(-total // QUESTIONS) + total // 40, 0, difficulty="easy")
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "mmprobe", "trace", "--model", "tiny-spd", "--data", str(pairs)]
        command += ["--limit", str(total), "--out", str(run), "--max-new-tokens", "4", "--device", "cpu"]
        command += ["--workers", str(N_WORKERS), "--pack-every", str(total // 6)]
        readings = watch(run, command)
        assert len(json.loads((run / "run.json").read_text()))
    rows, growth = summarise(readings, first, window)
    grown = ", ".join(f"{each:+.1f}" for each in growth.values())
    rows += ["", f"Growth from the first line to the last, MB: {grown}; goal: under {GOAL_MB:.0f}."]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table(parser(__doc__).parse_args().quick))
