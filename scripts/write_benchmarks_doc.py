"""Score the embedded model on held-out pairs and fill the tables of docs/benchmarks.md.

python scripts/write_benchmarks_doc.py --folder results        # two CPU cores: about fifteen minutes; a
second call continues
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from page import ROOT, fill_pages

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.notebook import markdown_table

SEED = 1_900_000  # held out: the embedded model was trained on seeds below 1,000,000
SPLIT = re.compile(r"\[|_(random|popular|adversarial)$")  # of parts of the data; all are in results.json
FOUR = ("mirage", "magic", "mirage-effect", "mmreason")
MORE = {"spd-faith": 300, "pope": 40, "chair": 100, "mme": 60}
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
PAIRS = {name: MORE.get(name, 24) for name in BENCHMARKS if f"<!-- {name} -->" in PAGE}
GOAL = 10  # minutes for the four
SECONDS = "seconds.json"  # in a result folder: how long its command took, all calls together


def run_bench(name: str, folder: Path) -> Path:
    """Run the command that the page shows, note how long it took, and return its result folder."""
    out = folder / name
    is_finished = (out / "results.json").exists()  # a second call only scores again
    start = time.monotonic()
    arguments = [sys.executable, "-P", "-m", "mmprobe", *command_line(name, out).split()[1:], "--resume"]
    try:
        subprocess.run(arguments, check=True)
    finally:
        if out.exists() and not is_finished:
            (out / SECONDS).write_text(json.dumps(seconds(out) + time.monotonic() - start))
    return out


def seconds(out: Path) -> float:
    return json.loads((out / SECONDS).read_text()) if (out / SECONDS).exists() else 0.0


def duration_line(folder: Path) -> str:
    """Return the line that says how long the four benchmarks took on this many cores."""
    minutes = sum(seconds(folder / name) for name in FOUR) / 60
    n_cores = len(os.sched_getaffinity(0))
    names = f"{', '.join(f'`{name}`' for name in FOUR[:-1])} and `{FOUR[-1]}`"
    return f"{names} with {PAIRS[FOUR[0]]} pairs each took {minutes:.1f} minutes together on {n_cores} cores (goal: {GOAL}).\n"


def command_line(name: str, out: Path | str) -> str:
    return f"mmprobe bench {name} --model tiny-spd --n {PAIRS[name]} --seed {SEED} --batch-size 8 --out {out}"


def section(name: str, results: dict) -> str:
    rows = []
    for metric, fields in results["metrics"].items():
        if SPLIT.search(metric):
            continue
        if fields["value"] is None:
            value = "undefined"
        else:
            ends = "" if fields["low"] is None else f" [{fields['low']:.3f}, {fields['high']:.3f}]"
            value = f"{fields['value']:.3f}{ends}"
        low, high = ("" if end is None else f"{end:g}" for end in fields["range"])
        coverage = "" if fields["coverage"] is None else f"{fields['coverage']:.0%}"
        rows.append((f"`{metric}`", value, fields["n"], coverage, fields["direction"], f"{low} to {high}"))
    metrics = markdown_table(["metric", "value [95 %]", "n", "coverage", "better", "range"], rows)
    return f"### {name}\n\n`{command_line(name, f'results/{name}')}`\n\n{metrics}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("results"))
    about = "measure these again alone; other tables stay as they are"
    parser.add_argument("--only", nargs="+", default=[], choices=PAIRS, help=about)
    arguments = parser.parse_args()
    results = {name: run_bench(name, arguments.folder) / "results.json" for name in arguments.only or PAIRS}
    parts = {name: section(name, json.loads(file.read_text())) for name, file in results.items()}
    if not arguments.only:
        parts["duration"] = duration_line(arguments.folder)
    fill_pages({"docs/benchmarks.md": parts})


if __name__ == "__main__":
    main()
