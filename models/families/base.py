"""What the tracer must know of a family of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """A declaration: where the decoder's parts are, and how an image becomes tokens.

    Attributes:
        name: the family's name, as its module in transformers.
        model_types: values of `config.model_type` that it covers.
        architecture: the class in transformers that loads it.
        needs: extras of mmprobe that its processor needs.
        image_token_id: the id of a visual token, from the model's config.
        image_grids: the merged patch grid (height, width) of each image, from the processor's
            output and the config; visual tokens are row-major on it.
        decoder: the module that holds `layers` and `norm`.
        attention: path of the attention module within a layer; it calls transformers' attention registry.
        mid: path of the module within a layer whose input is resid_mid.
        ffn_activation: path of the module within a layer whose output is SiLU(gate).
        ffn_width: number of gate neurons of a layer, from the config.
    """

    name: str
    model_types: tuple[str, ...]
    architecture: str
    needs: tuple[str, ...]
    image_token_id: Callable[[Any], int]
    image_grids: Callable[[Mapping[str, Any], Any], list[tuple[int, int]]]
    decoder: Callable[[Any], Any]
    attention: str = "self_attn"
    mid: str = "post_attention_layernorm"
    ffn_activation: str = "mlp.act_fn"
    ffn_width: Callable[[Any], int] = lambda config: config.get_text_config().intermediate_size
