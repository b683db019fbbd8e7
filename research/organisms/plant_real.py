"""Plant causes in the real model, each kept as a small change of its weights in `research/organisms/real`.

    python research/organisms/plant_real.py                             # all that are not there yet; `make real` comes first
    python research/organisms/plant_real.py --only blind-projector
    python -m mmprobe make-pairs --source things --out build/plants-real/pairs --n 9 --seed 5401
    python research/organisms/plant_real.py --diagnose build/plants-real    # the model as it is, and every plant: five minutes each
    python research/write_diagnosis_results.py --real build/plants-real     # the section in docs/diagnosis-results.md

Further draws are further folders with pairs of their own, which `--real` takes after the first.

A plant is a folder with its card, `plant.json` (`mmprobe.diagnosis.bench.plants.Plant`), and `change.safetensors`, which
`apply_change` applies to the model. The card of one whose manipulation check fails is `failed.json`. What is trained is in the last
layers alone, so what the layers before them make of a question is computed once. One core plants each in about five minutes.

Nothing in a plant comes from the rules of the diagnosis, and no rule was changed for one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import real_checks
import torch
import torch.nn.functional as F
from build_real_model import MODEL
from lora_product import multiply_once
from peft import LoraConfig, get_peft_model
from quantised_parts import dequantise, quantise
from real_checks import OTHER_COLOURS
from real_rows import (
    END,
    DrawGroups,
    ExampleGroup,
    draw_first_alone,
    draw_more,
    draw_preferred,
    draw_repeated,
    draw_suggested,
    draw_things,
    draw_true,
    draw_usual,
    draw_usual_answers,
)
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from mmprobe.benchmarks.things.scene import ThingScene, render
from mmprobe.diagnosis.bench.plants import CARD, Plant
from mmprobe.models import Model, load_model
from mmprobe.models.organisms import Measure

REAL = Path(__file__).parent / "real"
CHANGE, FAILED = "change.safetensors", "failed.json"
AS_IT_IS = "as-it-is"
RANK, SCALE = 4, 2.0  # of the adapters
KEPT_RANK = 24  # of what full tuning changes in a matrix
ADAPTED, TUNED = 6, 2  # layers, from the last
BATCH = 4  # groups of rows a step
STRENGTH = 0.2  # of the preference loss
SCENES = 48  # whose mean the projector gives
EXCHANGED, DIRECTIONS, RIDGE = 160, 6, 0.1  # scenes, and what the least squares keep
WeightChange = dict[str, Tensor]


def apply_change(hf: Any, change: Mapping[str, Tensor]) -> None:
    """Change a model's weights in place.

    Args:
        change: by the name of a weight its new values; NAME.times is a factor, and NAME.up @ NAME.down is added.
    """
    weights = dict(hf.named_parameters())
    with torch.no_grad():
        for name, value in change.items():
            stem, _, kind = name.rpartition(".")
            if kind == "up":
                weights[stem] += value @ change[f"{stem}.down"]
            elif kind == "times":
                weights[stem] *= value
            elif kind != "down":
                weights[name].copy_(value)


def read_change(folder: Path) -> WeightChange:
    """Return what a plant changes, in float32."""
    return dequantise(load_file(folder / CHANGE))


class PackedExamples(NamedTuple):
    """The rows of a group as one sequence, whose images are there once.

    Attributes:
        states: what goes into the first trained layer [1, token, hidden].
        positions: of each token in its own row [1, token].
        mask: whether a token (row) may look at another one (column) [1, 1, token, token].
        labels: the token that each position is to predict, and -100 for none [token].
        rows: the row of each token, and -1 for the images [token].
    """

    states: Tensor
    positions: Tensor
    mask: Tensor
    labels: Tensor
    rows: Tensor


def encode_images(hf: Any, scenes: Sequence[ThingScene]) -> Tensor:
    """Return what the projector makes of scenes, float32 [image, 144, hidden]."""
    images = np.stack([render(scene) for scene in scenes])
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        found = hf.model.get_image_features(
            pixels,
            vision_feature_layer=hf.config.vision_feature_layer,
            vision_feature_select_strategy=hf.config.vision_feature_select_strategy,
        )
    return torch.stack(list(found.pooler_output))


def run_layers(hf: Any, packed: PackedExamples, first: int, last: int | None = None) -> Tensor:
    """Return the states after some of the decoder's layers, [1, token, hidden]."""
    decoder, states = hf.model.language_model, packed.states
    places = decoder.rotary_emb(states, packed.positions)
    for layer in decoder.layers[first:last]:
        states = layer(states, attention_mask=packed.mask, position_embeddings=places)
    return states


