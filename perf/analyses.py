"""Time of each analysis against reading the same data, and peak memory, for 100 and 1,000 traces."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import h5py

import mmprobe as mp
from mmprobe.analyses import ANALYSES
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import Trace
from mmprobe.errors import NotApplicable
from mmprobe.notebook import markdown_lines

COLUMNS = ("analysis", "s, {few} traces", "s, {many}", "growth", "reading alone, s", "times reading", "goal")
QUESTION_TYPES = ("same", "different", "steps")


def trace_pairs(folder: Path, n_pairs: int) -> mp.Run:
    """Return a run of full traces of tiny-spd, three answers a pair."""
    samples = mp.load_samples(make_pairs(folder.with_suffix(".pairs"), n_pairs, 1_800_000, (1, 3), "hard"))
    samples = [sample for sample in samples if sample.metadata["type"] in QUESTION_TYPES]
    model = mp.load_model("tiny-spd", device="cpu")
    return mp.trace(model, samples, folder, capture="full", max_new_tokens=128, batch_size=8)


def copy_traces(run: mp.Run, folder: Path, n_traces: int) -> None:
    """Write a run of copies of a run's traces, under other names and in separate pairs."""
    (folder / "samples").mkdir(parents=True)
    names, labels = [], []
    for number in range(n_traces):
        source, name = run.ids[number % len(run)], f"c{number:05}"
        copy = folder / "samples" / f"{name}.h5"
        shutil.copyfile(run.path / "samples" / f"{source}.h5", copy)
        sample = run.sample(source)
        fields = {"id": name}
        if sample.pair_id:
            fields["pair_id"] = f"{number // len(run)}-{sample.pair_id}"
        with h5py.File(copy, "r+") as file:
            file.attrs["id"] = name
            file.attrs["sample"] = sample.model_copy(update=fields).model_dump_json()
        names.append(name)
        labels.append({"id": name, "faithful": number % 3 > 0})
    config = json.loads((run.path / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(config | {"order": names}))
    (folder / "labels.jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))


def measure_times(folder: Path) -> dict[str, tuple[float, float]]:
    """Return for each analysis its seconds, and the seconds of reading the same data sets and nothing else."""
    reads: list[tuple[str, str]] = []
    array, dataset = Trace.array, Trace.dataset

    def note_array(trace: Trace, path: str):
        reads.append((trace.id, path))
        return array(trace, path)

    def note_dataset(trace: Trace, name: str):
        reads.append((trace.id, name))
        return dataset(trace, name)

    times = {}
    for name, analyse in ANALYSES.items():
        reads.clear()
        Trace.array, Trace.dataset = note_array, note_dataset  # type: ignore[method-assign]
        try:
            began = time.perf_counter()
            analyse(mp.open_run(folder))
            seconds = time.perf_counter() - began
        except NotApplicable as error:
            print(f"{name} left out: {error}", file=sys.stderr)
            continue
        finally:
            Trace.array, Trace.dataset = array, dataset  # type: ignore[method-assign]
        began = time.perf_counter()
        run = mp.open_run(folder)
        for trace_id, paths in group_by_trace(reads).items():
            with run[trace_id].keep_open() as trace:
                for path in paths:
                    (trace.array(path) if "/" in path else trace.dataset(path)).load()
        times[name] = (seconds, time.perf_counter() - began)
    return times


def group_by_trace(reads: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the paths that were read of each trace, each path once."""
    paths: dict[str, list[str]] = {}
    for trace, path in dict.fromkeys(reads):
        paths.setdefault(trace, []).append(path)
    return paths


def measure_peak(folder: Path) -> float:
    """Run every analysis and return the peak memory of this process in MB."""
    for analyse in ANALYSES.values():
        with suppress(NotApplicable):
            analyse(mp.open_run(folder))
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(peak[1]) / 1024 if peak else float("nan")


MEASURES = {"times": measure_times, "peak": measure_peak}


def lines(quick: bool = False) -> Iterator[str]:
    """Yield the lines of the table, and a sentence about memory."""
    (few, many), n_pairs = ((18, 21), 2) if quick else ((100, 1000), 10)
    results = {}
    with tempfile.TemporaryDirectory() as root:
        traced = trace_pairs(Path(root) / "traced", n_pairs)
        for count in (few, many):
            folder = Path(root) / str(count)
            copy_traces(traced, folder, count)
            results[count] = {}
            for name in MEASURES:  # each in a separate process, so that its peak is its own
                command = [sys.executable, __file__, name, str(folder)]
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                results[count][name] = json.loads(output.splitlines()[-1])
    rows: list[Sequence[object]] = []
    times = {count: results[count]["times"] for count in (few, many)}
    shared = [name for name in times[few] if name in times[many]]
    for name in [*shared, "together"]:
        parts = shared if name == "together" else [name]
        (small, _), (large, reading) = (
            [sum(times[count][part][kind] for part in parts) for kind in (0, 1)] for count in (few, many)
        )
        goal = "3" if name == "together" else ""
        ratios = f"{large / small:.1f}", f"{reading:.2f}", f"{large / reading:.1f}"
        rows.append((name.replace("_", "-"), f"{small:.2f}", f"{large:.2f}", *ratios, goal))
    yield from markdown_lines((each.format(few=few, many=many) for each in COLUMNS), rows)
    peaks = [results[count]["peak"] for count in (few, many)]
    yield ""
    yield (
        f"Peak memory of the process: {peaks[0]:.0f} MB with {few} traces, {peaks[1]:.0f} MB with {many}, "
        f"{peaks[1] / peaks[0]:.2f} times as much (goal 1.15)."
    )


if __name__ == "__main__":  # of one process
    print(json.dumps(MEASURES[sys.argv[1]](Path(sys.argv[2]))))
