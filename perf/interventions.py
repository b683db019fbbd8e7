"""Time of answering with each decoding-time method against plain `generate` of the same prompts, in turn in one process.

    python perf/interventions.py                     # two CPU cores: about twelve minutes

Answers of random weights and of a fixed length. Memory is the largest of the process beyond that of plain `generate`;
one more key-value cache is what a second path needs.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from paired import in_turn
from toys import parser, samples, toy

from mmprobe.benchmarks.core.cost import measure_cost
from mmprobe.interventions import generate_batch, load_method
from mmprobe.interventions.base import Method
from mmprobe.models import Model
from mmprobe.samples import Sample

HEADER = """\
| model | prompt | new | batch | method | s | ratio | middle half | rounds | goal | extra MB | a cache, MB |
|---|---|---|---|---|---|---|---|---|---|---|---|"""
SEE = {"generate": False}
METHODS: dict[str, tuple[Method, float]] = {
    "plain": (load_method("plain"), 1.0),
    "sage, see": (load_method("sage", analyze=False, **SEE), 1.15),
    "sage, see and analyze": (load_method("sage", **SEE), 1.15),
    "sage": (load_method("sage"), 2.2),
    "vcd": (load_method("vcd"), 2.2),
    "icd": (load_method("icd"), 2.2),
    "pai": (load_method("pai"), 2.2),
    "agla": (load_method("agla"), 2.2),
}


def measure(name: str, model: Model, batch: int, new: int, rounds: int) -> list[str]:
    memory = {way: float("nan") for way in METHODS}

    def answered(way: str) -> None:
        with measure_cost(model) as cost:
            generate_batch(model, chosen, METHODS[way][0], max_new_tokens=new)
        memory[way] = np.nanmin([memory[way], cost.extra_mb])

    with tempfile.TemporaryDirectory() as folder:
        chosen = samples(Path(folder), batch)
        found = in_turn({way: partial(answered, way) for way in METHODS}, rounds)
        prompt, cache = len(model.prompt(chosen[0]).ids), cache_mb(model, chosen, new)
    rows = []
    for way, paired in found.items():
        goal = f"{METHODS[way][1]:.2f}" if way not in ("plain", "agla") else ""
        extra = memory[way] - memory["plain"]
        rows.append(
            f"| {name} | {prompt} | {new} | {batch} | {way} | {paired} | {goal} | {extra:.0f} | {cache:.1f} |"
        )
    print(*rows, sep="\n", flush=True)
    return rows


def cache_mb(model: Model, chosen: list[Sample], new: int) -> float:
    """What keys and values of the prompts and answers take, in 2^20 bytes."""
    text = model.hf.config.get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    tokens = model.batch(chosen).inputs["input_ids"].numel() + new * len(chosen)
    size = torch.finfo(model.hf.dtype).bits // 8
    return 2 * text.num_hidden_layers * text.num_key_value_heads * head * tokens * size / 2**20


def table(device: str = "cpu", quick: bool = False) -> str:
    rows = [HEADER]
    print(HEADER)
    settings = [("tiny-spd", 1, 64), ("tiny-spd", 8, 64), ("12 layers", 1, 64), ("12 layers", 4, 64)]
    for name, batch, new in settings[:1] if quick else settings:
        rows += measure(name, toy(name, device), batch, 8 if quick else new, 1 if quick else 9)
    return "\n".join(rows)


if __name__ == "__main__":
    arguments = parser(__doc__).parse_args()
    began = time.perf_counter()
    table(arguments.device, arguments.quick)
    print(f"{time.perf_counter() - began:.0f} s")
