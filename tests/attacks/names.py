"""Long names: a path that the system refuses is one line and exit 2, whatever command it is given to."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from attacks.world import Case, World, check, run_command
from PIL import Image

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.core.results import write_results
from mmprobe.benchmarks.mirage.labels import KINDS

BOXES = [{"box": [0, 0, 9, 9], "relevant": True}, {"box": [50, 50, 9, 9], "relevant": False}]
NAMES = {
    "over NAME_MAX": "a" * 300,
    "near NAME_MAX": "b" * 250,
    "2,000 parts": "/".join(["c"] * 2000),
    "over PATH_MAX": "/".join(["d" * 200] * 25),
    "NUL": "a\0b",
    "no UTF-8": "\udcff" * 300,
    "5,000 characters": "e" * 5000,
    "lines and ESC": "f\n\x1b[2J" * 60,
}


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: each command in turn, with a long name as its place or as one of its inputs; and long ids."""
    kinds = [*OUTS, *INPUTS, "ids"]
    for number in range(count):
        kind, name = kinds[number % len(kinds)], rng.choice(list(NAMES))
        if kind in RUNS_LONG and name == "near NAME_MAX":
            name = "over NAME_MAX"
        if kind == "ids":
            yield Case(f"ids {name}", lambda w, f, n=name: _trace_ids(w, f, NAMES[n]))
        else:
            yield Case(f"{kind} {name}", lambda w, f, k=kind, n=name: _call(w, f, k, NAMES[n]))


OUTS = {  # by command, what comes before --out; words in capitals are replaced
    "report": "report RUN",
    "pack": "pack RUN",
    "export": "export RUN --to csv",
    "bench diagnosis": "bench diagnosis --tools chance --n 2",
    "clean": "clean EFFECT",
    "agree": "agree RESULTS RESULTS",
    "mirage-score": "mirage-score EFFECT",
    "mirage-correlations": "mirage-correlations KINDS",
    "rewrite": "rewrite --data REWRITTEN --model mockllm/model",
    "demo": "demo",
    "make-pairs": "make-pairs --n 1",
    "number-boxes": "number-boxes --data BOXES",
    "analyze": "analyze RUN --only attention-decay",
    "diagnose": "diagnose --model tiny-spd --data DATA --limit 1",
    "score": "score vqa --data DATA --responses DATA",
    "filter": "filter --data DATA --voters tiny-spd --limit 1 --max-new-tokens 1",
    "compare": "compare --model tiny-spd --benchmarks mme --data DATA --limit 1 --max-new-tokens 1",
    "trace": "trace --model tiny-spd --data DATA --limit 1 --max-new-tokens 1",
    "bench": "bench mme --model tiny-spd --data DATA --limit 1 --max-new-tokens 1",
    "activations": "activations RUN --model tiny-spd --hooks blocks.0.hook_resid_post",
    "check": "check tiny-spd",
    "train logos": "train logos --model tiny-spd --data DATA --limit 1",
    "train guesser": "train guesser --model tiny-spd --data DATA --limit 1",
}
RUNS_LONG = {"demo", "check", "train logos", "train guesser"}  # minutes with a name that the system takes
INPUTS = {  # what comes before the name
    "verify NAME": "verify",
    "merge NAME": "merge",
    "check NAME": "check",
    "report NAME": "report",
    "report RUN NAME": "report RUN",
    "export NAME": "export --to csv --out OUT",
    "pack NAME": "pack --out OUT",
    "analyze NAME": "analyze",
    "analyze --model": "analyze RUN --out OUT --model",
    "clean NAME": "clean --out OUT",
    "agree NAME": "agree RESULTS --out OUT",
    "mirage-score NAME": "mirage-score --out OUT",
    "mirage-correlations NAME": "mirage-correlations --out OUT",
    "number-boxes --data": "number-boxes --out OUT --data",
    "rewrite --data": "rewrite --out OUT --model mockllm/model --data",
    "bench diagnosis --plants": "bench diagnosis --n 2 --out OUT --plants",
    "trace --capture": "trace --model tiny-spd --data DATA --out OUT --capture",
    "trace --method": "trace --model tiny-spd --data DATA --out OUT --method",
    "trace --answers": "trace --model tiny-spd --data DATA --out OUT --answers",
    "diagnose --answers": "diagnose --model tiny-spd --out OUT --answers",
    "generate --image": "generate --model tiny-spd --prompt Why? --image",
    "generate --model": "generate --prompt Why? --model",
    "trace --data": "trace --model tiny-spd --out OUT --data",
    "trace --model": "trace --data DATA --out OUT --model",
    "bench --data": "bench mme --model tiny-spd --out OUT --data",
    "bench --model": "bench mme --out OUT --model",
    "bench --trace-with": "bench mme --model openai/none --out OUT --trace-with",
    "compare --data": "compare --model tiny-spd --benchmarks mme --out OUT --data",
    "compare --model": "compare --benchmarks mme --out OUT --model",
    "diagnose --data": "diagnose --model tiny-spd --out OUT --data",
    "diagnose --model": "diagnose --data DATA --out OUT --model",
    "filter --data": "filter --voters tiny-spd --out OUT --data",
    "filter --voters": "filter --data DATA --out OUT --voters",
    "score --data": "score mme --responses DATA --out OUT --data",
    "score --responses": "score vqa --data DATA --out OUT --responses",
    "rewrite --model": "rewrite --data REWRITTEN --out OUT --model",
    "activations NAME": "activations --model tiny-spd --hooks blocks.0.hook_resid_post --out OUT",
    "activations --model": "activations RUN --hooks blocks.0.hook_resid_post --out OUT --model",
    "plan --data": "plan --model tiny-spd --data",
    "plan --model": "plan --data DATA --model",
    "check --data": "check tiny-spd --out OUT --data",
    "serve NAME": "serve",
    "train logos --data": "train logos --model tiny-spd --out OUT --data",
    "train logos --model": "train logos --data DATA --out OUT --model",
    "train guesser --data": "train guesser --model tiny-spd --out OUT --data",
    "train guesser --model": "train guesser --data DATA --out OUT --model",
}


