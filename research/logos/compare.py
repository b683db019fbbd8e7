"""Train Logos on the drawn world from the damaged start, with and without filter and curriculum, and measure it.

    python research/logos/start.py --out build/logos/start
    python research/logos/compare.py --out build/logos/runs --seeds 0 1 2          # stop it and call it again as you like
    python research/logos/write_doc.py --runs build/logos/runs                     # fills docs/training.md

All trainings take the same number of responses, those that the curriculum samples among them. Training pairs and test
pairs are drawn from different seeds; so are those of the start.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.benchmarks.synthetic.scene import COLOURS
from mmprobe.files import write_atomic
from mmprobe.models import Model
from mmprobe.probes import image_interchange_run
from mmprobe.samples import Sample
from mmprobe.training.curriculum import sample_responses
from mmprobe.training.evaluation import judge_response
from mmprobe.training.settings import LogosSettings, ablate, share_budget
from mmprobe.training.train_logos import train_logos

ARMS = ("full", "plain", "no-filter", "no-curriculum")
MEANS = ("accuracy", "format", "faithful")
SAMPLED = 4  # responses to each test question, at temperature 1
TRAIN_SEED, TEST_SEED = 10**6, 2 * 10**6


def draw_samples(folder: Path, pairs: int, seed: int) -> list[Sample]:
    """Return a `count` and a `steps` question about each of so many easy pairs, with up to two differences."""
    if not (folder / "samples.jsonl").exists():
        make_pairs(folder, pairs, seed, differences=(0, 2), difficulty="easy")
    return [
        sample
        for sample in mp.load_samples(folder / "samples.jsonl")
        if sample.metadata["type"] in ("count", "steps")
    ]


def alter_reasoning(sample: Sample, rng: np.random.Generator) -> tuple[Sample, str]:
    """Return a sample whose answer begins with reasoning that has one false colour, and the false sentence."""
    first, second = (list(objects) for objects in sample.metadata["objects"])
    number = int(rng.integers(len(second)))
    colour, shape, cell = second[number].split()
    other = str(rng.choice([name for name in COLOURS if name != colour]))
    second[number] = f"{other} {shape} {cell}"
    prefill = f"<think>Picture one: {', '.join(first)}.\nPicture two: {', '.join(second)}.</think><answer>"
    sentence = f"The {shape} changed from {colour} to {other}."
    return sample.model_copy(update={"prefill": prefill}), sentence


def measure(model: Model, samples: list[Sample], settings: LogosSettings, draw: int) -> list[dict[str, Any]]:
    """Return a record of each question: its greedy response, and means over `SAMPLED` sampled ones.

    `draw` is the seed of the sampled responses: those of the start are drawn again for each seed.

    - greedy_accuracy, accuracy, format: the rewards
    - faithful: whether the reasoning lists both pictures, and no listed object is false
    - faithful_when_right: the same over right responses; None without one
    - keeps_answer: whether the greedy answer stays the same under altered reasoning, so it was decided without it
    - effect: nat a token that the greedy response loses with unrelated images (image interchange)
    """
    model.hf.eval()
    greedy = [texts[0] for texts in sample_responses(model, samples, 0, settings, 0)]
    sampled = sample_responses(model, samples, SAMPLED, settings, draw)
    rng = np.random.default_rng(0)
    altered = [alter_reasoning(sample, rng)[0] for sample in samples]
    continued = [texts[0] for texts in sample_responses(model, altered, 0, settings, 0)]
    answered = [
        sample.model_copy(update={"answer": text or "."})
        for sample, text in zip(samples, greedy, strict=True)
    ]
    effects = image_interchange_run(model, answered, kinds=("unrelated",), batch_size=8)
    records = []
    for number, sample in enumerate(samples):
        judged = [judge_response(sample, text) for text in sampled[number]]
        right = [record["faithful"] for record in judged if record["accuracy"]]
        before = greedy[number].rpartition("<answer>")[2].partition("</answer>")[0].strip()
        means = {name: float(np.mean([record[name] for record in judged])) for name in MEANS}
        records.append(
            {
                "id": sample.id,
                "type": sample.metadata["type"],
                "pair": sample.id[:4],
                "response": greedy[number],
                "greedy_accuracy": judge_response(sample, greedy[number])["accuracy"],
                **means,
                "faithful_when_right": float(np.mean(right)) if right else None,
                "keeps_answer": float(before == continued[number].partition("</answer>")[0].strip()),
                "effect": float(effects["effect_per_token"].values[number]),
            }
        )
    return records


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--start", type=Path, default=Path("build/logos/start"))
    parser.add_argument("--out", type=Path, default=Path("build/logos/runs"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    parser.add_argument("--completions", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=4, help="pairs to train on, two questions each")
    parser.add_argument("--test-pairs", type=int, default=12)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    train = draw_samples(args.out / "train", args.pairs, TRAIN_SEED)
    test = draw_samples(args.out / "test", args.test_pairs, TEST_SEED)
    base = LogosSettings(
        stages=args.stages, batch_size=32, micro_batch=32, learning_rate=args.learning_rate, max_new_tokens=80,
        instruction="", save_steps=8,
    )  # fmt: skip
    plans = [("start", seed) for seed in args.seeds] + [
        (arm, seed) for seed in args.seeds for arm in args.arms
    ]
    for arm, seed in plans:
        file = args.out / f"{arm}-{seed}.json"
        if file.exists():
            continue
        settings = base.replace(seed=seed)
        if arm == "start":
            model = mp.load_model(str(args.start), device="cpu")
        else:
            settings = share_budget(ablate(settings, arm), len(train), args.completions)
            out = args.out / f"{arm}-{seed}"
            model = train_logos(str(args.start), train, out, settings, resume=out.exists(), device="cpu")
        records = measure(model, test, settings, seed if arm == "start" else 0)
        content = {"arm": arm, "seed": seed, "settings": settings.model_dump(), "records": records}
        write_atomic(
            file, json.dumps(content | {"arguments": {k: str(v) for k, v in vars(args).items()}}) + "\n"
        )
        means = {
            name: np.mean([r[name] for r in records]) for name in ("accuracy", "faithful", "keeps_answer")
        }
        print(arm, seed, means, flush=True)


if __name__ == "__main__":
    main()
