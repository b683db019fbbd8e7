"""Planted links: what a command writes stays in its folder, and what links lead to keeps its bytes."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from attacks.world import Case, World, check, run_command
from safetensors.torch import load_file

from mmprobe.models.checkpoints import locate

PRECIOUS = b"precious\n"


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: in turn a link in place of a file, of a part, of a folder, and in an index of weights."""
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        seed = rng.random()
        yield Case(f"{kind} {seed}", lambda w, f, k=kind, s=seed: KINDS[k](random.Random(s), w, f))


def _place(world: World, folder: Path, name: str) -> tuple[Path, list[object]]:
    """Return a folder, which holds an earlier call's files, and the command that writes there again."""
    out = folder / "out"
    if name in ("trace", "analyze"):
        shutil.copytree(world.run, out)
    elif name == "bench":
        shutil.copytree(world.results, out)
    out.mkdir(exist_ok=True)
    calls: dict[str, list[object]] = {
        "trace": world.trace(out, "--resume"),
        "bench": world.bench(out, "--resume"),
        "analyze": ["analyze", out],
        "report": ["report", world.run, "--out", out / "report.html"],
        "pack": ["pack", world.run, "--out", out / "run.h5"],
    }
    return out, calls[name]


FILES = {  # that a command writes, in its folder
    "trace": ("run.json", "samples/{}.h5"),
    "bench": ("results.json", "samples.jsonl", "responses.jsonl", "asked.json", "run/run.json"),
    "analyze": tuple(f"analyses/attention_decay.{ending}" for ending in ("csv", "json", "nc")),
    "report": ("report.html",),
    "pack": ("run.h5",),
}
FOLDERS = {"trace": ("samples",), "analyze": ("analyses",), "bench": ("run", "run/samples")}


def attack_file(rng: random.Random, world: World, folder: Path, ending: str = "") -> None:
    """A link to a file outside, in place of one that is written, or of its part."""
    name = rng.choice(list(FILES))
    out, call = _place(world, folder, name)
    place = out / rng.choice(FILES[name]).format(rng.choice(sorted(world.contents)))
    link = place.with_name(place.name + ending)
    link.parent.mkdir(exist_ok=True)
    if rng.random() < 0.3 and link.exists():
        target = folder / "precious"
        shutil.copy(link, target)  # what is read through the link is right
    else:
        target = folder / "precious"
        target.write_bytes(PRECIOUS)
    before = target.read_bytes()
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    check(run_command(*call))
    assert target.read_bytes() == before, f"{name} wrote through {link.name}"


def attack_part(rng: random.Random, world: World, folder: Path) -> None:
    """As `attack_file`, under the name of a part."""
    attack_file(rng, world, folder, ".part")


def attack_folder(rng: random.Random, world: World, folder: Path) -> None:
    """A link to a folder outside, in place of one in a run or a result folder."""
    name = rng.choice(list(FOLDERS))
    out, call = _place(world, folder, name)
    place, elsewhere = out / rng.choice(FOLDERS[name]), folder / "elsewhere"
    if place.exists():
        place.rename(elsewhere)
    else:
        elsewhere.mkdir()
    (elsewhere / "precious").write_bytes(PRECIOUS)
    if rng.random() < 0.5:  # something is left to do, though not for a bench whose answers are there
        for file in sorted(elsewhere.glob("**/*.h5"))[:1]:
            file.unlink()
    place.symlink_to(elsewhere)
    before = {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()}
    done = check(run_command(*call), *((0, 2) if name == "bench" else (2,)))
    assert done.code == 0 or "link" in done.stderr, done.stderr
    after = {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()}
    assert after == before, f"{name} wrote through the folder {place.name}"


def attack_weights(rng: random.Random, world: World, folder: Path) -> None:
    """An index of weights that names a file elsewhere, or one of pickled weights."""
    model = Path(shutil.copytree(locate("tiny-spd")[1], folder / "model"))
    weights = model / "model.safetensors"
    names = list(load_file(weights))
    place = rng.choice(
        ["../outside.safetensors", str(folder / "outside.safetensors"), "a.bin", "b/../a.pt", ""]
    )
    weights.rename(folder / "outside.safetensors" if place.endswith("safetensors") else model / "a.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, place)}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    call = ["trace", "--model", model, "--data", world.data, "--limit", 1, "--out", folder / "out"]
    assert "no file of safetensors" in check(run_command(*call), 2).stderr
    assert not (folder / "out").exists()


KINDS: dict[str, Callable[[random.Random, World, Path], None]] = {
    "file": attack_file,
    "part": attack_part,
    "folder": attack_folder,
    "weights": attack_weights,
}
