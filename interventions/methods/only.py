"""ONLY: contrast with one layer of the model whose heads look at text, read out at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.contrast import list_changed_steps, mask_implausible
from mmprobe.interventions.registry import integer, number
from mmprobe.interventions.visual import TokenMask
from mmprobe.models import Model
from mmprobe.models.attention import LastQuery
from mmprobe.models.hooks import hooks_disabled
from mmprobe.models.points import Observers

KEPT_STREAM, KEPT_STATE = 0.2, 0.5  # of the last layer's input and of the final state, in the released code
PARTS = ("input_layernorm", "post_attention_layernorm", "mlp")


@dataclass(frozen=True)
class Only(Method):
    """Logits z + agree z' where z and z' are close, and (1 + differ) z - differ z' where they are not.

    z' is of one layer whose attention is changed: of each head's weights on text and on images, those above mean + standard deviation are
    0, and heads whose ratio of the entropy over text to that over images is below the mean of all heads are left out. The layer's output
    goes through the last layer's FFN and the unembedding at once, as in the released code: with 0.2 of the last layer's
    input and 0.5 of the final state. The distance is the sum of |p - p'|. Tokens with z < max z + log(beta) are excluded.

    Parameters:
        agree: 0 to 10, alpha 1; the paper's 3.
        differ: 0 to 10, alpha 2; the paper's 1. With both 0 nothing changes and no token is excluded.
        distance: 0 to 2, gamma; 0.2 as in the released code for POPE.
        beta: 0 to 1; 0.1 as in the released code. 0 excludes no token.
        layer: 0 to 1000, the layer whose attention is changed; the released code's 0.
    """

    name: ClassVar[str] = "only"
    reference: ClassVar[str] = (
        "Wan et al., 2025, ONLY: one-layer intervention sufficiently mitigates hallucinations in large vision-language models"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"agree": 0, "differ": 0}
    strong_parameters: ClassVar[Mapping[str, Any]] = {"agree": 5, "differ": 5, "beta": 0}
    needs_images: ClassVar[bool] = True
    needs_visual_tokens: ClassVar[bool] = True
    shares_prefix: ClassVar[bool] = True

    agree: float = number(3.0, 0, 10)
    differ: float = number(1.0, 0, 10)
    distance: float = number(0.2, 0, 2)
    beta: float = number(0.1, 0, 1)
    layer: int = integer(0, 0, 1000)

    @property
    def neutral(self) -> bool:
        return self.agree == 0 and self.differ == 0

    def check_model(self, model: Model) -> None:
        if self.neutral:
            return
        layers = model.family.decoder(model.hf).layers
        if self.layer >= len(layers):
            raise InputError(f"method only: layer {self.layer}: the model has {len(layers)} layers")
        attention = model.family.parts(layers[self.layer]).attention
        if not all(hasattr(layers[-1], part) for part in PARTS) or not hasattr(attention, "o_proj"):
            raise InputError(
                f"method only: layers of {model.family.name} have other parts than those of Llama; choose another method"
            )

    def create_state(self, context: MethodContext) -> MethodState:
        return _OnlyState(self, context)

    def combine(self, main: Tensor, other: Tensor) -> Tensor:
        """Return new logits from the answer's and the layer's, [batch, vocabulary]."""
        apart = (main.softmax(-1) - other.softmax(-1)).abs().sum(-1, keepdim=True)
        combined = torch.where(
            apart < self.distance, main + self.agree * other, (1 + self.differ) * main - self.differ * other
        )
        return mask_implausible(combined, main, self.beta)


class _OnlyState(MethodState):
    """The changed output of one layer, and what the last layer reads and returns, at each step's query."""

    def __init__(self, method: Only, context: MethodContext):
        self.method, self.model = method, context.model
        layers = context.model.family.decoder(context.model.hf).layers
        self.last, self.n_layers = layers[-1], len(layers)
        self.attention = context.model.family.parts(layers[method.layer]).attention
        self.step = 0
        self.visual = TokenMask(context.mask_tokens(lambda prompt: prompt.visual_positions))
        self.other = TokenMask(~context.mask_tokens(lambda prompt: np.arange(1, len(prompt.ids))))
        self.heads = self.stream = self.final = torch.empty(0)
        self.changed: list[Tensor] = []

    def attention_layers(self) -> Sequence[int]:
        return (self.method.layer,)

    def attention_bias(self, layer: int, last_query: LastQuery) -> None:
        """Keep the heads' outputs with changed weights, [batch, head, dim]; the attention itself stays."""
        n_keys, value = last_query.key.shape[2], last_query.value
        assert value is not None
        visual, other = (each.align(n_keys, self.step).clone() for each in (self.visual, self.other))
        weights = change_weights(last_query.weights()[:, :, 0], visual, ~visual & ~other)
        value = value.float().repeat_interleave(weights.shape[1] // value.shape[1], 1)
        self.heads = (weights[:, :, None] @ value)[:, :, 0]

    def observers(self) -> Observers:
        return {("residual", self.n_layers - 1): self._keep_stream, ("normed", -1): self._keep_final}

    def _keep_stream(self, stream: Tensor) -> None:
        self.stream = stream[:, -1]

    def _keep_final(self, states: Tensor) -> None:
        self.final = states[:, -1]

    def change_logits(self, generated: Tensor, logits: Tensor) -> Tensor:
        self.step += 1
        with hooks_disabled():
            output = self.attention.o_proj(self.heads.flatten(1).to(self.stream.dtype))
            mid = KEPT_STREAM * self.stream + self.last.input_layernorm(output)
            post = mid + self.last.mlp(self.last.post_attention_layernorm(mid))
            state = self.model.family.final_norm(self.model.hf)(post) + KEPT_STATE * self.final
            other = self.model.hf.get_output_embeddings()(state).to(logits)
        combined = self.method.combine(logits, other)
        self.changed.append(combined.argmax(-1) != logits.argmax(-1))
        return combined

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        """Return `changed`: the steps at which the most likely token became another."""
        return {"changed": list_changed_steps(self.changed[:n_steps], row)}


def change_weights(weights: Tensor, visual: Tensor, text: Tensor) -> Tensor:
    """Return a query's weights without the largest on text and images, and without the heads that favour images.

    Args:
        weights: [batch, head, key].
        visual, text: bool [batch, key], which keys are of images and of text. Others stay as they are.

    Example:
        >>> weights = torch.tensor([[[0.0, 0.2, 0.2, 0.3, 0.3], [0.0, 0.5, 0.0, 0.25, 0.25]]])
        >>> keys = torch.tensor([[False, True, True, False, False]])
        >>> text = torch.tensor([[False, False, False, True, True]])
        >>> change_weights(weights, text, keys)[0].tolist()[1]
        [0.0, 0.0, 0.0, 0.0, 0.0]
    """
    changed, ratios = weights.clone(), []
    for row in range(len(weights)):
        entropies = []
        for keys in (text[row], visual[row]):
            own = weights[row][:, keys]
            own = own.masked_fill(own > own.mean(-1, keepdim=True) + own.std(-1, keepdim=True), 0.0)
            changed[row][:, keys] = own
            shares = own / own.sum(-1, keepdim=True)
            entropies.append(-(shares * (shares + 1e-6).log()).sum(-1))
        of_text, of_images = entropies[0].nan_to_num(0.0), entropies[1].nan_to_num(torch.inf)
        ratios.append(of_text / of_images)
    ratio = torch.stack(ratios)
    return changed.masked_fill((ratio < ratio.mean(-1, keepdim=True))[..., None], 0.0)
