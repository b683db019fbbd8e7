"""Time of six questions about the same two images: whole prompts, against prompts that share their beginning."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from overhead import remove_run
from paired import TIMED, in_turn
from toys import GREEDY, LONG_SIDE, samples, toy

import mmprobe as mp
from mmprobe.benchmarks import evaluate
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.interventions import generate_batch, load_method, load_methods
from mmprobe.models import Group, Model
from mmprobe.models.reading import PrefixStore, repeated_keys
from mmprobe.samples import Sample
from mmprobe.settings import AskSettings

COLUMNS = ("model", "prompt", "questions", "new", "method", *TIMED, "goal")
QUESTIONS = [
    "Are the two pictures the same?",
    "Are the two pictures different?",
    "Compare the two pictures step by step.",
    "How many differences are there?",
    "Describe the first picture.",
    "Is there a star in the second picture?",
]
GOALS = {"answers, shared": "0.28", "default, shared": "0.28"}
BENCH_SIDE = 784  # pixels


def methods(model: Model, chosen: list[Sample], new: int, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return the ways to answer the questions one by one; the first is plain `generate`."""

    def plain() -> None:
        with torch.inference_mode():
            for sample in chosen:
                model.hf.generate(**model.prepare(sample), max_new_tokens=new, **GREEDY)

    def answers(method: str, shared_prefix: bool) -> Callable[[], Any]:
        def answer() -> None:
            keeps_states = load_method(method).needs_final_states
            prefixes = PrefixStore(model, repeated_keys(chosen), keeps_states) if shared_prefix else None
            for sample in chosen:
                generate_batch(
                    model, [sample], AskSettings(method=load_methods(method), max_new_tokens=new), prefixes
                )

        return answer

    def traced(shared_prefix: bool) -> Callable[[], Any]:
        options = {"max_new_tokens": new, "shared_prefix": shared_prefix}
        return lambda: mp.trace(model, chosen, folder / "run", **options)

    return {
        "plain sdpa": plain,
        "answers, shared": answers("plain", True),
        "default, whole": traced(False),
        "default, shared": traced(True),
        "sage, whole": answers("sage", False),
        "sage, shared": answers("sage", True),
        "vcd, whole": answers("vcd", False),
        "vcd, shared": answers("vcd", True),
    }


def measure(name: str, model: Model, new: int, rounds: int) -> Iterator[Sequence[object]]:
    """Yield the cells of each method: its time, and the ratio to plain generation."""
    with tempfile.TemporaryDirectory() as folder:
        images = samples(Path(folder), 1)[0].images
        chosen = [Sample(id=f"q{i}", images=images, question=each) for i, each in enumerate(QUESTIONS)]
        before = partial(remove_run, Path(folder))
        times = in_turn(methods(model, chosen, new, Path(folder)), rounds, before=before)
        prompt = len(model.prompt(chosen[0]).ids)
    goals = GOALS if prompt > 1000 else {}
    for way, paired in times.items():
        yield name, prompt, len(chosen), new, way, *paired.cells, goals.get(way, "")


def measure_bench(name: str, model: Model, n_pairs: int, new: int, rounds: int) -> Iterator[Sequence[object]]:
    """Yield the cells of rows for `bench spd-faith --trace` on drawn pairs, with whole prompts and with shared beginnings."""
    with tempfile.TemporaryDirectory() as folder:
        data, out = make_pairs(Path(folder) / "pairs", n_pairs, 1_800_000), Path(folder) / "bench"

        def bench(shared_prefix: bool) -> None:
            options = {"max_new_tokens": new, "shared_prefix": shared_prefix}
            evaluate("spd-faith", model, out, data=data, trace=True, overwrite=True, **options)

        ways = {"bench --trace, whole": partial(bench, False), "bench --trace, shared": partial(bench, True)}
        times = in_turn(ways, rounds)
        traces = mp.open_run(out / "run")
        prompt = int((traces[0].array("tokens/group") != Group.GENERATED).sum())
    for way, paired in times.items():
        yield name, prompt, len(traces), new, way, *paired.cells, "0.58" if "shared" in way else ""


def rows(device: str = "cpu", quick: bool = False) -> Iterator[Sequence[object]]:
    """Yield the cells of each row."""
    rounds = 3
    yield from measure("tiny-spd", toy("tiny-spd", device), 4 if quick else 16, 1 if quick else rounds)
    if not quick:
        yield from measure("12 layers", toy("12 layers", device, LONG_SIDE), 16, rounds)
        for new in (16, 64):
            yield from measure_bench("12 layers", toy("12 layers", device, BENCH_SIDE), 4, new, rounds)