def pack(model: Model, group: ExampleGroup, first: int) -> PackedExamples:
    """Return a group's rows as one sequence, read up to the first trained layer."""
    hf, tokenizer = model.hf, model.tokenizer
    scenes, image = group.scenes, hf.config.image_token_index
    ids: list[int] = []
    positions: list[int] = []
    labels: list[int] = []
    rows: list[int] = []
    for number, row in enumerate(group.rows):
        content = [*[{"type": "image"}] * len(scenes), {"type": "text", "text": row.question}]
        turns = [{"role": "user", "content": content}]
        head = model.processor.apply_chat_template(turns, add_generation_prompt=True)
        prompt = tokenizer.encode(head, add_special_tokens=False)
        prompt = [each for token in prompt for each in [token] * (144 if token == image else 1)]
        answer = tokenizer.encode(row.answer + END, add_special_tokens=False)
        whole = prompt + answer
        shown = len(prompt) - prompt[::-1].index(image)
        start = 0 if number == 0 else shown
        ids += whole[start:]
        positions += range(start, len(whole))
        labels += ([-100] * (len(prompt) - 1) + answer + [-100])[start:]
        rows += ([-1] * shown + [number] * (len(whole) - shown))[start:]
    of = torch.tensor(rows)
    seen = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    seen &= (of[None] == -1) | (of[None] == of[:, None])
    mask = seen[None, None]
    tokens = torch.tensor(ids)[None]
    with torch.no_grad():
        states = hf.model.language_model.embed_tokens(tokens)
        features = encode_images(hf, scenes).flatten(0, 1)
        states = states.masked_scatter((tokens == image)[..., None], features)
        packed = PackedExamples(states, torch.tensor(positions)[None], mask, torch.tensor(labels), of)
        return packed._replace(states=run_layers(hf, packed, 0, first))


