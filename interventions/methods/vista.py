"""VISTA, visual information steering with token-logit augmentation: what images add to the stream, added again at every token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.contrast import build_text_inputs, find_rope_modules, restore_rope_deltas
from mmprobe.interventions.registry import number
from mmprobe.models import Model
from mmprobe.models.hooks import hooks_disabled
from mmprobe.models.points import Changes


@dataclass(frozen=True)
class Vista(Method):
    """Visual steering of each FFN's output, and logits (1 - mix) z + mix z', where z' are those of earlier layers.

    The steering vector v of a layer is its output at the prompt's last token with the images, minus that without them. A layer's
    FFN output x becomes |x| norm(norm(x) + strength s norm(v)), where s = 1 + max(0, cos(x, -v)), at all tokens. z' is
    the mean over some layers of the unembedding of their output, without the final norm, as in the released code. The defaults
    are those of LLaVA-1.5: a model of 135M whose late states are long says nonsense with either, so look at answers first.

    Parameters:
        strength: 0 to 10, lambda; 0.17, as the released code has it for captions of LLaVA-1.5. The paper chooses it by model.
        mix: 0 to 1, gamma; the paper's 0.3.
        first: 0 to 1, the first layer of z' as a share of the depth; layer 25 of 32 as in the released code.
        last: 0 to 1, the last one; layer 30 of 32.
    """

    name: ClassVar[str] = "vista"
    reference: ClassVar[str] = (
        "Li et al., 2025, The hidden life of tokens: reducing hallucination of large vision-language models via visual "
        "information steering"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"strength": 0, "mix": 0}
    strong_parameters: ClassVar[Mapping[str, Any]] = {"strength": 2, "mix": 0.5}
    needs_images: ClassVar[bool] = True

    strength: float = number(0.17, 0, 10)
    mix: float = number(0.3, 0, 1)
    first: float = number(0.81, 0, 1)
    last: float = number(0.97, 0, 1)

    @property
    def neutral(self) -> bool:
        return self.strength == 0 and self.mix == 0

    def layers(self, count: int) -> range:
        """Return the layers whose output is read early, of a model with so many.

        Example:
            >>> Vista().layers(32)
            range(25, 31)
        """
        first = min(int(self.first * count), count - 1)
        return range(first, max(first, min(int(self.last * count) - 1, count - 1)) + 1)

    def create_state(self, context: MethodContext) -> MethodState:
        return _VistaState(self, context)


class _VistaState(MethodState):
    """The steering vectors of a batch, and the newest output of the layers that are read early."""

    def __init__(self, method: Vista, context: MethodContext):
        self.method, self.model = method, context.model
        self.early: dict[int, Tensor] = {}
        self.vectors: list[Tensor] = []
        if method.strength:
            texts = build_text_inputs(context, method.name, "set strength=0, which needs no such prompt")
            with_images, without = (
                _read_last_tokens(context.model, inputs) for inputs in (context.batch.inputs, texts)
            )
            self.vectors = [own - other for own, other in zip(with_images, without, strict=True)]

    def changes(self) -> Changes:
        changes: dict[tuple[str, int], Any] = {
            ("ffn", layer): partial(steer, vector=vector[:, None], strength=self.method.strength)
            for layer, vector in enumerate(self.vectors)
        }
        early = self.method.layers(self.model.n_layers) if self.method.mix else ()
        return changes | {("resid_post", layer): partial(self._keep, layer) for layer in early}

    def _keep(self, layer: int, stream: Tensor) -> Tensor:
        self.early[layer] = stream[:, -1]
        return stream

    def change_logits(self, generated: Tensor, logits: Tensor) -> Tensor:
        if not self.method.mix:
            return logits
        unembedding = self.model.hf.get_output_embeddings()
        with hooks_disabled():
            early = [unembedding(stream).to(logits) for stream in self.early.values()]
        return (1 - self.method.mix) * logits + self.method.mix * torch.stack(early).mean(0)


def steer(values: Tensor, vector: Tensor, strength: float) -> Tensor:
    """Return values [row, position, hidden] turned towards a vector [row, 1, hidden], with their norms.

    Example:
        >>> steer(torch.tensor([[[3.0, 0.0]]]), torch.tensor([[[0.0, 2.0]]]), 1.0)
        tensor([[[2.1213, 2.1213]]])
    """
    own, direction = values.float(), vector.float().to(values.device)
    opposed = 1 + F.cosine_similarity(own, -direction, dim=-1).clamp(min=0)[..., None]
    turned = F.normalize(own, dim=-1) + strength * opposed * F.normalize(direction, dim=-1)
    return (F.normalize(turned, dim=-1) * own.norm(dim=-1, keepdim=True)).to(values.dtype)


def _read_last_tokens(model: Model, inputs: Mapping[str, Any]) -> Sequence[Tensor]:
    """Return what each layer returns at the last token of each prompt, [row, hidden] by layer."""
    streams: list[Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        streams.append((output[0] if isinstance(output, tuple) else output)[:, -1].clone())

    layers = model.family.decoder(model.hf).layers
    handles = [layer.register_forward_hook(keep) for layer in layers]
    try:
        with hooks_disabled(), torch.inference_mode(), restore_rope_deltas(find_rope_modules(model.hf)):
            model.hf(**inputs, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return streams
