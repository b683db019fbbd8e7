"""Read a benchmark's data, or draw a small set once."""

from __future__ import annotations

import json
from pathlib import Path

from mmprobe.benchmarks.core.benchmark import Benchmark, Truth
from mmprobe.benchmarks.layouts import remove_data, unpack
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
    kept: bool = True,
) -> Truth:
    """Read the data, or draw a set once.

    Args:
        kept: whether something was made of what an earlier call drew or unpacked. Otherwise, other data take its place:
            a call that was refused does not block the next one.

    Raises:
        InputError: an earlier call drew or unpacked other data, and they are kept.
    """
    if data is None:
        truth = _draw_once(benchmark, folder, n, seed, kept)
    else:
        unpacked = unpack(benchmark.name, Path(data), folder, None if benchmark.filters else limit, kept)
        truth = benchmark.read_data(unpacked)
    return benchmark.show(truth if limit is None else benchmark.take(truth, limit), folder / "shown")


def _draw_once(benchmark: Benchmark[Truth], folder: Path, n: int, seed: int, kept: bool) -> Truth:
    samples, note = folder / "samples.jsonl", folder / "drawn.json"
    if not kept and note.is_file() and _read_drawn(note) != (n, seed):
        remove_data(folder)
    if not samples.exists():
        try:
            return benchmark.draw_data(folder, n, seed)
        finally:
            # also if the benchmark has no question about the set, such as pope about few pairs
            if samples.exists():
                write_atomic(note, json.dumps({"n": n, "seed": seed}) + "\n")
    earlier = _read_drawn(note) if note.exists() else (n, seed)
    if earlier != (n, seed):
        raise InputError(
            f"{folder}: was drawn with n {earlier[0]} and seed {earlier[1]}; give the same, or choose another folder"
        )
    return benchmark.read_data(samples)


def _read_drawn(note: Path) -> tuple[int, int]:
    drawn = read_record(note, _Drawn)
    return drawn.n, drawn.seed
