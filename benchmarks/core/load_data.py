"""Read a benchmark's data, or draw a small set once."""

from __future__ import annotations

import json
from pathlib import Path

from mmprobe.benchmarks.core.benchmark import Benchmark, Truth
from mmprobe.benchmarks.layouts import unpack
from mmprobe.benchmarks.synthetic import PAIRS, SEED
from mmprobe.errors import InputError
from mmprobe.files import JsonRecord, read_record, write_atomic


class _Drawn(JsonRecord):
    """The content of drawn.json."""

    n: int
    seed: int


def load_truth(
    benchmark: Benchmark[Truth],
    data: str | Path | None,
    folder: Path,
    n: int = PAIRS,
    seed: int = SEED,
    limit: int | None = None,
) -> Truth:
    """Read the data, or draw a set once. Raises InputError where an earlier call drew another set."""
    if data is None:
        truth = _draw_once(benchmark, folder, n, seed)
    else:
        unpacked = unpack(benchmark.name, Path(data), folder, None if benchmark.filters else limit)
        truth = benchmark.read_data(unpacked)
    return benchmark.show(truth if limit is None else benchmark.take(truth, limit), folder / "shown")


def _draw_once(benchmark: Benchmark[Truth], folder: Path, n: int, seed: int) -> Truth:
    samples, note = folder / "samples.jsonl", folder / "drawn.json"
    if not samples.exists():
        try:
            return benchmark.draw_data(folder, n, seed)
        finally:
            # also if the benchmark has no question about the set, such as pope about few pairs
            if samples.exists():
                write_atomic(note, json.dumps({"n": n, "seed": seed}) + "\n")
    earlier = read_record(note, _Drawn) if note.exists() else _Drawn(n=n, seed=seed)
    if (earlier.n, earlier.seed) != (n, seed):
        raise InputError(
            f"{folder}: was drawn with n {earlier.n} and seed {earlier.seed}; give the same, or choose another folder"
        )
    return benchmark.read_data(samples)
