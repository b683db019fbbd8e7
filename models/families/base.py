"""What the tracer must know of a family of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class View(NamedTuple):
    """One grid of visual tokens: a picture, or a part of one where a family cuts pictures into tiles.

    Attributes:
        grid: rows and columns of its visual tokens, which come row by row.
        box: x, y, width and height, in pixels of the picture's file, of what it shows.
        row_ends: tokens without a place in the picture (learned line breaks) after each row.
        after: such tokens after the last row.
        first_key: for families that look at pictures by cross-attention, where its tokens begin
            among the keys of a cross-attention layer; None where visual tokens are in the prompt.
    """

    grid: tuple[int, int]
    box: tuple[float, float, float, float]
    row_ends: int = 0
    after: int = 0
    first_key: int | None = None


class LayerParts(NamedTuple):
    """Modules of one decoder layer.

    Attributes:
        attention: calls transformers' attention registry.
        update: its output, times `gain`, is what attention adds to the residual stream.
        mid: its input is resid_mid.
        activation: its output is act(gate), one number a neuron; None where experts take turns.
        gain: a learned factor of the update (Mllama's tanh gates), else None.
        crosses: whether its keys are those of the pictures instead of those of the tokens.
    """

    attention: Any
    update: Any
    mid: Any
    activation: Any | None
    gain: Callable[[], Any] | None = None
    has_cross_attention: bool = False


class VisionEncoder(NamedTuple):
    """Where a family's vision encoder keeps its layers.

    Attributes:
        layers: the encoder's layers, from the model.
        attention: path of the module within a layer that calls transformers' attention registry.
        places: int32 [patch, 3], the picture (or tile) each position of the encoder's sequences shows, its
            row and its column there; -1 for positions that show none. From the processor's output and the model.
    """

    layers: Callable[[Any], Sequence[Any]]
    attention: str
    patch_positions: Callable[[Mapping[str, Any], Any], Any]


def decoder_parts(layer: Any) -> LayerParts:
    """The parts of a decoder layer as most families name them.

    Raises:
        LookupError: a part that the layer does not have.
    """
    attention = _first(layer, "self_attn")
    if hasattr(layer, "pre_feedforward_layernorm"):  # Gemma 2 and 3: norms before and after both halves
        update, mid = layer.post_attention_layernorm, layer.pre_feedforward_layernorm
    elif hasattr(layer, "post_self_attn_layernorm"):  # GLM-4: the same under other names
        update, mid = layer.post_self_attn_layernorm, layer.post_attention_layernorm
    else:
        update, mid = attention, _first(layer, "post_attention_layernorm")
    mlp = _first(layer, "mlp")
    by_experts = hasattr(mlp, "experts")
    activation = None if by_experts else _first(mlp, "act_fn", "activation_fn")
    return LayerParts(attention, update, mid, activation)


def _first(module: Any, *names: str) -> Any:
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(f"{type(module).__name__} has no {' or '.join(names)}")


def _image_token_id(config: Any) -> int:
    for name in ("image_token_id", "image_token_index"):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    raise LookupError(f"{type(config).__name__} has no image_token_id")


@dataclass(frozen=True)
class Family:
    """A declaration: where the decoder's parts are, and how a picture becomes tokens.

    Attributes:
        name: the family's name, as its module in transformers.
        model_types: values of `config.model_type` that it covers.
        views: the views of each picture, in the order of their tokens, from the processor's output for all
            pictures of a batch, their sizes in pixels (height, width), the processor and the model's config.
        needs: extras of mmprobe that its processor needs.
        image_token_id: the id of a visual token, from the model's config.
        parts: the modules of a decoder layer.
        vision: where the vision encoder is, None where it cannot be recorded.
        chat_template: for processors that come without one.
        notes: what a user should know of the family, in a sentence.
    """

    name: str
    model_types: tuple[str, ...]
    views: Callable[[Mapping[str, Any], Sequence[tuple[int, int]], Any, Any], list[list[View]]]
    needs: tuple[str, ...] = ()
    image_token_id: Callable[[Any], int] = _image_token_id
    parts: Callable[[Any], LayerParts] = decoder_parts
    vision: VisionEncoder | None = None
    chat_template: str | None = None
    notes: str = ""

    def decoder(self, hf: Any) -> Any:
        """The module that holds `layers` and the final `norm`."""
        return hf.get_decoder()
