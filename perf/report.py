"""Run all measurements, or some of them, and print them or write them into docs/performance.md.

OMP_WAIT_POLICY=PASSIVE python perf/report.py        # two CPU cores: about an hour
python perf/report.py --write --only disk memory     # their sections alone; the others stay as they are

The command line lets OpenMP's threads sleep while they wait; the variable does the same here.
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

import causes
import disk
import full_size
import given
import judging
import memory
import overhead
import overhead_profile
import prefixes
import scale
import threads
import torch
import transformers
from toys import parser

import analyses
import interventions

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
LEFT_OUT = ("full-size", "real", "scale")  # sections that are measured only if they are named
HEAD = """\
# What tracing costs

`python perf/report.py --write` writes this page, a section at a time. `make perf` measures all sections and prints them. We chose
the goals. A number that misses its goal is listed like any other.
"""


class Measurement(NamedTuple):
    """A part of the page.

    Attributes:
        title: its title.
        text: what is measured, and how.
        measure: measures it and returns the table.
    """

    title: str
    text: str
    measure: Callable[[argparse.Namespace], str]


def measure_start_up(options: argparse.Namespace) -> str:
    """Return the median time of `mmprobe --help` as a sentence."""
    times = []
    for _ in range(1 if options.quick else 11):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-m", "mmprobe", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    sentence = f"`mmprobe --help` takes {statistics.median(times):.2f} s (median of {len(times)})."
    print(sentence)
    return sentence


SECTIONS = {
    "time": Measurement(
        "Time",
        """\
Traced generation and its peers, against plain sdpa `generate` of the same prompts with two images, in turn in one process.
Traces are written to disk and fsynced. A file is finished while the next batch is answered. A run of one batch has no next
batch that would hide this; users have runs of several. The ratio is the median of the rounds' ratios. Beside it is their
middle half, which shows the noise of the machine. All models but tiny-spd have random weights.

The native engine records "peers' tensors", which are what the peers record: attention rows of each step's query, and the
residual stream before, within and after each layer. "HF's flags" is eager `generate` with attentions and hidden states.
"nnsight's cache" keeps inputs of the norms and outputs of layers and attention. Both keep them in memory. TransformerLens is
the engine of that name, which writes to disk as well.""",
        lambda options: overhead.table(options.device, options.quick, options.big),
    ),
    "profile": Measurement(
        "Where the time goes",
        """\
The extra CPU time of traces of the 28-layer model, each part as a share of plain generation's, with the writer thread: medians of
nine rounds, one batch each. The reading pass reads all tokens of an answer at once, with the listeners in it. The writer thread
shares Python's lock with the model, so its time adds to the model's.""",
        lambda options: overhead_profile.table(options.quick),
    ),
    "prefixes": Measurement(
        "Questions about the same images",
        """\
Six questions about the same two images, one by one: plain answers, traces, and answers with SAGE and VCD that share what their
prompts have in common, against plain `generate` of whole prompts, in turn in one process as above. The last rows are `bench
spd-faith --trace` on four drawn pairs at 784 pixels, four or five questions a pair, against the same with `--no-shared-prefix`.
Longer answers gain less, since each token of an answer still takes its own pass.""",
        lambda options: prefixes.table(options.device, options.quick),
    ),
    "given": Measurement(
        "Given answers, and SAGE",
        """\
Traces of answers that are there already, against generating them with plain `generate`, in turn in one process as above. "Plain
pass" is one forward pass over prompts and answers that records nothing. All samples of a table's row show the same two images, so
traces share what is read of these. The last rows are traced answers with all stages of SAGE, against such answers alone.""",
        lambda options: given.table(options.device, options.quick),
    ),
    "memory": Measurement(
        "Memory",
        """\
Peak memory of the process beyond plain `generate` of the same two prompts; for "sage" beyond SAGE without a trace. "given" traces
answers that are given. Each is the smaller of two runs.""",
        lambda options: memory.table(options.quick),
    ),
    "disk": Measurement(
        "Disk",
        "Writing and reading traces, against the same bytes without HDF5.",
        lambda options: disk.table(options.quick),
    ),
    "interventions": Measurement(
        "Interventions",
        """\
Answers of a fixed length with each decoding-time method, against plain `generate` of the same prompts with two images, in turn
in one process as above. The memory is the peak beyond plain answers, the least of all rounds. A second path needs one more
key-value cache; its size is beside the memory. The last column counts the calls of torch's functions for one more
token of the answer, also against plain. In models as small as tiny-spd, a kernel takes about as long as its call. SAGE's first
two stages read and change what each layer computes. They add many calls, and so miss their goal for tiny-spd and for single
samples. Larger models and batches pay less.""",
        lambda options: interventions.table(options.device, options.quick),
    ),
    "real": Measurement(
        "The real model",
        """\
Processor seconds of the real model (`make real`): 135 million weights in float32, 144 visual tokens an image. The methods answer
ten questions about a pair of images, three about both and seven about one of them, one by one as `mmprobe compare` asks them, in turn
in one process; what is read of the same images is shared. Their ratio is to plain answers, that of the probes to one reading of prompt
and answer with one image. SAGE and AGLA change the images for each question, which takes a prompt more. The contrast paths of the
others share what is read of images, or see none. OPERA reads 25 candidates for each token. Ranking heads by attribution is five
readings, a backward pass from each of 30 layers down, and twenty patches from their layers up; `atp` leaves the last two out. The
lenses read each visual token in twelve layers, and most of their time is its unembedding in a vocabulary of 49,153. `make perf` leaves
this section out, since it needs the
model: `python perf/report.py --write --only real`.""",
        lambda options: interventions.real_table(options.quick),
    ),
    "judging": Measurement(
        "Judging",
        "Scoring answers to SPD-Faith by the lexical judge on one core, from text to metrics with intervals and records.",
        lambda options: judging.table(options.quick),
    ),
    "analyses": Measurement(
        "Analyses",
        """\