def _call(world: World, folder: Path, kind: str, name: str) -> None:
    words = {"RUN": world.run, "DATA": world.data, "RESULTS": world.results, "OUT": folder / "out.h5"}
    call = fill_in((OUTS | INPUTS)[kind], words, folder)
    call += ["--out", folder / name] if kind in OUTS else [name]
    is_usable = kind in OUTS and name == NAMES["near NAME_MAX"]
    done = check(run_command(*call), *([0, 1, 2] if is_usable else [2]))
    assert done.code == 0 or len(done.stderr.splitlines()) <= 2, done.stderr[:500]


def fill_in(call: str, words: Mapping[str, object], folder: Path) -> list[object]:
    """Return the words of a call with files for those in capitals: given ones, or ones that are written to a folder.

    All can be read, so that it is the name that a command refuses.
    """
    return [
        words[word] if word in words else WRITERS[word](folder) if word in WRITERS else word
        for word in call.split()
    ]


def _write_boxes(folder: Path) -> Path:
    Image.new("RGB", (99, 99)).save(folder / "a.png")
    question = {"id": "a", "image": str(folder / "a.png"), "question": "?", "answer": "yes", "boxes": BOXES}
    return _write_lines(folder / "boxes" / "boxes.jsonl", question)


def _write_lines(file: Path, *records: object) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def _write_questions(folder: Path) -> Path:
    question = {"id": "a", "question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
    return _write_lines(folder / "rewritten.jsonl", question)


def _write_effect(folder: Path) -> Path:
    """Score an answer to each question of MIRAGE's mirage effect."""
    benchmark = BENCHMARKS["mirage-effect"]
    truth = benchmark.draw_data(folder / "drawn", 1, 7)
    lines = [{"id": question.id, "response": "Answer: 1"} for question in benchmark.ask_questions(truth)]
    responses = _write_lines(folder / "responses.jsonl", *lines)
    call = (
        "--data",
        folder / "drawn" / "samples.jsonl",
        "--responses",
        responses,
        "--out",
        folder / "effect",
    )
    check(run_command("score", "mirage-effect", *call), 0)
    return folder / "effect"


def _write_kinds(folder: Path) -> Path:
    """Write what a judge found: each kind of hallucination in every second answer about a topic."""
    topics = ("algebra", "geometry", "logical", "spatial")
    found = [{kind: (n + m) % 2 == 0 for m, kind in enumerate(KINDS)} for n, _ in enumerate(topics)]
    records = [
        {"id": topic, "topic": topic, "hallucinations": kinds}
        for topic, kinds in zip(topics, found, strict=True)
    ]
    write_results(folder / "kinds", "mirage", {}, records)
    return folder / "kinds"


WRITERS: dict[str, Callable[[Path], Path]] = {
    "BOXES": _write_boxes,
    "REWRITTEN": _write_questions,
    "EFFECT": _write_effect,
    "KINDS": _write_kinds,
}


def _trace_ids(world: World, folder: Path, name: str) -> None:
    """An id is the name of a file, too."""
    line = json.loads(world.data.read_text().splitlines()[0])
    images = [str(world.data.parent / image) for image in line["images"]]
    data = folder / "data.jsonl"
    data.write_text(json.dumps(line | {"id": name, "images": images}) + "\n")
    call = ["--model", "tiny-spd", "--data", data, "--max-new-tokens", 1]
    check(run_command("trace", *call, "--out", folder / "run"), 0, 1, 2)
    check(run_command("diagnose", *call, "--out", folder / "diagnosis"), 0, 1, 2)
    check(run_command("bench", "mme", *call, "--out", folder / "results"), 0, 1, 2)
