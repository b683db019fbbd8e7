"""Time of traced generation and of its peers, against plain sdpa `generate` of the same prompts.

Traces are written to disk. All ways run in turn in one process, each round in another order.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import nnsight
import torch
from nnsight import NNsight
from paired import TIMED, in_turn
from toys import GREEDY, LONG_SIDE, samples, toy

import mmprobe as mp
from mmprobe.models import Model
from mmprobe.samples import Sample
from mmprobe.traces.engines.step_buffer import copy_sharing_weights

COLUMNS = ("model", "prompt", "new", "batch", "batches", "method", *TIMED, "goal")
PEER_CAPTURE = mp.CaptureSpec(datasets=["attention/row", "residual/pre", "residual/mid", "residual/post"])
GOALS = {
    "default": "1.08, 1.12 in batches",
    "full": "1.12, 1.18 in batches",
    "peers' tensors": "nnsight's",
    "TransformerLens": "",
}
LONG_PROMPT = 3000  # tokens
SECONDS = 75  # least time for each setting; short ones have more rounds


def methods(
    model: Model, chosen: list[Sample], batch: int, new: int, folder: Path, peers: bool
) -> dict[str, Callable[[], Any]]:
    """Return the ways to answer the same samples, a batch at a time; the first is plain. Peers answer one batch."""
    options = {"max_new_tokens": new, **GREEDY}

    def plain() -> None:
        with torch.inference_mode():
            for first in range(0, len(chosen), batch):
                model.hf.generate(**model.batch(chosen[first : first + batch]).inputs, **options)

    def traced(capture: Any, engine: str = "native") -> Callable[[], Any]:
        return lambda: mp.trace(
            model,
            chosen,
            folder / "run",
            capture=capture,
            max_new_tokens=new,
            engine=engine,
            batch_size=batch,
            shared_prefix=False,  # the samples show the same images, and plain `generate` shares nothing
        )

    ways: dict[str, Callable[[], Any]] = {
        "plain sdpa": plain,
        "default": traced("default"),
        "full": traced("full"),
    }
    if not peers:
        return ways
    ways["peers' tensors"] = traced(PEER_CAPTURE)
    eager = copy_sharing_weights(model.hf)
    eager.set_attn_implementation("eager")

    def flags() -> None:
        with torch.inference_mode():
            eager.generate(
                **model.batch(chosen).inputs, **options, output_attentions=True, output_hidden_states=True,
                return_dict_in_generate=True,
            )  # fmt: skip

    wrapped = NNsight(copy_sharing_weights(eager))
    layers = [f"model.model.language_model.layers.{index}" for index in range(model.n_layers)]
    inputs = [
        f"{layer}.{norm}" for layer in layers for norm in ("input_layernorm", "post_attention_layernorm")
    ]

    def nnsight_cache() -> None:
        run = wrapped._module.generate
        with torch.inference_mode(), wrapped.trace(fn=run, **model.batch(chosen).inputs, **options) as tracer:
            before = tracer.cache(modules=inputs, include_inputs=True, include_output=False)
            after = tracer.cache(modules=[*layers, *(f"{layer}.self_attn" for layer in layers)])
            nnsight.save(before)
            nnsight.save(after)

    ways["HF's flags"] = flags
    ways["nnsight's cache"] = nnsight_cache
    if len(chosen) == 1:
        ways["TransformerLens"] = traced(PEER_CAPTURE, "transformer_lens")
    return ways


def remove_run(folder: Path) -> None:
    """Remove the run of an earlier round, outside the times."""
    shutil.rmtree(folder / "run", ignore_errors=True)


def measure(
    name: str,
    model: Model,
    batch: int,
    new: int,
    rounds: int,
    peers: bool,
    batches: int = 1,
    seconds: float = SECONDS,
) -> Iterator[Sequence[object]]:
    """Yield the cells of each method: its time, and the ratio to plain generation."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = samples(Path(folder), batch * batches)
        ways = methods(model, chosen, batch, new, Path(folder), peers)
        times = in_turn(ways, rounds, seconds, partial(remove_run, Path(folder)))
        prompt = len(model.prompt(chosen[0]).ids)
    goals = GOALS | {"default": "1.05", "full": ""} if prompt > LONG_PROMPT else GOALS
    for way, paired in times.items():
        yield name, prompt, new, batch, batches, way, *paired.cells, goals.get(way, "")


def rows(device: str = "cpu", quick: bool = False, big: bool = False) -> Iterator[Sequence[object]]:
    """Yield the cells of each row."""
    rounds = 3
    if quick:
        yield from measure("tiny-spd", toy("tiny-spd", device), 1, 4, 1, peers=True, seconds=0)
        return
    for name, new in (("tiny-spd", 64), ("12 layers", 64), ("28 layers", 100)):
        model = toy(name, device)
        yield from measure(name, model, 1, new, rounds, peers=True)
        yield from measure(name, model, 1, new, rounds, peers=False, batches=4)
        yield from measure(name, model, 8, new, rounds, peers=False, batches=3)
    yield from measure("12 layers", toy("12 layers", device, LONG_SIDE), 1, 16, rounds, peers=True)
    if big:
        yield from measure("7B", toy("7B", device), 1, 64, rounds, peers=False, batches=3)
