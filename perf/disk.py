"""Time to write and read traces, against the same bytes without HDF5."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import h5py
import numpy as np
from paired import TIMED, Paired, in_turn

import mmprobe as mp
from mmprobe.cache import TraceWriter
from mmprobe.cache.schema import BLOCK_STEPS, FORMAT_VERSION, GROUP_NAMES, VARIABLES
from mmprobe.traces.run import Packer

COLUMNS = ("what", "MB", "MB/s", "raw MB/s", *TIMED[1:], "goal")
STEPS, LAYERS, HIDDEN = 512, 28, 3584
READ = "attention/mass"  # the data set that is read


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


def measure_writing(folder: Path, quick: bool) -> Sequence[object]:
    hidden = 256 if quick else HIDDEN
    block = np.random.default_rng(0).standard_normal((BLOCK_STEPS, LAYERS, hidden)).astype(np.float16)
    blocks, path = STEPS // BLOCK_STEPS, folder / "file"
    ways = {"raw": partial(write_raw, path, block, blocks), "own": partial(write_trace, path, block, blocks)}
    # the old file goes first, because to replace it would take longer than to write it
    times = in_turn(ways, 1 if quick else 7, before=partial(path.unlink, missing_ok=True))
    return format_row("writing one trace, residuals", block.nbytes * blocks, times, "0.80")


def measure_reading(
    folder: Path,
    count: int,
    shape: tuple[int, ...],
    rounds: int,
    cold: bool = False,
    joined: bool = False,
    stacked: bool = False,
) -> Sequence[object]:
    """Read one data set of many traces, through `Run.stream` and as raw bytes from the same places of the files.

    Args:
        cold: whether the files are dropped from the page cache before each round.
        joined: whether the traces are joined in one file, as `trace --pack-every` does.
        stacked: whether all are read into one array, through `Run.stack`.
    """
    (folder / "samples").mkdir(parents=True)
    ids = [f"s{index:04}" for index in range(count)]
    values = np.random.default_rng(0).random(shape, np.float32).astype(VARIABLES[READ].dtype)
    layers, heads = shape[1], shape[2]
    for sample in ids:
        coordinates = {"layer": np.arange(layers), "head": np.arange(heads), "group": np.array(GROUP_NAMES)}
        about = {"sample": f'{{"id": "{sample}", "question": "?"}}', "answer": ""}
        with TraceWriter(folder / "samples" / f"{sample}.h5", coordinates, about) as writer:
            for first in range(0, len(values), BLOCK_STEPS):
                writer.append(READ, values[first : first + BLOCK_STEPS])
    config = {"format": FORMAT_VERSION, "order": ids, "model": {"name": "x"}}
    (folder / "run.json").write_text(json.dumps(config))
    if joined:
        Packer(folder, count).finish()
    places = [find_chunks(trace, READ) for trace in mp.open_run(folder)]

    def through_run() -> None:
        for _, trace in mp.open_run(folder).stream("read"):
            assert trace.array(READ).values.shape == shape

    def through_stack() -> None:
        assert mp.open_run(folder).stack(READ).shape == (count, *shape)

    def raw_stack() -> None:
        array, done = memoryview(np.empty(values.nbytes * count, np.uint8)), 0
        with open(places[0][0], "rb", buffering=0) as file:
            for _, chunks in places:
                for offset, size in chunks:
                    file.seek(offset)
                    done += file.readinto(array[done : done + size])
        assert done == values.nbytes * count

    def raw() -> None:
        for path, chunks in places:
            array, done = memoryview(np.empty(sum(size for _, size in chunks), np.uint8)), 0
            with open(path, "rb", buffering=0) as file:
                for offset, size in chunks:
                    file.seek(offset)
                    done += file.readinto(array[done : done + size])
            assert done == values.nbytes

    times = in_turn(
        {"raw": raw_stack, "own": through_stack} if stacked else {"raw": raw, "own": through_run},
        rounds,
        before=partial(drop_from_page_cache, folder) if cold else None,
    )
    where = "disk" if cold else "the page cache"
    files = "one file, " if joined else ""
    target = "in one array " if stacked else ""
    what = f"reading {READ} of {count} traces {target}from {files}{where}, {values.nbytes / 1e6:.2f} MB each"
    return format_row(what, values.nbytes * count, times, "0.50")


def find_chunks(trace: mp.Trace, name: str) -> tuple[Path, list[tuple[int, int]]]:
    """Return a trace's file, and the place and size of each chunk of a data set in it."""
    with h5py.File(trace.file) as file:
        data = file[trace.group][name].id
        if data.get_offset() is not None:
            return trace.file, [(data.get_offset(), data.get_storage_size())]
        chunks = [data.get_chunk_info(index) for index in range(data.get_num_chunks())]
    return trace.file, [(chunk.byte_offset, chunk.size) for chunk in chunks]


def drop_from_page_cache(folder: Path) -> None:
    """Drop a folder's traces from the page cache."""
    for path in folder.glob("samples/*"):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def format_row(what: str, n_bytes: int, times: dict[str, Paired], goal: str) -> Sequence[object]:
    raw, own = times["raw"], times["own"]
    rates = (f"{n_bytes / each.seconds / 1e6:.0f}" for each in (own, raw))
    ratio = f"{1 / own.ratio:.2f}", f"{1 / own.high:.2f}-{1 / own.low:.2f}", own.rounds
    return what, f"{n_bytes / 1e6:.0f}", *rates, *ratio, goal


def rows(quick: bool = False) -> Iterator[Sequence[object]]:
    """Yield the cells of each row."""
    small, large = (
        (64, 8, 6, len(GROUP_NAMES)),
        (256, 28, 28, len(GROUP_NAMES)),
    )  # of tiny-spd and of a model of 7B
    with tempfile.TemporaryDirectory() as name:
        folder, (count, rounds) = Path(name), (20, 1) if quick else (1000, 5)
        yield measure_writing(folder, quick)
        yield measure_reading(folder / "small", count, small, rounds)
        yield measure_reading(folder / "joined", count, small, rounds, joined=True)
        yield measure_reading(folder / "stack", count, small, rounds, joined=True, stacked=True)
        if not quick:
            yield measure_reading(folder / "large", count, large, 3)
            yield measure_reading(folder / "cold", count, large, 3, cold=True)
