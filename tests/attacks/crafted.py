"""Crafted traces: their checksums are right, and their structure, numbers or texts are hostile."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
from attacks.hostile import mutate_json, mutate_text
from attacks.world import Case, World, read_run
from helpers import crafted

# What mmprobe does not read, or cannot know to be false.
HARMLESS = ("attribute id missing", "scale image repeats", "type tokens/text texts", "mark ")
NUMBERS = (0, 1, -1, 2, 7, 255, 2**15 - 1, 2**31 - 1, -(2**31), np.nan, np.inf, -np.inf, 1e30, 1e-30, 0.5)


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: half of them hostile structures, a tenth of these packed, and half hostile values."""
    for number in range(count):
        seed = rng.random()
        if number % 2:
            packed = number % 20 == 1
            yield Case(f"structure {seed}", lambda w, f, s=seed, p=packed: _craft_structure(w, f, s, p))
        else:
            yield Case(f"values {seed}", lambda w, f, s=seed: _craft_values(w, f, s))


def _craft_structure(world: World, folder: Path, seed: float, packed: bool) -> None:
    rng = random.Random(seed)
    name = rng.choice(sorted(world.contents))
    source = world.packed if packed else world.run / "samples" / f"{name}.h5"
    group = f"/samples/{name}" if packed else "/"
    edits = crafted.list_edits(*crafted.read_names(source, group), seed=rng.randrange(10**6))
    label, edit = rng.choice(list(edits))
    run = folder / "run.h5" if packed else world.copy_run(folder)
    crafted.craft(source, run if packed else run / "samples" / f"{name}.h5", edit, group)
    done = read_run(rng, run, folder, packs=not packed)
    seen = done["verify"].code == 1 or packed and label == "attribute mmprobe_format missing"
    assert seen or label.startswith(HARMLESS), f"verify accepts {label}"


def _craft_values(world: World, folder: Path, seed: float) -> None:
    """Numbers may be false, but no command may fail on them in more than a line."""
    rng, run = random.Random(seed), world.copy_run(folder)
    for file in rng.sample(sorted((run / "samples").iterdir()), rng.choice([1, 1, 4])):
        name = file.stem
        crafted.craft(world.run / "samples" / f"{name}.h5", file, lambda root: _spoil(rng, root))
    read_run(rng, run, folder, packs=True)
    if rng.random() < 0.1:
        shutil.copy(world.results / "results.json", folder)
        shutil.copy(world.results / "samples.jsonl", folder)
        read_run(rng, run, folder)


def _spoil(rng: random.Random, root: h5py.Group) -> None:
    """Change numbers of a few data sets, or a text of the trace."""
    names, _ = crafted.read_names(Path(root.file.filename))
    for name in rng.sample(names, rng.choice([1, 1, 2, 5])):
        data = root[name]
        if not data.size:
            continue
        values = data[...].ravel()
        if values.dtype == object:
            chosen = rng.sample(range(len(values)), min(3, len(values)))
            values[chosen] = [mutate_text(rng, "word").encode("utf-8", "replace").decode() for _ in chosen]
            values[chosen] = [text.replace("\0", "?") for text in values[chosen]]
        elif rng.random() < 0.3:
            values[:] = _number(rng, values.dtype)
        elif rng.random() < 0.3:
            rng.shuffle(values)
        else:
            for index in rng.sample(range(len(values)), min(rng.choice([1, 5, 50]), len(values))):
                values[index] = _number(rng, values.dtype)
        data[...] = values.reshape(data.shape)
    if rng.random() < 0.3:
        attribute = rng.choice(["answer", "sample", "sample", "neurons", "model"])
        text = str(root.attrs[attribute])
        text = mutate_json(rng, text) if attribute == "sample" else mutate_text(rng, text)
        root.attrs[attribute] = text.encode("utf-8", "replace").decode().replace("\0", "?")


def _number(rng: random.Random, dtype: np.dtype) -> float:
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.array(rng.choice(NUMBERS)).astype(dtype)
    limits = np.iinfo(dtype)
    choices = [n for n in NUMBERS if n == n and limits.min <= n <= limits.max]
    return int(rng.choice([*choices, limits.min, limits.max]))
