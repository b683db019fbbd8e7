"""Attention prompting: the question again about images that are darker where the first answer did not look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image

from mmprobe.interventions.parameters import number
from mmprobe.interventions.visual import with_pictures
from mmprobe.models import Prompt
from mmprobe.models.chat import Chat

if TYPE_CHECKING:
    pass
from mmprobe.interventions.attention_watch import LookAgain


@dataclass(frozen=True)
class AttentionPrompting(LookAgain):
    """The question again about pictures that are darker where the first answer did not look.

    Each pixel is multiplied by floor + (1 - floor) heat, heat being the attention of the answer's queries to visual
    tokens, mean over steps, layers and heads, from 0 (least) to 1 (most) within each picture, interpolated.

    Parameters:
        floor: 0 to 1; ours, 0.3. 1 is the model's own answer.
    """

    name: ClassVar[str] = "attention-prompting"
    reference: ClassVar[str] = (
        "Yu et al., 2024, Attention prompting on image for large vision-language models; the map is the model's own"
    )

    floor: float = number(0.3, 0, 1, "brightness of what got least attention")

    @property
    def neutral(self) -> bool:
        return self.floor == 1

    def look_again(
        self, chat: Chat, prompt: Prompt, first: str, attention: np.ndarray
    ) -> tuple[Chat, dict[str, Any]]:
        darker = [
            Image.fromarray(
                (
                    np.asarray(picture.convert("RGB")) * (self.floor + (1 - self.floor) * heat)[..., None]
                ).astype(np.uint8)
            )
            for picture, heat in zip(chat.images, heat_maps(prompt, attention), strict=True)
        ]
        return with_pictures(chat, darker), {}


def heat_maps(prompt: Prompt, values: np.ndarray) -> list[np.ndarray]:
    """Values of visual tokens as heat from 0 to 1 at each pixel, one float array [y, x] a picture.

    Views of the same pixels are averaged; pixels that no view shows are 0, and so is a map of equal values.
    """
    total = [np.zeros(size) for size in prompt.sizes]
    count = [np.zeros(size) for size in prompt.sizes]
    first = 0
    for view, source in zip(prompt.views, prompt.sources, strict=True):
        rows, columns = view.grid
        grid = values[first : first + rows * columns].reshape(rows, columns).astype(np.float32)
        first += rows * columns
        height, width = prompt.sizes[source]
        x, y, wide, high = view.box
        left, top = max(round(x), 0), max(round(y), 0)
        right, bottom = min(round(x + wide), width), min(round(y + high), height)
        if right <= left or bottom <= top:
            continue
        size = max(round(wide), 1), max(round(high), 1)
        smooth = Image.fromarray(grid).resize(size, Image.Resampling.BILINEAR)
        from_x, from_y = left - round(x), top - round(y)
        part = np.asarray(smooth)[from_y : from_y + bottom - top, from_x : from_x + right - left]
        total[source][top : top + part.shape[0], left : left + part.shape[1]] += part
        count[source][top : top + part.shape[0], left : left + part.shape[1]] += 1
    found = []
    for values_of, shown in zip(total, count, strict=True):
        mean = values_of / np.maximum(shown, 1)
        low, high_value = mean.min(), mean.max()
        found.append((mean - low) / (high_value - low) if high_value > low else np.zeros_like(mean))
    return found
