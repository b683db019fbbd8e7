"""Memory and speed of a long run with workers: whether the thousandth trace costs what the last one does.

python perf/steady.py                 # 3,000 traces of tiny-spd by two workers, packed every 500: some minutes
python perf/steady.py --leak 2        # the same with a planted leak of 2 kB a trace in each process, which must be seen
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
from scipy import stats
from toys import parser

N_TRACES, N_QUICK = 3_000, 60
N_WORKERS = 2
N_CYCLES = 6  # of packing: traces are joined at the end of each
N_PHASES = 10  # of a cycle
QUESTIONS = 9  # of a pair, at most
GOAL_MB = 2.0
HELPER_MB = 100  # multiprocessing's own process is smaller
HEADER = "| traces | processor ms a trace | {names} |"
TICKS = os.sysconf("SC_CLK_TCK")  # of a second


class Reading(NamedTuple):
    """What was seen at one moment.

    Attributes:
        seconds: of the processor, of all processes until then. A busy machine does not change them.
        traces: finished by then.
        megabytes: resident memory of each process: the parent and its workers.
    """

    seconds: float
    traces: int
    megabytes: dict[int, float]


def watch(run: Path, command: list[str], variables: dict[str, str]) -> list[Reading]:
    """Run a command that traces into a folder, and return a reading every half second."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | variables
    readings: list[Reading] = []
    packed: dict[Path, set[str]] = {}
    spent: dict[int, float] = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(0.5)
            memory = {}
            for number in [process.pid, *find_children(process.pid)]:
                with suppress(OSError):  # it ended
                    spent[number] = read_seconds(number)
                    memory[number] = read_memory(number)
            readings.append(Reading(sum(spent.values()), count_traces(run, packed), memory))
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


def find_children(parent: int) -> list[int]:
    """Return the processes that a process started and that work for it, in the order of their start."""
    found = []
    for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
        found += [int(number) for number in tasks.read_text().split()]
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
    """By how much a process grows over all cycles but the first, in MB, with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_flat(self) -> bool:
        """Whether the goal is met: also the end of the interval is below it, so that scatter is not taken for flatness."""
        return self.high < GOAL_MB


def cycle_means(readings: list[Reading], process: int, cycle: int) -> list[float]:
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
    """Return what a process grows by, from its memory in each cycle: a line through all but the first.

    Resident memory changes in steps, so two windows may differ by one step without any growth, or agree by chance. The
    interval is that of the slope, over cycles.
    """
    later = np.array(means[1:])
    cycles = np.arange(len(later))
    line = stats.linregress(cycles, later)
    margin = stats.t.ppf(0.975, len(later) - 2) * line.stderr if len(later) > 2 else float("nan")
    return Growth(
        *(float(each) * len(later) for each in (line.slope, line.slope - margin, line.slope + margin))
    )


def summarise(readings: list[Reading], cycle: int) -> tuple[list[str], dict[int, Growth]]:
    """Return the rows of the table, one a cycle, and what each process grows by."""
    processes = sorted(
        number
        for number in {number for each in readings for number in each.megabytes}
        if statistics.median(each.megabytes[number] for each in readings if number in each.megabytes)
        > HELPER_MB
    )
    means = {number: cycle_means(readings, number, cycle) for number in processes}
    names = " | ".join(["parent, MB", *(f"worker {n}, MB" for n in range(1, len(processes)))])
    rows = [HEADER.format(names=names), "|---" * (len(processes) + 2) + "|"]
    for number in range(readings[-1].traces // cycle):
        part = [each for each in readings if number * cycle <= each.traces < (number + 1) * cycle]
        count = part[-1].traces - part[0].traces if part else 0
        cost = 1000 * (part[-1].seconds - part[0].seconds) / count if count else float("nan")
        numbers = " | ".join(f"{means[process][number]:.1f}" for process in processes)
        rows.append(f"| {number * cycle}-{(number + 1) * cycle} | {cost:.0f} | {numbers} |")
    return rows, {number: measure_growth(means[number]) for number in processes}


def table(quick: bool = False, leak: int = 0) -> str:
    """Return what each cycle took, and the growth of each process.

    Args:
        leak: kB that each process loses with each trace, on purpose.
    """
    from mmprobe.benchmarks.synthetic.pairs import make_pairs

    total = N_QUICK if quick else N_TRACES
    cycle = total // N_CYCLES
    with tempfile.TemporaryDirectory() as folder:
        pairs = make_pairs(Path(folder) / "pairs", -(-total // QUESTIONS) + total // 40, 0, difficulty="easy")
        run = Path(folder) / "run"
        program = ["-P", "-m", "mmprobe"] if not leak else [str(Path(__file__).with_name("leaking.py"))]
        command = [sys.executable, *program, "trace", "--model", "tiny-spd", "--data", str(pairs)]
        command += ["--limit", str(total), "--out", str(run), "--max-new-tokens", "4", "--device", "cpu"]
        command += ["--workers", str(N_WORKERS), "--pack-every", str(cycle)]
        readings = watch(run, command, {"LEAKED_KB": str(leak)})
        assert len(json.loads((run / "run.json").read_text()))
    rows, growth = summarise(readings, cycle)
    grown = "; ".join(f"{each.value:+.1f} ({each.low:+.1f} to {each.high:+.1f})" for each in growth.values())
    rows += [
        "",
        f"Growth from trace {cycle} to {total}, MB, with the 95 % interval of its slope over {N_CYCLES - 1} cycles: {grown}; "
        f"goal: all of each interval under {GOAL_MB:.0f}, {'met' if all(each.is_flat for each in growth.values()) else 'missed'}.",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--leak", type=int, default=0, help="kB that each process leaks with each trace")
    arguments = options.parse_args()
    print(table(arguments.quick, arguments.leak))
