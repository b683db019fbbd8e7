"""Hostile inputs: everything that a user can hand to a command."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from attacks.hostile import TEXTS, mutate_json, mutate_lines, mutate_text
from attacks.world import Case, World, check, read_run, run_command
from PIL import Image

import mmprobe as mp

METHODS = ("sage", "vcd", "icd", "pai", "agla", "opera")
FORMATS = (
    "PNG",
    "JPEG",
    "WEBP",
    "GIF",
    "BMP",
    "TIFF",
    "PPM",
    "ICO",
    "TGA",
    "PCX",
    "EPS",
    "PDF",
    "DDS",
    "SGI",
)
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "F", "I;16", "YCbCr", "HSV", "LAB")


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: each kind of input in turn."""
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        seed = rng.random()
        yield Case(f"{kind} {seed}", lambda w, f, k=kind, s=seed: KINDS[k](random.Random(s), w, f))


def _trace(rng: random.Random, world: World, folder: Path, data: Path, *options: object) -> None:
    """Trace a file. Bad input leaves nothing; otherwise the run is whole."""
    out = folder / "out"
    call = ["trace", "--model", "tiny-spd", "--data", data, "--out", out, "--max-new-tokens", 2, *options]
    if check(run_command(*call)).code == 2:
        assert not out.exists(), "bad input left a folder"
        return
    assert not [line for line in mp.verify(out) if "not traced" not in line]
    if rng.random() < 0.3 and len(mp.open_run(out)):
        read_run(rng, out, folder)


def _samples(world: World, folder: Path, count: int = 2) -> tuple[Path, list[dict]]:
    """Copy the images of the drawn pairs, and return a place for a samples file with some of its lines."""
    shutil.copytree(world.data.parent / "images", folder / "images")
    lines = world.data.read_text().splitlines()[:count]
    return folder / "samples.jsonl", [json.loads(line) for line in lines]


def attack_samples(rng: random.Random, world: World, folder: Path) -> None:
    """Hostile values, keys, bytes and lines of a samples file."""
    data, samples = _samples(world, folder)
    samples[0] |= {"regions": [{"image": 0, "box": [1, 2, 30, 40]}], "prefill": "The", "metadata": {"a": 1}}
    text = mutate_lines(rng, "\n".join(map(json.dumps, samples)))
    data.write_bytes(text.encode("utf-8", "surrogatepass"))
    _trace(rng, world, folder, data)


def attack_texts(rng: random.Random, world: World, folder: Path) -> None:
    """Special tokens, control characters, markup and long texts where a sample has text."""
    data, samples = _samples(world, folder, 1)
    for field in rng.sample(["question", "system", "prefill", "answer", "pair_id"], rng.choice([1, 2])):
        samples[0][field] = mutate_text(rng, str(samples[0].get(field) or "Is there a star?"))
    if rng.random() < 0.1:
        samples[0]["question"] = rng.choice(["star ", "😀", "<|image_pad|>"]) * 20_000
    data.write_text("\n".join(map(json.dumps, samples)))
    _trace(rng, world, folder, data, "--capture", rng.choice(["default", "full"]))


def attack_paths(rng: random.Random, world: World, folder: Path) -> None:
    """Ids and images that leave the folder, or are not files."""
    data, samples = _samples(world, folder, 1)
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    places = [
        "/dev/zero",
        "/proc/self/mem",
        "pipe",
        "loop",
        "images",
        "",
        "..",
        "a" * 300,
        "\0",
        "~",
        "images/",
    ]
    if rng.random() < 0.4:
        samples[0]["id"] = rng.choice(
            [*TEXTS, "../a", ".", "..", "a/b", "a" * 129, "CON", "-a", "a..b", ".h5", "a.h5"]
        )
    else:
        samples[0]["images"][0] = rng.choice([*places, *TEXTS])
    data.write_text(json.dumps(samples[0]))
    _trace(rng, world, folder, data)


