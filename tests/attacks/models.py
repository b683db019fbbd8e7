"""Model folders, YAML and notes of unknown origin: refused in one line, soon, and with little memory."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from attacks.world import Case, World, check, run_command

from mmprobe.models import organisms
from mmprobe.models.checkpoints import locate

SECONDS = 60  # the longest of a case on a busy machine; a template has five seconds of one core

BOMBS = (
    "{{ 'a' * 10**10 }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
)


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: each kind of harm in turn."""
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        seed = rng.random()
        yield Case(f"{kind} {seed}", lambda w, f, k=kind, s=seed: KINDS[k](random.Random(s), w, f))


def _copy(folder: Path) -> Path:
    return Path(shutil.copytree(locate("tiny-spd")[1], folder / "model"))


def _copy_adapter(folder: Path) -> Path:
    return Path(shutil.copytree(organisms.folder("blind-rolled-0"), folder / "adapter"))


def _edit(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def _refuse(world: World, folder: Path, *options: object, call: str = "trace") -> None:
    """Check that a command refuses what is given to it, soon, and leaves nothing."""
    began = time.monotonic()
    arguments = [
        call,
        "--data",
        world.data,
        "--limit",
        1,
        "--max-new-tokens",
        2,
        "--out",
        folder / "out",
        *options,
    ]
    done = check(run_command(*arguments), 2)
    assert "\x1b" not in done.stderr and not (folder / "out").exists(), done.stderr
    assert time.monotonic() - began < SECONDS, "it took too long"


def attack_pipe(rng: random.Random, world: World, folder: Path) -> None:
    """A named pipe, or a link to a device, in place of a file."""
    is_adapter = rng.random() < 0.4
    model = _copy_adapter(folder) if is_adapter else _copy(folder)
    names = ["adapter_model.safetensors", "adapter_config.json"]
    if not is_adapter:
        names = ["chat_template.jinja", "model.safetensors", "tokenizer.json", "config.json"]
    file = model / rng.choice(names)
    file.unlink()
    if rng.random() < 0.5:
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    _refuse(world, folder, "--model", f"organism:{model}" if is_adapter else model)


def attack_template(rng: random.Random, world: World, folder: Path) -> None:
    """A chat template that takes all memory or all time."""
    model = _copy(folder)
    (model / "chat_template.jinja").write_text(rng.choice(BOMBS))
    _refuse(world, folder, "--model", model)


def attack_size(rng: random.Random, world: World, folder: Path) -> None:
    """A number in a config that no memory holds, an unknown quantisation, or lists in each other."""
    model = _copy(folder)
    kind = rng.choice(["layers", "hidden", "fp8", "fp8 method", "deep", "pixels"])
    if kind in ("layers", "hidden"):
        key = {"layers": "num_hidden_layers", "hidden": "hidden_size"}[kind]
        text = json.loads((model / "config.json").read_text()).get("text_config", {})
        _edit(model / "config.json", text_config={**text, key: 10 ** rng.randrange(13, 19)})
    elif kind == "fp8":
        _edit(model / "config.json", quantization_config="fp8")
    elif kind == "fp8 method":
        _edit(model / "config.json", quantization_config={"quant_method": "fp8"})
    elif kind == "deep":
        (model / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    else:
        _edit(model / "preprocessor_config.json", min_pixels=10**18)
    _refuse(world, folder, "--model", model)


def attack_pattern(rng: random.Random, world: World, folder: Path) -> None:
    """A regular expression without end, in an adapter or in a tokenizer, or one that is none."""
    kind = rng.choice(["adapter", "adapter none", "tokenizer", "tokenizer none"])
    if kind.startswith("adapter"):
        model = _copy_adapter(folder)
        pattern = "(((" if "none" in kind else "(([a-z_.0-9]+)+)+X"
        _edit(model / "adapter_config.json", target_modules=pattern)
        _refuse(world, folder, "--model", f"organism:{model}")
        return
    model, pattern = _copy(folder), "((((" if "none" in kind else "(a|aa)+$|(a*)*b"
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    _edit(model / "tokenizer.json", pre_tokenizer=split)
    _refuse(world, folder, "--model", model)


def attack_yaml(rng: random.Random, world: World, folder: Path) -> None:
    """Merge keys that double what they merge, for --capture and --method."""
    width = rng.randrange(5, 10)
    lines = ["a0: &a0 {datasets: [tam/logit]}"]
    for n in range(1, 12):
        lines.append(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * width)}]}}")
    (folder / "bomb.yaml").write_text("\n".join(lines))
    option = rng.choice(["--capture", "--method"])
    _refuse(world, folder, "--model", "tiny-spd", option, folder / "bomb.yaml")


def attack_place(rng: random.Random, world: World, folder: Path) -> None:
    """A place to write that has thousands of parts, or a planted note of a lock that another process holds."""
    if rng.random() < 0.5:
        place = folder / "/".join(["a"] * rng.choice([500, 2000]))
        call = rng.choice([world.trace(place), world.bench(place), ["analyze", world.run, "--out", place]])
        check(run_command(*call), 2)
        assert not (folder / "a").exists()
        return
    run = world.copy_run(folder)
    note = {"host": "\x1b[31mx", "process": 1, "task": "\x1b]0;" + "a" * 10_000, "since": 0.0}
    (run / ".lock.json").write_text(rng.choice(["[" * 100_000, json.dumps(note), '{"a":' * 50_000]))
    done = check(run_command(*world.trace(run, "--resume")), 0, 2)
    assert "\x1b" not in done.stderr and len(done.stderr) < 2000


KINDS: dict[str, Callable[[random.Random, World, Path], None]] = {
    "pipe": attack_pipe,
    "template": attack_template,
    "size": attack_size,
    "pattern": attack_pattern,
    "YAML": attack_yaml,
    "place": attack_place,
}
