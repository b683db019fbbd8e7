"""How fast traces are written and read, against the same bytes without HDF5.

python perf/disk.py
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
from toys import parser

import mmprobe as mp
from mmprobe.cache import TraceWriter

HEADER = """\
| what | MB | MB/s | raw MB/s | ratio | goal |
|---|---|---|---|---|---|"""
STEPS, LAYERS, HIDDEN, BLOCK = 512, 28, 3584, 64


def write_trace(path: Path, block: np.ndarray, blocks: int) -> None:
    with TraceWriter(path, {"layer": np.arange(block.shape[1])}) as writer:
        for _ in range(blocks):
            writer.append("residual/mid", block)


def write_raw(path: Path, block: np.ndarray, blocks: int) -> None:
    with open(path, "wb") as file:
        for _ in range(blocks):
            file.write(block.data)
        file.flush()
        os.fsync(file.fileno())


def writing(folder: Path, quick: bool) -> str:
    hidden = 256 if quick else HIDDEN
    block = np.random.default_rng(0).standard_normal((BLOCK, LAYERS, hidden)).astype(np.float16)
    blocks, times = STEPS // BLOCK, {write_trace: [], write_raw: []}
    for round_ in range(-1, 1 if quick else 7):
        for way in times:
            began = time.perf_counter()
            way(folder / "file", block, blocks)
            if round_ >= 0:
                times[way].append(time.perf_counter() - began)
    return row(
        "writing one trace, residuals", block.nbytes * blocks, times[write_trace], times[write_raw], "0.80"
    )


def reading(folder: Path, quick: bool) -> str:
    """attention/mass of many traces, through `open_run` and as the bytes that it takes on the disk."""
    count = 20 if quick else 1000
    (folder / "samples").mkdir()
    names, rng = [f"s{index:04}" for index in range(count)], np.random.default_rng(0)
    mass = rng.dirichlet(np.ones(5), (64, 8, 6)).astype(np.float32)
    groups = np.array(("template", "system", "visual", "user", "generated"))
    for name in names:
        coordinates = {"layer": np.arange(8), "head": np.arange(6), "group": groups}
        about = {"sample": f'{{"id": "{name}", "question": "?"}}', "answer": ""}
        with TraceWriter(folder / "samples" / f"{name}.h5", coordinates, about) as writer:
            writer.append("attention/mass", mass)
    names_text = ", ".join(f'"{name}"' for name in names)
    (folder / "run.json").write_text(f'{{"format": 1, "order": [{names_text}], "model": {{"name": "x"}}}}')
    with h5py.File(folder / "samples" / f"{names[0]}.h5") as file:
        chunks = [file["attention/mass"].id.get_chunk_info(0)]
    places = [(chunk.byte_offset, chunk.size) for chunk in chunks]

    def through_run() -> None:
        for trace in mp.open_run(folder):
            assert trace.attention_mass.values.shape == mass.shape
            trace.close()

    def raw() -> None:
        for name in names:
            with open(folder / "samples" / f"{name}.h5", "rb") as file:
                for offset, size in places:
                    file.seek(offset)
                    np.frombuffer(file.read(size), np.uint8)

    times: dict = {through_run: [], raw: []}
    for round_ in range(-1, 1 if quick else 5):
        for way in times:
            began = time.perf_counter()
            way()
            if round_ >= 0:
                times[way].append(time.perf_counter() - began)
    return row(
        f"reading attention/mass of {count} traces",
        mass.nbytes * count,
        times[through_run],
        times[raw],
        "0.50",
    )


def row(what: str, count: int, ours: list[float], raw: list[float], goal: str) -> str:
    own, floor = count / statistics.median(ours) / 1e6, count / statistics.median(raw) / 1e6
    line = f"| {what} | {count / 1e6:.0f} | {own:.0f} | {floor:.0f} | {own / floor:.2f} | {goal} |"
    print(line, flush=True)
    return line


def table(quick: bool = False) -> str:
    print(HEADER)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        return "\n".join([HEADER, writing(Path(first), quick), reading(Path(second), quick)])


if __name__ == "__main__":
    table(parser(__doc__).parse_args().quick)