Each analysis of full traces of tiny-spd, whatever their answers say, against reading the same data sets with the same reader
and doing nothing with them. Bootstraps and permutations take the same time for any number of traces.""",
        lambda options: analyses.table(options.quick),
    ),
    "scale": Measurement(
        "Runs of many traces",
        """\
Processor time and peak memory of commands on runs of copies of default traces of tiny-spd, a thousand in a file as `trace
--pack-every 1000` writes them. Three answers share a pair of images. Each command has its own process, and its numbers
include the modules that it loads. The first growth is the time for a trace of the largest run against that of the smallest, the
second is that of the peak memory. The goals are for these two. What an analysis returns, and the tables that it writes, contain numbers
of each sample. Labels, here made-up ones, give two more analyses work, and all of them permutations. `make perf` leaves this
section out, since it takes long:
`python perf/report.py --write --only scale`.""",
        lambda options: scale.table(options.quick),
    ),
    "causes": Measurement(
        "Causes",
        """\
Causal probes on pairs of the embedded model that it was not trained on, whole answers, one pair at a time. The counterfactual
shows the first image twice, so that the change between the images is gone. Spearman's rank correlation and the number of the
ten largest heads that both name are against exact patching of all 48 heads, with 95 % intervals over pairs. TransformerLens'
`attribution_patch` reads tokens only; an adapter in `perf/causes.py` gives it the same prompts with images. It estimates FFNs
and embeddings at once, a node for each position. The goal is a correlation of 0.9 and nine of the ten, averaged over 20 pairs.
The gradients alone miss it: answers are certain, so that gradients are near 0. `atp_star` therefore patches the 20 heads with
the largest estimates exactly. This number was chosen on ten other pairs. Passes begin at the first token that differs, and
those of a patch at its layer, so that many of them are a part of a pass.""",
        lambda options: causes.measure(options.quick),
    ),
    "threads": Measurement(
        "Threads",
        """\
`mmprobe demo` beside a process that keeps one core busy, against the same demo alone, in turn. By default OpenMP's threads spin
between kernels. Then each small kernel waits for the thread whose core is taken, and the demo took 278 s on two cores instead
of 60. The command line lets the threads sleep (`OMP_WAIT_POLICY=PASSIVE`), unless the user set `OMP_WAIT_POLICY`,
`GOMP_SPINCOUNT` or `KMP_BLOCKTIME`. It leaves the number of threads to torch and `OMP_NUM_THREADS`. A program that imports
mmprobe must set the variable itself, before it imports torch.""",
        lambda options: threads.table(options.quick),
    ),
    "full-size": Measurement(
        "A model of full size",
        """\
`mmprobe trace` of one question with two images by a model with the published sizes of Qwen2.5-VL-7B and random bfloat16
weights, on the CPU. The time includes loading. The memory includes the weights. `make perf` leaves this section out, since it
takes 17 GB of disk and 20 GB of memory: `python perf/report.py --write --only full-size`.""",
        lambda options: full_size.table(quick=options.quick),
    ),
    "start-up": Measurement(
        "Start-up", "The time until the command line prints its first word.", measure_start_up
    ),
}


def write_section(section: Measurement, options: argparse.Namespace) -> str:
    """Measure a section and return its text with the machine and its load before; print the table meanwhile."""
    load = os.getloadavg()[0]
    print(f"\n{section.title}\n", flush=True)
    table = section.measure(options)
    on_gpu = options.device.startswith("cuda")
    waiting = "sleep" if os.environ.get("OMP_WAIT_POLICY") == "PASSIVE" else "spin"
    processor = f"{torch.get_num_threads()} CPU threads, which {waiting} while they wait"
    machine = torch.cuda.get_device_name() if on_gpu else processor
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    about = f"{machine}, {versions}; load of the machine before: {load:.1f}."
    print(f"\n{about}", flush=True)
    return f"## {section.title}\n\n{section.text}\n\n{table}\n\n{about}\n"


def split_sections(page: str) -> dict[str, str]:
    """Return the sections of a page by their titles."""
    parts = page.split("\n## ")[1:]
    return {part.partition("\n")[0]: "## " + part.rstrip("\n") + "\n" for part in parts}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help=f"write into docs/{PAGE.name}")
    options.add_argument(
        "--only", nargs="+", choices=list(SECTIONS), metavar="SECTION", help=", ".join(SECTIONS)
    )
    options.add_argument(
        "--big", action="store_true", help="also a random model of the size of Qwen2.5-VL-7B"
    )
    arguments = options.parse_args()
    for name in arguments.only or [name for name in SECTIONS if name not in LEFT_OUT]:
        section = SECTIONS[name]
        text = write_section(section, arguments)
        if arguments.write:
            sections = split_sections(PAGE.read_text(encoding="utf-8")) | {section.title: text}
            parts = [sections[each.title] for each in SECTIONS.values() if each.title in sections]
            PAGE.write_text("\n".join([HEAD, *parts]), encoding="utf-8")


if __name__ == "__main__":
    main()
