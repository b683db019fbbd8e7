"""Damage: bytes that change, vanish or move in a finished run."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from attacks.world import Case, World, check, check_same_run, read_run, run_command

Change = Callable[[random.Random, Path], None]


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: each kind of damage to a trace, to a packed run and to the files beside them, in turn."""
    for number in range(count):
        change = list(CHANGES)[number % len(CHANGES)]
        target = ("trace", "trace", "packed", "run.json")[number // len(CHANGES) % 4]
        seed = rng.random()
        if target == "trace" and number % 5 == 0:
            kind = list(SWAPS)[number // 5 % len(SWAPS)]
            yield Case(f"trace {kind}", lambda world, folder, k=kind, s=seed: _swap(world, folder, k, s))
        else:
            attack = {"trace": _damage_trace, "packed": _damage_packed, "run.json": _damage_text}[target]
            yield Case(
                f"{target} {change}", lambda world, folder, a=attack, c=change, s=seed: a(world, folder, c, s)
            )


def _damage_trace(world: World, folder: Path, change: str, seed: float) -> None:
    rng, run = random.Random(seed), world.copy_run(folder)
    file = rng.choice(sorted((run / "samples").iterdir()))
    whole = file.read_bytes()
    CHANGES[change](rng, file)
    _check_found(world, rng, folder, run, file.read_bytes() != whole)


def _swap(world: World, folder: Path, kind: str, seed: float) -> None:
    rng, run = random.Random(seed), world.copy_run(folder)
    SWAPS[kind](*rng.sample(sorted((run / "samples").iterdir()), 2))
    _check_found(world, rng, folder, run, True)


def _check_found(world: World, rng: random.Random, folder: Path, run: Path, damaged: bool) -> None:
    """Damage is named by what keeps or copies a trace, and --resume makes the run whole again."""
    found = check(run_command("verify", run))
    assert not damaged or found.code == 1, "verify did not see the damage"
    if rng.random() < 0.3:
        packed = check(run_command("pack", run, "--out", folder / "packed.h5"))
        assert not damaged or packed.code == 2 or "not traced" in found.stdout, "a damaged trace was packed"
        assert (folder / "packed.h5").exists() == (packed.code == 0)
    check(run_command(*world.trace(run, "--resume")), 0)
    check_same_run(world, run)


def _damage_packed(world: World, folder: Path, change: str, seed: float) -> None:
    file = Path(shutil.copy(world.packed, folder / "run.h5"))
    CHANGES[change](random.Random(seed), file)
    damaged = file.read_bytes() != world.packed.read_bytes()
    assert not damaged or check(run_command("verify", file)).code in (1, 2), "verify did not see the damage"


def _damage_text(world: World, folder: Path, change: str, seed: float) -> None:
    """The text files have no checksums; what they say must still fit the traces."""
    run = world.copy_run(folder)
    file = run / random.Random(seed).choice(["run.json", "labels.jsonl", "failures.jsonl"])
    if not file.exists():
        file.write_text('{"id": "0000-same", "faithful": true, "error": "E", "message": "m"}\n' * 3)
    CHANGES[change](random.Random(seed), file)
    read_run(random.Random(seed), run, folder, packs=True)
    if check(run_command(*world.trace(run, "--resume"))).code == 0:
        check_same_run(world, run)
    if seed < 0.3:
        check(run_command(*world.trace(run, "--overwrite")), 0)
        check_same_run(world, run)


def _flip(rng: random.Random, file: Path, count: int) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(count):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def _truncate(rng: random.Random, file: Path) -> None:
    os.truncate(file, rng.randrange(file.stat().st_size))


def _zero(rng: random.Random, file: Path) -> None:
    content = bytearray(file.read_bytes())
    start = rng.randrange(len(content)) // 4096 * 4096
    content[start : start + 4096] = bytes(len(content[start : start + 4096]))
    file.write_bytes(content)


def _move_pages(rng: random.Random, file: Path) -> None:
    content = file.read_bytes()
    at = rng.randrange(len(content))
    file.write_bytes(content[at:] + content[:at])


def _repeat(rng: random.Random, file: Path) -> None:
    content = file.read_bytes()
    at = rng.randrange(len(content))
    file.write_bytes(content[:at] + content[at // 2 : at] + content[at:])


def _randomise(rng: random.Random, file: Path) -> None:
    content = bytearray(file.read_bytes())
    start = rng.randrange(len(content))
    content[start : start + 300] = rng.randbytes(len(content[start : start + 300]))
    file.write_bytes(content)


CHANGES: dict[str, Change] = {
    "one bit": lambda rng, file: _flip(rng, file, 1),
    "many bits": lambda rng, file: _flip(rng, file, 50),
    "truncated": _truncate,
    "empty": lambda rng, file: os.truncate(file, 0),
    "a page of zeros": _zero,
    "pages moved": _move_pages,
    "bytes twice": _repeat,
    "random bytes": _randomise,
    "bytes added": lambda rng, file: file.write_bytes(file.read_bytes() + rng.randbytes(40)),
}
SWAPS: dict[str, Callable[[Path, Path], object]] = {
    "over another": lambda a, b: shutil.copy(a, b),
    "gone": lambda a, b: a.unlink(),
    "under an unknown name": lambda a, b: a.rename(a.with_name("unknown.h5")),
    "exchanged": lambda a, b: (a.rename(a.with_name("x")), b.rename(a), a.with_name("x").rename(b)),
    "a folder": lambda a, b: (a.unlink(), a.mkdir()),
    "a named pipe": lambda a, b: (a.unlink(), os.mkfifo(a)),
    "a link to itself": lambda a, b: (a.unlink(), a.symlink_to(a)),
    "a link to a device": lambda a, b: (a.unlink(), a.symlink_to("/dev/zero")),
    "no HDF5": lambda a, b: a.write_text("not a trace"),
}
