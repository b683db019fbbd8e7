"""Plug-ins of other packages that are broken: each is named in one line, and ends no command that does not need it."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attacks.world import Case, World, check, run_command
from helpers.command_line import Finished

from mmprobe import registry
from mmprobe.cli.list_ import KINDS
from mmprobe.models.checkpoints import locate
from mmprobe.registry import load

FAULTS = {  # a module
    "wrong type": "THING = 42",
    "raises at import": "raise RuntimeError('two\\nlines')",
    "exits at import": "import sys; sys.exit(3)",
    "is missing": "",
    "cannot be parsed": "def THING(:",
}
FAULTS_IN_USE = {  # what its functions do
    "raises in use": "raise RuntimeError('two\\nlines')",
    "exits in use": "sys.exit(3)",
    "returns another type": "return 42",
}
FUNCTION = """
import sys
import mmprobe as mp
def fail(*args, **options):
    \'\'\'Fail.\'\'\'
    {fault}
"""
_BENCHMARK = """
from mmprobe.benchmarks.core.benchmark import Benchmark
THING = Benchmark('broken', 'x', mp.load_samples, lambda truth, n: truth[:n], list, lambda *args: ({}, []))
"""
THINGS = {  # of each kind: things of the right type that fail when they are used
    "analyses": ["THING = fail"],
    "figures": [
        "import xarray as xr\nTHING = fail\n"
        "def OTHER(run): return xr.Dataset({'a': ('x', [1.0])}, attrs={'analysis': 'broken'})"
    ],
    "methods": [
        """
from dataclasses import dataclass
from typing import ClassVar
@dataclass(frozen=True)
class THING(mp.interventions.Method):
    name: ClassVar[str] = 'broken'
    reference: ClassVar[str] = 'ours'
    neutral_parameters: ClassVar[dict] = {}
    strong_parameters: ClassVar[dict] = {}
    neutral = False
    create_state = fail
