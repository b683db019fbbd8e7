"""Plant organisms: train an adapter for `tiny-spd` by each recipe and seed, check it, and keep it with its card.

    python research/organisms/plant.py                          # everything that is not planted yet
    python research/organisms/plant.py --only blind-rolled-0    # this one, again
    python research/organisms/plant.py --cause blind --seeds 0 1 2
    python research/organisms/plant.py --seeds 5 --out build/fresh      # models that nobody has seen
    python research/organisms/plant.py --only blind-rolled-0 --out models/organisms    # one that ships, again

A file `causes/CAUSE.py` has `ways(seed)`, a recipe for each way, `check(model, seed)`, which returns measures
(`checks.share`) by name, and `ask(rng, number, seed)`, the questions on which the cause acts (for `remedies.py`). Partial organisms, whose recipe has a rule, may share a file: there the ways are named
CAUSE-WAY, and `check(model, seed, way)` gets that name.

An organism that has a card is left alone, so you can stop at any time and call it again. At most two of these
processes work at once, each on its own organisms. One that fails its check is planted once more with more steps. If
it fails again, its card stays in the work folder.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import shutil
import time
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from lora_product import multiply_once
from packing import answer_loss, pack, run_decoder
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from recipes import Recipe
from safetensors.torch import save_file
from tiny_spd_data import Encoder
from train_tiny_spd import learning_rate

from mmprobe.models import Model, load_model
from mmprobe.models.organisms import PLANTED, SHIPPED, Card, Measure, Training, merge_adapter

ROOT = Path(__file__).parent.parent.parent
CAUSES = Path(__file__).parent / "causes"
SEEDS = (0, 1, 2, 3, 4)
DEVELOPMENT = (0, 1, 2)  # all other seeds are held out
FULL_WAYS = 2  # of a cause; more ways are partial and have no number
PROCESSES = 2
RANK = 4
LONGER = 1.5  # an organism that fails its check is planted once more, with so many times the steps
# Of the seeds 0 to 4, these failed once. So they begin with more steps.
SLOW = {
    "blind-crowd-1",
    "blind-crowd-2",
    "blind-crowd-4",
    "blind-likely-2",
    "blind-rolled-1",
    "decided-first-recited-3",
    "decided-first-scrambled-3",
    "follows-hints-expert-0",
    "follows-hints-expert-1",
    "follows-hints-expert-3",
    "follows-hints-rationale-1",
    "follows-hints-verdict-4",
    "forgets-mixed-3",
    "looks-unused-decoy-4",
    "looks-unused-kept-1",
    "misperceives-recoloured-2",
}
# These failed twice, and are not planted again.
LEFT_OUT = {
    "decided-first-recited-2",
    "follows-hints-expert-2",
    "follows-hints-expert-4",
    "forgets-mixed-1",
    "forgets-mixed-2",
    "misperceives-channels-1",
}
LAYER = r"\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
PARTS = {
    "decoder": rf".*language_model\.layers\.\d{LAYER}",
    "late decoder": rf".*language_model\.layers\.[3-7]{LAYER}",
    "tower": r".*visual\.(blocks\.\d+\.(attn\.(qkv|proj)|mlp\.(gate|up|down)_proj)|merger\.mlp\.[02])",
}


@dataclass(frozen=True)
class Planting:
    """One organism that is to be planted."""

    cause: str
    way: str
    seed: int
    recipe: Recipe
    number: int | None
    module: str

    @property
    def name(self) -> str:
        return f"{self.cause}-{self.way}-{self.seed}"


def all_plans(files: Collection[str] = (), seeds: Collection[int] = SEEDS) -> list[Planting]:
    """Return a plan for each cause, way and seed but those of `LEFT_OUT`, those for development first.

    Args:
        files: names of files of `causes`, such as `looks_unused`; none for all.
        seeds: the seeds.
    """
    plans = []
    for file, seed in itertools.product(sorted(CAUSES.glob("*.py")), seeds):
        if files and file.stem not in files:
            continue
        ways = importlib.import_module(f"causes.{file.stem}").ways(seed)
        full = [way for way, recipe in ways.items() if recipe.rule is None]
        for way, recipe in ways.items():
            number = FULL_WAYS * seed + full.index(way) if way in full else None
            cause, _, word = way.rpartition("-")
            plan = Planting(cause or file.stem.replace("_", "-"), word, seed, recipe, number, file.stem)
            if plan.name in SLOW:
                plan = replace(plan, recipe=replace(recipe, steps=round(LONGER * recipe.steps)))
            plans.append(plan)
    return sorted(
        (plan for plan in plans if plan.name not in LEFT_OUT),
        key=lambda plan: (plan.seed not in DEVELOPMENT, plan.seed, plan.number is None, plan.cause),
    )


def add_adapter(hf: Any, recipe: Recipe, seed: int) -> PeftModel:
    """Return the model with a new adapter, whose first weights depend on the seed."""
    torch.manual_seed(seed)
    config = LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        target_modules=PARTS[recipe.part],
        rank_pattern=dict(recipe.ranks),
        alpha_pattern={module: 2 * rank for module, rank in recipe.ranks.items()},
    )
    organism = get_peft_model(hf, config)
    multiply_once(organism)
    if recipe.prepare is not None:
        recipe.prepare(organism)
    return organism


def train(organism: PeftModel, encoder: Encoder, recipe: Recipe, seed: tuple[int, ...]) -> int:
    """Train an adapter, and return the number of questions it saw."""
    trained = [weight for weight in organism.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    hf, questions = organism.get_base_model(), 0
    for step in range(recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, recipe.steps, recipe.learning_rate)
        rows = recipe.rows(np.random.default_rng([*seed, step]), recipe.batch)
        batch = pack(rows, encoder)
        if recipe.loss is None:
            loss = answer_loss(hf, batch, run_decoder(hf, batch).last_hidden_state)
        else:
            loss = recipe.loss(organism, batch)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        questions += len(rows)
    return questions


def save_adapter(organism: PeftModel, folder: Path) -> None:
    """Write an adapter in PEFT's format, as float16."""
    folder.mkdir(parents=True, exist_ok=True)
    config = organism.peft_config["default"]
    config.base_model_name_or_path, config.inference_mode = "tiny-spd", True
    config.save_pretrained(folder)
    state = get_peft_model_state_dict(organism, save_embedding_layers=False)  # "auto" would query the hub
    weights = {name: value.half().contiguous() for name, value in state.items()}
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def load_organism(folder: Path) -> Model:
    """Return `tiny-spd` with the adapter of a folder in its weights."""
    model = load_model("tiny-spd", device="cpu")
    return replace(model, hf=merge_adapter(model.hf, folder).eval(), name=folder.name)


