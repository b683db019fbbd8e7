"""Run all measurements, or some of them, and print them or write them into docs/performance.md.

python perf/report.py                                # two CPU cores: about an hour
python perf/report.py --write --only disk memory     # their sections alone; the others stay as they are
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import disk
import judging
import memory
import overhead
import torch
import transformers
from toys import parser

import analyses
import interventions

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
HEAD = """\
# What tracing costs

Written by `python perf/report.py --write`, a section at a time; `make perf` measures all of them and prints them. Goals are
the project's own; a number that misses its goal stands here like any other.
"""


class Section(NamedTuple):
    """A part of the page: its title, what was measured and how, and what measures it."""

    title: str
    text: str
    measured: Callable[[argparse.Namespace], str]


def start_up(asked: argparse.Namespace) -> str:
    """Median seconds of `mmprobe --help`."""
    times = []
    for _ in range(1 if asked.quick else 11):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "mmprobe", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    found = f"`mmprobe --help` takes {statistics.median(times):.2f} s (median of {len(times)})."
    print(found)
    return found


SECTIONS = {
    "time": Section(
        "Time",
        """\
Traced generation, written to disk and fsynced, and its peers, against plain sdpa `generate` of the same prompts with two
images, in turn in one process. A file is finished while the next batch is answered, so a run of one batch has nothing to
hide it behind; the runs of several are what users have. The ratio is the median of each round's own; beside it their middle
half, which shows how much of it is the machine's noise. The toys have random weights. "peers' tensors" is
the native engine on what the peers record: attention rows of each step's query and the residual stream before, within and
after each layer. HF's flags are eager `generate` with attentions and hidden states; nnsight's cache keeps inputs of the
norms and outputs of layers and attention; both keep them in memory. TransformerLens is the engine of that name, which
writes to disk too.""",
        lambda asked: overhead.table(asked.device, asked.quick, asked.big),
    ),
    "memory": Section(
        "Memory",
        "Peak memory of the process beyond that of plain `generate` of the same two prompts, the smaller of two runs each.",
        lambda asked: memory.table(asked.quick),
    ),
    "disk": Section(
        "Disk",
        "Traces written and read, against the same bytes without HDF5.",
        lambda asked: disk.table(asked.quick),
    ),
    "interventions": Section(
        "Interventions",
        """\
Answers of a fixed length with each decoding-time method against plain `generate` of the same prompts with two images, in
turn in one process, as above. Memory is the largest of the process beyond that of plain answers, the least of the rounds; a
second path needs one more key-value cache, whose size stands beside it.""",
        lambda asked: interventions.table(asked.device, asked.quick),
    ),
    "judging": Section(
        "Judging",
        "SPD-Faith's answers scored by the lexical judge on one core, from text to metrics with intervals and records.",
        lambda asked: judging.table(asked.quick),
    ),
    "analyses": Section(
        "Analyses",
        """\
Of full traces of tiny-spd, without regard to what the answers say: seconds of each analysis, and of reading the data sets
that it reads through the same reader and doing nothing with them. Bootstraps and permutations take their time once an
analysis, whatever the number of traces.""",
        lambda asked: analyses.table(asked.quick),
    ),
    "start-up": Section("Start-up", "Until the first word of the command line.", start_up),
}


def written(section: Section, asked: argparse.Namespace) -> str:
    """The section with what it measured, and on what machine, how busy with other things; prints both meanwhile."""
    load = os.getloadavg()[0]
    print(f"\n{section.title}\n", flush=True)
    found = section.measured(asked)
    on_gpu = asked.device.startswith("cuda")
    machine = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    about = f"{machine}, {versions}; load of the machine before: {load:.1f}."
    print(f"\n{about}", flush=True)
    return f"## {section.title}\n\n{section.text}\n\n{found}\n\n{about}\n"


def sections_of(page: str) -> dict[str, str]:
    """The sections of a page by their titles, each as it stands there."""
    parts = page.split("\n## ")[1:]
    return {part.partition("\n")[0]: "## " + part.rstrip("\n") + "\n" for part in parts}


def main() -> None:
    asking = parser(__doc__)
    asking.add_argument("--write", action="store_true", help=f"write into docs/{PAGE.name}")
    asking.add_argument(
        "--only", nargs="+", choices=list(SECTIONS), metavar="SECTION", help=", ".join(SECTIONS)
    )
    asking.add_argument("--big", action="store_true", help="also a random model of the size of Qwen2.5-VL-7B")
    asked = asking.parse_args()
    for name in asked.only or SECTIONS:
        section = SECTIONS[name]
        text = written(section, asked)
        if asked.write:
            known = sections_of(PAGE.read_text(encoding="utf-8")) | {section.title: text}
            parts = [known[each.title] for each in SECTIONS.values() if each.title in known]
            PAGE.write_text("\n".join([HEAD, *parts]), encoding="utf-8")


if __name__ == "__main__":
    main()