def attack_images(rng: random.Random, world: World, folder: Path) -> None:
    """Image files of every format, mode and size, whole and damaged."""
    data, samples = _samples(world, folder, 1)
    file = folder / samples[0]["images"][0]
    kind = rng.random()
    if kind < 0.15:
        file.write_bytes(
            _png(*rng.choice([(2**31 - 1, 1), (0, 5), (20_000, 20_000), (10_000, 9_999), (1, 60_000)]))
        )
    elif kind < 0.55:
        _save(rng, file)
    else:
        _save(rng, file)
        content = bytearray(file.read_bytes())
        for _ in range(rng.choice([1, 5, 100])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        file.write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
    data.write_text(json.dumps(samples[0]))
    _trace(rng, world, folder, data)


def _save(rng: random.Random, file: Path) -> None:
    """Save an image in the first drawn format that takes its mode."""
    size = rng.choice([(1, 1), (1, 500), (300, 1), (56, 56), (5, 900), (200, 100)])
    mode = rng.choice(MODES)
    for name in rng.sample(FORMATS, len(FORMATS)):
        try:
            Image.new(mode, size, 7 if mode in "1LPIFI;16" else None).save(file, name)
            return
        except (OSError, ValueError, KeyError):
            continue


def _png(width: int, height: int) -> bytes:
    """Return a PNG that claims a size, with a few bytes of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


def attack_yaml(rng: random.Random, world: World, folder: Path) -> None:
    """Hostile YAML for captures and methods."""
    file = folder / "a.yaml"
    as_method = rng.random() < 0.5
    if as_method:
        name = rng.choice(METHODS)
        text = (resources.files("mmprobe.configs") / "methods" / f"{name}.yaml").read_text()
    else:
        text = "datasets: [attention/mass, residual/mid]\nlayers: [0, 2]\nheads: all\npositions: all\ndtype: float16\n"
    lines = text.splitlines()
    for _ in range(rng.choice([1, 2])):
        at = rng.randrange(len(lines))
        key = lines[at].partition(":")[0]
        value = mutate_json(rng, '{"a": [1, "b"]}') if rng.random() < 0.5 else mutate_text(rng, "x")
        lines[at] = rng.choice(
            [f"{key}: {value}", f"{key}", mutate_text(rng, lines[at]), f"&a {key}: *a", "- " + key]
        )
    if rng.random() < 0.1:
        lines = [
            "a: &a [x, x]",
            *(f"{chr(97 + n)}: &{chr(97 + n)} [*{chr(96 + n)}, *{chr(96 + n)}]" for n in range(1, 25)),
        ]
    file.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    _trace(rng, world, folder, world.data, "--limit", 1, "--method" if as_method else "--capture", file)


def attack_model(rng: random.Random, world: World, folder: Path) -> None:
    """A checkpoint whose files are hostile, damaged or missing."""
    source, model = resources.files("mmprobe.models") / "tiny_spd", folder / "model"
    model.mkdir()
    for entry in source.iterdir():
        (model / entry.name).write_bytes(entry.read_bytes())
    file = rng.choice(sorted(model.iterdir()))
    if (
        file.suffix == ".json" and file.name != "preprocessor_config.json"
    ):  # which may ask for any size of images
        file.write_bytes(mutate_json(rng, file.read_text()).encode("utf-8", "surrogatepass"))
    elif file.suffix == ".jinja":
        file.write_bytes(mutate_text(rng, file.read_text()).encode("utf-8", "surrogatepass"))
    elif rng.random() < 0.3:
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[rng.randrange(min(len(content), 5000))] ^= 1 << rng.randrange(8)
        file.write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
    out = folder / "out"
    call = [
        "trace",
        "--model",
        model,
        "--data",
        world.data,
        "--out",
        out,
        "--limit",
        1,
        "--max-new-tokens",
        2,
    ]
    if check(run_command(*call)).code == 2:
        assert not out.exists(), "bad input left a folder"
    else:
        assert not [line for line in mp.verify(out) if "not traced" not in line]


def attack_run_file(rng: random.Random, world: World, folder: Path) -> None:
    """Hostile run.json, labels.jsonl and failures.jsonl."""
    run = world.copy_run(folder)
    name = rng.choice(["run.json", "run.json", "labels.jsonl", "failures.jsonl"])
    if name == "run.json":
        text = mutate_json(rng, (run / name).read_text())
    else:
        line = {"id": rng.choice(sorted(world.contents)), "faithful": True, "error": "E", "message": "m"}
        text = mutate_lines(rng, "\n".join([json.dumps(line)] * 3))
    (run / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    if rng.random() < 0.1:  # texts that a page would repeat
        big = "A <b> " * 1_000_000
        config = json.loads((world.run / "run.json").read_text())
        config["model"] |= {rng.choice(["name", "source", "dtype", "note"]): big}
        (run / "run.json").write_text(json.dumps(config))
        (run / "failures.jsonl").write_text(json.dumps({"id": "other", "error": "E", "message": big}) + "\n")
        check(run_command("report", run, "--out", folder / "report.html"), 0, 2)
        page = folder / "report.html"
        assert not page.exists() or page.stat().st_size < 5_000_000, "the page repeats a text without end"
    read_run(rng, run, folder, packs=True)


def attack_score(rng: random.Random, world: World, folder: Path) -> None:
    """Hostile data or responses of each benchmark. What is scored has results that can be read again."""
    name = rng.choice(sorted(world.benchmarks))
    data, responses = world.benchmarks[name]
    shutil.copytree(data.parent, folder / "data")
    spoiled = rng.choice([folder / "data" / data.name, folder / "responses.jsonl"])
    shutil.copy(responses, folder)
    (folder / responses.name).rename(folder / "responses.jsonl")
    spoiled.write_bytes(mutate_lines(rng, spoiled.read_text()).encode("utf-8", "surrogatepass"))
    call = ["score", name, "--data", folder / "data" / data.name, "--responses", folder / "responses.jsonl"]
    if check(run_command(*call, "--out", folder / "out")).code == 0:
        json.loads((folder / "out" / "results.json").read_text(), parse_constant=_refuse)
        check(run_command("report", folder / "out", "--out", folder / "a.html"), 0)
    else:
        assert not (folder / "out").exists(), "bad input left a folder"


def _refuse(name: str) -> None:
    raise AssertionError(f"results.json holds {name}")


def attack_results(rng: random.Random, world: World, folder: Path) -> None:
    """Hostile result folders, reported or compared."""
    out = Path(shutil.copytree(world.results, folder / "results"))
    name = rng.choice(["results.json", "samples.jsonl", "responses.jsonl", "asked.json"])
    text = (out / name).read_text()
    changed = mutate_lines(rng, text) if name.endswith("l") else mutate_json(rng, text)
    (out / name).write_bytes(changed.encode("utf-8", "surrogatepass"))
    if name in ("results.json", "samples.jsonl"):
        check(run_command("report", rng.choice([out, out / "run"]), "--out", folder / "a.html"))
        check(run_command("agree", out, world.results))
    else:
        check(run_command(*world.bench(out, "--resume")))


def attack_options(rng: random.Random, world: World, folder: Path) -> None:
    """Hostile values of options, and commands at places that do not fit."""
    calls: list[list[object]] = [
        world.trace(folder / "out", "--limit", 1),
        [
            "make-pairs",
            "--n",
            1,
            "--seed",
            1,
            "--differences",
            "1",
            "--difficulty",
            "easy",
            "--out",
            folder / "out",
        ],
        ["score", "pope", "--data", *_option_files(world), "--out", folder / "out"],
        ["analyze", world.run, "--only", "attention-decay", "--out", folder / "out"],
        ["report", world.run, "--out", folder / "a.html"],
        ["pack", world.run, "--out", folder / "a.h5"],
        ["plan", "--model", "tiny-spd", "--samples", 5, "--max-new-tokens", 5, "--capture", "full"],
        ["generate", "--model", "tiny-spd", "--method", "plain", "--prompt", "Hi", "--max-new-tokens", 2],
        [
            "bench",
            "pope",
            "--model",
            "tiny-spd",
            "--n",
            3,
            "--limit",
            1,
            "--max-new-tokens",
            1,
            "--out",
            folder / "out",
        ],
        [
            "compare",
            "--model",
            "tiny-spd",
            "--benchmarks",
            "chair",
            "--n",
            1,
            "--limit",
            1,
            "--out",
            folder / "out",
        ],
    ]
    call = rng.choice(calls)
    at = rng.randrange(1, len(call))
    hostile = [
        *TEXTS,
        "/dev/full",
        "/dev/null",
        "/proc/a",
        str(folder),
        str(world.run),
        "--",
        "--out",
        "1e9",
        2**70,
        -5,
    ]
    shorter = [part for part in map(str, hostile) if "\0" not in part]  # no system hands NUL to a program
    call[at] = rng.choice(shorter)
    os.chdir(folder)
    before = sorted(path.name for path in world.run.iterdir())
    check(run_command(*[str(part).encode("utf-8", "replace").decode() for part in call]))
    assert before == sorted(path.name for path in world.run.iterdir()), "the run was changed"


def _option_files(world: World) -> tuple[Path, str, Path]:
    data, responses = world.benchmarks["pope"]
    return data, "--responses", responses


KINDS: dict[str, Callable[[random.Random, World, Path], None]] = {
    "samples": attack_samples,
    "texts": attack_texts,
    "paths": attack_paths,
    "images": attack_images,
    "YAML": attack_yaml,
    "run files": attack_run_file,
    "scores": attack_score,
    "more scores": attack_score,
    "results": attack_results,
    "options": attack_options,
    "models": attack_model,
}
