"""Long names: a path that the system refuses is one line and exit 2, whatever command it is given to."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from attacks.world import Case, World, check, run_command

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


OUTS = {  # by command, what comes before --out; RUN, DATA and RESULTS are replaced
    "report": "report RUN",
    "pack": "pack RUN",
    "export": "export RUN --to csv",
    "bench diagnosis": "bench diagnosis --tools chance --n 2",
    "clean": "clean RESULTS",
    "agree": "agree RESULTS RESULTS",
    "mirage-score": "mirage-score RESULTS",
    "mirage-correlations": "mirage-correlations RESULTS",
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
    boxes = folder / "boxes.jsonl"
    boxes.write_text(json.dumps({"id": "a", "question": "?", "image": "a.png", "boxes": []}) + "\n")
    rewritten = folder / "rewritten.jsonl"
    rewritten.write_text(json.dumps({"id": "a", "question": "?", "topic": "x"}) + "\n")
    words = {
        **{"RUN": world.run, "DATA": world.data, "RESULTS": world.results, "OUT": folder / "out.h5"},
        **{"BOXES": boxes, "REWRITTEN": rewritten},
    }
    call: list[object] = [words.get(word, word) for word in (OUTS | INPUTS)[kind].split()]
    call += ["--out", folder / name] if kind in OUTS else [name]
    is_usable = kind in OUTS and name == NAMES["near NAME_MAX"]
    done = check(run_command(*call), *([0, 1, 2] if is_usable else [2]))
    assert done.code == 0 or len(done.stderr.splitlines()) <= 2, done.stderr[:500]


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
