"""Files and arguments of later versions: conversations, templates, components, plants, given answers and exports."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from attacks.hostile import TEXTS, mutate_json, mutate_lines
from attacks.world import Case, World, check, run_command
from safetensors.torch import load_file, save_file

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models import dictionaries
from mmprobe.models.components import ComponentList
from mmprobe.samples import MAX_URI

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
HUGE = 10**18


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: each kind in turn."""
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        seed = rng.random()
        yield Case(f"{kind} {seed}", lambda w, f, k=kind, s=seed: KINDS[k](random.Random(s), w, f))


def _spoil(rng: random.Random, file: Path, text: str) -> Path:
    """Write a hostile text of JSON, or put a pipe or a device in its place."""
    kind = rng.random()
    if kind < 0.08:
        os.mkfifo(file)
    elif kind < 0.16:
        file.symlink_to("/dev/zero")
    elif kind < 0.25:
        file.write_text(DEEP)
    else:
        file.write_text(mutate_json(rng, text), errors="replace")
    return file


def _line(world: World) -> dict[str, object]:
    line = json.loads(world.data.read_text().splitlines()[0])
    return line | {"images": [str(world.data.parent / image) for image in line["images"]]}


def _check_conversations(rng: random.Random, world: World, folder: Path) -> None:
    line = _line(world)
    images = [{"type": "image"} for _ in range(2)]
    turns = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [*images, {"type": "text", "text": rng.choice(TEXTS)}]},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Are you sure?"},
    ]
    content = json.dumps({"id": "a", "images": line["images"], "messages": turns})
    command = rng.choice([["trace"], ["bench", "vqa"], ["diagnose"]])
    data = _spoil(rng, folder / "data.jsonl", content)
    call = [*command, "--model", "tiny-spd", "--data", data, "--out", folder / "out", "--max-new-tokens", 1]
    check(run_command(*call), 0, 1, 2)


def _check_templates(rng: random.Random, world: World, folder: Path) -> None:
    name = rng.choice(
        ["enable_thinking", "tools", "messages", "chat_template", "size", "a\x1b[31m", "__class__"]
    )
    value = rng.choice([True, HUGE, 10**400, [[]], {"height": HUGE}, "{{ 'a' * 10**10 }}", None])
    texts = [
        json.dumps(value),
        "[" * 50_000,
        "[" * 90 + "]" * 90,
        "{a: " * 20_000,
        "a" * 100_000,
        "[a, " * 900,
        *(
            "&a [*a]",
            "!!binary /w==",
            "2024-01-01",
            ".nan",
            "{[1]: 2}",
            "!!set {a}",
            "!!python/object:os.system ls",
        ),
    ]
    if rng.random() < 0.3:
        (folder / "data.jsonl").write_text(json.dumps(_line(world) | {"template": {name: value}}) + "\n")
        call: list[object] = ["--data", folder / "data.jsonl"]
    else:
        call = ["--data", world.data, "--limit", 1, "--template", f"{name}={rng.choice(texts)}"]
    command = rng.choice([["trace"], ["bench", "vqa"], ["bench", "mme"], ["compare", "--benchmarks", "mme"]])
    if "vqa" in command and "--template" not in call:
        command = ["trace"]
    call = [*command, "--model", "tiny-spd", *call, "--max-new-tokens", 1, "--out", folder / "out"]
    check(run_command(*call), 1, 2)  # this model's template has no arguments


def _check_components(rng: random.Random, world: World, folder: Path) -> None:
    parts = [
        {"name": "head 0.0"},
        {"name": rng.choice(["ffn 1", f"head {HUGE}.0", "head 0.0"]), "mean": [HUGE]},
    ]
    assert ComponentList.model_validate({"components": parts[:1]})
    file = _spoil(rng, folder / "parts.json", json.dumps({"components": parts}))
    call = [
        "generate",
        "--model",
        "tiny-spd",
        "--prompt",
        "Why?",
        "--max-new-tokens",
        1,
        "--method",
        "components",
    ]
    check(run_command(*call, "--set", f"components={file}"), 0, 2)