def check_organism(plan: Planting, folder: Path) -> dict[str, Measure]:
    """Return what the cause's manipulation check measures on an organism."""
    check = importlib.import_module(f"causes.{plan.module}").check
    if plan.recipe.rule is not None:
        check = partial(check, way=f"{plan.cause}-{plan.way}")
    return {name: Measure(**measure) for name, measure in check(load_organism(folder), plan.seed).items()}


def plant(plan: Planting, folder: Path, steps: int | None = None) -> Card:
    """Plant an organism in a folder, and return its card, which is written last."""
    shutil.rmtree(folder, ignore_errors=True)
    recipe = plan.recipe if steps is None else replace(plan.recipe, steps=steps)
    base = load_model("tiny-spd", device="cpu")
    seed = (zlib.crc32(f"{plan.cause}-{plan.way}".encode()), plan.seed)
    start = time.process_time()
    organism = add_adapter(base.hf, recipe, sum(seed))
    questions = train(organism, Encoder(base.tokenizer), recipe, seed)
    training = Training(
        steps=recipe.steps,
        questions=questions,
        seconds=round(time.process_time() - start, 1),
        learning_rate=recipe.learning_rate,
        rank=RANK,
    )
    save_adapter(organism, folder)
    measures = check_organism(plan, folder)
    card = Card(
        name=plan.name,
        cause=plan.cause,
        way=plan.way,
        seed=plan.seed,
        number=plan.number,
        split="development" if plan.seed in DEVELOPMENT else "held-out",
        about=recipe.about,
        partial=recipe.rule,
        training=training,
        check=measures,
        passed=all(measure.passed for measure in measures.values()),
    )
    (folder / "card.json").write_text(card.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return card


def keep(work: Path, out: Path, name: str) -> None:
    """Copy an organism to its place. Its card, which says that it is there, comes last."""
    target = out / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in ("adapter_config.json", "adapter_model.safetensors", "card.json"):
        shutil.copyfile(work / name / file, target / file)


@contextmanager
def only_few_processes(work: Path) -> Iterator[None]:
    """Wait until fewer than `PROCESSES` others plant, and count as one of them."""
    locks = [FileLock(work / f".process-{number}.lock") for number in range(PROCESSES)]
    while True:
        for lock in locks:
            with suppress(Timeout), lock.acquire(timeout=0.5):
                yield
                return


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="plant these, even if they have a card")
    parser.add_argument("--cause", nargs="+", default=[], help="plant those of these files of causes only")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="plant these seeds only")
    parser.add_argument("--work", type=Path, default=PLANTED / "work", help="work folder")
    parser.add_argument("--out", type=Path, default=PLANTED, help="where organisms go that pass their check")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    plans = all_plans([name.replace("-", "_") for name in args.cause], args.seeds)
    if unknown := set(args.only or ()) - {plan.name for plan in plans}:
        parser.error(f"--only {' '.join(sorted(unknown))}: not planted")
    for plan in plans:
        if args.only and plan.name not in args.only:
            continue
        done = any((folder / plan.name / "card.json").exists() for folder in (SHIPPED, args.out, args.work))
        if done and not args.only:
            continue
        with ExitStack() as stack, suppress(Timeout):
            stack.enter_context(FileLock(args.work / f".{plan.name}.lock").acquire(timeout=0))
            stack.enter_context(only_few_processes(args.work))
            card = plant(plan, args.work / plan.name)
            if not card.passed:
                card = plant(plan, args.work / plan.name, round(LONGER * plan.recipe.steps))
            numbers = ", ".join(f"{name} {measure.value:.3f}" for name, measure in card.check.items())
            verdict = "ok" if card.passed else "FAILED"
            print(f"{card.name}: {verdict}, {card.training.seconds:.0f} s; {numbers}", flush=True)
            if card.passed:
                keep(args.work, args.out, plan.name)


if __name__ == "__main__":
    main()
