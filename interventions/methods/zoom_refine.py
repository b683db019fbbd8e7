"""Zoom-Refine: ask again with the first answer and an enlarged crop of the region that it attended to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from mmprobe.interventions.prompt_method import TwoPassMethod, add_lines
from mmprobe.interventions.registry import integer, number, text
from mmprobe.interventions.visual import find_pixels, select_largest
from mmprobe.models import Prompt
from mmprobe.models.prompt import Chat


@dataclass(frozen=True)
class ZoomRefine(TwoPassMethod):
    """The answer to the question asked again with the first answer and a crop of one image.

    The crop is the smallest rectangle around the most attended visual tokens of the image that contains most of
    them. The original asks the model for a box; here the attention of the first answer gives it. If a chat
    has a prefill, it is part of the first answer, and the new answer begins with it.

    Parameters:
        rounds: 0 or 1; 0 is the model's own answer.
        k: 0 to 1, share of the visual tokens that count as attended; the default, 0.1, is our choice.
        refine: the request for a new answer, after the question and the first answer; our wording.
    """

    name: ClassVar[str] = "zoom-refine"
    reference: ClassVar[str] = (
        "Yu et al., 2025, Zoom-Refine: boosting high-resolution multimodal understanding via localized zoom and "
        "self-refinement; the crop is by the model's own attention"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"rounds": 0}
    shares_prefix: ClassVar[bool] = True

    rounds: int = integer(1, 0, 1)
    k: float = number(0.1, 0, 1)
    refine: str = text(
        "The last picture is an enlarged part of one before it. Answer the question again, better."
    )

    @property
    def neutral(self) -> bool:
        return self.rounds == 0

    def build_second_chat(
        self, chat: Chat, prompt: Prompt, first_answer: str, attention: np.ndarray
    ) -> tuple[Chat, dict[str, Any]]:
        index, box = find_crop(prompt, attention, self.k)
        image = chat.images[index]
        crop = image.crop(box).resize(image.size, Image.Resampling.BICUBIC)
        second_chat = add_lines(chat, f"Answer: {first_answer}", self.refine)
        return _append_image(second_chat, crop), {"picture": index, "box": list(box)}


def find_crop(prompt: Prompt, attention: np.ndarray, share: float) -> tuple[int, tuple[int, int, int, int]]:
    """Return the image that contains most of the attended pixels, and the rectangle around them.

    Tokens of padding show no pixels. If no attended token shows any, the crop is the whole first image.

    Args:
        prompt: the prompt of the first chat.
        attention: mean attention to each visual token, [visual].
        share: share of the visual tokens that count as attended.

    Returns:
        Index of the image, and the rectangle (left, top, right, bottom) in its pixels.
    """
    masks = find_pixels(prompt, select_largest(attention, share))
    index = max(range(len(masks)), key=lambda image: int(masks[image].sum()))
    mask = masks[index]
    if not mask.any():
        mask[:] = True
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return index, (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)


def _append_image(chat: Chat, image: Image.Image) -> Chat:
    """Return a chat with an image after the last one of the last message that has any."""
    messages = [message | {"content": list(message["content"])} for message in chat.messages]
    parts = next(
        message["content"]
        for message in reversed(messages)
        if any(part["type"] == "image" for part in message["content"])
    )
    last = max(index for index, part in enumerate(parts) if part["type"] == "image")
    parts.insert(last + 1, {"type": "image"})
    return chat._replace(messages=messages, images=[*chat.images, image])