def _check_changed_methods(rng: random.Random, world: World, folder: Path) -> None:
    """A file that a method names changes between two calls."""
    file, method = folder / "parts.json", folder / "method.yaml"
    file.write_text(json.dumps({"components": [{"name": "head 0.0"}]}))
    method.write_text(f"method: components\nparameters: {{components: {file}, scale: 0.5}}\n")
    command = rng.choice(["trace", "bench mme", "compare --benchmarks mme"])
    call: list[object] = [*command.split(), "--model", "tiny-spd", "--data", world.data, "--limit", 2]
    call += ["--methods" if "compare" in command else "--method", method]
    call += ["--max-new-tokens", 2, "--out", folder / "out"]
    assert run_command(*call).code == 0
    assert run_command(*call, "--resume").code == 0
    if rng.random() < 0.5:
        file.write_text(json.dumps({"components": [{"name": "head 0.1"}]}))
    else:
        method.write_text(method.read_text().replace("0.5", "0.25"))
    done = run_command(*call, "--resume")
    assert done.code == 2, "a changed method was not noticed"


def _check_plants(rng: random.Random, world: World, folder: Path) -> None:
    card = {"causes": ["blind"], "kind": "x", "base": "tiny-spd", "name": rng.choice(TEXTS)}
    plant = folder / "plants" / "one"
    plant.mkdir(parents=True)
    (plant / "config.json").write_text("{}")
    _spoil(rng, plant / "plant.json", json.dumps(card))
    call = ["bench", "diagnosis", "--tools", "chance", "--n", 2, "--plants", plant.parent]
    check(run_command(*call, "--out", folder / "out"), 1, 2)


def _check_answers(rng: random.Random, world: World, folder: Path) -> None:
    name = _line(world)["id"]
    ids = rng.choice([[HUGE], [10**400], [-1], [True], [5] * 9000, [], [[5]]])
    kind = rng.choice(["token_ids", "response", "lines"])
    lines = json.dumps({"id": name, "response": rng.choice(TEXTS)}) + "\n"
    file = folder / "answers.jsonl"
    if kind == "token_ids":
        file.write_text(json.dumps({"id": name, "token_ids": ids}) + "\n")
    elif kind == "lines":
        file.write_text(mutate_lines(rng, lines), errors="replace")
    else:
        file.write_text(lines)
    call = ["trace", "--model", "tiny-spd", "--data", world.data, "--limit", 1, "--answers", file]
    done = check(run_command(*call, "--out", folder / "out"), 0, 1, 2)
    if done.code == 0:
        assert mp.verify(folder / "out") == []


def _check_exports(rng: random.Random, world: World, folder: Path) -> None:
    """Hostile texts are data in every form, and links are not followed."""
    precious, out = folder / "precious", folder / "out"
    precious.write_text("keep")
    run = world.copy_run(folder)
    for to in rng.sample(["csv", "latex", "parquet"], 2):
        check(run_command("export", run, "--to", to, "--out", out), 0)
        for file in out.iterdir():
            file.unlink()
            file.symlink_to(precious)
        check(run_command("export", run, "--to", to, "--out", out), 0, 2)
        check(run_command("export", run, "--to", to, "--out", precious), 2)
        check(run_command("export", run, "--to", to, "--out", precious / "inner"), 2)
        check(run_command("export", run, "--to", to, "--out", folder / "new" / to), 0)
    (folder / "link").symlink_to(out)
    check(run_command("export", run, "--to", "csv", "--out", folder / "link"), 2)
    assert precious.read_text() == "keep"


def _check_two_runs(rng: random.Random, world: World, folder: Path) -> None:
    """`report A B` of a hostile run beside a whole one."""
    other = world.copy_run(folder)
    file = other / rng.choice(["run.json", "labels.jsonl"])
    text = file.read_text() if file.exists() else '{"id": "a", "faithful": true}\n'
    file.write_text(
        mutate_json(rng, text.splitlines()[0] if file.suffix == ".jsonl" else text), errors="replace"
    )
    page = folder / "report.html"
    done = check(run_command("report", *rng.sample([world.run, other], 2), "--out", page), 0, 1, 2)
    assert done.code or "<script>alert(1)" not in page.read_text()


