"""Zoom-refine: the question again with the first answer and a crop of where it looked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image

from mmprobe.interventions.parameters import number, text, whole
from mmprobe.interventions.prompt_method import followed
from mmprobe.interventions.visual import largest, shown_by
from mmprobe.models import Prompt
from mmprobe.models.chat import Chat

if TYPE_CHECKING:
    pass
from mmprobe.interventions.attention_watch import LookAgain


@dataclass(frozen=True)
class ZoomRefine(LookAgain):
    """The question again with the answer and with a crop of where it looked.

    The crop is the smallest rectangle around the most attended visual tokens of the picture that holds most of them.
    The original asks the model for a box; here the attention gives it. A prefill is part of the answer that is shown,
    and the new answer begins with it too.

    Parameters:
        rounds: 0 or 1; 0 is the model's own answer.
        k: 0 to 1, share of the visual tokens that counts as attended; ours, 0.1.
        refine: what is asked behind the question and the answer; ours.
    """

    name: ClassVar[str] = "zoom-refine"
    reference: ClassVar[str] = (
        "Yu et al., 2025, Zoom-Refine: boosting high-resolution multimodal understanding via localized zoom and "
        "self-refinement; the crop is by the model's own attention"
    )

    rounds: int = whole(1, 0, 1, "whether the answer is refined")
    k: float = number(0.1, 0, 1, "share of the visual tokens that counts as attended")
    refine: str = text(
        "The last picture is an enlarged part of one before it. Answer the question again, better.",
        "the request for another answer",
    )

    @property
    def neutral(self) -> bool:
        return self.rounds == 0

    def look_again(
        self, chat: Chat, prompt: Prompt, first: str, attention: np.ndarray
    ) -> tuple[Chat, dict[str, Any]]:
        picture, box = crop_box(prompt, attention, self.k)
        crop = chat.images[picture].crop(box)
        crop = crop.resize(chat.images[picture].size, Image.Resampling.BICUBIC)
        again = followed(chat, f"Answer: {first}", self.refine)
        return _with_one_more(again, crop), {"picture": picture, "box": list(box)}


def crop_box(prompt: Prompt, attention: np.ndarray, k: float) -> tuple[int, tuple[int, int, int, int]]:
    """Which picture holds most of the attended pixels, and the rectangle (left, top, right, bottom) around them; all of
    the first picture where the attended tokens show none, as those of padding do."""
    shown = shown_by(prompt, largest(attention, k))
    picture = max(range(len(shown)), key=lambda index: int(shown[index].sum()))
    if not shown[picture].any():
        shown[picture][:] = True
    rows, columns = np.flatnonzero(shown[picture].any(1)), np.flatnonzero(shown[picture].any(0))
    return picture, (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)


def _with_one_more(chat: Chat, picture: Image.Image) -> Chat:
    """The chat with a picture behind the last of its user's."""
    messages = [message | {"content": list(message["content"])} for message in chat.messages]
    parts = next(
        message["content"]
        for message in reversed(messages)
        if any(part["type"] == "image" for part in message["content"])
    )
    last = max(index for index, part in enumerate(parts) if part["type"] == "image")
    parts.insert(last + 1, {"type": "image"})
    return chat._replace(messages=messages, images=[*chat.images, picture])
