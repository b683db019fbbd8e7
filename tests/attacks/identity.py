"""Models, images and questions that change under their names between two calls: nothing is mixed in silence."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from attacks.world import Case, World, check, run_command
from PIL import Image
from safetensors.torch import load_file, save_file

import mmprobe as mp
from mmprobe.models import organisms
from mmprobe.models.checkpoints import locate

Call = list[object]


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: in turn a changed part of the model, changed samples, another dtype or model, and an adapter."""
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        seed = rng.random()
        yield Case(f"{kind} {seed}", lambda w, f, k=kind, s=seed: KINDS[k](random.Random(s), w, f))


def _copy_model(folder: Path) -> Path:
    return Path(shutil.copytree(locate("tiny-spd")[1], folder / "model"))


def _copy_data(world: World, folder: Path) -> Path:
    return Path(shutil.copytree(world.data.parent, folder / "pairs")) / world.data.name


CALLS = {  # by command, its words and the option that names the model
    "trace": ("trace --limit 2", "--model"),
    "bench": ("bench mme --limit 2", "--model"),
    "shard": ("trace --limit 4", "--model"),
    "compare": ("compare --benchmarks mme --methods plain --limit 2", "--model"),
    "diagnose": ("diagnose --limit 2", "--model"),
    "filter": ("filter --limit 2 --rounds 1", "--voters"),
}


def _calls(
    rng: random.Random, model: object, data: Path, folder: Path, names: Iterable[str] = CALLS
) -> tuple[str, Call, Call]:
    """Return a command that continues, its first call and its second call."""
    name = rng.choice(list(names))
    words, option = CALLS[name]
    call: Call = [
        *words.split(),
        option,
        model,
        "--data",
        data,
        "--max-new-tokens",
        2,
        "--out",
        folder / "out",
    ]
    if name == "shard":
        return name, [*call, "--shard", "1/2"], [*call, "--shard", "2/2"]
    return name, call, [*call, "--resume"]


def _refused(world: World, name: str, folder: Path, second: Call, words: str) -> None:
    """Check that a second call is refused, or its shard not merged, in words; that nothing it keeps has changed."""
    before = {file: file.read_bytes() for file in (folder / "out").rglob("*") if file.is_file()}
    done = run_command(*second)
    assert words in done.stderr, f"{name} does not say {words!r}: {done.stderr[-300:]}"
    if name == "shard":  # it names the other shard before and after its own samples
        assert done.code == 1 and all(line.startswith("mmprobe: ") for line in done.stderr.splitlines())
        assert not (folder / "out" / "run.json").exists(), "shards of two kinds were merged"
        merged = check(run_command("merge", folder / "out"), 2)
        assert words in merged.stderr, merged.stderr
    else:
        check(done, 2)
        after = {file: file.read_bytes() for file in (folder / "out").rglob("*") if file.is_file()}
        assert after == before, "a refused call changed files"


def _edit(file: Path, **values: object) -> None:
    file.write_text(
        json.dumps(json.loads(file.read_text()) | values) if file.exists() else json.dumps(values)
    )


def _scale_weight(file: Path, rng: random.Random) -> None:
    weights = load_file(file)
    name = rng.choice(sorted(weights))
    save_file(weights | {name: weights[name] * 1.25 + 0.01}, file, {"format": "pt"})


PARTS: dict[str, Callable[[Path, random.Random], None]] = {
    "generation config": lambda model, rng: rng.choice([_remove, _penalise])(
        model / "generation_config.json"
    ),
    "weights": lambda model, rng: _scale_weight(model / "model.safetensors", rng),
    "config": lambda model, rng: _edit(model / "config.json", note=rng.random()),
    "chat template": lambda model, rng: _append(model / "chat_template.jinja", " "),
    "processor": lambda model, rng: _edit(model / "preprocessor_config.json", note=rng.random()),
    "tokenizer": lambda model, rng: _edit(model / "tokenizer_config.json", note=rng.random()),
}


def _penalise(file: Path) -> None:
    _edit(file, repetition_penalty=1.3)


def _remove(file: Path) -> None:
    file.unlink()


