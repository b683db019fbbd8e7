"""Run all measurements, or some of them, and print their tables or fill them into docs/performance.md.

OMP_WAIT_POLICY=PASSIVE python perf/report.py        # two CPU cores: about an hour
python perf/report.py --only disk memory             # two of them
python perf/report.py --write --only disk memory     # into the page, too; its other tables stay as they are
TMPDIR=/large python perf/report.py --only full-size # 17 GB of disk, 20 GB of memory, about ten minutes

The command line lets OpenMP's threads sleep while they wait; the variable does the same here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import disk
import full_size
import given
import judging
import memory
import overhead
import overhead_profile
import patching
import prefixes
import scale
import threads
import torch
import transformers
from toys import parser

import analyses
import interventions
from mmprobe.notebook import markdown_lines

sys.path.append(str(Path(__file__).parent.parent / "scripts"))
from page import fill_pages

PAGE = "docs/performance.md"
LEFT_OUT = ("full-size", "real", "scale")  # sections that are measured only if they are named


def measure_start_up(quick: bool) -> Iterator[str]:
    """Yield the median time of `mmprobe --help` as a sentence."""
    times = []
    for _ in range(1 if quick else 11):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-m", "mmprobe", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    yield f"`mmprobe --help` takes {statistics.median(times):.2f} s (median of {len(times)})."


SECTIONS: dict[str, Callable[[argparse.Namespace], Iterator[str]]] = {
    "time": lambda options: markdown_lines(
        overhead.COLUMNS, overhead.rows(options.device, options.quick, options.big)
    ),
    "profile": lambda options: markdown_lines(overhead_profile.COLUMNS, overhead_profile.rows(options.quick)),
    "prefixes": lambda options: markdown_lines(
        prefixes.COLUMNS, prefixes.rows(options.device, options.quick)
    ),
    "given": lambda options: markdown_lines(given.COLUMNS, given.rows(options.device, options.quick)),
    "memory": lambda options: markdown_lines(memory.COLUMNS, memory.rows(options.quick)),
    "disk": lambda options: markdown_lines(disk.COLUMNS, disk.rows(options.quick)),
    "interventions": lambda options: markdown_lines(
        interventions.COLUMNS, interventions.rows(options.device, options.quick)
    ),
    "real": lambda options: markdown_lines(
        interventions.REAL_COLUMNS, interventions.real_rows(options.quick)
    ),
    "judging": lambda options: markdown_lines(judging.COLUMNS, judging.rows(options.quick)),
    "analyses": lambda options: analyses.lines(options.quick),
    "scale": lambda options: scale.lines(options.quick),
    "causes": lambda options: patching.measure(options.quick),
    "threads": lambda options: markdown_lines(threads.COLUMNS, threads.rows(options.quick)),
    "full-size": lambda options: markdown_lines(full_size.COLUMNS, full_size.rows(options.quick)),
    "start-up": lambda options: measure_start_up(options.quick),
}
"""By the name of a part of the page: what measures it, and yields its lines as they come."""


def measure_section(name: str, options: argparse.Namespace) -> str:
    """Return the table of a section with the machine and its load before."""
    load = os.getloadavg()[0]
    print(f"\n{name}\n", flush=True)
    lines = []
    for line in SECTIONS[name](options):
        print(line, flush=True)
        lines.append(line)
    on_gpu = options.device.startswith("cuda")
    waiting = "sleep" if os.environ.get("OMP_WAIT_POLICY") == "PASSIVE" else "spin"
    processor = f"{torch.get_num_threads()} CPU threads, which {waiting} while they wait"
    machine = torch.cuda.get_device_name() if on_gpu else processor
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    about = f"{machine}, {versions}; load of the machine before: {load:.1f}."
    print(f"\n{about}", flush=True)
    return "\n".join([*lines, "", about])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help=f"fill the tables of {PAGE}")
    options.add_argument(
        "--only", nargs="+", choices=list(SECTIONS), metavar="SECTION", help=", ".join(SECTIONS)
    )
    options.add_argument(
        "--big", action="store_true", help="also a random model of the size of Qwen2.5-VL-7B"
    )
    arguments = options.parse_args()
    for name in arguments.only or [name for name in SECTIONS if name not in LEFT_OUT]:
        text = measure_section(name, arguments)
        if arguments.write:
            fill_pages({PAGE: {name: text}})


if __name__ == "__main__":
    main()