"""
    ],
    "probes": ["from mmprobe.probes import Probe\nTHING = Probe(fail, needs_model=False)"],
    "families": [
        "from mmprobe.models.families import Family\nTHING = Family('broken', ('qwen2_5_vl',), views=fail)"
    ],
    "benchmarks": [
        f"{_BENCHMARK}from dataclasses import replace\nTHING = replace(THING, {field}=fail)"
        for field in ("read_data", "draw_files", "ask_questions", "score_answers")
    ],
    "layouts": [
        f"from mmprobe.benchmarks.layouts.base import Layout\nfrom pydantic import BaseModel\n"
        f"THING = Layout('broken', 'vqa', BaseModel, {matches}, fail)"
        for matches in ("fail", "lambda path: True")
    ],
    "judges": [
        "THING = fail",
        "class Judge:\n    async def ask(self, requests): return fail()\nTHING = lambda *args: Judge()",
    ],
    "perturbations": ["THING = fail"],
    "causes": [
        "from mmprobe.diagnosis.causes import Cause\nTHING = Cause('broken', 'x', 'y', 'z', 0.5, fail)"
    ],
    "tools": ["THING = fail"],
    "engines": [
        "record = fail\nunsupported_reason = lambda model, batch_size: None",
        "record = unsupported_reason = fail",
        "",
    ],
}
PACKAGE = "mmprobe_broken"


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: each kind of thing, in turn one that is not as it should be and one that fails in use."""
    kinds = list(KINDS)
    rng.shuffle(kinds)
    for number in range(count):
        kind, seed = kinds[number // 2 % len(kinds)], rng.random()
        fault = rng.choice(list(FAULTS_IN_USE if number % 2 else FAULTS))
        attack = _use if number % 2 else _break
        yield Case(
            f"{kind} {fault} {seed}",
            lambda w, f, a=attack, k=kind, x=fault, s=seed: a(random.Random(s), w, f, k, x),
        )


def _group(kind: str) -> str:
    return load(KINDS[kind]).group


def _break(rng: random.Random, world: World, folder: Path, kind: str, fault: str) -> None:
    """Something that is not of its kind: it is named where it is needed, and ends no other command."""
    with _installed(folder / "site", kind, FAULTS[fault]) as named:
        listed = check(run_command("list", kind), 0, 2)
        assert listed.code == 0 or named in listed.stderr, listed.stderr
        assert listed.code, "a broken thing was listed"
        if kind == "analyses":
            only = ["analyze", world.run, "--only", "broken", "--out", folder / "only"]
            _check_named(run_command(*only), named)
            done = run_command("analyze", world.run, "--out", folder / "analyses")
            assert done.code == 0 and named in done.stderr, done
            assert (folder / "analyses" / "attention_decay.nc").exists()
        _check_others(rng, world, folder)


def _use(rng: random.Random, world: World, folder: Path, kind: str, fault: str) -> None:
    """A thing whose functions fail: the command that needs it names it, and no other one ends."""
    code = FUNCTION.format(fault=FAULTS_IN_USE[fault]) + rng.choice(THINGS[kind])
    with _installed(folder / "site", kind, code) as named:
        assert run_command("list", kind).code == 0
        for call in _calls(world, folder)[kind]:
            _check_named(run_command(*call), named)
        for call in _calls_beside(world, folder).get(kind, []):
            done = run_command(*call)
            lines = done.stderr.splitlines()
            assert done.code == 0 and all(line.startswith("mmprobe: ") for line in lines), done
            assert PACKAGE in done.stderr, f"is not named: {done.stderr}"
        _check_others(rng, world, folder)


def _check_named(done: Finished, named: str) -> None:
    """Check that a command failed in one line that names the thing, beside those of `compare` and the like."""
    text = done.stdout + done.stderr
    assert done.code in (1, 2, 70), f"exit {done.code}: {text[-300:]}"
    assert named in text or PACKAGE in done.stderr, f"is not named: {text[-300:]}"
    errors = [line for line in text.splitlines() if PACKAGE in line]
    assert len(errors) == 1 and "Traceback" not in text, text[-500:]


def _check_others(rng: random.Random, world: World, folder: Path) -> None:
    for call in rng.sample(_other_calls(world, folder), 2):
        done = run_command(*call)
        assert done.code == 0, f"{call[0]} ended with {done.code}: {done.stderr[-300:]}"
        lines = done.stderr.splitlines()
        assert all(line.startswith("mmprobe: ") for line in lines), done.stderr


def _calls(world: World, folder: Path) -> dict[str, list[list[object]]]:
    """Return the commands that need the thing of each kind."""
    asked = ["--model", "tiny-spd", "--n", 1, "--max-new-tokens", 2, "--out", folder / "asked"]
    copy = ["--model", locate("tiny-spd")[1], "--data", world.data, "--limit", 1, "--max-new-tokens", 2]
    rewards, answers = world.benchmarks["mirage"]
    judged = ["score", "mirage", "--data", rewards, "--responses", answers, "--out", folder / "scored"]
    return {
        "analyses": [["analyze", world.run, "--only", "broken", "--out", folder / "only"]],
        "figures": [],
        "methods": [
            [
                "generate",
                "--model",
                "tiny-spd",
                "--prompt",
                "Why?",
                "--max-new-tokens",
                2,
                "--method",
                "broken",
            ],
            world.trace(folder / "traced", "--method", "broken"),
        ],
        "probes": [["analyze", world.run, "--only", "broken", "--out", folder / "only"]],
        "families": [["trace", *copy, "--out", folder / "traced"]],
        "benchmarks": [["bench", "broken", *asked]],
        "layouts": [],
        "judges": [[*judged, "--judge", "broken:x"]],
        "perturbations": [["bench", "spd-faith", "--perturb", "broken", *asked]],
        "causes": [],
        "tools": [
            [
                "bench",
                "diagnosis",
                "--models",
                "blind-rolled-0",
                "--tools",
                "broken",
                "--n",
                2,
                "--out",
                folder / "b",
            ]
        ],
        "engines": [world.trace(folder / "traced", "--engine", "broken")],
    }


def _calls_beside(world: World, folder: Path) -> dict[str, list[list[object]]]:
    """Return commands that use all things of a kind: they leave out the broken one and name it."""
    pairs = ["--model", "tiny-spd", "--data", world.data, "--limit", 2, "--max-new-tokens", 2]
    every = [
        ["analyze", world.run, "--out", folder / "every"],
        ["report", world.run, "--out", folder / "r.html"],
    ]
    return {
        "analyses": every,
        "figures": every[1:],
        "probes": every[:1],
        "causes": [["diagnose", *pairs, "--out", folder / "diagnosed"]],
    }


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
def _installed(site: Path, kind: str, code: str) -> Iterator[str]:
    """Install a package with one entry point within the block, and yield how messages name it."""
    site.mkdir()
    group, place = _group(kind), PACKAGE if kind == "engines" and "def fail" in code else f"{PACKAGE}:THING"
    if code:
        (site / f"{PACKAGE}.py").write_text(code + "\n")
    info = site / f"{PACKAGE}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{group}]\nbroken = {place}\n"
        + (f"[mmprobe.analyses]\nbroken = {PACKAGE}:OTHER\n" if "def OTHER" in code else "")
    )
    sys.path.insert(0, str(site))
    _forget()
    try:
        yield f"entry point {place} of {group}"
    finally:
        sys.path.remove(str(site))
        _forget()
        shutil.rmtree(site)


def _forget() -> None:
    sys.modules.pop(PACKAGE, None)
    for each in (registry._entry_points, registry._load_entry, registry._added_packages):
        each.cache_clear()
