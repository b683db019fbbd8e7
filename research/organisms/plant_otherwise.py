"""Plant causes in the embedded model otherwise than by adapters: by training all weights, and by editing weights.

    python research/organisms/plant_otherwise.py                         # all that are not there yet
    python research/organisms/plant_otherwise.py --only zeroed-0
    python research/organisms/plant_otherwise.py --first-seed 20 --out build/plants-fresh    # zeroed-20 and so on
    python research/organisms/plant_otherwise.py --split "other ways" --first-seed 40 --out build/plants-unseen
    python -m mmprobe bench diagnosis --tools diagnosis --plants build/plants --out build/tools

Each plant is a model folder with its card, `plant.json` (`mmprobe.diagnosis.bench.plants.Plant`), which comes last. So you
can stop at any time. Rules and thresholds may be chosen on plants of the split `development` (`development_ways.py`),
of whatever seed. No plant of the others (`held_out_ways.py`) was looked at when rules were changed. The card of a plant whose manipulation
check fails is `failed.json`, and it is not scored.

A plant depends on its name alone: all its random numbers are of the way and the seed, and the worlds that are learned (which
things come together, which answer is the likely one) are others for each seed. A way without random numbers is planted as seed 0
alone, since it would give the same model again.
"""

from __future__ import annotations

import argparse
import shutil
import zlib
from pathlib import Path

import development_ways
import held_out_ways
import numpy as np
import torch
from safetensors.torch import save_file
from ways import CHEAP, DEVELOPMENT, OTHER, PlantingWay

from mmprobe.diagnosis.bench.plants import CARD, Plant
from mmprobe.models import load_model
from mmprobe.models.checkpoints import find_checkpoint
from mmprobe.models.organisms import BASE, Measure

ROOT = Path(__file__).parent.parent.parent
FAILED = "failed.json"  # the name of a card whose check failed


def list_ways(seed: int = 0) -> dict[str, PlantingWay]:
    """Return all ways by name, in the worlds of a seed."""
    return development_ways.ways(seed) | held_out_ways.ways(seed)


def list_plans(first: int = 0, seeds: int | None = None) -> dict[str, tuple[str, PlantingWay, int]]:
    """Return the way's name, the way and the seed of each plant by its name, those that take seconds first.

    Args:
        first: the first seed.
        seeds: how often each way is planted; None for as often as it says.
    """
    return {
        f"{name}-{seed}": (name, list_ways(seed)[name], seed)
        for name, way in sorted(list_ways().items(), key=lambda item: item[1].kind not in CHEAP)
        for seed in range(first, first + (way.seeds if seeds is None else seeds))
        if not (way.fixed and seed)
    }


def draw_numbers(name: str, seed: int) -> np.random.Generator:
    """Return the random numbers of a plant, which depend on its name alone."""
    return np.random.default_rng([zlib.crc32(name.encode()), seed])


def plant(name: str, way: PlantingWay, seed: int, folder: Path, base_name: str = BASE) -> Plant:
    """Plant a model in a folder, and return its card, which is written last if its check passes."""
    shutil.rmtree(folder, ignore_errors=True)
    base = load_model(base_name, device="cpu")
    rng = draw_numbers(name, seed)
    with torch.no_grad():
        way.make(base.hf, base, rng)
    base.hf.eval()
    left_out = shutil.ignore_patterns("*.md", "*.safetensors", CARD, FAILED)  # the base may be a plant itself
    shutil.copytree(find_checkpoint(base_name)[0], folder, ignore=left_out)
    weights = {key: value.half().contiguous() for key, value in base.hf.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    measures = {} if way.check is None else dict(way.check(base, seed))
    accepts, about = [*way.accepts], way.about
    for verdict, check in way.also:
        for name, measure in check(base, seed).items():
            about += f" The {name} is {measure['value']}, where {verdict} needs {measure['bound']}."
            accepts += [verdict] if measure["passed"] else []
    card = Plant(
        causes=way.causes,
        kind=way.kind,
        about=about,
        split=way.split,
        accepts=tuple(accepts),
        check={key: Measure(**measure) for key, measure in measures.items()},
    )
    passed = all(measure.passed for measure in card.check.values())
    file = folder / (CARD if passed else FAILED)
    file.write_text(card.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return card


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="plant these alone, in this order")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "plants", help="a folder for all plants")
    parser.add_argument(
        "--first-seed", type=int, default=0, metavar="N", help="plant NAME-N and so on; default: NAME-0"
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="seeds of each way; default: as many as the way says, 1 to 8"
    )
    parser.add_argument("--split", choices=(DEVELOPMENT, OTHER), help="plant ways of this split alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    plans = list_plans(args.first_seed, args.seeds)
    plans = {name: plan for name, plan in plans.items() if args.split in (None, plan[1].split)}
    if unknown := set(args.only or ()) - set(plans):
        parser.error(f"--only {' '.join(sorted(unknown))}: not planted")
    for plan in args.only or plans:
        name, way, seed = plans[plan]
        folder = args.out / plan
        if any((folder / file).exists() for file in (CARD, FAILED)):
            continue
        card = plant(name, way, seed, folder)
        numbers = ", ".join(f"{key} {measure.value:.3f}" for key, measure in card.check.items())
        verdict = "ok" if (folder / CARD).exists() else "FAILED"
        print(f"{folder.name}: {verdict}; {numbers}", flush=True)


if __name__ == "__main__":
    main()
