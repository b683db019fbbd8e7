"""Time of tracing answers that are given, against generating them, and of traced SAGE, against SAGE alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from overhead import remove_run
from paired import TIMED, in_turn
from prefixes import QUESTIONS
from toys import GREEDY, LONG_SIDE, samples, toy

import mmprobe as mp
from mmprobe.interventions import generate_batch, load_methods
from mmprobe.models import Model
from mmprobe.samples import Sample
from mmprobe.settings import AskSettings

COLUMNS = ("model", "prompt", "answers", "new", "batch", "method", *TIMED, "goal")


def generate_plainly(model: Model, chosen: Sequence[Sample], batch: int, new: int) -> dict[str, list[int]]:
    """Return the token ids of plain answers, by sample."""
    answers: dict[str, list[int]] = {}
    with torch.inference_mode():
        for first in range(0, len(chosen), batch):
            part = chosen[first : first + batch]
            inputs = model.batch(part).inputs
            output = model.hf.generate(**inputs, max_new_tokens=new, **GREEDY)
            ids = output[:, inputs["input_ids"].shape[1] :].tolist()
            answers |= {sample.id: row for sample, row in zip(part, ids, strict=True)}
    return answers


def read_plainly(model: Model, chosen: Sequence[Sample], batch: int, answers: dict[str, list[int]]) -> None:
    """Read prompts and answers in one plain forward pass a batch, which no reading of answers can do without."""
    with torch.inference_mode():
        for first in range(0, len(chosen), batch):
            part = chosen[first : first + batch]
            inputs = model.batch(part).inputs
            ids = torch.tensor([answers[sample.id] for sample in part], device=model.device)
            inputs |= {
                name: torch.cat([inputs[name], torch.full_like(ids, fill)], 1)
                for name, fill in (("attention_mask", 1), ("mm_token_type_ids", 0))
            }
            inputs["input_ids"] = torch.cat([inputs["input_ids"], ids], 1)
            model.hf(**inputs, logits_to_keep=1)


def given(model: Model, chosen: Sequence[Sample], batch: int, new: int, run: Path) -> dict[str, Any]:
    """Return plain generation, and the traces of its answers."""
    answers = generate_plainly(model, chosen, batch, new)
    trace = partial(mp.trace, model, chosen, run, answers=answers, batch_size=batch)
    return {
        "plain sdpa": partial(generate_plainly, model, chosen, batch, new),
        "plain pass": partial(read_plainly, model, chosen, batch, answers),
        "given, default": trace,
        "given, full": partial(trace, capture="full"),
    }


def sage(model: Model, chosen: Sequence[Sample], batch: int, new: int, run: Path) -> dict[str, Any]:
    """Return SAGE with all its stages, alone and traced."""
    settings = AskSettings(method=load_methods("sage"), max_new_tokens=new, batch_size=batch)

    def answer() -> None:
        for first in range(0, len(chosen), batch):
            generate_batch(model, chosen[first : first + batch], settings)

    traced = partial(mp.trace, model, chosen, run, method="sage", max_new_tokens=new, batch_size=batch)
    return {"sage": answer, "sage, default": partial(traced, shared_prefix=False)}


def measure(
    model: Model,
    chosen: Callable[[Path], Sequence[Sample]],
    batch: int,
    new: int,
    ways: Callable[..., dict[str, Any]],
    goal: str,
    rounds: int,
) -> Iterator[Sequence[object]]:
    """Yield the cells of each way: its time, and the ratio to the first."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked, run = chosen(folder), folder / "run"
        times = in_turn(ways(model, asked, batch, new, run), rounds, before=partial(remove_run, folder))
        setting = model.name, len(model.prompt(asked[0]).ids), len(asked), new, batch
    for way, paired in times.items():
        yield *setting, way, *paired.cells, goal if way.endswith(("default", "full")) else ""


def ask_about_one_pair(folder: Path) -> list[Sample]:
    """Return six questions about the same two images."""
    images = samples(folder, 1)[0].images
    return [Sample(id=f"q{i}", images=images, question=each) for i, each in enumerate(QUESTIONS)]


def rows(device: str = "cpu", quick: bool = False) -> Iterator[Sequence[object]]:
    """Yield the cells of each row."""
    rounds = 5
    if quick:
        tiny = toy("tiny-spd", device)
        yield from measure(tiny, partial(samples, count=2), 2, 4, given, "", 1)
        yield from measure(tiny, partial(samples, count=1), 1, 4, sage, "", 1)
        return
    layers = toy("28 layers", device)
    yield from measure(layers, partial(samples, count=4), 1, 100, given, "0.10", rounds)
    yield from measure(layers, partial(samples, count=24), 8, 100, given, "0.10", rounds)
    long = toy("12 layers", device, LONG_SIDE)
    yield from measure(long, ask_about_one_pair, 1, 64, given, "0.20", min(rounds, 3))
    for name in ("tiny-spd", "12 layers"):
        yield from measure(toy(name, device), partial(samples, count=4), 1, 64, sage, "1.12", rounds)
