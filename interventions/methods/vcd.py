"""Visual contrastive decoding: against the same question about noisy pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.contrast import Contrast, plausible
from mmprobe.interventions.contrast_path import SecondPath
from mmprobe.interventions.parameters import number, whole
from mmprobe.models import Model
from mmprobe.models.prompt import build_batch

STEPS = 1000


@dataclass(frozen=True)
class Vcd(Method):
    """Logits (1 + alpha) z - alpha z', z' from pictures with the noise of a diffusion.

    The picture x becomes sqrt(abar_t) x + sqrt(1 - abar_t) eps, on the pixels as the model gets them; where the
    model gets a picture as two equal frames, both get the same noise. Tokens of which the model itself thinks too
    little, z < log(beta) + max z, are left out.

    Parameters:
        alpha: 0 to 10; the paper's 1. 0 does nothing, not even the cut-off.
        beta: 0 to 1; the paper's 0.1. 0 leaves no token out.
        noise_step: 0 to 999, t; the paper's 500.
    """

    name: ClassVar[str] = "vcd"
    reference: ClassVar[str] = (
        "Leng et al., 2024, Mitigating object hallucinations in large vision-language models through visual "
        "contrastive decoding, equations 3 and 5"
    )
    visual: ClassVar[bool] = True

    alpha: float = number(1.0, 0, 10, "weight of the contrast")
    beta: float = number(0.1, 0, 1, "share of the largest probability below which tokens are left out")
    noise_step: int = whole(500, 0, STEPS - 1, "step of the diffusion whose noise is added")

    @property
    def neutral(self) -> bool:
        return self.alpha == 0

    def begin(self, asked: MethodContext) -> MethodState:
        return Contrast(lambda: SecondPath(asked.model, noisy(asked, self.noise_step)), self.combine)

    def combine(self, main: Tensor, second: Tensor) -> Tensor:
        """New logits from the answer's and the second path's, each [batch, vocabulary]."""
        return plausible((1 + self.alpha) * main - self.alpha * second, main, self.beta)


def kept_signal(step: int) -> float:
    """abar_t of the diffusion: what is left of the picture's power after some steps.

    Example:
        >>> round(kept_signal(0), 6), round(kept_signal(999), 4)
        (0.999978, 0.0812)
    """
    rates = torch.sigmoid(torch.linspace(-6, 6, STEPS, dtype=torch.float64)) * (0.5e-2 - 1e-5) + 1e-5
    return float(torch.cumprod(1 - rates, 0)[step])


def noisy(asked: MethodContext, step: int) -> dict[str, Any]:
    """The batch's inputs with noise on the pictures; each row's is that of its sample alone, by the seed.

    Where a family reads pictures in several sizes, each size has noise of its own.
    """
    inputs = dict(asked.batch.inputs)
    names = [name for name in inputs if name.endswith("pixel_values")]
    shapes = [{name: inputs[name].shape for name in names}]
    if len(asked.chats) > 1:  # some processors pad the pictures of a batch
        alone = (build_batch(asked.model, [chat]).inputs for chat in asked.chats)
        shapes = [{name: own[name].shape for name in names} for own in alone]
    generators = [torch.Generator().manual_seed(asked.seed) for _ in shapes]
    kept = kept_signal(step)
    for name in names:
        pixels = inputs[name]
        noise, first = torch.zeros(pixels.shape), 0
        for shape, generator in zip((own[name] for own in shapes), generators, strict=True):
            where = (slice(first, first + shape[0]), *(slice(0, size) for size in shape[1:]))
            noise[where] = _noise(asked.model, shape, generator)
            first += shape[0]
        # in place: the pixels of a batch take more memory than its cache
        mixed = noise.to(pixels.device).mul_((1 - kept) ** 0.5).add_(pixels, alpha=kept**0.5)
        inputs[name] = mixed.to(pixels.dtype)
    return inputs


def _noise(model: Model, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Standard normal; equal for the frames of a picture that goes into the encoder as several equal ones."""
    vision: Any = getattr(model.hf.config, "vision_config", None)
    frames = getattr(vision, "temporal_patch_size", None) or 1
    if len(shape) != 2 or frames == 1:
        return torch.randn(shape, generator=generator)
    channels = vision.in_channels  # flattened patches of channels x frames x pixels
    noise = torch.randn((shape[0], channels, 1, shape[1] // channels // frames), generator=generator)
    return noise.expand(-1, -1, frames, -1).reshape(shape)