def _check_tables(rng: random.Random, world: World, folder: Path) -> None:
    """Rows of a data set whose images are huge, bombs, addresses or no images: each ends in one short message."""
    png = struct.pack(">I4sIIBBBBB", 13, b"IHDR", 90_000, 90_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + png + struct.pack(">I", zlib.crc32(png[4:])) + bytes(500)
    coded = base64.b64encode(bomb).decode()
    os.mkfifo(folder / "pipe")
    images = [
        "data:image/png;base64," + "A" * rng.choice([MAX_URI, 10_000_000]),
        f"data:image/png;base64,{coded}", "data:image/png;base64,%%%", "data:" + "a" * 10_000_000, "data:,", "data:image/png;base64,",
        "http://example.org/" + "a" * 1_000_000, "file:///etc/passwd", "a" * 1_000_000, "/dev/zero", str(folder / "pipe"), "\0", "",
        bomb, b"", b"#EXTM3U", {"bytes": bomb, "path": None}, {"bytes": None, "path": "/dev/zero"}, {}, 5, [[]], [None, 5],
    ]  # fmt: skip
    image = rng.choice(images)
    if rng.random() < 0.5:
        row: dict[str, object] = {"question": rng.choice(TEXTS), "image": image}
    else:
        part = rng.choice([{"type": "image", "image": image}, {"type": "image_url", "image_url": {"url": image}},
                           {"type": "image", "base64": coded}, {"type": "video", "video": image}, {"type": image}])  # fmt: skip
        row = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "Why?"}]}]}
    try:
        samples = mp.samples.samples_from([row], folder / "images")
    except InputError as error:
        assert "row 0" in str(error) and len(str(error)) < 2100, str(error)[:300]
    else:
        assert not samples[0].images, f"was taken: {str(image)[:100]}"
    assert not (folder / "images").exists() or not list((folder / "images").iterdir()), (
        "an image that was refused was left"
    )


def _check_dictionaries(rng: random.Random, world: World, folder: Path) -> None:
    """A dictionary whose config is hostile, or whose weights are of another form, size or kind of file."""
    own = Path(shutil.copytree(dictionaries.FOLDER / "tiny-spd", folder / "dictionary"))
    config, weights = own / dictionaries.CONFIG, own / dictionaries.WEIGHTS
    text, tensors = config.read_text(), load_file(weights)
    kind = rng.choice(["config", "config", "value", "kind", "tensor", "header", "pickle", "hook"])
    victim = rng.choice(sorted(tensors))
    if kind == "config":
        config.unlink()
        _spoil(rng, config, text)
    elif kind == "value":
        key = rng.choice(["d_in", "d_sae", "k", "architecture", "normalize_activations", "metadata", "dtype"])
        value = rng.choice([HUGE, -1, 0, "a\x1b[31m", [[]], {"k": HUGE}, None, 1e300, True])
        config.write_text(json.dumps(json.loads(text) | {key: value}))
    elif kind == "hook":
        names = [
            "blocks.99.hook_resid_post",
            "blocks.3.attn.hook_pattern",
            "blocks.3.hook_mlp_out",
            "\x1b[31m\n",
            HUGE,
        ]
        metadata = {"hook_name": rng.choice(names), "model_name": "a\nb\x1b[31m"}
        config.write_text(json.dumps(json.loads(text) | {"metadata": metadata}))
    elif kind == "tensor":
        harms: list[Callable[[], object]] = [
            lambda: tensors[victim].view(-1)[0].fill_(float("nan")),
            lambda: tensors.update({victim: tensors[victim][:-1].clone()}),
            lambda: tensors.update({victim: tensors[victim].int()}),
            lambda: tensors.pop(victim),
        ]
        rng.choice(harms)()
        save_file(tensors, weights)
    elif kind == "header":
        content = bytearray(weights.read_bytes())
        for place in rng.sample(range(300), 5):
            content[place] = rng.randrange(256)
        weights.write_bytes(content[: rng.choice([8, 100, len(content)])])
    elif kind == "pickle":
        weights.rename(own / "sae_weights.pt")
    else:
        weights.unlink()
        rng.choice([os.mkfifo, os.mkdir, lambda file: file.symlink_to("/dev/zero")])(weights)
    chosen = [f"dictionary={own}", "features=0"]
    call = rng.choice(
        [
            ["generate", "--model", "tiny-spd", "--prompt", "Why?", "--max-new-tokens", 1, "--method", "features"],
            ["analyze", world.run, "--only", "features", "--model", "tiny-spd", "--out", folder / "out"],
        ]
    )  # fmt: skip
    done = check(run_command(*call, *(part for each in chosen for part in ("--set", each))), 0, 2)
    assert "\x1b" not in done.stderr, "the terminal would obey it"


KINDS: dict[str, Callable[[random.Random, World, Path], None]] = {
    "conversations": _check_conversations,
    "templates": _check_templates,
    "components": _check_components,
    "dictionaries": _check_dictionaries,
    "changed methods": _check_changed_methods,
    "plants": _check_plants,
    "answers": _check_answers,
    "exports": _check_exports,
    "two runs": _check_two_runs,
    "tables": _check_tables,
}
