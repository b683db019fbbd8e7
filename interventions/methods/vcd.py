"""VCD, visual contrastive decoding: contrast with the same question about noisy images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.contrast import (
    ContrastPath,
    ContrastState,
    begin_with_changed_images,
    mask_implausible,
)
from mmprobe.interventions.registry import integer, number
from mmprobe.models import Model
from mmprobe.models.prompt import build_batch

DIFFUSION_STEPS = 1000


@dataclass(frozen=True)
class Vcd(Method):
    """Logits (1 + alpha) z - alpha z' (equation 3), where z' are the model's logits for noisy images.

    An image x becomes sqrt(abar_t) x + sqrt(1 - abar_t) eps, with standard normal noise eps. The noise is
    added to the pixels that the model reads. If the model reads an image as two equal frames, both get the
    same noise. Tokens with z < max z + log(beta) are excluded (equation 5).

    Parameters:
        alpha: 0 to 10; the paper's 1. 0 changes nothing and excludes no token.
        beta: 0 to 1; the paper's 0.1. 0 excludes no token.
        noise_step: 0 to 999, the diffusion step t; the paper's 500.
    """

    name: ClassVar[str] = "vcd"
    reference: ClassVar[str] = (
        "Leng et al., 2024, Mitigating object hallucinations in large vision-language models through visual "
        "contrastive decoding, equations 3 and 5"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"alpha": 0}
    strong_parameters: ClassVar[Mapping[str, Any]] = {"alpha": 5, "beta": 0}
    needs_images: ClassVar[bool] = True
    shares_prefix: ClassVar[bool] = True
    has_contrast_path: ClassVar[bool] = True
    n_prefixes: ClassVar[int] = 2  # that of the noisy images, too

    alpha: float = number(1.0, 0, 10)
    beta: float = number(0.1, 0, 1)
    noise_step: int = integer(500, 0, DIFFUSION_STEPS - 1)

    @property
    def neutral(self) -> bool:
        return self.alpha == 0

    def create_state(self, context: MethodContext) -> MethodState:
        def create_path() -> ContrastPath:
            noise = partial(add_noise, step=self.noise_step)
            name = (self.name, self.noise_step, context.seed)  # the noise is the same for all questions
            cache = begin_with_changed_images(context, name, noise)
            inputs = noise(context) if cache is None else context.batch.inputs
            return ContrastPath(context.model, inputs, cache)

        return ContrastState(create_path, self.combine)

    def combine(self, main: Tensor, contrast: Tensor) -> Tensor:
        """Return new logits from those of the answer and of the contrast path, [batch, vocabulary]."""
        return mask_implausible((1 + self.alpha) * main - self.alpha * contrast, main, self.beta)


def signal_power(step: int) -> float:
    """Return abar_t of the diffusion: the share of the image's power that remains at a step.

    Example:
        >>> round(signal_power(0), 6), round(signal_power(999), 4)
        (0.999978, 0.0812)
    """
    positions = torch.linspace(-6, 6, DIFFUSION_STEPS, dtype=torch.float64)
    rates = torch.sigmoid(positions) * (0.5e-2 - 1e-5) + 1e-5
    return float(torch.cumprod(1 - rates, 0)[step])


def add_noise(context: MethodContext, step: int) -> dict[str, Any]:
    """Return the batch's inputs with noise on the images.

    Each row gets the noise that its sample would get alone with the same seed. If a family reads images in
    several sizes, each size gets its own noise.

    Args:
        context: the batch.
        step: diffusion step, 0 to 999.
    """
    inputs = dict(context.batch.inputs)
    names = [name for name in inputs if name.endswith("pixel_values")]
    row_shapes = [{name: inputs[name].shape for name in names}]
    if len(context.chats) > 1:  # some processors pad the images of a batch
        single_rows = (build_batch(context.model, [chat]).inputs for chat in context.chats)
        row_shapes = [{name: row[name].shape for name in names} for row in single_rows]
    generators = [torch.Generator().manual_seed(context.seed) for _ in row_shapes]
    power = signal_power(step)
    for name in names:
        pixels = inputs[name]
        noise, first = torch.zeros(pixels.shape), 0
        for shape, generator in zip((shapes[name] for shapes in row_shapes), generators, strict=True):
            region = (slice(first, first + shape[0]), *(slice(0, size) for size in shape[1:]))
            noise[region] = _draw_noise(context.model, shape, generator)
            first += shape[0]
        # in place: the pixels of a batch take more memory than its cache
        mixed = noise.to(pixels.device).mul_((1 - power) ** 0.5).add_(pixels, alpha=power**0.5)
        inputs[name] = mixed.to(pixels.dtype)
    return inputs


def _draw_noise(model: Model, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return standard normal noise, the same for all frames that the encoder makes of an image."""
    vision: Any = getattr(model.hf.config, "vision_config", None)
    frames = getattr(vision, "temporal_patch_size", None) or 1
    if len(shape) != 2 or frames == 1:
        return torch.randn(shape, generator=generator)
    channels = vision.in_channels  # a row is a flattened patch of channels x frames x pixels
    noise = torch.randn((shape[0], channels, 1, shape[1] // channels // frames), generator=generator)
    return noise.expand(-1, -1, frames, -1).reshape(shape)
