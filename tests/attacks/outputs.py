"""What leaves a run for other programs: keys, control characters, formulas and commands of TeX are in none of it."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pandas as pd
from attacks.world import Case, World, check, run_command

import mmprobe as mp
from mmprobe import serve as live
from mmprobe.cli import log_to

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
FORMULA = re.compile(r"[=+@\t\r\uff1d\uff0b\uff0d\uff20]|-\D")
COMMANDS_OF_TEX = ("\\input", "\\write", "\\openin", "\\def", "\\csname", "\\catcode")
PARTS = (
    "\x1b[2J\x1b]0;owned\x07", "\x1b]8;;http://example.org\x07link\x1b]8;;\x07", "\x9b31m", "\0", "\x08\x08\x08", "\u202egnp.exe",
    "\u2066a\u2069", "\r\n", "\r", "\x7f", "\u2028",
)  # fmt: skip
FORMULAS = (
    '=HYPERLINK("http://example.org","a")',
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-1+1",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "＝1+1",
)
OF_TEX = (
    "\\input{/etc/passwd}",
    "\\write18{ls}",
    "a & b \\\\ c",
    "$x$ % # _ ^ ~ {",
    "\\csname a\\endcsname",
    "^^5cinput a",
)


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: each way out in turn."""
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        seed = rng.random()
        yield Case(f"{kind} {seed}", lambda w, f, k=kind, s=seed: _attack(random.Random(s), w, f, KINDS[k]))


def _attack(
    rng: random.Random, world: World, folder: Path, attack: Callable[[random.Random, World, Path, str], None]
) -> None:
    name = rng.choice(["MADE_UP_API_KEY", "MADE_UP_TOKEN", "MADE_UP_SECRET", "MADE_UP_PASSWORD"])
    key = f"sk-{rng.randrange(10**20):020}"
    with patch.dict(os.environ, {name: key}):
        attack(rng, world, folder, key)


def _write_data(rng: random.Random, world: World, folder: Path, key: str) -> Path:
    """Write two samples with hostile texts in each of their fields."""
    lines, name = [], f"=1+1{rng.choice(PARTS)}"
    for number, line in enumerate(world.data.read_text().splitlines()[:2]):
        texts = [f"{rng.choice(FORMULAS)} {rng.choice(PARTS)} {rng.choice(OF_TEX)} {key}" for _ in range(4)]
        read = json.loads(line)
        read["images"] = [str(world.data.parent / image) for image in read["images"]]
        metadata = {"note": texts[0], "list": [texts[1]], name: "a"}
        lines.append(
            read | {"id": str(number), "question": texts[2], "answer": texts[3], "metadata": metadata}
        )
    file = folder / "data.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def _trace(rng: random.Random, world: World, folder: Path, key: str) -> Path:
    call = [
        "trace",
        "--model",
        "tiny-spd",
        "--data",
        _write_data(rng, world, folder, key),
        "--max-new-tokens",
        2,
    ]
    check(run_command(*call, "--out", folder / "run"), 0)
    return folder / "run"


def _check_files(folder: Path, key: str) -> None:
    files = [file for file in folder.rglob("*") if file.is_file()] if folder.is_dir() else [folder]
    assert files, "nothing was written"
    for file in files:
        assert key.encode() not in file.read_bytes(), f"{file.name} holds the key"
        assert key not in file.name


def _export_tables(rng: random.Random, world: World, folder: Path, key: str) -> None:
    run, out = _trace(rng, world, folder, key), folder / "out"
    for to in ("csv", "latex", "parquet"):
        check(run_command("export", run, "--to", to, "--out", out), 0)
    _check_files(out, key)
    text = (out / "answers.csv").read_bytes().decode()
    assert not CONTROL.search(text), "control characters in the CSV file"
    with (out / "answers.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert len(cells) > 20 and not [cell for cell in cells if FORMULA.match(cell)], (
        "a formula in the CSV file"
    )
    text = (out / "answers.tex").read_text()
    assert not CONTROL.search(text), "control characters in the LaTeX file"
    assert not [each for each in COMMANDS_OF_TEX if each in text] and "^^" not in text, (
        "commands in the LaTeX file"
    )
    rows = text.partition("\\midrule\n")[2].partition("\\bottomrule")[0].split(" \\\\\n")[:-1]
    ends = {len(re.findall(r"(?<!\\)&", row)) for row in rows}
    assert len(rows) == 2 and len(ends) == 1, (
        f"rows of the LaTeX file have several numbers of columns: {ends}"
    )
    table = pd.read_parquet(out / "answers.parquet")
    assert not table.map(lambda cell: key in str(cell)).any(axis=None)


def _export_datasets(rng: random.Random, world: World, folder: Path, key: str) -> None:
    """A data set in a new folder: what is beside it is left alone."""
    run, out = _trace(rng, world, folder, key), folder / "out"
    beside = folder / "out.part"
    beside.mkdir()
    (beside / "precious").write_text("keep")
    check(run_command("export", run, "--to", "hf", "--out", out), 0)
    _check_files(out, key)
    check(run_command("export", run, "--to", "hf", "--out", out), 2)
    assert (beside / "precious").read_text() == "keep"


def _write_activations(rng: random.Random, world: World, folder: Path, key: str) -> None:
    run, out = _trace(rng, world, folder, key), folder / "out"
    beside = folder / "out.part"
    beside.mkdir()
    (beside / "precious").write_text("keep")
    call = [
        "activations",
        run,
        "--model",
        "tiny-spd",
        "--hooks",
        "blocks.3.hook_resid_post",
        "--context",
        4,
        "--out",
        out,
    ]
    check(run_command(*call), 0)
    _check_files(out, key)
    assert {file.suffix for file in out.iterdir()} == {".arrow", ".json"}
    check(run_command(*call), 2)
    assert (beside / "precious").read_text() == "keep"


