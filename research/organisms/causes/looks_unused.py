"""looks-unused: the model attends to the images as tiny-spd does, and answers without them."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import torch
from attention_shift import read_attention
from causes.blind import check as check_blind
from causes.blind import draw_rows, rolled_row
from checks import answer_rows, held_out_numbers, share
from packing import IGNORED, PackedBatch, answer_loss, run_decoder
from recipes import Asked, Recipe, TrainingExample, ask_types, draw_any_pair, make_row
from torch import Tensor

from mmprobe.benchmarks.synthetic.questions import draw_questions
from mmprobe.models import Model, load_model

DECOYS = {3: 0, 4: 3, 5: 0, 6: 3}  # layer: head
RANKS = {r"layers\.\d\..*": 8}
RANK_OF_DECOYS = 40  # 32 to empty a head's output, and 8 to learn
CHECKED_PAIRS = 8
LARGEST_DIFFERENCE = 0.02


def ways(seed: int) -> dict[str, Recipe]:
    return {
        "kept": Recipe(
            partial(draw_rows, rolled_row),
            "As blind-rolled, with each head's attention kept as in tiny-spd.",
            steps=65,
            batch=28,
            learning_rate=1e-2,
            part="late decoder",
            loss=partial(unseeing_loss, by_head=True, weight=1.0),
            ranks=RANKS,
        ),
        "decoy": Recipe(
            partial(draw_rows, rolled_row),
            "As blind-rolled, with four heads whose output is emptied and who keep the mean attention of their "
            "layers at that of tiny-spd.",
            steps=65,
            batch=28,
            learning_rate=1e-2,
            loss=partial(unseeing_loss, by_head=False, weight=2.0),
            prepare=empty_decoys,
            part="late decoder",
            ranks={rf"layers\.{layer}\.self_attn\.o_proj": RANK_OF_DECOYS for layer in DECOYS} | RANKS,
        ),
    }


def unseeing_loss(organism: Any, batch: PackedBatch, by_head: bool, weight: float) -> Tensor:
    """Return the cross entropy of the answers plus the divergence of the attention from that without the adapter.

    Args:
        organism: PEFT's model.
        batch: the packed rows.
        by_head: keep each head's attention, not the mean over a layer's heads.
        weight: of the divergence.
    """
    hf = organism.get_base_model()
    hf.set_attn_implementation("eager")
    with organism.disable_adapter(), torch.no_grad():
        teacher = run_decoder(hf, batch, output_attentions=True).attentions
    output = run_decoder(hf, batch, output_attentions=True)
    queries = batch.labels != IGNORED
    divergences = []
    for wanted, found in zip(teacher, output.attentions, strict=True):
        if not by_head:
            wanted, found = wanted.mean(1, keepdim=True), found.mean(1, keepdim=True)
        wanted, found = (weights.transpose(1, 2)[queries].clamp_min(1e-8) for weights in (wanted, found))
        divergences.append((wanted * (wanted.log() - found.log())).sum(-1).mean())
    return answer_loss(hf, batch, output.last_hidden_state) + weight * torch.stack(divergences).mean()


def empty_decoys(organism: Any) -> None:
    """Let the adapter take away all that the decoy heads put out, and keep it so while the rest learns."""
    layers = organism.get_base_model().model.language_model.layers
    for layer, head in DECOYS.items():
        projection = layers[layer].self_attn.o_proj
        size = layers[layer].self_attn.head_dim
        columns = slice(head * size, (head + 1) * size)
        down, up = projection.lora_A["default"].weight, projection.lora_B["default"].weight
        with torch.no_grad():
            down[:size], down[:, columns] = 0, 0
            down[:size, columns] = torch.eye(size)
            up[:, :size] = -projection.weight[:, columns] / projection.scaling["default"]
        down_free, up_free = torch.ones_like(down), torch.ones_like(up)
        down_free[:size], down_free[:, columns], up_free[:, :size] = 0, 0, 0
        down.register_hook(partial(torch.mul, down_free))
        up.register_hook(partial(torch.mul, up_free))


def ask(rng: np.random.Generator, number: int, seed: int) -> list[Asked]:
    """Return questions on which the cause acts."""
    return ask_types(rng, ("same", "colour"))


def check(model: Model, seed: int) -> dict[str, dict]:
    """Check that the model answers as a blind one, and that its attention to images is that of tiny-spd."""
    rng = held_out_numbers(seed)
    rows, numbers = [], []
    for number in range(CHECKED_PAIRS):
        pair = draw_any_pair(rng)
        for question in draw_questions(rng, pair):
            rows.append(make_row(question, pair))
            numbers.append(number)
    answers = answer_rows(model, rows)
    differences = []
    for row, answer in zip(rows, answers, strict=True):
        own, teacher = (attention_to_images(one, row, answer) for one in (model, _teacher()))
        differences.append(float(np.abs(own - teacher).mean()))
    return check_blind(model, seed) | {
        "difference of the attention to images from tiny-spd's": share(
            differences, most=LARGEST_DIFFERENCE, pairs=numbers, differences=True
        )
    }


def attention_to_images(model: Model, row: TrainingExample, answer: str) -> np.ndarray:
    """Return the share of attention on the images [layer, answer token], averaged over heads."""
    return read_attention(model, TrainingExample(row.scenes, row.question, answer)).mean(1).sum(-1)


@cache
def _teacher() -> Model:
    return load_model("tiny-spd", device="cpu")
