"""Measure the time and memory of answering with each decoding-time method against plain `generate`.

All methods answer the same prompts in turn in one process. The models have random weights, and answers have
a fixed length. Memory is the process's peak minus that of plain `generate`. A contrast path needs one more
key-value cache.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paired import TIMED, in_turn
from torch.utils._python_dispatch import TorchDispatchMode
from toys import samples, toy

from mmprobe.benchmarks.core.compare import measure_cost
from mmprobe.benchmarks.things.pairs import make_things
from mmprobe.interventions import generate_batch, load_method
from mmprobe.interventions.base import Method
from mmprobe.models import Model, load_model
from mmprobe.probes import attribution_patching_run, rank_heads, visual_tokens_run
from mmprobe.probes.answers import find_ids, read_answer
from mmprobe.samples import Sample, load_samples
from mmprobe.settings import AskSettings
from mmprobe.traces.asking import answer

COLUMNS = ("model", "prompt", "new", "batch", "method", *TIMED, "goal", "extra MB", "a cache, MB", "calls")
SEED = 5_200_000  # of the real model's scenes
METHODS: dict[str, tuple[Method, float]] = {  # method, and goal of the ratio to plain
    "plain": (load_method("plain"), 1.0),
    "sage, see": (load_method("sage", analyze=False, generate=False), 1.15),
    "sage, see and analyze": (load_method("sage", generate=False), 1.15),
    "sage": (load_method("sage"), 2.2),
    "vcd": (load_method("vcd"), 2.2),
    "icd": (load_method("icd"), 2.2),
    "pai": (load_method("pai"), 2.2),
    "agla": (load_method("agla"), 2.2),
}
REAL = "build/real"
REAL_COLUMNS = ("real model", "a round", "CPU s", *TIMED[1:])
REAL_METHODS = ("plain", "sage", "vcd", "icd", "pai", "agla", "opera")
REAL_TOKENS = 32  # of the longest answer


def measure(name: str, model: Model, batch: int, new: int, rounds: int) -> Iterator[Sequence[object]]:
    """Yield the cells of each method, for one model and batch size.

    Args:
        name: name of the model in the table.
        model: the model.
        batch: number of samples in the batch.
        new: number of tokens of each answer.
        rounds: number of timed rounds.
    """
    memory = {method: float("nan") for method in METHODS}  # MB

    def answer_all(method: str) -> None:
        with measure_cost(model) as cost:
            generate_batch(model, batch_samples, AskSettings(method=[METHODS[method][0]], max_new_tokens=new))
        memory[method] = np.nanmin([memory[method], cost.extra_mb])

    with tempfile.TemporaryDirectory() as folder:
        batch_samples = samples(Path(folder), batch)
        timings = in_turn({method: partial(answer_all, method) for method in METHODS}, rounds)
        prompt_length = len(model.prompt(batch_samples[0]).ids)
        cache = cache_mb(model, batch_samples, new)
        calls = {method: count_calls(model, batch_samples, each) for method, (each, _) in METHODS.items()}
    for method, timing in timings.items():
        goal = f"{METHODS[method][1]:.2f}" if method not in ("plain", "agla") else ""
        extra = memory[method] - memory["plain"]
        costs = goal, f"{extra:.0f}", f"{cache:.1f}", f"{calls[method] / calls['plain']:.2f}"
        yield name, prompt_length, new, batch, method, *timing.cells, *costs


class CallCounter(TorchDispatchMode):
    """Counts the calls of torch's functions, which do not depend on how busy the machine is."""

    calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return function(*args, **(kwargs or {}))


def count_calls(model: Model, batch_samples: list[Sample], method: Method) -> float:
    """Return the number of calls for one more token of the answer."""
    calls = {}
    for new in (few := 4, many := 12):
        with CallCounter() as counter:
            generate_batch(model, batch_samples, AskSettings(method=[method], max_new_tokens=new))
        calls[new] = counter.calls
    return (calls[many] - calls[few]) / (many - few)


def cache_mb(model: Model, batch_samples: list[Sample], new: int) -> float:
    """Return the size of the key-value cache of the prompts and answers, in units of 2^20 bytes."""
    text = model.hf.config.get_text_config()
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    n_tokens = model.batch(batch_samples).inputs["input_ids"].numel() + new * len(batch_samples)
    item_size = torch.finfo(model.hf.dtype).bits // 8
    return 2 * text.num_hidden_layers * text.num_key_value_heads * head_dim * n_tokens * item_size / 2**20


def rows(device: str = "cpu", quick: bool = False) -> Iterator[Sequence[object]]:
    """Measure all settings, or only the smallest with few tokens, and yield the cells of each row."""
    settings = [("tiny-spd", 1, 64), ("tiny-spd", 8, 64), ("12 layers", 1, 64), ("12 layers", 4, 64)]
    for name, batch, new in settings[:1] if quick else settings:
        yield from measure(name, toy(name, device), batch, 8 if quick else new, 1 if quick else 9)


def real_rows(quick: bool = False) -> Iterator[Sequence[object]]:
    """Measure the real model, and yield the cells of each row: processor seconds of each method's answers to the questions about two images,
    one by one as `compare` asks them, and of the slow probes of one sample."""
    model = load_model(REAL, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        drawn = load_samples(make_things(Path(folder) / "things", n=2, seed=SEED))
        asked = [each for each in drawn if each.id.startswith("0000")]
        both = [each for each in drawn if len(each.images) == 2]
        color = [
            each.model_copy(update={"answer": None}) for each in drawn if each.metadata["type"] == "color"
        ]

        def ask(method: str) -> None:
            dict(
                answer(
                    model,
                    asked[:1] if quick else asked,
                    None,
                    AskSettings(method=method, max_new_tokens=REAL_TOKENS),
                )
            )

        methods = REAL_METHODS[:2] if quick else REAL_METHODS
        timings = in_turn(
            {each: partial(ask, each) for each in methods}, 1 if quick else 3, clock=time.process_time
        )
        count = f"{1 if quick else len(asked)} answers"
        yield from ((name, count, *timing.cells) for name, timing in timings.items())
        if not quick:
            said = find_ids(model, color[0], None, REAL_TOKENS)
            ranking = {"counterfactual": "minimal", "batch_size": 1}
            ways = {
                "one reading": lambda: read_answer(model, color[0], said).unchanged,
                "attribution_patching_run, atp": lambda: attribution_patching_run(
                    model, color[:1], "atp", **ranking
                ),
                "rank_heads by attribution": lambda: rank_heads(model, color[:1], "attribution", **ranking),
                "visual_tokens_run, four lenses": lambda: visual_tokens_run(model, both),
            }
            about = [*["1 sample"] * 3, "2 sets of images"]
            timings = in_turn(ways, 1, clock=time.process_time)
            for note, (name, timing) in zip(about, timings.items(), strict=True):
                yield name, note, *timing.cells
