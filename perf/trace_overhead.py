"""What tracing costs: traced generation, written to disk, against plain sdpa `generate`.

Both run in turn on the same prompts in the same process. Models: the embedded one, and a random Qwen2.5-VL of 12 layers.

    python perf/trace_overhead.py                        # two CPU cores: three minutes
    python perf/trace_overhead.py --device cuda --big    # adds a random model of the size of 7B
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import Qwen2_5_VLForConditionalGeneration

from mmprobe.models import Model, load_model
from mmprobe.samples import Sample
from mmprobe.traces import load_capture
from mmprobe.traces.run import trace_sample

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
HEADER = """\
| model | capture | prompt tokens | new tokens | plain ms | traced ms | ratio | middle half |
|---|---|---|---|---|---|---|---|"""
TEXT = """\
# What tracing costs

Written by `python perf/trace_overhead.py --write`; `make perf` prints the same. {hardware}, torch {torch}.

Traced generation, written to disk and fsynced, against plain sdpa `generate` of the same prompt with two images, in turn
in one process ({rounds} rounds). The ratio is that of the medians; beside it the middle half of the ratios of neighbouring
calls, which shows how much of it is the machine's noise. The toy model has random weights.

{table}

Memory: a trace holds, besides the model and its cache, the final states of the tokens so far, and of the last 64 steps at
most what one query computed in each layer; softmax rows exist for one layer and 64 queries at a time.

`mmprobe --help` takes {help_time:.2f} s (median of 11).
"""
SIZES = {
    "toy, 12 layers": {
        "text": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 12, "num_attention_heads": 8,
                 "num_key_value_heads": 2},
        "vision": {"out_hidden_size": 256},
        "mrope": [4, 6, 6],
        "image": 420,
    },
    "7B, 28 layers": {
        "text": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
                 "num_key_value_heads": 4},
        "vision": {"out_hidden_size": 3584},
        "mrope": [16, 24, 24],
        "image": 672,
    },
}  # fmt: skip


def random_model(tiny: Model, size: dict, device: str, dtype: torch.dtype) -> Model:
    """A model of another size with random weights, that reads prompts as the embedded one does."""
    config = tiny.hf.config.__class__.from_dict(tiny.hf.config.to_dict())
    for name, value in size["text"].items():
        setattr(config.text_config, name, value)
    config.text_config.layer_types = ["full_attention"] * size["text"]["num_hidden_layers"]
    config.text_config.rope_parameters["mrope_section"] = size["mrope"]
    for name, value in size["vision"].items():
        setattr(config.vision_config, name, value)
    torch.manual_seed(0)
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        hf = Qwen2_5_VLForConditionalGeneration(config)
        torch.set_default_dtype(before)
    hf.generation_config = tiny.hf.generation_config
    tiny.processor.image_processor.size = {
        "shortest_edge": size["image"] ** 2,
        "longest_edge": size["image"] ** 2,
    }
    return replace(tiny, hf=hf.eval(), name="random")


def paired_times(
    first: Callable[[], None], second: Callable[[], None], rounds: int
) -> tuple[list[float], list[float]]:
    """Wall times of both, taken in turn after a warm-up, the order changing each round."""
    times: tuple[list[float], list[float]] = ([], [])
    for round_ in range(-2, rounds):
        for index in (0, 1) if round_ % 2 else (1, 0):
            began = time.perf_counter()
            (first, second)[index]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if round_ >= 0:
                times[index].append(time.perf_counter() - began)
    return times


def measure(name: str, model: Model, folder: Path, rounds: int, tokens: int) -> list[str]:
    """One table row a capture: median times and their ratio, with the middle half of the paired ratios."""
    rng = np.random.default_rng(0)
    paths = []
    for index in range(2):
        paths.append(folder / f"{index}.png")
        Image.fromarray(rng.integers(0, 255, (112, 112, 3), np.uint8)).save(paths[-1])
    sample = Sample(id="a", images=paths, question="Compare the two pictures step by step.")
    generate = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}

    def plain() -> None:
        with torch.inference_mode():
            model.hf.generate(**model.prepare(sample), **generate)

    rows = []
    for capture in ("default", "full"):
        traced = partial(trace_sample, model, sample, folder / "a.h5", load_capture(capture), generate)
        alone, watched = paired_times(plain, traced, rounds)
        quartiles = np.percentile([b / a for a, b in zip(alone, watched, strict=True)], [25, 75])
        before, after = statistics.median(alone), statistics.median(watched)
        prompt = len(model.prompt(sample).ids)
        rows.append(
            f"| {name} | {capture} | {prompt} | {tokens} | {1000 * before:.0f} | {1000 * after:.0f} "
            f"| {after / before:.3f} | {quartiles[0]:.2f}-{quartiles[1]:.2f} |"
        )
        print(rows[-1], flush=True)
    return rows


def start_up(rounds: int) -> float:
    """Median seconds of `mmprobe --help`."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "mmprobe", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--big", action="store_true", help="also a random model of the size of Qwen2.5-VL-7B")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} in docs")
    args = parser.parse_args()
    on_gpu = args.device.startswith("cuda")
    hardware = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads"
    print(HEADER, flush=True)
    rows = [HEADER]
    with tempfile.TemporaryDirectory() as folder:
        tiny = load_model("tiny-spd", device=args.device)
        rows += measure("tiny-spd, 8 layers", tiny, Path(folder), args.rounds, args.tokens)
        for name, size in SIZES.items():
            if args.big or not name.startswith("7B"):
                model = random_model(tiny, size, args.device, torch.bfloat16 if on_gpu else torch.float32)
                rows += measure(name, model, Path(folder), args.rounds, args.tokens)
    help_time = start_up(11)
    print(f"\nmmprobe --help: {help_time:.2f} s")
    if args.write:
        about = {
            "hardware": hardware,
            "torch": torch.__version__,
            "rounds": args.rounds,
            "help_time": help_time,
        }
        PAGE.write_text(TEXT.format(table="\n".join(rows), **about), encoding="utf-8")


if __name__ == "__main__":
    main()
