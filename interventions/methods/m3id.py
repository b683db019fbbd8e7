"""M3ID, multi-modal mutual information decoding: a contrast with the question without images that grows with the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from mmprobe.interventions.registry import number


@dataclass(frozen=True)
class M3id(Method):
    """Log-probabilities s + (1 - g) / g (s - u) with g = exp(-decay t) (equation 5), where s and u are those with and without the images.

    t is the number of tokens said before, so the first token is the model's own. The change is left out where the model is
    certain: where its most likely token has a probability of `certain` or more. Tokens with s < max s + log(beta) are
    excluded, as in the implementations that later papers compare with; the paper has no such bound.

    Parameters:
        decay: 0 to 1, lambda; the paper's 0.02. 0 changes nothing and excludes no token.
        certain: 0 to 1, alpha of the paper; 1, as in the implementations that later papers compare with, changes every step.
        beta: 0 to 1; 0.1 as in those. 0 excludes no token.
    """

    name: ClassVar[str] = "m3id"
    reference: ClassVar[str] = (
        "Favero et al., 2024, Multi-modal hallucination control by visual information grounding, equation 5"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"decay": 0}
    strong_parameters: ClassVar[Mapping[str, Any]] = {"decay": 1, "beta": 0.9}
    needs_images: ClassVar[bool] = True
    shares_prefix: ClassVar[bool] = True
    has_contrast_path: ClassVar[bool] = True

    decay: float = number(0.02, 0, 1)
    certain: float = number(1.0, 0, 1)
    beta: float = number(0.1, 0, 1)

    @property
    def neutral(self) -> bool:
        return self.decay == 0

    def create_state(self, context: MethodContext) -> MethodState:
        inputs = build_text_inputs(context, self.name)
        state = ContrastState(
            lambda: ContrastPath(context.model, inputs),
            lambda main, contrast: self.combine(main, contrast, len(state.changed)),
        )
        return state

    def combine(self, main: Tensor, contrast: Tensor, step: int) -> Tensor:
        """Return new logits from the answer's and the contrast path's, [batch, vocabulary] (equation 5).

        Args:
            step: number of tokens said before.
        """
        with_images, text_only = main.log_softmax(-1), contrast.log_softmax(-1)
        weight = math.expm1(self.decay * step)  # (1 - g) / g
        combined = with_images + weight * (with_images - text_only)
        uncertain = with_images.amax(-1, keepdim=True) < (
            math.log(self.certain) if self.certain else -math.inf
        )
        if self.certain == 1:
            uncertain = torch.ones_like(uncertain)
        return torch.where(uncertain, mask_implausible(combined, with_images, self.beta), with_images)
