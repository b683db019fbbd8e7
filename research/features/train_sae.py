"""Train a small TopK SAE on the residual stream of tiny-spd, and write it in SAELens' format.

python research/features/train_sae.py --out models/dictionaries/tiny-spd

The loss is the squared error and, for features that have not fired for a while, that of their own reconstruction of the
error (Gao et al., 2024, arXiv:2406.04093). A larger model's dictionary is trained with SAELens in an environment of its
own, on the shards of `mmprobe activations`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.models import Model
from mmprobe.models.dictionaries import Dictionary, save_dictionary
from mmprobe.models.reading import Reading
from mmprobe.samples import Sample

SEED = 6_000_000  # of images that no other page uses
PAIRS = 1000
TYPES = ("colour", "same")  # of one image and of two, in turn
LAYER = 3
FEATURES, ACTIVE = 512, 16
STEPS, RATE = 4000, 1e-3
BATCH = (480, 32)  # visual and other tokens: there are few texts, and each is often there
DEAD = 100  # steps without firing
AUXILIARY, MOST_DEAD = 1 / 32, 32  # weight of the loss of dead features, and how many of them take part


def main() -> None:
    """Train, and write the SAE."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    torch.manual_seed(0)
    model = mp.load_model("tiny-spd", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        samples = [
            sample
            for sample in mp.load_samples(make_pairs(Path(folder) / "pairs", n=PAIRS, seed=SEED))
            if sample.metadata["type"] == TYPES[int(sample.id[:4]) % len(TYPES)]
        ]
        parts = read_states(model, samples, LAYER)
    print(f"{len(parts[0])} visual and {len(parts[1])} other tokens of {len(samples)} answers")
    sae = train(parts)
    saved = save_dictionary(sae, out, torch.float16)
    print(f"{saved}: {sum(file.stat().st_size for file in saved.iterdir()) / 1e6:.2f} MB")
    for name, part in zip(("visual", "other"), parts, strict=True):
        error = (sae.decode(sae.encode(part), part) - part).pow(2).sum()
        print(f"{name}: variance explained {1 - float(error / (part - part.mean(0)).pow(2).sum()):.4f}")


def read_states(model: Model, samples: Sequence[Sample], layer: int) -> list[Tensor]:
    """Return resid_post at the visual tokens of prompts, and at the others and true answers, each [token, hidden]."""
    visual: list[Tensor] = []
    others: list[Tensor] = []
    for start in tqdm(range(0, len(samples), 32)):
        batch = samples[start : start + 32]
        answers = [model.tokenizer(sample.answer)["input_ids"] for sample in batch]
        reading, streams = Reading(model, model.batch(batch), answers), list[Tensor]()
        with torch.no_grad():
            reading.logits(observers={("resid_post", layer): streams.append})
        for row, value in zip(reading.rows, streams[0], strict=True):
            first = row.prompt.padding
            own = value[first : first + len(row.prompt.ids) + len(row.ids)]
            shows = torch.zeros(len(own), dtype=torch.bool)
            shows[row.prompt.visual_positions] = True
            visual.append(own[shows])
            others.append(own[~shows])
    return [torch.cat(visual), torch.cat(others)]


def train(parts: Sequence[Tensor]) -> Dictionary:
    """Return an SAE of states, some [token, hidden], each of which weighs as much as its tokens in a batch."""
    hidden = parts[0].shape[1]
    variances = [part.var(0, correction=0).sum() for part in parts]
    scale = float((variances[0] / hidden).sqrt())
    data = [part / scale for part in parts]
    each = [
        torch.full((count,), float(scale**2 / value)) for count, value in zip(BATCH, variances, strict=True)
    ]
    shares = torch.cat(each) / sum(BATCH)
    decoder = nn.functional.normalize(torch.randn(FEATURES, hidden), dim=-1)
    weights = {
        "W_enc": nn.Parameter(decoder.T.clone()),
        "b_enc": nn.Parameter(torch.zeros(FEATURES)),
        "W_dec": nn.Parameter(decoder.clone()),
        "b_dec": nn.Parameter(torch.stack([part.mean(0) for part in data]).mean(0)),
    }
    optimiser = torch.optim.Adam(weights.values(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, 5 * (1 - step / STEPS)))
    idle = torch.zeros(FEATURES)
    for step in (progress := tqdm(range(STEPS), mininterval=5)):
        drawn = (part[torch.randint(len(part), (count,))] for part, count in zip(data, BATCH, strict=True))
        batch = torch.cat(list(drawn))
        before = (batch - weights["b_dec"]) @ weights["W_enc"] + weights["b_enc"]
        features = keep_largest(before, ACTIVE)
        error = batch - features @ weights["W_dec"] - weights["b_dec"]
        loss = (error.pow(2).sum(-1) * shares).sum()
        idle = torch.where((features > 0).any(0), 0, idle + 1)
        dead = (idle > DEAD).nonzero()[:, 0]
        if len(dead):
            own = keep_largest(before[:, dead], min(MOST_DEAD, len(dead)))
            rest, whole = error.detach() - own @ weights["W_dec"][dead], error.detach().pow(2).sum(-1)
            loss = loss + AUXILIARY * (rest.pow(2).sum(-1) / whole.clamp_min(1e-6)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            weights["W_dec"].div_(weights["W_dec"].norm(dim=-1, keepdim=True))
        if step % 100 == 0:
            progress.set_postfix(loss=loss.item(), dead=len(dead))
    plain = {name: value.detach().clone() for name, value in weights.items()}
    plain["b_enc"] *= scale  # of the states as they are: an activation is a length in the stream
    plain["b_dec"] *= scale
    point = ("resid_post", LAYER)
    return Dictionary("", "topk", point, point, plain, ACTIVE, subtracts_bias=True, model="tiny-spd")


def keep_largest(before: Tensor, count: int) -> Tensor:
    """Return the largest values of each row, where they are above 0, and 0 elsewhere."""
    largest = before.topk(count, -1)
    return torch.zeros_like(before).scatter(-1, largest.indices, largest.values.relu())


if __name__ == "__main__":
    main()
