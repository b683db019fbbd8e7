"""How long the analyses take against reading what they read, and what memory they need, for 100 and 1,000 traces.

python perf/analyses.py
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import h5py

import mmprobe as mp
from mmprobe.analyses import ANALYSES
from mmprobe.benchmarks.synthetic.labels import label_run
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import Trace
from mmprobe.errors import NotApplicable

HEADER = """\
| analysis | s, {few} traces | s, {many} | growth | reading alone, s | times reading | goal |
|---|---|---|---|---|---|---|"""
QUESTIONS = ("same", "different", "steps")


def make_run(folder: Path, count: int) -> None:
    """Full traces of tiny-spd; beyond the first thirty they are copies under other names, in pairs of their own."""
    samples = mp.load_samples(make_pairs(folder.with_suffix(".pairs"), 10, 1_800_000, (1, 3), "hard"))
    asked = [sample for sample in samples if sample.metadata["type"] in QUESTIONS]
    mp.trace(
        mp.load_model("tiny-spd", device="cpu"),
        asked,
        folder,
        capture="full",
        max_new_tokens=128,
        batch_size=8,
    )
    label_run(mp.open_run(folder))
    run = mp.open_run(folder)
    config, order = json.loads((folder / "run.json").read_text()), []
    labels = []
    for number in range(count):
        source = run.ids[number % len(run)]
        name = f"c{number:05}"
        copied = folder / "samples" / f"{name}.h5"
        shutil.copyfile(folder / "samples" / f"{source}.h5", copied)
        again = number // len(run)
        sample = run.sample(source)
        pair = {"pair_id": f"{again}-{sample.pair_id}"} if sample.pair_id else {}
        with h5py.File(copied, "r+") as file:
            file.attrs["sample"] = sample.model_copy(update={"id": name} | pair).model_dump_json()
        order.append(name)
        labels.append({"id": name, "faithful": number % 3 > 0})
    for name in run.ids:
        (folder / "samples" / f"{name}.h5").unlink()
    (folder / "run.json").write_text(json.dumps(config | {"order": order}))
    (folder / "labels.jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))


def measure(folder: Path) -> dict[str, tuple[float, float]]:
    """Seconds by analysis: of its own, and of reading the same data sets and nothing else."""
    asked: list[tuple[str, str]] = []
    array, dataset = Trace.array, Trace.dataset

    def noted_array(trace: Trace, path: str):
        asked.append((trace.id, path))
        return array(trace, path)

    def noted_dataset(trace: Trace, name: str):
        asked.append((trace.id, name))
        return dataset(trace, name)

    found = {}
    for name, analyse in ANALYSES.items():
        asked.clear()
        Trace.array, Trace.dataset = noted_array, noted_dataset  # type: ignore[method-assign]
        try:
            began = time.perf_counter()
            analyse(mp.open_run(folder))
            took = time.perf_counter() - began
        except NotApplicable as error:
            print(f"{name} left out: {error}", file=sys.stderr)
            continue
        finally:
            Trace.array, Trace.dataset = array, dataset  # type: ignore[method-assign]
        began = time.perf_counter()
        run = mp.open_run(folder)
        for trace_id, paths in by_trace(asked).items():
            with run[trace_id].keep_open() as trace:
                for path in paths:
                    (trace.array(path) if "/" in path else trace.dataset(path)).load()
        found[name] = (took, time.perf_counter() - began)
    return found


def by_trace(asked: list[tuple[str, str]]) -> dict[str, list[str]]:
    """What was asked of each trace, each once."""
    found: dict[str, list[str]] = {}
    for trace, path in dict.fromkeys(asked):
        found.setdefault(trace, []).append(path)
    return found


def peak(folder: Path) -> float:
    """Largest memory in MB of a process that does nothing but run every analysis."""
    for analyse in ANALYSES.values():
        with suppress(NotApplicable):
            analyse(mp.open_run(folder))
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


MEASURES = {"times": measure, "peak": peak}


def table(quick: bool = False) -> str:
    few, many = (60, 120) if quick else (100, 1000)
    results = {}
    with tempfile.TemporaryDirectory() as root:
        for count in (few, many):
            folder = Path(root) / str(count)
            make_run(folder, count)
            results[count] = {}
            for name in MEASURES:  # each in a process of its own
                command = [sys.executable, __file__, "--one", name, str(folder)]
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                results[count][name] = json.loads(output.splitlines()[-1])
    rows = [HEADER.format(few=few, many=many)]
    times = {count: results[count]["times"] for count in (few, many)}
    shared = [name for name in times[few] if name in times[many]]
    for name in [*shared, "together"]:
        parts = shared if name == "together" else [name]
        (small, _), (large, reading) = (
            [sum(times[count][part][kind] for part in parts) for kind in (0, 1)] for count in (few, many)
        )
        goal = "3" if name == "together" else ""
        rows.append(
            f"| {name.replace('_', '-')} | {small:.2f} | {large:.2f} | {large / small:.1f} | {reading:.2f} | "
            f"{large / reading:.1f} | {goal} |"
        )
    peaks = [results[count]["peak"] for count in (few, many)]
    rows.append(
        f"\nPeak memory of the process: {peaks[0]:.0f} MB with {few} traces, {peaks[1]:.0f} MB with {many}, "
        f"{peaks[1] / peaks[0]:.2f} times as much (goal 1.15)."
    )
    text = "\n".join(rows)
    print(text, flush=True)
    return text


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(MEASURES[sys.argv[2]](Path(sys.argv[3]))))
    else:
        from toys import parser  # imports torch, which the analyses do without

        table(parser(__doc__).parse_args().quick)
