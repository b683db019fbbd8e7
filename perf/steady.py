"""Memory and speed of a long run with workers: whether the thousandth trace costs what the last one does.

python perf/steady.py                 # 6,000 traces of tiny-spd by two workers, packed every 500: a quarter of an hour
python perf/steady.py --write         # and write the result into docs/scale.md
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
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from scipy import stats
from toys import parser

sys.path.append(str(Path(__file__).parent.parent / "scripts"))
from page import fill_pages

from mmprobe.notebook import markdown_table

PAGE = "docs/scale.md"
N_TRACES, N_QUICK = 6_000, 120
N_WORKERS = 2
N_CYCLES = 12  # of packing: traces are joined at the end of each
N_PHASES = 10  # of a cycle
SPAN = 5  # cycles whose growth is said: 2,500 traces
QUESTIONS = 9  # of a pair, at most
GOAL_MB = 2.0
GOAL_SHARE = 0.1  # of the processor time of a trace; our choice
HELPER_MB = 100  # multiprocessing's own process is smaller
TICKS = os.sysconf("SC_CLK_TCK")  # of a second


class Moment(NamedTuple):
    """What was seen at one moment.

    Attributes:
        seconds: of the processor, of all processes until then. A busy machine does not change them.
        traces: finished by then.
        megabytes: resident memory of each process: the parent and its workers.
    """

    seconds: float
    traces: int
    megabytes: dict[int, float]


def watch(run: Path, command: list[str]) -> list[Moment]:
    """Run a command that traces into a folder, and return a reading every half second."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    readings: list[Moment] = []
    packed: dict[Path, set[str]] = {}
    spent: dict[int, float] = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(0.5)
            memory = {}
            for number in [process.pid, *find_workers(process.pid)]:
                with suppress(OSError):  # it ended
                    spent[number] = read_seconds(number)
                    memory[number] = read_memory(number)
            readings.append(Moment(sum(spent.values()), count_traces(run, packed), memory))
    if process.returncode:
        raise SystemExit(f"the run failed with {process.returncode}")
    return readings


def count_traces(run: Path, packed: dict[Path, set[str]]) -> int:
    """Return the number of finished traces of a run that is being written.

    Args:
        packed: the traces of each pack; it is updated. For a moment they have files of their own, too.
    """
    import h5py

    for pack in (run / "packs").glob("*.h5"):
        if pack not in packed:
            with h5py.File(pack, "r", locking=False) as file:
                packed[pack] = set(file["samples"])
    return len(set().union({file.stem for file in (run / "samples").glob("*.h5")}, *packed.values()))


def find_workers(parent: int) -> list[int]:
    """Return the actors of Ray that work for a process, in the order of their start."""
    found = []
    for child in psutil.Process(parent).children(recursive=True):
        with suppress(psutil.Error):  # it ended
            if " ".join(child.cmdline()).startswith("ray::_Worker"):
                found.append(child.pid)
    return sorted(found)


