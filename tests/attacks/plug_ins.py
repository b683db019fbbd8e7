"""Plug-ins of other packages that are broken: each is named in one line, and ends no command that does not need it."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attacks.world import Case, World, check, run_command

from mmprobe import registry
from mmprobe.cli.list_ import KINDS

FAULTS = {  # a module, and whether it can be imported
    "wrong type": "THING = 42",
    "raises at import": "raise RuntimeError('two\\nlines')",
    "exits at import": "import sys; sys.exit(3)",
    "is missing": "",
    "cannot be parsed": "def THING(:",
    "raises in use": "def THING(*args, **options):\n    raise RuntimeError('two\\nlines')",
    "exits in use": "import sys\ndef THING(*args, **options):\n    sys.exit(3)",
}
PACKAGE = "mmprobe_broken"


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: each kind of thing with a random fault, in turn."""
    kinds = list(KINDS)
    rng.shuffle(kinds)
    for number in range(count):
        kind, fault, seed = kinds[number % len(kinds)], rng.choice(list(FAULTS)), rng.random()
        yield Case(
            f"{kind} {fault} {seed}",
            lambda w, f, k=kind, x=fault, s=seed: _break(random.Random(s), w, f, k, x),
        )


def _break(rng: random.Random, world: World, folder: Path, kind: str, fault: str) -> None:
    with _installed(folder / "site", kind, FAULTS[fault]):
        named = f"entry point {PACKAGE}:THING of mmprobe.{kind}"
        listed = check(run_command("list", kind), 0, 2)
        if "in use" not in fault and listed.code:
            assert named in listed.stderr, listed.stderr
        if kind == "analyses":
            only = ["analyze", world.run, "--only", "broken", "--out", folder / "only"]
            done = run_command(*only)
            assert done.code in (1, 2, 70) and len(done.stderr.splitlines()) == 1, done
            assert named in done.stderr, done.stderr
            done = run_command("analyze", world.run, "--out", folder / "analyses")
            assert done.code == 0 and named in done.stderr, done
            assert (folder / "analyses" / "attention_decay.nc").exists()
        for call in rng.sample(_other_calls(world, folder), 2):
            done = run_command(*call)
            assert done.code == 0, f"{call[0]} ended with {done.code}: {done.stderr[-300:]}"
            lines = done.stderr.splitlines()
            assert all(line.startswith("mmprobe: ") for line in lines), done.stderr


def _other_calls(world: World, folder: Path) -> list[list[object]]:
    """Return commands that do not need the thing."""
    return [
        ["verify", world.run],
        ["analyze", world.run, "--only", "attention-decay", "--out", folder / "decay"],
        ["report", world.run, "--out", folder / "report.html"],
        world.trace(folder / "run"),
        ["bench", "mme", "--model", "tiny-spd", "--n", 1, "--max-new-tokens", 2, "--out", folder / "mme"],
        ["generate", "--model", "tiny-spd", "--prompt", "Why?", "--max-new-tokens", 2],
        ["models", "--json"],
    ]


@contextmanager
def _installed(site: Path, kind: str, code: str) -> Iterator[None]:
    """Install a package with one entry point within the block."""
    site.mkdir()
    if code:
        (site / f"{PACKAGE}.py").write_text(code + "\n")
    info = site / f"{PACKAGE}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mmprobe.{kind}]\nbroken = {PACKAGE}:THING\n")
    sys.path.insert(0, str(site))
    _forget()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        _forget()
        shutil.rmtree(site)


def _forget() -> None:
    sys.modules.pop(PACKAGE, None)
    for each in (registry._entry_points, registry._load_entry, registry._added_packages):
        each.cache_clear()
