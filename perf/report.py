"""Run all measurements, and write docs/performance.md.

python perf/report.py                  # two CPU cores: about half an hour
python perf/report.py --write
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

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
TEXT = """\
# What tracing costs

Written by `python perf/report.py --write`; `make perf` prints the same. {hardware}, torch {torch}, transformers
{transformers}. Goals are the project's own; a number that misses its goal stands here like any other.

## Time

Traced generation, written to disk and fsynced, and its peers, against plain sdpa `generate` of the same prompts with two
images, in turn in one process. A file is finished while the next batch is answered, so a run of one batch has nothing to
hide it behind; the runs of several are what users have. The ratio is that of the medians; beside it the middle half of the ratios of one round,
which shows how much of it is the machine's noise. The toys have random weights. "peers' tensors" is the native engine on
what the peers record: attention rows of each step's query and the residual stream before, within and after each layer.
HF's flags are eager `generate` with attentions and hidden states; nnsight's cache keeps inputs of the norms and outputs of
layers and attention; both keep them in memory. TransformerLens is the engine of that name, which writes to disk too.

{overhead}

## Memory

Peak memory of the process beyond that of plain `generate` of the same two prompts, the smaller of two runs each.

{memory}

## Disk

{disk}

## Interventions

Answers of a fixed length with each decoding-time method against plain `generate` of the same prompts with two images, in turn in
one process, as above. Memory is the largest of the process beyond that of plain answers, the least of the rounds; a second
path needs one more key-value cache, whose size stands beside it.

{interventions}

## Judging

SPD-Faith's answers scored by the lexical judge on one core, from text to metrics with intervals and records.

{judging}

## Analyses

Of full traces of tiny-spd, without regard to what the answers say: seconds of each analysis, and of reading the data sets that
it reads through the same reader and doing nothing with them. Bootstraps and permutations take their time once an analysis,
whatever the number of traces.

{analyses}

`mmprobe --help` takes {help_time:.2f} s (median of 11).
"""


def start_up(rounds: int) -> float:
    """Median seconds of `mmprobe --help`."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "mmprobe", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def page(device: str, tables: dict[str, str], help_time: float) -> str:
    on_gpu = device.startswith("cuda")
    return TEXT.format(
        hardware=torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads",
        torch=torch.__version__,
        transformers=transformers.__version__,
        help_time=help_time,
        **tables,
    )


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    asked.add_argument("--big", action="store_true", help="also a random model of the size of Qwen2.5-VL-7B")
    arguments = asked.parse_args()
    quick = arguments.quick
    tables = {
        "overhead": overhead.table(arguments.device, quick, arguments.big),
        "memory": memory.table(quick),
        "disk": disk.table(quick),
        "interventions": interventions.table(arguments.device, quick),
        "judging": judging.table(quick),
        "analyses": analyses.table(quick),
    }
    written = page(arguments.device, tables, start_up(1 if quick else 11))
    if arguments.write:
        PAGE.write_text(written, encoding="utf-8")
    else:
        print(written.rsplit("\n\n", 1)[1])


if __name__ == "__main__":
    main()