def _report(rng: random.Random, world: World, folder: Path, key: str) -> None:
    run, out = _trace(rng, world, folder, key), folder / "a.html"
    check(run_command("report", run, "--out", out), 0)
    _check_files(out, key)
    page = re.sub(
        "<script>.*?</script>", "", out.read_bytes().decode(), flags=re.DOTALL
    )  # plotly's own program has some
    assert "application/json" in page
    found = CONTROL.search(page)
    where = "" if found is None else page[max(found.start() - 60, 0) : found.end() + 20]
    assert found is None, f"control characters in the page: {where!r}"


def _serve(rng: random.Random, world: World, folder: Path, key: str) -> None:
    run = mp.open_run(_trace(rng, world, folder, key))
    session = live.LiveSession(mp.load_model("tiny-spd"), folder / "desk", run)
    session.folder.mkdir()
    client = live.build_page(session, "token").server.test_client()
    for path in ("", "_dash-layout", "_dash-dependencies", "report"):
        answer = client.get(f"/token/{path}")
        assert answer.status_code == 200 and key not in answer.text, path
    assert run.ids[0] in client.get("/token/_dash-layout").text


class _Tracker:
    """A tracker that keeps what it gets, or fails."""

    def __init__(self, fault: str, got: list[Any]):
        self.fault, self.got = fault, got

    def __call__(self, *values: Any, **named: Any) -> Any:
        self.got += [values, named]
        if self.fault == "raises":
            raise RuntimeError("two\nlines \x1b[31m" + "a" * 10_000)
        if self.fault == "exits":
            sys.exit(3)
        return None if self.fault == "returns None" else self

    def __getattr__(self, name: str) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def _trackers(fault: str, got: list[Any]) -> Iterator[None]:
    modules = {name: ModuleType(name) for name in ("wandb", "mlflow", "torch.utils.tensorboard")}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None)  # other packages ask whether it is installed
    for name, of_module in (("wandb", "init"), ("mlflow", "set_experiment"), ("mlflow", "start_run"), ("mlflow", "log_params"),
                            ("mlflow", "log_metrics"), ("torch.utils.tensorboard", "SummaryWriter")):  # fmt: skip
        setattr(modules[name], of_module, _Tracker(fault, got))
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        with patch.object(log_to, "find_spec", lambda name: name):
            yield
    finally:  # not patch.dict, which would forget all that was imported meanwhile
        for name, module in before.items():
            sys.modules.pop(name)
            sys.modules.update({name: module} if module else {})


def _log_bench(rng: random.Random, world: World, folder: Path, key: str) -> None:
    """Metrics of hostile names to a tracker that fails: the results are there, and one line says what failed."""
    data, out, got = _write_data(rng, world, folder, key), folder / f"out-{key}", list[Any]()
    fault = rng.choice(["none", "raises", "exits", "returns None"])
    tracker = rng.choice(["wandb", "mlflow", "tensorboard"])
    call = ["bench", "vqa", "--model", "tiny-spd", "--data", data, "--max-new-tokens", 2, "--out", out]
    if tracker == "tensorboard" and rng.random() < 0.5:
        out.mkdir()
        (folder / "elsewhere").mkdir()
        (out / "tensorboard").symlink_to(folder / "elsewhere")
        with _trackers(fault, got):
            assert "is a link" in check(run_command(*call, "--log-to", tracker), 2).stderr
        assert not list((folder / "elsewhere").iterdir())
        return
    with _trackers(fault, got):
        done = check(run_command(*call, "--log-to", tracker), 0 if fault == "none" else 1)
    assert key not in done.stderr and key not in str(got).replace(str(out), ""), f"{tracker} got the key"
    assert (out / "results.json").is_file() and got
    assert "results.json" in done.stdout, "a tracker that fails hides the results"


def _log_training(rng: random.Random, world: World, folder: Path, key: str) -> None:
    """The same of a training's metrics and settings."""
    data, out, got = folder / "questions.jsonl", folder / f"out-{key}", list[Any]()
    lines = []
    for number in range(2):
        texts = [f"{rng.choice(PARTS)} {rng.choice([*FORMULAS, *OF_TEX])} {key}" for _ in range(2)]
        lines.append(
            {"id": str(number), "question": texts[0], "choices": {"A": texts[1], "B": "no"}, "answer": "A"}
        )
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    fault = rng.choice(["none", "raises", "exits"])
    tracker = rng.choice(["wandb", "mlflow", "tensorboard"])
    call = [
        "train",
        "guesser",
        "--model",
        "tiny-spd",
        "--data",
        data,
        "--test",
        data,
        "--epochs",
        1,
        "--batch",
        2,
    ]
    with _trackers(fault, got):
        done = check(
            run_command(*call, "--max-new-tokens", 1, "--out", out, "--log-to", tracker),
            0 if fault == "none" else 1,
        )
    assert key not in done.stderr and key not in str(got).replace(str(out), ""), f"{tracker} got the key"
    assert got and (out / "model").is_dir() and "Model: " in done.stdout


KINDS: dict[str, Callable[[random.Random, World, Path, str], None]] = {
    "tables": _export_tables,
    "data sets": _export_datasets,
    "activations": _write_activations,
    "reports": _report,
    "live pages": _serve,
    "bench --log-to": _log_bench,
    "train --log-to": _log_training,
}