def read_memory(process: int) -> float:
    """Return the resident memory of a process in MB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def read_seconds(process: int) -> float:
    """Return the processor time of a process in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Growth(NamedTuple):
    """By how much something grows in `SPAN` cycles, with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def cycle_means(readings: list[Moment], process: int, cycle: int) -> list[float]:
    """Return the memory of a process in each cycle of packing, in MB.

    It is the mean over the cycle's phases of the median in each, so that a cycle in which more readings fell into one
    phase is compared like with like. A phase without a reading has that of the phase before.
    """
    means = []
    for start in range(0, readings[-1].traces // cycle * cycle, cycle):
        phases: list[float] = []
        for phase in range(N_PHASES):
            first, end = (start + cycle * each / N_PHASES for each in (phase, phase + 1))
            sizes = [each.megabytes[process] for each in readings
                     if first <= each.traces < end and process in each.megabytes]  # fmt: skip
            phases += [statistics.median(sizes)] if sizes else phases[-1:]
        means.append(statistics.mean(phases) if phases else float("nan"))
    return means


def measure_growth(means: list[float]) -> Growth:
    """Return by how much `SPAN` cycles raise something, from its mean in each cycle: a line through all but the first.

    Resident memory changes in steps, as the allocator keeps what was freed or gives it back. So two windows may differ by
    one step without any growth, or agree by chance. The interval is that of the slope, over cycles.
    """
    later = np.array(means[1:])
    line = stats.linregress(np.arange(len(later)), later)
    margin = stats.t.ppf(0.975, len(later) - 2) * line.stderr if len(later) > 2 else float("nan")
    return Growth(*(float(each) * SPAN for each in (line.slope, line.slope - margin, line.slope + margin)))


class Course(NamedTuple):
    """How a run went, cycle by cycle.

    Attributes:
        table: in Markdown, a row a cycle.
        memory: what each process grows by, in MB: of the parent and of each worker.
        cost: what the processor time of a trace grows by, as a share of its mean.
    """

    table: str
    memory: list[Growth]
    cost: Growth

    @property
    def is_flat(self) -> bool:
        """Whether memory meets the goal: the upper end of each interval does, so that scatter is not taken for flatness."""
        return all(each.high < GOAL_MB for each in self.memory)

    @property
    def is_steady(self) -> bool:
        """Whether traces do not become slower: the upper end of the interval meets the goal."""
        return self.cost.high < GOAL_SHARE


def summarise(readings: list[Moment], cycle: int) -> Course:
    """Return how a run went."""
    processes = sorted(
        number
        for number in {number for each in readings for number in each.megabytes}
        if statistics.median(each.megabytes[number] for each in readings if number in each.megabytes)
        > HELPER_MB
    )
    means = {number: cycle_means(readings, number, cycle) for number in processes}
    names = ["parent, MB", *(f"worker {n}, MB" for n in range(1, len(processes)))]
    rows, costs = [], []
    for number in range(readings[-1].traces // cycle):
        part = [each for each in readings if number * cycle <= each.traces < (number + 1) * cycle]
        count = part[-1].traces - part[0].traces if part else 0
        costs.append(1000 * (part[-1].seconds - part[0].seconds) / count if count else float("nan"))
        numbers = (f"{means[process][number]:.1f}" for process in processes)
        rows.append([f"{number * cycle:,}-{(number + 1) * cycle:,}", f"{costs[-1]:.0f}", *numbers])
    share = statistics.mean(costs[1:])
    return Course(
        markdown_table(["traces", "processor ms a trace", *names], rows),
        [measure_growth(means[number]) for number in processes],
        measure_growth([cost / share for cost in costs]),
    )


def table(quick: bool = False) -> str:
    """Return what each cycle took, and the growth of each process."""
    from mmprobe.benchmarks.synthetic.pairs import make_pairs

    total = N_QUICK if quick else N_TRACES
    cycle = total // N_CYCLES
    with tempfile.TemporaryDirectory() as folder:
        pairs = make_pairs(Path(folder) / "pairs", -(-total // QUESTIONS) + total // 40, 0, difficulty="easy")
        run = Path(folder) / "run"
        command = [
            sys.executable,
            "-P",
            "-m",
            "mmprobe",
            "trace",
            "--model",
            "tiny-spd",
            "--data",
            str(pairs),
        ]
        command += ["--limit", str(total), "--out", str(run), "--max-new-tokens", "4", "--device", "cpu"]
        command += ["--workers", str(N_WORKERS), "--pack-every", str(cycle)]
        readings = watch(run, command)
        assert len(json.loads((run / "run.json").read_text()))
    return describe(summarise(readings, cycle), total, cycle)


def describe(course: Course, total: int, cycle: int) -> str:
    """Return the table and what it says, for a page."""
    names = ["the parent", *(f"worker {number}" for number in range(1, len(course.memory)))]
    grown = [
        f"{name} {each.value:+.1f} MB ({each.low:+.1f} to {each.high:+.1f})"
        for name, each in zip(names, course.memory, strict=True)
    ]
    cost = " to ".join(f"{100 * each:+.0f}" for each in course.cost[1:])
    lines = [
        f"`python perf/steady.py`: {total:,} traces of `tiny-spd` by {N_WORKERS} workers, packed every {cycle:,}. Resident memory is",
        "the mean of a cycle of packing, and its growth that of a line through all cycles but the first, with its 95 % interval.",
        "",
        course.table,
        "",
        f"Growth in {SPAN * cycle:,} traces: {', '.join(grown)}. The goal is",
        f"less than {GOAL_MB:.0f} MB, with the whole interval: {'met' if course.is_flat else '**missed**'}. The processor time of a trace grew by {100 * course.cost.value:+.0f} % ({cost});",
        f"the goal is less than {100 * GOAL_SHARE:.0f} %, with the whole interval: {'met' if course.is_steady else '**missed**'}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help=f"write the result into {PAGE}")
    arguments = options.parse_args()
    text = table(arguments.quick)
    print(text)
    if arguments.write and not arguments.quick:
        fill_pages({PAGE: {"steady": text}})
