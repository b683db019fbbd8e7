"""Time of answering with each decoding-time method against plain `generate` of the same prompts, in turn in one process.

    python perf/interventions.py                     # two CPU cores: about eight minutes

Answers of random weights and of a fixed length. Memory is the largest of the process beyond that of plain `generate`;
one more key-value cache is what a second path needs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from toys import parser, samples, toy

from mmprobe.interventions import generate_batch, load_method
from mmprobe.interventions.base import Method
from mmprobe.interventions.cost import measuring
from mmprobe.models import Model
from mmprobe.samples import Sample

HEADER = """\
| model | prompt | new | batch | method | s | ratio | middle half | goal | extra MB | a cache, MB |
|---|---|---|---|---|---|---|---|---|---|---|"""
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
    with tempfile.TemporaryDirectory() as folder:
        chosen = samples(Path(folder), batch)
        names, times = list(METHODS), {way: [] for way in METHODS}
        memory = {way: float("nan") for way in METHODS}
        for round_ in range(-1, rounds):
            for way in names[round_ % len(names) :] + names[: round_ % len(names)]:
                with measuring(model) as cost:
                    generate_batch(model, chosen, METHODS[way][0], max_new_tokens=new)
                    if model.device.type == "cuda":
                        torch.cuda.synchronize()
                if round_ >= 0:
                    times[way].append(cost.seconds)
                    memory[way] = np.nanmin([memory[way], cost.extra_mb])
        prompt = len(model.prompt(chosen[0]).ids)
        cache = cache_mb(model, chosen, new)
    plain, rows = times["plain"], []
    for way in names:
        ratios = [own / floor for own, floor in zip(times[way], plain, strict=True)]
        low, high = np.percentile(ratios, [25, 75])
        ratio = statistics.median(times[way]) / statistics.median(plain)
        goal = f"{METHODS[way][1]:.2f}" if way not in ("plain", "agla") else ""
        rows.append(
            f"| {name} | {prompt} | {new} | {batch} | {way} | {statistics.median(times[way]):.3f} | {ratio:.2f} "
            f"| {low:.2f}-{high:.2f} | {goal} | {memory[way] - memory['plain']:.0f} | {cache:.1f} |"
        )
        print(rows[-1], flush=True)
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
        rows += measure(name, toy(name, device), batch, 8 if quick else new, 1 if quick else 5)
    return "\n".join(rows)


if __name__ == "__main__":
    arguments = parser(__doc__).parse_args()
    began = time.perf_counter()
    table(arguments.device, arguments.quick)
    print(f"{time.perf_counter() - began:.0f} s")
