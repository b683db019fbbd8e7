"""Make the model that Logos' training on the drawn world starts from: `tiny-spd` in think/answer format, damaged.

It learns three kinds of responses to `count` and `steps` questions about easy pairs: true ones, ones with a false
object in the reasoning and the true answer, and ones with a false object and the false answer that follows. Rewards
for the format and the answer cannot tell the first two kinds apart.

    python research/logos/start.py --out build/logos/start          # a few minutes on two cores
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from packing import answer_loss, pack, run_decoder
from recipes import TrainingExample
from tiny_spd_data import Encoder
from tqdm import tqdm
from train_tiny_spd import learning_rate

from mmprobe.benchmarks.synthetic.questions import describe_changes, list_objects, make_question
from mmprobe.benchmarks.synthetic.scene import COLOURS, Scene, ScenePair, draw_pair
from mmprobe.models import load_model
from mmprobe.training.train_logos import save_model

KINDS = {"true": 0.4, "false reasoning": 0.3, "false answer": 0.3}
"""Share of each kind of response; our choice."""
MAX_DIFFERENCES = 2


def draw_rows(rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return questions with responses of the three kinds, a `count` and a `steps` question about each pair."""
    rows: list[TrainingExample] = []
    while len(rows) < count:
        pair = draw_pair(rng, "easy", int(rng.integers(MAX_DIFFERENCES + 1)))
        for kind in ("count", "steps"):
            response = draw_response(rng, kind, pair)
            rows.append(TrainingExample((pair.first, pair.second), make_question(kind, pair).text, response))
    return rows


def draw_response(rng: np.random.Generator, kind: str, pair: ScenePair) -> str:
    """Return a response of a kind that is drawn."""
    told, changes, differences = pair.second, describe_changes(pair), len(pair.edits)
    what = str(rng.choice(list(KINDS), p=list(KINDS.values())))
    if what != "true":
        told, sentence = recolour(rng, pair.second)
        if what == "false answer":
            differences += 1
            changes = f"{changes} {sentence}" if pair.edits else sentence
    answer = changes
    if kind == "count":
        answer = f"There {'is' if differences == 1 else 'are'} {differences or 'no'} difference{'s' * (differences != 1)}."
    reasoning = f"Picture one: {list_objects(pair.first)}\nPicture two: {list_objects(told)}"
    return f"<think>{reasoning}</think><answer>{answer}</answer>"


def recolour(rng: np.random.Generator, scene: Scene) -> tuple[Scene, str]:
    """Return a scene with another colour of one object, and the sentence that tells of it."""
    number = int(rng.integers(len(scene.objects)))
    thing = scene.objects[number]
    colour = str(rng.choice([name for name in COLOURS if name != thing.colour]))
    objects = list(scene.objects)
    objects[number] = replace(thing, colour=colour)
    sentence = f"The {thing.shape} changed from {thing.colour} to {colour}."
    return replace(scene, objects=tuple(objects)), sentence


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/logos/start"))
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = load_model("tiny-spd", device="cpu")
    model.hf.requires_grad_(False)
    trained = [*model.hf.model.language_model.parameters(), *model.hf.lm_head.parameters()]
    for weight in trained:
        weight.requires_grad_(True)
    optimiser = torch.optim.AdamW(trained, lr=args.lr, weight_decay=0.0)
    encoder = Encoder(model.tokenizer)
    for step in tqdm(range(args.steps), disable=None):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        batch = pack(draw_rows(np.random.default_rng([args.seed, step]), args.batch), encoder)
        loss = answer_loss(model.hf, batch, run_decoder(model.hf, batch).last_hidden_state)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        if step % 20 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    save_model(model, args.out)


if __name__ == "__main__":
    main()
