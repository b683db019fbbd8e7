"""Attention prompting: ask again with images that are darker where the first answer did not attend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from mmprobe.interventions.prompt_method import TwoPassMethod
from mmprobe.interventions.registry import number
from mmprobe.interventions.visual import with_images
from mmprobe.models import Prompt
from mmprobe.models.prompt import Chat


@dataclass(frozen=True)
class AttentionPrompting(TwoPassMethod):
    """The answer to the question about images that are darker where the first answer did not attend.

    Each pixel is multiplied by floor + (1 - floor) heat. Heat is the attention of the answer's queries to the
    visual tokens, mean over steps, layers and heads. It is interpolated, and scaled to 0 (least) to 1 (most)
    within each image.

    Parameters:
        floor: 0 to 1, brightness of the least attended pixels; the default, 0.3, is our choice. 1 is the model's own answer.
    """

    name: ClassVar[str] = "attention-prompting"
    reference: ClassVar[str] = (
        "Yu et al., 2024, Attention prompting on image for large vision-language models; the map is the model's own"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"floor": 1}

    floor: float = number(0.3, 0, 1)

    @property
    def neutral(self) -> bool:
        return self.floor == 1

    def build_second_chat(
        self, chat: Chat, prompt: Prompt, first_answer: str, attention: np.ndarray
    ) -> tuple[Chat, dict[str, Any]]:
        heats = heat_maps(prompt, attention)
        darkened = [
            _darken(image, self.floor + (1 - self.floor) * heat)
            for image, heat in zip(chat.images, heats, strict=True)
        ]
        return with_images(chat, darkened), {}


def _darken(image: Image.Image, brightness: np.ndarray) -> Image.Image:
    """Return an image whose pixels are multiplied by a brightness, float [y, x]."""
    values = np.asarray(image.convert("RGB")) * brightness[..., None]
    return Image.fromarray(values.astype(np.uint8))


def heat_maps(prompt: Prompt, values: np.ndarray) -> list[np.ndarray]:
    """Return values of visual tokens as heat from 0 to 1 at each pixel.

    Views that show the same pixels are averaged. Pixels that no view shows count as the value 0. A map of
    equal values is 0 everywhere.

    Args:
        prompt: the prompt of the tokens.
        values: one value for each visual token, float [visual].

    Returns:
        One map for each image, float [y, x] in the image's size.
    """
    totals = [np.zeros(size) for size in prompt.sizes]
    counts = [np.zeros(size) for size in prompt.sizes]
    first = 0
    for view, source in zip(prompt.views, prompt.sources, strict=True):
        rows, columns = view.grid
        grid = values[first : first + rows * columns].reshape(rows, columns).astype(np.float32)
        first += rows * columns
        height, width = prompt.sizes[source]
        x, y, view_width, view_height = view.box
        left, top = max(round(x), 0), max(round(y), 0)
        right, bottom = min(round(x + view_width), width), min(round(y + view_height), height)
        if right <= left or bottom <= top:
            continue
        size = max(round(view_width), 1), max(round(view_height), 1)
        smooth = Image.fromarray(grid).resize(size, Image.Resampling.BILINEAR)
        x_offset, y_offset = left - round(x), top - round(y)
        part = np.asarray(smooth)[y_offset : y_offset + bottom - top, x_offset : x_offset + right - left]
        totals[source][top : top + part.shape[0], left : left + part.shape[1]] += part
        counts[source][top : top + part.shape[0], left : left + part.shape[1]] += 1
    return [_scale_to_unit(total / np.maximum(count, 1)) for total, count in zip(totals, counts, strict=True)]


def _scale_to_unit(values: np.ndarray) -> np.ndarray:
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)
