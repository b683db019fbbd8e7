"""Train a small TopK SAE on the residual stream of tiny-spd, and write it in SAELens' format.

python research/features/train_sae.py --out models/dictionaries/tiny-spd

The training is that of `mmprobe train dictionary`; here visual tokens and others are drawn in fixed numbers.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.models import Model
from mmprobe.models.dictionaries import Dictionary, save_dictionary
from mmprobe.models.reading import Reading
from mmprobe.probes.features.settings import DictionarySettings
from mmprobe.probes.features.train import GroupStates, begin, fit
from mmprobe.samples import Sample

SEED = 6_000_000  # of images that no other page uses
PAIRS = 1000
TYPES = ("colour", "same")  # of one image and of two, in turn
LAYER = 3
FEATURES, ACTIVE = 512, 16
STEPS, RATE = 4000, 1e-3
BATCH = (480, 32)  # visual and other tokens: there are few texts, and each is often there
DEAD = 100  # steps without firing


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
    begun = begin(("resid_post", LAYER), parts[0].shape[1], FEATURES, ACTIVE, "tiny-spd")
    measured = [
        GroupStates(part.numpy(), part.mean(0).numpy(), float(part.var(0, correction=0).sum()))
        for part in parts
    ]
    return fit(begun, measured, BATCH, DictionarySettings(steps=STEPS, learning_rate=RATE, dead_after=DEAD))


if __name__ == "__main__":
    main()
