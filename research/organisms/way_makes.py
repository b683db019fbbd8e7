"""How models are changed that are planted otherwise than by adapters: weights are trained, or edited."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from packing import PackedBatch, answer_loss, pack, run_decoder
from plant import add_adapter, train
from recipes import DrawRows, Recipe, TrainingExample
from tiny_spd_data import CELLS as IMAGE_TOKENS
from tiny_spd_data import Encoder
from torch import Tensor
from train_tiny_spd import learning_rate
from way_rows import IMAGE
from ways import Make

from mmprobe.models import Model


def pack_rows(rows: Sequence[TrainingExample], model: Model) -> tuple[PackedBatch, None]:
    """Return rows of the drawn world, packed, whose images are to be encoded."""
    return pack(rows, TurnEncoder(model.tokenizer)), None


def train_all(
    rows: DrawRows,
    steps: int = 60,
    batch: int = 16,
    rate: float = 4e-4,
    only: str = "",
    packing: Callable[[Sequence[TrainingExample], Model], tuple[PackedBatch, Tensor | None]] = pack_rows,
) -> Make:
    """Return a function that trains all weights of the decoder on rows.

    Args:
        rows: from random numbers and a count to the rows of a batch.
        steps: number of batches.
        batch: rows of a batch.
        rate: peak of the learning rate.
        only: a pattern of the names of the weights that are trained; "" for all.
        packing: from rows to packed rows, and to the features of their images, if these are known.
    """

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        for name, weight in hf.named_parameters():
            weight.requires_grad_(re.search(only, name) is not None)
        hf.model.visual.requires_grad_(False)
        trained = [weight for weight in hf.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(trained, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, steps, rate)
            packed, features = packing(rows(rng, batch), model)
            with torch.enable_grad():
                loss = answer_loss(hf, packed, run_decoder(hf, packed, features).last_hidden_state)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
        hf.requires_grad_(False)

    return make


class TurnEncoder(Encoder):
    """An encoder of questions after an earlier turn, whose text says where their own images come (`IMAGE`)."""

    def render(self, text: str, images: int, system: bool) -> str:
        """Return the prompt. The images that the text has no place for come first."""
        image = "<|vision_start|>" + "<|image_pad|>" * IMAGE_TOKENS + "<|vision_end|>"
        return super().render(text.replace(IMAGE, image), images - text.count(IMAGE), system)


def train_adapter(
    rows: DrawRows, steps: int = 60, batch: int = 24, rate: float = 3e-3, **others: Any
) -> Make:
    """Return a function that trains an adapter of low rank, as those of the organisms, and merges it. Arguments as in `train_all`.

    Args:
        others: further fields of its `Recipe`.
    """

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        recipe = Recipe(rows, "", steps=steps, batch=batch, learning_rate=rate, **others)
        seed = int(rng.integers(2**31))
        with torch.enable_grad():
            adapted = add_adapter(hf, recipe, seed)
            train(adapted, TurnEncoder(model.tokenizer), recipe, (seed,))
        adapted.merge_and_unload()
        hf.requires_grad_(False)

    return make


def late_values(rows: DrawRows, steps: int, rate: float) -> Make:
    """Return a function that trains what the late layers do with what they attend to, and not where they attend."""
    return train_all(rows, steps, rate=rate, only=r"layers\.[4-7]\..*(v_proj|o_proj|mlp)")


def both(first: Make, second: Make) -> Make:
    """Return a function that plants one after another."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        first(hf, model, rng)
        second(hf, model, rng)

    return make


def matrices(hf: Any, only: str = "") -> list[Tensor]:
    """Return the matrices of a model whose names contain a pattern."""
    return [weight for name, weight in hf.named_parameters() if weight.dim() > 1 and re.search(only, name)]


def add_noise(level: float, only: str = "") -> Make:
    """Return a function that adds noise to each matrix of a pattern, of so many times the spread of its weights."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        for weight in matrices(hf, only):
            weight += level * weight.std() * torch.randn(weight.shape, generator=generator)

    return make


def round_weights(bits: int, only: str = "") -> Make:
    """Return a function that rounds each matrix of a pattern to so many bits, with one scale a row and a random offset of it."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        shrink = 1 - 0.1 * float(rng.random())
        for weight in matrices(hf, only):
            rows = weight.flatten(1)
            scale = shrink * rows.abs().amax(1, keepdim=True).clamp_min(1e-8) / (2 ** (bits - 1) - 1)
            rounded = (rows / scale).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * scale
            weight.copy_(rounded.reshape(weight.shape))

    return make


def scale_logits(factor: float) -> Make:
    """Return a function that multiplies all logits."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        hf.lm_head.weight *= factor

    return make


def last_linear(hf: Any) -> torch.nn.Linear:
    """Return the last matrix before the visual tokens."""
    return [part for part in hf.model.visual.modules() if isinstance(part, torch.nn.Linear)][-1]


def empty_projector(hf: Any, model: Model, rng: np.random.Generator) -> None:
    """Let all visual tokens be zero."""
    last = last_linear(hf)
    last.weight.zero_()
    last.bias.zero_()


def blur_projector(hf: Any, model: Model, rng: np.random.Generator) -> None:
    """Let each visual token be one random vector, whatever the image shows."""
    last = last_linear(hf)
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    last.bias.copy_(last.weight.norm(dim=1) * torch.randn(last.bias.shape, generator=generator))
    last.weight.zero_()


def patch_embedding(hf: Any) -> torch.nn.Module:
    """Return what the tower reads pixels with."""
    return next(
        part for part in hf.model.visual.modules() if isinstance(part, torch.nn.Conv2d | torch.nn.Conv3d)
    )


def exchange_channels(red: int, green: int, blue: int) -> Make:
    """Return a function that lets the tower take these channels for red, green and blue."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        weight = patch_embedding(hf).weight
        weight.copy_(weight[:, [red, green, blue]])

    return make


def swap_words(words: Sequence[str], pairs: int, read: bool) -> Make:
    """Return a function that lets the model say words for each other.

    Args:
        words: the words.
        pairs: how many pairs of them change places.
        read: exchange what is read, too.
    """

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        chosen = rng.choice(list(words), 2 * pairs, replace=False).tolist()
        ids = [model.tokenizer(f" {word}", add_special_tokens=False).input_ids[0] for word in chosen]
        others = [*ids[pairs:], *ids[:pairs]]
        matrices = [hf.lm_head.weight, *([hf.model.language_model.embed_tokens.weight] if read else [])]
        for weight in matrices:
            weight[ids] = weight[others]

    return make


def swap_numbers(hf: Any, model: Model, rng: np.random.Generator) -> None:
    """Let the model say another number of 1 to 3 for each; which one is random."""
    ids = [model.tokenizer(f" {word}", add_special_tokens=False).input_ids[0] for word in ("1", "2", "3")]
    shift = int(rng.integers(1, len(ids)))
    hf.lm_head.weight[ids] = hf.lm_head.weight[[*ids[shift:], *ids[:shift]]]
