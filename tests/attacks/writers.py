"""Two processes at once that write to one place: one of them is refused, or both agree."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from attacks.faults import COMMANDS
from attacks.processes import Command
from attacks.world import Case, World, check, run_command

REFUSALS = (
    "process ",
    "another process",
    "already contains a run",
    "already contains answers",
    "exists",
    "not an empty",
)


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: each command against itself, or against one that also writes there, in turn."""
    for number in range(count):
        name = list(COMMANDS)[number % len(COMMANDS)]
        seed = rng.random()
        yield Case(f"{name} twice {seed}", lambda w, f, c=name, s=seed: _run_pair(random.Random(s), w, f, c))


def _run_pair(rng: random.Random, world: World, folder: Path, name: str) -> None:
    call, seconds, check_files = COMMANDS[name]
    arguments = call(world, folder)
    others = [arguments]
    if "trace" in name:
        others += [world.trace(folder / "out"), world.trace(folder / "out", "--overwrite")]
    commands = [
        Command(arguments, folder / "log0"),
        Command(rng.choice(others), folder / "log1", rng.uniform(0, 0.7 * seconds)),
    ]
    done = [check(command.finish(), 0, 2) for command in commands]
    refused = [each for each in done if each.code == 2]
    assert len(refused) < 2, f"both were refused: {done}"
    assert all(any(text in each.stderr for text in REFUSALS) for each in refused), refused
    check_files(world, folder, True)
    if name in ("trace", "bench"):
        check(run_command(*arguments), 0)
        check_files(world, folder, True)