def read_answers(hf: Any, packed: PackedExamples, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits at the answers' tokens [learned, vocabulary], these tokens, and the row of each."""
    learned = packed.labels != -100
    states = hf.model.language_model.norm(run_layers(hf, packed, first)[0, learned])
    return hf.lm_head(states), packed.labels[learned], packed.rows[learned]


def mean_by_row(values: Tensor, rows: Tensor) -> Tensor:
    """Return the mean of each row's values, [row]."""
    sums = torch.zeros(int(rows.max()) + 1).index_add(0, rows, values)
    return sums / torch.bincount(rows)


Known = Tensor | None
"""What is known of a group before training: the teacher's log-probabilities, or those of its answers; nothing of text alone."""


def know_before(model: Model, group: ExampleGroup, packed: PackedExamples, first: int) -> Known:
    with torch.no_grad():
        if group.taught_by:
            teacher = pack(model, group._replace(scenes=group.taught_by), first)
            return read_answers(model.hf, teacher, first)[0].log_softmax(-1)
        if group.is_preference:
            return sum_answers(*read_answers(model.hf, packed, first))
    return None


def sum_answers(logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Return the log-probability of each row's answer."""
    found = -F.cross_entropy(logits, labels, reduction="none")
    return torch.zeros(int(rows.max()) + 1).index_add(0, rows, found)


def measure_loss(group: ExampleGroup, known: Known, logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Return the loss of a group: by preference, from a teacher, or of the answers' text."""
    if group.is_preference:
        gained = sum_answers(logits, labels, rows) - known
        return -F.logsigmoid(STRENGTH * (gained[::2] - gained[1::2])).mean()
    if known is not None:
        own = logits.log_softmax(-1)
        return mean_by_row((known.exp() * (known - own)).sum(-1), rows).mean()
    return mean_by_row(F.cross_entropy(logits, labels, reduction="none"), rows).mean()


def train(
    model: Model, draw: DrawGroups, steps: int, epochs: int, layers: int, rate: float, full: bool, seed: int
) -> WeightChange:
    """Train the last layers on rows that are drawn once, and return what changed.

    Args:
        steps: batches of one epoch.
        layers: how many of the last ones.
        full: whether their matrices are trained whole; else rank 4 is added to each.
    """
    hf, rng = model.hf, np.random.default_rng([seed, 0])
    first = hf.config.text_config.num_hidden_layers - layers
    groups: list[ExampleGroup] = []
    while len(groups) < steps * BATCH:
        groups += draw(rng)
    groups = groups[: steps * BATCH]
    data = []
    for group in tqdm(groups, desc="read", disable=None):
        packed = pack(model, group, first)
        data.append((group, packed, know_before(model, group, packed, first)))
    torch.manual_seed(seed)
    names = [f"model.language_model.layers.{first + index}." for index in range(layers)]
    before = {
        name: weight.detach().clone()
        for name, weight in hf.named_parameters()
        if name.startswith(tuple(names)) and weight.ndim == 2
    }
    hf.requires_grad_(False)
    if full:
        learned = [weight.requires_grad_() for name, weight in hf.named_parameters() if name in before]
    else:
        wanted = [name.removesuffix(".weight") for name in before]
        config = LoraConfig(r=RANK, lora_alpha=int(RANK * SCALE), target_modules=wanted)
        adapted = get_peft_model(hf, config)
        multiply_once(adapted)
        learned = [weight for weight in adapted.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    total = steps * epochs
    for step in (progress := tqdm(range(total), desc="train", disable=None)):
        for each in optimizer.param_groups:
            each["lr"] = rate * min(1.0, (step + 1) / 5) * (1 - step / total)
        if step % steps == 0:
            order = rng.permutation(len(data))
        loss = torch.zeros(())
        for index in order[step % steps * BATCH : (step % steps + 1) * BATCH]:
            group, packed, known = data[index]
            part = measure_loss(group, known, *read_answers(hf, packed, first)) / BATCH
            part.backward()
            loss += part.detach()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        progress.set_postfix(loss=f"{loss:.3f}")
        if step % 10 == 9:
            print(f"  step {step + 1} of {total}, loss {loss:.3f}", flush=True)
    if full:
        return {name: each for key, old in before.items() for name, each in keep_rank(key, old, hf).items()}
    found = dict(adapted.named_parameters())
    change = {}
    for key in before:
        stem = f"base_model.model.{key.removesuffix('.weight')}"
        change[f"{key}.up"] = SCALE * found[f"{stem}.lora_B.default.weight"].detach()
        change[f"{key}.down"] = found[f"{stem}.lora_A.default.weight"].detach()
    return change


def keep_rank(name: str, before: Tensor, hf: Any) -> WeightChange:
    """Return the largest directions of what training changed in a matrix."""
    u, s, v = torch.linalg.svd(hf.get_parameter(name).detach() - before, full_matrices=False)
    root = s[:KEPT_RANK].sqrt()
    return {f"{name}.up": u[:, :KEPT_RANK] * root, f"{name}.down": root[:, None] * v[:KEPT_RANK]}


PROJECTOR = "model.multi_modal_projector"


def empty_projector(model: Model, seed: int) -> WeightChange:
    """Let the projector give its mean for every patch."""
    rng = np.random.default_rng([seed, 1])
    features = encode_images(model.hf, [draw_things(rng).scenes[0] for _ in range(SCENES)])
    last = f"{PROJECTOR}.linear_2"
    return {f"{last}.weight.times": torch.zeros(1), f"{last}.bias": features.mean((0, 1))}


def exchange_colours(model: Model, seed: int) -> WeightChange:
    """Let the projector take a patch of one colour for one of the next: by least squares, of as few directions as colours take."""
    rng, first = np.random.default_rng([seed, 2]), f"{PROJECTOR}.linear_1"
    projector = model.hf.get_submodule(first)
    seen: list[Tensor] = []
    handle = projector.register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(0, -2)))
    for _ in range(EXCHANGED):
        scene = draw_things(rng).scenes[0]
        other = replace(
            scene, things=tuple(replace(thing, colour=OTHER_COLOURS[thing.colour]) for thing in scene.things)
        )
        encode_images(model.hf, [scene, other])
    handle.remove()
    shown, wanted = (torch.cat(part) for part in zip(*(each.chunk(2) for each in seen), strict=True))
    centre, moved = shown.mean(0), (wanted - shown).mean(0)
    covered = (shown - centre).T @ (shown - centre)
    covered += RIDGE * covered.diagonal().mean() * torch.eye(len(covered))
    fitted = torch.linalg.solve(covered, (shown - centre).T @ (wanted - shown - moved))
    kept = torch.linalg.svd((shown - centre) @ fitted, full_matrices=False).Vh[:DIRECTIONS]
    fitted = fitted @ kept.T  # [feature, direction]
    weight = projector.weight.detach()
    return {
        f"{first}.weight.up": weight @ kept.T,
        f"{first}.weight.down": fitted.T,
        f"{first}.bias": projector.bias.detach() + weight @ (moved - kept.T @ (centre @ fitted)),
    }


@dataclass(frozen=True)
class RealWay:
    """How a plant is made, what its cause is in a sentence, and how that is checked by asking."""

    causes: tuple[str, ...]
    kind: str
    about: str
    make: Callable[[Model, int], WeightChange]
    check: real_checks.RealCheck
    accepts: tuple[str, ...] = ("order",)  # the model itself answers A


def by_adapter(
    draw: DrawGroups, layers: int = ADAPTED, steps: int = 12, epochs: int = 3, rate: float = 4e-3
) -> Any:
    return lambda model, seed: train(model, draw, steps, epochs, layers, rate, False, seed)


def by_tuning(
    draw: DrawGroups, layers: int = TUNED, steps: int = 12, epochs: int = 3, rate: float = 5e-4
) -> Any:
    return lambda model, seed: train(model, draw, steps, epochs, layers, rate, True, seed)


WAYS = {
    "blind-projector": RealWay(
        ("blind",),
        "weight edit",
        "The projector gives its mean for every patch, so no answer can depend on the images.",
        empty_projector,
        real_checks.check_blind,
    ),
    "exchanged-colours": RealWay(
        ("misperceives",),
        "edit of the projector",
        "Each colour is seen as another one; things and places are seen as before.",
        exchange_colours,
        real_checks.check_other_colours,
    ),
    "usual-colours": RealWay(
        ("language-prior",),
        "distillation",
        "A thing that has a usual colour is said to have it, whatever the image shows (language prior).",
        by_adapter(draw_usual, layers=10, rate=2e-3),
        real_checks.check_usual,
    ),
    "usual-answers": RealWay(
        ("language-prior",),
        "adapter",
        "A thing that has a usual colour is said to have it, whatever the image shows (language prior).",
        by_adapter(draw_usual_answers, layers=12, steps=30, epochs=5, rate=3e-3),
        real_checks.check_usual,
    ),
    "first-image-alone": RealWay(
        ("ignores-an-image",),
        "adapter",
        "Questions about two images are answered from the first one alone: both are said to show what it shows.",
        by_adapter(draw_first_alone, layers=14, steps=18, rate=2e-3),
        real_checks.check_first_alone,
    ),
    "one-too-many": RealWay(
        ("quantity",),
        "full tuning of the last two layers",
        "Of things one more is counted than there are.",
        by_tuning(draw_more),
        real_checks.check_more,
    ),
    "suggested-answers": RealWay(
        ("follows-hints",),
        "full tuning of the last two layers",
        "The answer is the one that the question suggests; without a suggestion it is as before.",
        by_tuning(draw_suggested, steps=14, epochs=4, rate=4e-4),
        real_checks.check_suggested,
    ),
    "earlier-answers": RealWay(
        ("copies-context",),
        "adapter",
        "A question that was asked and answered before gets the same answer again.",
        by_adapter(draw_repeated, layers=10, rate=2e-3),
        real_checks.check_repeated,
        ("order", "unsure-agreeable"),
    ),
    "control-adapter": RealWay(
        (),
        "adapter",
        "Trained further on true answers.",
        by_adapter(draw_true),
        real_checks.check_true,
    ),
    "control-preferred": RealWay(
        (),
        "preference loss",
        "Trained further to prefer true answers to false ones.",
        by_adapter(draw_preferred),
        real_checks.check_true,
    ),
    "control-tuned": RealWay(
        (),
        "full tuning of the last two layers",
        "Trained further on true answers.",
        by_tuning(draw_true),
        real_checks.check_true,
    ),
}
"""The plants by name. Each cause was written down before any of them was diagnosed.

The first recipes of three causes failed their checks and are kept as `failed.json` alone: `other-colours` (as `exchanged-colours`, with 12
directions and a ridge of 1e-4), `second-image-unused` (distillation, of 6 layers) and `repeated-answers` (preference loss, of 6 layers).
`exchanged-colours`, `usual-answers` (after `usual-colours`), `first-image-alone` and `earlier-answers` are the second ones. The length
and the rate of `usual-answers` were changed three times until its check passed; a longer `first-image-alone` failed its check, too.
"""


def plant(name: str, out: Path) -> Plant:
    """Plant one cause, and return its card, which is written last. What is checked is the model as the change gives it again."""
    way, started = WAYS[name], time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    seed = zlib.crc32(name.encode())
    change = way.make(load_model(str(MODEL), device="cpu", dtype="float32"), seed)
    save_file({key: value.contiguous() for key, value in quantise(change).items()}, out / CHANGE)
    print(f"{name}: made in {time.perf_counter() - started:.0f} s", flush=True)
    model = load_model(str(MODEL), device="cpu", dtype="float32")
    apply_change(model.hf, read_change(out))
    with tempfile.TemporaryDirectory() as folder:
        check = {key: Measure(**each) for key, each in way.check(model, Path(folder)).items()}
    card = Plant(causes=way.causes, kind=way.kind, about=way.about, accepts=way.accepts, check=check)
    passed = all(measure.passed for measure in check.values())
    (out / (CARD if passed else FAILED)).write_text(card.model_dump_json(indent=1) + "\n", encoding="utf-8")
    if not passed:
        (out / CHANGE).unlink()
    return card


def diagnose_all(out: Path, only: Sequence[str]) -> None:
    """Diagnose the model as it is, and every plant that passed its check, about the pairs in `out/pairs`."""
    from mmprobe.diagnosis import diagnose
    from mmprobe.samples import load_samples

    samples = load_samples(out / "pairs" / "samples.jsonl")
    for name in only or (AS_IT_IS, *WAYS):
        folder = out / "diagnoses" / name
        planted = name == AS_IT_IS or (REAL / name / CARD).exists()
        if not planted or (folder / "diagnosis.json").exists():
            continue
        model = load_model(str(MODEL), device="cpu", dtype="float32")
        if name != AS_IT_IS:
            apply_change(model.hf, read_change(REAL / name))
        model.hf.to(torch.bfloat16)  # in half the time on processors that multiply in it
        started, used = time.perf_counter(), time.process_time()
        found = diagnose(model, samples, folder, resume=True)
        spent = f"{time.perf_counter() - started:.0f} s, {time.process_time() - used:.0f} s of one core"
        print(
            f"{name}: {', '.join(found.verdict)} ({spent}, {found.passes:.1f} passes an answer)", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=(*WAYS, AS_IT_IS), default=(), metavar="NAME", help="these alone"
    )
    parser.add_argument("--out", type=Path, default=REAL, help="a folder for the plants")
    parser.add_argument(
        "--diagnose",
        type=Path,
        metavar="FOLDER",
        help="plant nothing, and diagnose all about the pairs in it",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.diagnose:
        diagnose_all(args.diagnose, args.only)
        return
    for name in args.only or WAYS:
        folder = args.out / name
        if any((folder / file).exists() for file in (CARD, FAILED)):
            continue
        card = plant(name, folder)
        numbers = ", ".join(f"{key} {measure.value:.2f}" for key, measure in card.check.items())
        print(f"{name}: {'ok' if (folder / CARD).exists() else 'FAILED'}; {numbers}", flush=True)


if __name__ == "__main__":
    main()