def _append(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


def attack_model_part(rng: random.Random, world: World, folder: Path) -> None:
    """A file of the checkpoint changes between two calls."""
    model, part = _copy_model(folder), rng.choice(list(PARTS))
    name, first, second = _calls(rng, model, world.data, folder)
    check(run_command(*first), 0)
    PARTS[part](model, rng)
    words = {"shard": part, "filter": f"the model's {part} of voter"}.get(name, f"the model's {part} changed")
    _refused(world, name, folder, second, words)


def attack_dtype(rng: random.Random, world: World, folder: Path) -> None:
    """The second call is made with numbers of another type."""
    name, first, second = _calls(rng, _copy_model(folder), world.data, folder)
    check(run_command(*first), 0)
    words = {"trace": "traced with another model", "shard": "another model", "filter": "dtype of voter"}
    _refused(world, name, folder, [*second, "--dtype", "bfloat16"], words.get(name, "dtype changed"))


def attack_image(rng: random.Random, world: World, folder: Path) -> None:
    """An image is exchanged under its path: trace makes its trace again, and the others refuse."""
    data = _copy_data(world, folder)
    sample = mp.load_samples(data)[0]
    name, call, second = _calls(rng, "tiny-spd", data, folder)
    is_trace = name == "trace"
    check(run_command(*call), 0)
    before = mp.open_run(folder / "out")[sample.id].image_hash if is_trace else None
    with Image.open(sample.images[0]) as image:
        turned = image.rotate(180)
    turned.save(sample.images[0])
    if is_trace:
        assert any("images changed" in line for line in mp.verify(folder / "out"))
        assert "made again" in check(run_command(*call, "--resume"), 0).stderr
        assert mp.verify(folder / "out") == [] and mp.open_run(folder / "out")[sample.id].image_hash != before
    else:
        _refused(world, name, folder, second, "images of ")


def attack_question(rng: random.Random, world: World, folder: Path) -> None:
    """A question is edited under its id: bench refuses, trace makes its trace again, shards are not merged."""
    data = _copy_data(world, folder)
    name, first, second = _calls(rng, "tiny-spd", data, folder, ("trace", "bench", "shard"))
    if (
        name == "bench"
    ):  # MME draws its questions from the scenes of the pairs, and VQA has questions of its own
        data = Path(shutil.copytree(world.benchmarks["vqa"][0].parent, folder / "vqa")) / "samples.jsonl"
        first = ["bench", "vqa", "--model", "tiny-spd", "--data", data, "--max-new-tokens", 2]
        first += ["--out", folder / "out"]
        second = [*first, "--resume"]
    check(run_command(*first), 0)
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    for line in lines:  # a benchmark does not ask all of them
        line["question"] += " Be sure."
    data.write_text("\n".join(map(json.dumps, lines)) + "\n")
    if name == "trace":
        assert "made again" in check(run_command(*second), 0).stderr
        assert mp.open_run(folder / "out").sample(lines[0]["id"]).question == lines[0]["question"]
        assert mp.verify(folder / "out") == []
    else:
        _refused(world, name, folder, second, "questions")


def attack_other_model(rng: random.Random, world: World, folder: Path) -> None:
    """A run is analysed, or continued, with another model."""
    other = _copy_model(folder)
    PARTS["weights"](other, rng)
    probe = rng.choice(["logit-lens", "image-interchange"])
    call: Call = ["analyze", world.run, "--model", other, "--only", probe, "--out", folder / "out"]
    assert "weights" in check(run_command(*call), 2).stderr


def attack_adapter(rng: random.Random, world: World, folder: Path) -> None:
    """An adapter with other names, with half its layers, or for modules that are not there."""
    adapter = Path(shutil.copytree(organisms.folder("blind-rolled-0"), folder / "adapter"))
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    kind = rng.choice(["one name", "all names", "half", "targets"])
    if kind == "one name":
        lost = rng.choice(sorted(tensors))
        tensors = {(f"{key}.other" if key == lost else key): each for key, each in tensors.items()}
    elif kind == "all names":
        tensors = {key.replace("layers", "blocks"): each for key, each in tensors.items()}
    elif kind == "half":
        kept = sorted(tensors)[: len(tensors) // 2]
        tensors = {key: tensors[key] for key in kept}
    else:
        _edit(adapter / "adapter_config.json", target_modules=["q_proj", "nothing_proj"])
    save_file(tensors, file, {"format": "pt"})
    call: Call = ["trace", "--model", f"organism:{adapter}", "--data", world.data, "--limit", 1]
    done = check(run_command(*call, "--out", folder / "out"), 2)
    assert "adapter" in done.stderr, done.stderr
    assert not (folder / "out").exists()


KINDS: dict[str, Callable[[random.Random, World, Path], None]] = {
    "model": attack_model_part,
    "image": attack_image,
    "question": attack_question,
    "adapter": attack_adapter,
    "dtype": attack_dtype,
    "other model": attack_other_model,
}
