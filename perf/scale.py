"""Processor time and peak memory of commands that read runs of 5,000 and 20,000 traces, and of opening 100,000."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import h5py

import mmprobe as mp
from mmprobe.notebook import markdown_lines

COLUMNS = ("growth of a trace's time", "peak MB", "growth", "goals")  # after the seconds of each size
SIZES, QUICK_SIZES = (5_000, 20_000), (20, 40)
IN_A_PACK = 1000
OPENED = 100_000
COMMANDS = {
    "open_run": [],
    "verify": ["verify", "RUN"],
    "analyze --only attention-decay": ["analyze", "RUN", "--only", "attention-decay"],
    "report": ["report", "RUN", "--out", "RUN/report.html"],
}


class CommandCost(NamedTuple):
    """What a command took.

    Attributes:
        seconds: of the processor.
        megabytes: peak memory of the process.
    """

    seconds: float
    megabytes: float


def trace_pairs(folder: Path, n_pairs: int) -> mp.Run:
    """Return a run of default traces of tiny-spd, three answers a pair."""
    from mmprobe.benchmarks.synthetic.pairs import make_pairs

    samples = mp.load_samples(make_pairs(folder / "pairs", n_pairs, 1_800_000, (1, 3), "hard"))
    samples = [sample for sample in samples if sample.metadata["type"] in ("same", "different", "steps")]
    model = mp.load_model("tiny-spd", device="cpu")
    return mp.trace(model, samples, folder / "traced", max_new_tokens=64, batch_size=8)


def copy_trace(run: mp.Run, source: str, copy: Path, images: Path) -> None:
    """Copy a trace under another name, with its own digest and images.

    Args:
        images: a folder for links to the images. Traces with the same folder are about the same images.
    """
    from mmprobe.cache.hdf5 import append_digest

    sample = run.sample(source)
    links = [images / f"{image.parent.name}-{image.name}" for image in sample.images]
    for link, image in zip(links, sample.images, strict=True):
        link.exists() or os.link(image, link)
    pair = sample.pair_id and f"{sample.pair_id}-{images.name}"
    sample = sample.model_copy(update={"id": copy.stem, "images": links, "pair_id": pair})
    shutil.copyfile(run.path / "samples" / f"{source}.h5", copy)
    with h5py.File(copy, "r+") as file:  # this cuts off the digest
        file.attrs["id"] = copy.stem
        file.attrs["sample"] = sample.model_dump_json()
    with open(copy, "r+b") as file:
        append_digest(file)


def write_config(run: mp.Run, folder: Path, names: list[str]) -> None:
    """Write the run.json of a run of copies."""
    config = json.loads((run.path / "run.json").read_text()) | {"order": names}
    (folder / "run.json").write_text(json.dumps(config))


def make_runs(run: mp.Run, root: Path, sizes: tuple[int, ...]) -> dict[int, Path]:
    """Return runs of copies by size, in packs. The smaller ones are links to files of the largest."""
    from mmprobe.traces.run import Packer

    together = min(IN_A_PACK, sizes[0])
    names = [f"c{number:06}" for number in range(sizes[-1])]
    whole = root / "whole"
    (whole / "samples").mkdir(parents=True)
    write_config(run, whole, names)
    packer = Packer(whole, together)
    for start in range(0, len(names), together):
        for number, name in enumerate(names[start : start + together], start):
            images = root / "images" / str(number // len(run))
            images.mkdir(parents=True, exist_ok=True)
            copy_trace(run, run.ids[number % len(run)], whole / "samples" / f"{name}.h5", images)
        packer.finish()
    return {size: link_run(run, root, names[:size], together) for size in sizes}


def link_run(run: mp.Run, root: Path, names: list[str], together: int) -> Path:
    """Return a run of the first traces of the largest run, by links to its files.

    Args:
        together: traces in a file.
    """
    folder = root / f"run-{len(names)}"
    (folder / "packs").mkdir(parents=True)
    for number in range(len(names) // together):
        pack = f"packs/{number + 1:06}.h5"
        os.link(root / "whole" / pack, folder / pack)
    write_config(run, folder, names)
    return folder


def label_run(folder: Path) -> Path:
    """Return a run with the same traces and made-up labels, which give more analyses work to do."""
    copy = folder.with_name(f"labelled-{folder.name}")
    shutil.copytree(
        folder, copy, copy_function=os.link, ignore=shutil.ignore_patterns("analyses", "report.html")
    )
    names = mp.open_run(copy).ids
    lines = [json.dumps({"id": name, "faithful": number % 5 > 1}) for number, name in enumerate(names)]
    (copy / "labels.jsonl").write_text("\n".join(lines))
    return copy


def make_names(run: mp.Run, root: Path, size: int) -> Path:
    """Return a run whose traces are empty files, to be opened and no more."""
    folder, names = root / "names", [f"c{number:06}" for number in range(size)]
    (folder / "samples").mkdir(parents=True)
    for name in names:
        (folder / "samples" / f"{name}.h5").touch()
    write_config(run, folder, names)
    return folder


def run_command(name: str, folder: str) -> CommandCost:
    """Run a command in this process, and return what it took beyond the imports that every command needs."""
    from mmprobe.cli import main

    sys.argv = ["mmprobe", *(word.replace("RUN", folder) for word in COMMANDS[name])]
    began = time.process_time()
    if name == "open_run":
        assert len(mp.open_run(folder)) > 0
    else:
        try:
            main()
        except SystemExit as done:
            assert not done.code, f"{name} ended with {done.code}"
    seconds = time.process_time() - began
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return CommandCost(seconds, int(peak[1]) / 1024 if peak else float("nan"))


def measure(name: str, folder: Path) -> CommandCost:
    """Run a command in a separate process, so that its peak is its own."""
    command = [sys.executable, __file__, name, str(folder)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return CommandCost(*json.loads(output.splitlines()[-1]))


def format_row(name: str, costs: dict[int, CommandCost]) -> Sequence[object]:
    """Return the cells of a row: the costs, and how those of the most traces compare with those of the fewest."""
    few, many = min(costs), max(costs)
    per_trace = (costs[many].seconds / many) / (costs[few].seconds / few)
    growth = costs[many].megabytes / costs[few].megabytes
    seconds = (f"{cost.seconds:.2f}" for cost in costs.values())
    peaks = ", ".join(f"{cost.megabytes:.0f}" for cost in costs.values())
    return name, *seconds, f"{per_trace:.2f}", peaks, f"{growth:.2f}", "1.10, 1.15"


def format_opening(opened: int, cost: CommandCost) -> str:
    """Return the sentence on opening a run of many files."""
    return (
        f"`open_run` of {opened:,} traces in single files took {cost.seconds:.2f} s and "
        f"{cost.megabytes:.0f} MB, with the imports (goal 1 s and 200 MB)."
    )


def measure_row(title: str, name: str, folders: dict[int, Path]) -> Sequence[object]:
    """Return the cells of a command."""
    return format_row(title, {size: measure(name, folder) for size, folder in folders.items()})


def lines(quick: bool = False) -> Iterator[str]:
    """Yield the lines of the table, and a sentence about opening a run."""
    sizes, opened = (QUICK_SIZES, 100) if quick else (SIZES, OPENED)
    columns = ("command", *(f"{size:,}, s" for size in sizes), *COLUMNS)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        run = trace_pairs(root, 2 if quick else 6)
        folders = make_runs(run, root, sizes)

        def rows() -> Iterator[Sequence[object]]:
            yield from (measure_row(name, name, folders) for name in COMMANDS)
            labelled = {size: label_run(folder) for size, folder in folders.items()}
            yield measure_row("report of labelled traces", "report", labelled)

        yield from markdown_lines(columns, rows())
        yield ""
        yield format_opening(opened, measure("open_run", make_names(run, root, opened)))


if __name__ == "__main__":  # of one process
    print(json.dumps(run_command(sys.argv[1], sys.argv[2])))
