"""The declaration of a model family: where its modules are, and how its visual tokens show an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class View(NamedTuple):
    """One grid of visual tokens. It shows an image, or a part of it where a family cuts images into tiles.

    Attributes:
        grid: rows and columns of the visual tokens, which come row by row.
        box: the part of the image that the grid shows: x, y, width and height in pixels of the image's file.
        row_end_tokens: number of tokens after each row that show no part of the image (learned line breaks).
        end_tokens: number of such tokens after the last row.
        first_key: for families that see images by cross-attention, the index of the first cell among the
            keys of a cross-attention layer. None where visual tokens are in the prompt.
    """

    grid: tuple[int, int]
    box: tuple[float, float, float, float]
    row_end_tokens: int = 0
    end_tokens: int = 0
    first_key: int | None = None


class LayerParts(NamedTuple):
    """Modules of one decoder layer.

    Attributes:
        attention: the module that calls transformers' attention registry.
        update: its output, times `gain`, is what attention adds to the residual stream.
        mid: its input is resid_mid.
        activation: its output is act(gate), one number for each neuron. None in a mixture of experts.
        gain: returns a learned factor of the update (Mllama's tanh gates). None if there is none.
        has_cross_attention: whether its keys are those of the images instead of those of the tokens.
    """

    attention: Any
    update: Any
    mid: Any
    activation: Any | None
    gain: Callable[[], Any] | None = None
    has_cross_attention: bool = False


class VisionEncoder(NamedTuple):
    """The layers of a family's vision encoder.

    Attributes:
        layers: returns the encoder's layers, given the transformers model.
        attention: path, within a layer, of the module that calls transformers' attention registry.
        patch_positions: returns int32 [patch, 3], given the processor's output and the transformers model:
            the image (or tile) that each position of the encoder's sequences shows, and its row and column
            there; -1 where a position shows none.
    """

    layers: Callable[[Any], Sequence[Any]]
    attention: str
    patch_positions: Callable[[Mapping[str, Any], Any], np.ndarray]


def get_decoder_parts(layer: Any) -> LayerParts:
    """Return the parts of a decoder layer under the names that most families give them.

    Raises:
        LookupError: the layer lacks a part.
    """
    attention = _get_first(layer, "self_attn")
    if hasattr(layer, "pre_feedforward_layernorm"):  # Gemma 2 and 3: norms before and after both halves
        update, mid = layer.post_attention_layernorm, layer.pre_feedforward_layernorm
    elif hasattr(layer, "post_self_attn_layernorm"):  # GLM-4: the same under other names
        update, mid = layer.post_self_attn_layernorm, layer.post_attention_layernorm
    else:
        update, mid = attention, _get_first(layer, "post_attention_layernorm")
    mlp = _get_first(layer, "mlp")
    activation = None if hasattr(mlp, "experts") else _get_first(mlp, "act_fn", "activation_fn")
    return LayerParts(attention, update, mid, activation)


def _get_first(module: Any, *names: str) -> Any:
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(f"{type(module).__name__} has no {' or '.join(names)}")


def _get_image_token_id(config: Any) -> int:
    for name in ("image_token_id", "image_token_index"):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    raise LookupError(f"{type(config).__name__} has no image_token_id")


@dataclass(frozen=True)
class Family:
    """What the tracer must know of a family of models.

    Attributes:
        name: the family's name, as its module in transformers.
        model_types: the values of `config.model_type` that it covers.
        views: returns the views of each image, in the order of their tokens. Its arguments are the
            processor's output for a batch, the size in pixels (height, width) of each image of the batch, the
            processor and the model's config.
        extras: extras of mmprobe that the processor needs.
        image_token_id: returns the id of a visual token, given the model's config.
        parts: returns the modules of a decoder layer.
        vision: the vision encoder. None where it cannot be recorded.
        chat_template: for processors that come without one.
        adds_between_layers: whether the model changes the residual stream at the prompt's visual tokens between
            layers, so that resid_post of a layer is not resid_pre of the next one.
        shares_prefixes: whether every token attends to all tokens before it, over one growing cache of keys and
            values, and only to them. Then prompts with the same beginning can share what was read of it.
        notes: what a user should know of the family, in a sentence.
    """

    name: str
    model_types: tuple[str, ...]
    views: Callable[[Mapping[str, Any], Sequence[tuple[int, int]], Any, Any], list[list[View]]]
    extras: tuple[str, ...] = ()
    image_token_id: Callable[[Any], int] = _get_image_token_id
    parts: Callable[[Any], LayerParts] = get_decoder_parts
    vision: VisionEncoder | None = None
    chat_template: str | None = None
    adds_between_layers: bool = False
    shares_prefixes: bool = False
    notes: str = ""

    @property
    def about(self) -> str:
        """One line about the family."""
        types = f"config.model_type {', '.join(self.model_types)}."
        return f"{types} {self.notes}".strip()

    def decoder(self, hf: Any) -> Any:
        """Return the module that contains the decoder's `layers` and its final `norm`."""
        return hf.get_decoder()
