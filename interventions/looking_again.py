"""Methods that ask again about pictures changed by where the model looked: attention prompting and zoom-refine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmprobe.interventions.base import Act, Asked, Method
from mmprobe.interventions.parameters import number, text, whole
from mmprobe.interventions.prompting import Ask, PromptMethod, followed, noting, whole_answer
from mmprobe.interventions.visual import AttentionMap, largest, shown_by, with_pictures
from mmprobe.models import Model, Prompt
from mmprobe.models.prompt import Chat, build_batch
from mmprobe.models.shifts import LastQuery

if TYPE_CHECKING:
    from mmprobe.interventions.answer import Generated


@dataclass(frozen=True)
class _Watch(Method):
    """Changes nothing and reports the attention of the answer's queries to each visual token."""

    name: ClassVar[str] = "watch"

    def begin(self, asked: Asked) -> Act:
        return _Watching(asked)


class _Watching(Act):
    def __init__(self, asked: Asked):
        self.asked, self.step = asked, 0
        self.ends = torch.tensor(sorted(asked.model.ends), device=asked.model.device)
        self.map = AttentionMap(asked)  # of the step that is being read
        self.total = torch.zeros_like(self.map.total)
        self.count = torch.zeros(len(self.total), device=asked.model.device)  # layers and steps of each row

    def layers(self) -> Sequence[int]:
        return range(self.asked.model.layer_count)

    def shift(self, layer: int, last: LastQuery) -> None:
        self.map.add(last.weights(), self.step)

    def logits(self, generated: Tensor, scores: Tensor) -> Tensor:
        going = ~(generated[..., None] == self.ends).any((1, 2))  # the others read padding
        self.total += torch.where(going[:, None], self.map.total, 0)
        self.count += going * self.map.layers
        self.map, self.step = AttentionMap(self.asked), self.step + 1
        return scores

    def report(self, row: int, steps: int) -> dict[str, Any]:
        prompt = self.asked.batch.prompts[row]
        visual = torch.from_numpy(prompt.visual + prompt.padding)
        return {"attention": (self.total[row, visual] / self.count[row]).tolist()}


@dataclass(frozen=True)
class _Looking(PromptMethod):
    """Asks once, watching, and has the map of attention for what it asks next."""

    visual: ClassVar[bool] = True
    cells: ClassVar[bool] = True

    def answer(self, model: Model, chats: Sequence[Chat], ask: Ask, seed: int, limit: int) -> list[Generated]:
        watched = ask(chats, extra=[_Watch()])
        again, told = [], []
        for chat, first in zip(chats, watched, strict=True):
            attention = np.array(first.diagnostics["watch"]["attention"])  # float64 [visual]
            prompt = build_batch(model, [chat]).prompts[0]
            asked, of_look = self.look_again(chat, prompt, whole_answer(model, chat, first), attention)
            again.append(asked)
            told.append({"first": first.text} | of_look)
        return [noting(each, self, mine) for each, mine in zip(ask(again), told, strict=True)]

    def look_again(
        self, chat: Chat, prompt: Prompt, first: str, attention: np.ndarray
    ) -> tuple[Chat, dict[str, Any]]:
        """What is asked next, from the first answer and its attention to each visual token; and what to tell of it."""
        raise NotImplementedError


@dataclass(frozen=True)
class AttentionPrompting(_Looking):
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
            for picture, heat in zip(chat.pictures, heat_maps(prompt, attention), strict=True)
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


@dataclass(frozen=True)
class ZoomRefine(_Looking):
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
        crop = chat.pictures[picture].crop(box)
        crop = crop.resize(chat.pictures[picture].size, Image.Resampling.BICUBIC)
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
    return chat._replace(messages=messages, pictures=[*chat.pictures, picture])
