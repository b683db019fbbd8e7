"""Time of traced generation, written to disk, and of its peers, against plain sdpa `generate` of the same prompts.

All run in turn in one process, in another order each round.

    python perf/overhead.py                          # two CPU cores: about ten minutes
    python perf/overhead.py --device cuda --big      # adds a random model of the size of Qwen2.5-VL-7B
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nnsight
import numpy as np
import torch
from nnsight import NNsight
from toys import LONG_SIDE, parser, samples, toy

import mmprobe as mp
from mmprobe.models import Model
from mmprobe.samples import Sample
from mmprobe.traces.collected import sharing_copy

HEADER = """\
| model | prompt | new | batch | batches | method | s | ratio | middle half | goal |
|---|---|---|---|---|---|---|---|---|---|"""
PEER_CAPTURE = mp.CaptureSpec(datasets=["attention/row", "residual/pre", "residual/mid", "residual/post"])
GOALS = {"default": "1.10", "full": "1.35", "peers' tensors": "nnsight's", "TransformerLens": ""}
GREEDY = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}


def methods(
    model: Model, chosen: list[Sample], batch: int, new: int, folder: Path, peers: bool
) -> dict[str, Callable[[], Any]]:
    """Ways to answer the same samples, a batch at a time; the first is plain. Peers answer one batch."""
    options = {"max_new_tokens": new, **GREEDY}

    def plain() -> None:
        with torch.inference_mode():
            for first in range(0, len(chosen), batch):
                model.hf.generate(**model.batch(chosen[first : first + batch]).inputs, **options)

    def traced(capture: Any, engine: str = "native") -> Callable[[], Any]:
        return lambda: mp.trace(
            model, chosen, folder / "run", capture, new, engine=engine, batch_size=batch, overwrite=True
        )

    found: dict[str, Callable[[], Any]] = {
        "plain sdpa": plain,
        "default": traced("default"),
        "full": traced("full"),
    }
    if not peers:
        return found
    found["peers' tensors"] = traced(PEER_CAPTURE)
    eager = sharing_copy(model.hf)
    eager.set_attn_implementation("eager")

    def flags() -> None:
        with torch.inference_mode():
            eager.generate(
                **model.batch(chosen).inputs, **options, output_attentions=True, output_hidden_states=True,
                return_dict_in_generate=True,
            )  # fmt: skip

    wrapped = NNsight(sharing_copy(eager))
    layers = [f"model.model.language_model.layers.{index}" for index in range(model.layer_count)]
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

    found["HF's flags"] = flags
    found["nnsight's cache"] = nnsight_cache
    if len(chosen) == 1:
        found["TransformerLens"] = traced(PEER_CAPTURE, "transformer_lens")
    return found


def measure(
    name: str, model: Model, batch: int, new: int, rounds: int, peers: bool, batches: int = 1
) -> list[str]:
    """A row a method: median time, its ratio to plain's, and the middle half of the paired ratios."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = samples(Path(folder), batch * batches)
        ways = methods(model, chosen, batch, new, Path(folder), peers)
        names, times = list(ways), {way: [] for way in ways}
        for round_ in range(-1, rounds):
            for way in names[round_ % len(names) :] + names[: round_ % len(names)]:
                began = time.perf_counter()
                ways[way]()
                if model.hf.device.type == "cuda":
                    torch.cuda.synchronize()
                if round_ >= 0:
                    times[way].append(time.perf_counter() - began)
        prompt, rows = len(model.prompt(chosen[0]).ids), []
    plain = times["plain sdpa"]
    for way in names:
        ratios = [own / floor for own, floor in zip(times[way], plain, strict=True)]
        low, high = np.percentile(ratios, [25, 75])
        ratio = statistics.median(times[way]) / statistics.median(plain)
        rows.append(
            f"| {name} | {prompt} | {new} | {batch} | {batches} | {way} | {statistics.median(times[way]):.3f} | {ratio:.2f} "
            f"| {low:.2f}-{high:.2f} | {GOALS.get(way, '')} |"
        )
        print(rows[-1], flush=True)
    return rows


def table(device: str = "cpu", quick: bool = False, big: bool = False, rounds: int = 3) -> str:
    rows = [HEADER]
    print(HEADER)
    if quick:
        return "\n".join(rows + measure("tiny-spd", toy("tiny-spd", device), 1, 4, 1, peers=True))
    for name, new in (("tiny-spd", 64), ("12 layers", 64), ("28 layers", 100)):
        model = toy(name, device)
        rows += measure(name, model, 1, new, rounds, peers=True)
        rows += measure(name, model, 1, new, rounds, peers=False, batches=4)
        rows += measure(name, model, 8, new, 2, peers=False, batches=3)
    rows += measure("12 layers", toy("12 layers", device, LONG_SIDE), 1, 16, 2, peers=True)
    if big:
        rows += measure("7B", toy("7B", device), 1, 64, rounds, peers=False, batches=3)
    return "\n".join(rows)


if __name__ == "__main__":
    asked = parser(__doc__)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--big", action="store_true", help="also a random model of the size of Qwen2.5-VL-7B")
    arguments = asked.parse_args()
    table(arguments.device, arguments.quick, arguments.big, arguments.rounds)
