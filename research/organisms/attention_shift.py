"""How far a model's attention moves within the images when these are others, while question and answer stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from checks import answer_rows, held_out_numbers
from packing import IGNORED, pack, run_decoder
from recipes import TrainingExample, draw_any_pair, make_row
from tiny_spd_data import Encoder

from mmprobe.benchmarks.synthetic.questions import draw_questions
from mmprobe.models import Model, load_model

SHIFTING_HEADS = 0.1  # the share of heads that count: those that shift most
CHECKED_PAIRS = 6


def read_attention(model: Model, row: TrainingExample) -> np.ndarray:
    """Return each head's attention to the images [layer, head, answer token, visual token]."""
    batch = pack([row], Encoder(model.tokenizer))
    earlier = model.hf.config._attn_implementation
    model.hf.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            maps = run_decoder(model.hf, batch, output_attentions=True).attentions
    finally:
        model.hf.set_attn_implementation(earlier)
    visual, queries = batch.ids[0] == model.hf.config.image_token_id, batch.labels[0] != IGNORED
    return torch.stack([layer[0][:, queries][..., visual] for layer in maps]).numpy()


def attention_within_images(model: Model, row: TrainingExample) -> np.ndarray:
    """Return where each head looks within the images [layer, head, answer token, visual token], which adds up to 1."""
    within = read_attention(model, row)
    return within / within.sum(-1, keepdims=True).clip(1e-12)


def shift_of_heads(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the mean total variation distance of two maps over answer tokens [layer, head]: 0 equal, 1 without overlap.

    Example:
        >>> shift_of_heads(np.array([[[[0.5, 0.5]]]]), np.array([[[[0.0, 1.0]]]]))
        array([[0.5]])
    """
    return np.abs(own - other).sum(-1).mean(-1) / 2


def shift_most(shifts: np.ndarray) -> np.ndarray:
    """Return the shift of each row [row] over the heads that shift most over all rows.

    Args:
        shifts: of the heads of each row [row, layer, head].
    """
    flat = shifts.reshape(len(shifts), -1)
    most = np.argsort(-flat.mean(0), kind="stable")[: math.ceil(SHIFTING_HEADS * flat.shape[1])]
    return flat[:, most].mean(1)


def measure_shift(
    model: Model, rows: Sequence[TrainingExample], others: Sequence[TrainingExample]
) -> np.ndarray:
    """Return how far the attention shifts from rows to the same with other images, over the heads that shift most [row]."""
    return shift_most(
        np.stack(
            [
                shift_of_heads(attention_within_images(model, row), attention_within_images(model, other))
                for row, other in zip(rows, others, strict=True)
            ]
        )
    )


def draw_exchanged(model: Model, seed: int) -> tuple[list[TrainingExample], list[TrainingExample], list[int]]:
    """Return questions with the model's answers, the same about other images, and the number of each one's pair."""
    rng = held_out_numbers(seed)
    pairs = [draw_any_pair(rng) for _ in range(CHECKED_PAIRS)]
    asked = [
        (number, question) for number, pair in enumerate(pairs) for question in draw_questions(rng, pair)
    ]
    rows = [make_row(question, pairs[number], answer="") for number, question in asked]
    answers = answer_rows(model, rows)
    own, others = (
        [
            make_row(question, shown[number], answer=answer)
            for (number, question), answer in zip(asked, answers, strict=True)
        ]
        for shown in (pairs, [*pairs[1:], pairs[0]])
    )
    return own, others, [number for number, _ in asked]


@cache
def unchanged(name: str) -> Model:
    """Return the model before it was changed."""
    return load_model(name, device="cpu")
