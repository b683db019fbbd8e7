"""Many small works in one process: memory, files and descriptors do not grow with their number."""

from __future__ import annotations

import gc
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from attacks.world import Case, World
from helpers.runs import write_trace

import mmprobe as mp
from mmprobe.files import write_atomic
from mmprobe.ledger import Ledger, lock_folder

ROUNDS = 300
MOST_GROWTH = 2048  # kB from the first third to the end


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: files, ledgers, traces and runs in turn."""
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        seed = rng.random()
        yield Case(f"{kind} {seed}", lambda w, f, k=kind, s=seed: _repeat(w, f, KINDS[k], random.Random(s)))


def _repeat(
    world: World, folder: Path, work: Callable[[World, Path, random.Random], None], rng: random.Random
) -> None:
    before: tuple[int, int] = (0, 0)
    for number in range(ROUNDS):
        work(world, folder, rng)
        if number == ROUNDS // 3:
            before = _measure()
    memory, descriptors = _measure()
    assert memory - before[0] < MOST_GROWTH, f"{memory - before[0]} kB more after {ROUNDS} rounds"
    assert descriptors == before[1], f"{descriptors - before[1]} files were left open"
    left = [path.name for path in folder.rglob("*") if path.suffix in (".part", ".lock")]
    assert not left, f"left: {left[:5]}"


def _measure() -> tuple[int, int]:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]), len(os.listdir("/proc/self/fd"))


def _write_files(world: World, folder: Path, rng: random.Random) -> None:
    write_atomic(folder / "results.json", "a" * rng.randrange(100_000))


def _write_ledger(world: World, folder: Path, rng: random.Random) -> None:
    out = folder / "out"
    with lock_folder(out, "tracing into it"):
        ledger = Ledger(out, "run.json", "a run", "differs", "start again")
        ledger.begin({"seed": rng.random()}, kept=False)
        ledger.append("lines.jsonl", [{"id": "a"}])
        ledger.clear()


def _write_trace(world: World, folder: Path, rng: random.Random) -> None:
    length = rng.randrange(1, 50)
    write_trace(folder / "a.h5", {"steps/id": np.arange(length), "tokens/id": np.arange(length + 1)})
    (folder / "a.h5").unlink()


def _open_run(world: World, folder: Path, rng: random.Random) -> None:
    run = mp.open_run(rng.choice([world.run, world.packed]))
    run[rng.choice(run.ids)].array("attention/mass").values.sum()


KINDS: dict[str, Callable[[World, Path, random.Random], None]] = {
    "files": _write_files,
    "ledgers": _write_ledger,
    "traces": _write_trace,
    "runs": _open_run,
}
