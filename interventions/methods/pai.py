"""PAI, pay attention to image: larger attention scores, and contrast with the question without images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.contrast import (
    ContrastPath,
    ContrastState,
    build_text_inputs,
    mask_implausible,
)
from mmprobe.interventions.registry import integer, number
from mmprobe.interventions.visual import TokenMask
from mmprobe.models.attention import AttentionBias, LastQuery


@dataclass(frozen=True)
class Pai(Method):
    """Attention scores e + alpha |e| on visual keys (equation 3), and logits gamma (s - u) + u (equation 6).

    The scores are changed for the query of each step. s and u are the log-probabilities with and without the
    images. The contrast path has no visual keys, so its attention is not changed. Tokens with
    s < max s + log(beta) are excluded, except if gamma is 1.

    Parameters:
        alpha: 0 to 10; the paper's 0.2 to 0.5, depending on the model.
        gamma: 1 to 10; the paper's 1.1. 1 runs without a contrast path.
        beta: 0 to 1; 0.1 as in the released code. 0 excludes no token.
        first_layer: 0 to 1000, the first layer whose attention is changed; 2 as in the released code.
    """

    name: ClassVar[str] = "pai"
    reference: ClassVar[str] = (
        "Liu et al., 2024, Paying more attention to image: a training-free method for alleviating hallucination in "
        "LVLMs, equations 3 and 6"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"alpha": 0, "gamma": 1}
    strong_parameters: ClassVar[Mapping[str, Any]] = {"alpha": 3, "gamma": 4, "beta": 0}
    needs_images: ClassVar[bool] = True
    needs_visual_tokens: ClassVar[bool] = True
    shares_prefix: ClassVar[bool] = True

    alpha: float = number(0.5, 0, 10)
    gamma: float = number(1.1, 1, 10)
    beta: float = number(0.1, 0, 1)
    first_layer: int = integer(2, 0, 1000)

    @property
    def neutral(self) -> bool:
        return self.alpha == 0 and self.gamma == 1

    @property
    def has_contrast_path(self) -> bool:
        return self.gamma > 1

    def create_state(self, context: MethodContext) -> MethodState:
        return _PaiState(self, context)

    def combine(self, main: Tensor, contrast: Tensor) -> Tensor:
        """Return new logits from the answer's and the contrast path's, [batch, vocabulary] (equation 6)."""
        with_images, text_only = main.log_softmax(-1), contrast.log_softmax(-1)
        combined = self.gamma * (with_images - text_only) + text_only
        return mask_implausible(combined, with_images, self.beta)


class _PaiState(ContrastState):
    """Biases the attention of visual keys, and contrasts the answer with the prompt without images."""

    def __init__(self, method: Pai, context: MethodContext):
        text_inputs = (
            build_text_inputs(context, method.name, "set gamma=1, which needs no such prompt")
            if method.gamma > 1
            else {}
        )
        super().__init__(lambda: ContrastPath(context.model, text_inputs), method.combine)
        self.method = method
        self.n_layers = context.model.n_layers
        self.step = 0
        self.visual = TokenMask(context.mask_tokens(lambda prompt: prompt.visual_positions))

    def attention_layers(self) -> Sequence[int]:
        return range(self.method.first_layer, self.n_layers) if self.method.alpha else ()

    def attention_bias(self, layer: int, last_query: LastQuery) -> AttentionBias:
        """Return alpha |e| on visual keys and 0 elsewhere (equation 3)."""
        visual = self.visual.align(last_query.key.shape[2], self.step)[:, None, None]
        return AttentionBias(torch.where(visual, self.method.alpha * last_query.scores.abs(), 0.0))

    def change_logits(self, generated: Tensor, logits: Tensor) -> Tensor:
        self.step += 1
        return logits if self.method.gamma == 1 else super().change_logits(generated, logits)
