"""The embedded models that `train_tiny_spd.py` trains: what of each differs from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tiny_llava_model
import tiny_spd_model
from torch import Tensor, nn


@dataclass(frozen=True)
class Base:
    """One embedded model.

    Attributes:
        build: returns the model before training, for a tokenizer.
        processor: returns its processor, for a tokenizer.
        pixels: returns its tower's input, for images uint8 [image, 112, 112, 3].
        encode_images: returns features [image, 16, hidden], for the model and images uint8 [image, 112, 112, 3].
        tower: returns the parts of the model between pixels and features.
        teacher: name of the base whose features and hidden states it learns to give at first; None if there is none.
        taught_layers: for each decoder layer, the teacher's layer whose output its own is compared with.
        frozen_tower: whether the tower stays as it is while the decoder learns to answer.
        mrope: whether tokens have mRoPE positions, of time, height and width; else they are numbered.
    """

    build: Callable[[Any], Any]
    processor: Callable[[Any], Any]
    pixels: Callable[[Tensor], Tensor]
    encode_images: Callable[[Any, Tensor], Tensor]
    tower: Callable[[Any], nn.ModuleList]
    teacher: str | None
    taught_layers: tuple[int, ...]
    frozen_tower: bool
    mrope: bool


BASES = {
    "tiny-spd": Base(
        build=tiny_spd_model.build_model,
        processor=tiny_spd_model.processor,
        pixels=tiny_spd_model.pixels,
        encode_images=tiny_spd_model.encode_images,
        tower=lambda model: nn.ModuleList([model.model.visual]),
        teacher=None,
        taught_layers=(),
        frozen_tower=True,
        mrope=True,
    ),
    "tiny-llava": Base(
        build=tiny_llava_model.build_model,
        processor=tiny_llava_model.processor,
        pixels=tiny_llava_model.pixels,
        encode_images=tiny_llava_model.encode_images,
        tower=lambda model: nn.ModuleList([model.model.vision_tower, model.model.multi_modal_projector]),
        teacher="tiny-spd",
        taught_layers=tiny_llava_model.TAUGHT_LAYERS,
        frozen_tower=False,
        mrope=False,
    ),
}


def find_base(hf: Any) -> Base:
    """Return the base that a transformers model is built like."""
    return BASES["tiny-llava" if hf.config.model_type == "llava" else "tiny-spd"]
