"""Faults: a signal at a random moment, and a disk that fills up at a random size."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import xarray as xr
from attacks.processes import Command, check_stopped
from attacks.world import Case, World, check, check_same_run, run_command
from helpers.small_disk import fill_disk, mount_disk

import mmprobe as mp
from mmprobe.cache import verify

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
DISK = 6_000_000


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: each command in turn, three of four times stopped, else on a full disk."""
    for number in range(count):
        name = list(COMMANDS)[number % len(COMMANDS)]
        seed = rng.random()
        if number // len(COMMANDS) % 4 == 3:
            yield Case(
                f"full disk {name} {seed}", lambda w, f, c=name, s=seed: _fill(random.Random(s), w, f, c)
            )
        else:
            yield Case(f"signal {name} {seed}", lambda w, f, c=name, s=seed: _stop(random.Random(s), w, f, c))


def _stop(rng: random.Random, world: World, folder: Path, name: str) -> None:
    """Stop a command once or twice at random moments, and then let it finish."""
    call, seconds, check_files = COMMANDS[name]
    kept: dict[str, bytes] = {}
    for number in rng.sample(SIGNALS, rng.choice([1, 2])):
        if _clear_place(folder, name):
            break
        command = Command(call(world, folder), folder / "log")
        command.stop(number, rng.uniform(0, 1.3 * seconds))
        check_stopped(command.finish(), number)
        kept = _check_kept(folder / "out", kept)
        check_files(world, folder, False)
    _finish(world, folder, name)
    _check_kept(folder / "out", kept)
    check_files(world, folder, True)


def _check_kept(out: Path, kept: dict[str, bytes]) -> dict[str, bytes]:
    """Check that finished traces are as they were, and return those that are finished now."""
    traces = {str(file): file.read_bytes() for file in out.glob("**/samples/*.h5")}
    assert kept.items() <= traces.items(), "a finished trace was lost or changed"
    return traces


def _finish(world: World, folder: Path, name: str) -> None:
    """Call the command again as its message says: with --resume where there is something to resume."""
    if not _clear_place(folder, name):
        check(run_command(*COMMANDS[name][0](world, folder)), 0)


def _clear_place(folder: Path, name: str) -> bool:
    """Delete what a message asks to delete before the next call. Return whether there is nothing left to do."""
    if name == "make-pairs" and (folder / "out").exists():
        shutil.rmtree(folder / "out")  # its files may have been moved in part
    return name == "pack" and (folder / "out" / "run.h5").exists()


def _fill(rng: random.Random, world: World, folder: Path, name: str) -> None:
    """Let the disk fill up while a command works. Afterwards there is space, and the command finishes."""
    with mount_disk(folder / "disk", DISK) as disk:
        call, _, check_files = COMMANDS[name]
        filler = fill_disk(
            disk, rng.choice([0, rng.randrange(20_000), rng.randrange(600_000), rng.randrange(3_000_000)])
        )
        command = Command(call(world, disk), folder / "log")
        finished = check(command.finish(), 0, 1)
        kept = _check_kept(disk / "out", {})
        if finished.code == 0:
            check_files(world, disk, True)
            return
        assert "No space left" in finished.stderr or "rror" in finished.stderr, finished.stderr
        assert not list(disk.glob("**/*.part")), "a part of a file was left"
        check_files(world, disk, False)
        filler.unlink()
        _finish(world, disk, name)
        _check_kept(disk / "out", kept)
        check_files(world, disk, True)


def _check_trace(world: World, folder: Path, finished: bool) -> None:
    run = folder / "out"
    if finished:
        check_same_run(world, run)
        names = {path.name for path in world.run.iterdir()}
        assert {path.name for path in run.iterdir()} == names, f"not {sorted(names)}, as an undisturbed run"
    elif (run / "run.json").exists():
        assert not [line for line in verify(run) if "not traced" not in line]


def _check_bench(world: World, folder: Path, finished: bool) -> None:
    out = folder / "out"
    if finished:
        for name in ("samples.jsonl", "responses.jsonl"):
            assert _sort_lines(out / name) == _sort_lines(world.results / name), f"{name} differs"
        assert verify(out / "run") == []
    elif (out / "results.json").exists():
        json.loads((out / "results.json").read_text())


def _sort_lines(file: Path) -> list[str]:
    return sorted(file.read_text().splitlines())


def _check_pack(world: World, folder: Path, finished: bool) -> None:
    file = folder / "out" / "run.h5"
    if finished or file.exists():
        assert verify(file) == [] and mp.open_run(file).ids == mp.open_run(world.run).ids


def _check_analyses(world: World, folder: Path, finished: bool) -> None:
    for file in (folder / "out").glob("*.nc"):
        xr.load_dataset(file, engine="h5netcdf")
    for file in (folder / "out").glob("*.json"):
        json.loads(file.read_text())
    assert not finished or {path.suffix for path in (folder / "out").iterdir()} == {".nc", ".csv", ".json"}


def _check_report(world: World, folder: Path, finished: bool) -> None:
    file = folder / "out" / "report.html"
    assert not finished or file.exists()
    assert not file.exists() or file.read_text().rstrip().endswith("</html>")


def _check_pairs(world: World, folder: Path, finished: bool) -> None:
    samples = folder / "out" / "samples.jsonl"
    assert not finished or {path.name for path in samples.parent.iterdir()} == {
        "images",
        "samples.jsonl",
        "scenes",
    }
    if samples.exists():
        assert len(mp.load_samples(samples)) > 10


def _call_trace(world: World, folder: Path) -> list[object]:
    return world.trace(folder / "out", "--resume")


def _call_bench(world: World, folder: Path) -> list[object]:
    return world.bench(folder / "out", "--resume")


def _call_pack(world: World, folder: Path) -> list[object]:
    (folder / "out").mkdir(exist_ok=True)
    return ["pack", world.run, "--out", folder / "out" / "run.h5"]


def _call_analyze(world: World, folder: Path) -> list[object]:
    return ["analyze", world.run, "--only", "attention-decay,sublayer-transitions", "--out", folder / "out"]


def _call_report(world: World, folder: Path) -> list[object]:
    (folder / "out").mkdir(exist_ok=True)
    return ["report", world.run, "--out", folder / "out" / "report.html"]


def _call_pairs(world: World, folder: Path) -> list[object]:
    return ["make-pairs", "--n", 6, "--out", folder / "out"]


# By name: the arguments, seconds that the command needs, and a check of its files.
COMMANDS: dict[
    str, tuple[Callable[[World, Path], list[object]], float, Callable[[World, Path, bool], None]]
] = {
    "trace": (_call_trace, 0.6, _check_trace),
    "bench": (_call_bench, 0.8, _check_bench),
    "pack": (_call_pack, 0.3, _check_pack),
    "analyze": (_call_analyze, 0.6, _check_analyses),
    "trace again": (_call_trace, 0.3, _check_trace),
    "report": (_call_report, 1.5, _check_report),
    "make-pairs": (_call_pairs, 0.4, _check_pairs),
}
