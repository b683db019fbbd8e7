"""Render samples to token ids, and tell which group each token belongs to."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from mmprobe.errors import InputError
from mmprobe.models.families import View
from mmprobe.samples import Sample, check_image

if TYPE_CHECKING:
    from mmprobe.models.loading import Model

log = logging.getLogger("mmprobe")


class Group(IntEnum):
    """Where a token comes from; the values are those of the trace format."""

    TEMPLATE = 0
    SYSTEM = 1
    VISUAL = 2
    USER = 3
    GENERATED = 4


@dataclass(frozen=True)
class Prompt:
    """A sample as the model reads it.

    Attributes:
        ids: int32 [token].
        group: uint8 [token], values of `Group`.
        image: int16 [token], the view a visual token shows, -1 elsewhere.
        views: what the visual tokens show: a view a picture, or several where a family cuts pictures up.
        sources: for each view, the picture of the sample that it shows.
        sizes: pixels (height, width) of each picture's file.
        padding: how many tokens of padding stand before it in its batch.
    """

    ids: np.ndarray
    group: np.ndarray
    image: np.ndarray
    views: list[View]
    sources: list[int]
    sizes: list[tuple[int, int]]
    padding: int = 0

    @property
    def grids(self) -> list[tuple[int, int]]:
        """Rows and columns of each view's visual tokens."""
        return [view.grid for view in self.views]

    @property
    def visual(self) -> np.ndarray:
        """int64 [visual], positions in the prompt of the visual tokens of all views, in order."""
        return np.flatnonzero(self.image >= 0)

    @property
    def visual_keys(self) -> np.ndarray | None:
        """int64 [visual], where the views' cells stand among a cross-attention layer's keys; else None."""
        if not self.views or self.views[0].first_key is None:
            return None
        return np.concatenate(
            [np.arange(view.grid[0] * view.grid[1]) + (view.first_key or 0) for view in self.views]
        )


Message = dict[str, Any]
"""A chat message as transformers has it: `role`, and `content` as parts `{"type": "text", "text": …}` and
`{"type": "image"}`, in any order."""


class Chat(NamedTuple):
    """Messages of the roles system and user, their pictures in order, what errors call it, and what the answer
    already begins with."""

    messages: list[Message]
    pictures: list[Image.Image]
    where: str
    prefill: str = ""


class Batch(NamedTuple):
    """Tensors for `generate`, on the model's device and padded on the left, and each row's prompt."""

    inputs: dict[str, Any]
    prompts: list[Prompt]


class _Layout(NamedTuple):
    """A chat as one string, as its template renders it and as its processor lays it out, and the spans
    (start, end, group) of the texts of system and user in the latter."""

    rendered: str
    laid_out: str
    spans: list[tuple[int, int, Group]]


def chat_of(sample: Sample) -> Chat:
    """A sample's system text, then all its images, then its question; and its prefill, without blanks at its end,
    since models begin a word with the blank before it.

    Raises:
        InputError: an image cannot be decoded, or a text is none that UTF-8 can hold.
    """
    try:
        f"{sample.question}{sample.system}{sample.prefill}".encode()
    except UnicodeEncodeError:  # what a terminal handed over in another encoding
        raise InputError(
            f"sample {sample.id}: its text holds half a surrogate pair; give it as UTF-8"
        ) from None
    content = [{"type": "image"}] * len(sample.images) + [{"type": "text", "text": sample.question}]
    messages: list[Message] = [{"role": "user", "content": content}]
    if sample.system is not None:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": sample.system}]})
    pictures = [_read(path, sample.id) for path in sample.images]
    return Chat(messages, pictures, f"sample {sample.id}", (sample.prefill or "").rstrip())


def build_batch(model: Model, chats: Sequence[Chat]) -> Batch:
    """Render chats, whose images stand anywhere between their texts, and pad them on the left.

    A chat's prefill follows what asks the model to answer. Its tokens belong to the group template: nobody asked
    them, and the model did not generate them, so neither the user's tokens nor the answer's may count them.

    Args:
        chats: either all or none of them with pictures.

    Raises:
        InputError: the processor refuses the pictures, or its output is not what the family says.
    """
    layouts = [_begun(model, chat) for chat in chats]
    try:
        found = _processed(model, [layout.rendered for layout in layouts], [chat.pictures for chat in chats])
    except (ValueError, TypeError) as error:  # such as Qwen's, of a picture 200 times as wide as high
        for chat in chats if len(chats) > 1 else ():
            build_batch(model, [chat])  # says which one it is
        where = ", ".join(chat.where for chat in chats)
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{where}: the processor of {model.name} refuses what it is given ({reason})"
        ) from None
    offsets, replaced = found.pop("offset_mapping"), found.pop("text_replacement_offsets", None)
    sizes = [(picture.height, picture.width) for chat in chats for picture in chat.pictures]
    views = iter(model.family.views(found, sizes, model.processor, model.hf.config))
    prompts = []
    for row, (chat, layout) in enumerate(zip(chats, layouts, strict=True)):
        real = found["attention_mask"][row].numpy().astype(bool)
        placed = _Placed(
            found["input_ids"][row].numpy()[real].astype(np.int32),
            np.asarray(offsets[row])[real],
            list(replaced[row]) if replaced is not None and len(replaced) else [],
        )
        own_views = [next(views) for _ in chat.pictures]
        prompts.append(_prompt(model, chat, layout, placed, own_views, int((~real).sum())))
    inputs = {
        name: value.to(model.device, model.hf.dtype if value.is_floating_point() else value.dtype)
        for name, value in found.items()
        if value is not None and value.numel() and name != "labels"
    }
    return Batch(inputs, prompts)


def _processed(model: Model, texts: list[str], pictures: list[list[Image.Image]]) -> dict[str, Any]:
    begins = model.tokenizer.bos_token is not None and texts[0].startswith(model.tokenizer.bos_token)
    found = model.processor(
        text=texts,
        images=pictures if any(pictures) else None,
        return_tensors="pt",
        padding=True,
        padding_side="left",
        return_offsets_mapping=True,
        return_text_replacement_offsets=True,
        **({"add_special_tokens": False} if begins else {}),  # or there would be two
    )
    return dict(found)


def _read(path: Any, sample_id: str) -> Image.Image:
    check_image(path, f"sample {sample_id}")
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"sample {sample_id}: image {path}: cannot be decoded ({error})") from None


def _defused(model: Model, text: str, where: str) -> str:
    """A text in which no control token can be read as one: a space splits what looks like one."""
    for token in model.control_tokens:
        if token in text:
            split = f"{token[0]} {token[1:]}"
            log.warning(
                "%s: %r in its text is written %r, since the model would obey it", where, token, split
            )
            text = text.replace(token, split)
    return text


def _begun(model: Model, chat: Chat) -> _Layout:
    """A chat, whose texts give no orders, up to where the model goes on: behind its prefill if it has one."""
    messages = [
        message
        | {
            "content": [
                part | {"text": _defused(model, part["text"], chat.where)} if part["type"] == "text" else part
                for part in message["content"]
            ]
        }
        for message in chat.messages
    ]
    layout = _lay_out(model, messages, chat.pictures)
    if not chat.prefill:
        return layout
    asks = layout.rendered
    apart = "" if asks[-1:].isspace() or asks.endswith(tuple(model.control_tokens)) else " "  # "ASSISTANT:"
    begun = apart + _defused(model, chat.prefill, chat.where)
    return layout._replace(rendered=asks + begun, laid_out=layout.laid_out + begun)


def _lay_out(model: Model, messages: list[Message], pictures: list[Image.Image]) -> _Layout:
    """The template is rendered with a stand-in for each text; what surrounds the stand-ins is template.

    Some processors add to what they are given before they put in the visual tokens, so both renderings go
    through that too.
    """
    texts = [
        (part["text"], Group.SYSTEM if message["role"] == "system" else Group.USER)
        for message in messages
        for part in message["content"]
        if part["type"] == "text"
    ]
    numbers = iter(range(len(texts)))
    masked = [
        message
        | {
            "content": [
                {"type": "text", "text": f"\ue000{next(numbers)}\ue001"} if part["type"] == "text" else part
                for part in message["content"]
            ]
        }
        for message in messages
    ]
    template = model.processor.chat_template or model.family.chat_template
    if not template:
        raise InputError(f"{model.name}: its processor has no chat template, so prompts cannot be built")

    def apply(chat: list[Message]) -> tuple[str, str]:
        rendered = model.processor.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True, chat_template=template
        )
        laid_out = model.processor.prepare_inputs_layout(
            images=[pictures] if pictures else None, text=[rendered]
        )
        return rendered, laid_out[1][0]

    (rendered, whole), (_, rest), spans, before_text = apply(messages), apply(masked), [], ""
    for number, (text, group) in enumerate(texts):
        before, _, rest = rest.partition(f"\ue000{number}\ue001")
        before_text += before
        after = rest.partition("\ue000")[0]  # a trimmed blank may stand there again
        if not whole.startswith(before_text + text + after):
            text = text.strip()  # some templates trim what they are given
        spans.append((len(before_text), len(before_text) + len(text), group))
        before_text += text
    if before_text + rest != whole:
        raise InputError(
            f"{model.name}: its chat template changes the texts it is given, so groups cannot be told"
        )
    return _Layout(rendered, whole, spans)


class _Placed(NamedTuple):
    """A row's tokens: ids int32 [token], start and end int [token, 2] in the string that was tokenised, and
    what the processor put into that string, as transformers describes it."""

    ids: np.ndarray
    offsets: np.ndarray
    replaced: list[dict[str, Any]]


def _prompt(
    model: Model, chat: Chat, layout: _Layout, placed: _Placed, views: list[list[View]], padding: int
) -> Prompt:
    """Group and view of each token, by where it stands in the string that was tokenised."""
    start, end = placed.offsets[:, 0], placed.offsets[:, 1]
    group = np.full(len(placed.ids), Group.TEMPLATE, np.uint8)
    for low, high, code in layout.spans:
        low, high = _moved(low, placed.replaced), _moved(high, placed.replaced)
        group[(start < high) & (end > low)] = code
    image = np.full(len(placed.ids), -1, np.int16)
    flat = [view for of_picture in views for view in of_picture]
    sources = [picture for picture, of_picture in enumerate(views) for _ in of_picture]
    if not (flat and flat[0].first_key is not None):
        is_image = placed.ids == model.family.image_token_id(model.hf.config)
        first = 0
        for number, (entry, of_picture) in enumerate(zip(placed.replaced, views, strict=True)):
            low, high = entry["new_span"]
            places = np.flatnonzero(is_image & (start >= low) & (end <= high))
            cells = np.concatenate([_cells(view, first + index) for index, view in enumerate(of_picture)])
            if len(places) != len(cells):
                raise InputError(
                    f"{chat.where}: {model.family.name}'s prompt holds {len(places)} visual tokens for image "
                    f"{number}, its views make {len(cells)}"
                )
            image[places] = cells
            first += len(of_picture)
    group[image >= 0] = Group.VISUAL
    sizes = [(picture.height, picture.width) for picture in chat.pictures]
    return Prompt(placed.ids, group, image, flat, sources, sizes, padding)


def _moved(position: int, replaced: list[dict[str, Any]]) -> int:
    """Where a position of the string stands after the visual tokens have been put in."""
    return position + sum(
        len(entry["replacement"]) - (entry["span"][1] - entry["span"][0])
        for entry in replaced
        if entry["span"][1] <= position
    )


def _cells(view: View, number: int) -> np.ndarray:
    """int16 [token], the view's number at its cells and -1 at what ends its rows and follows them."""
    rows, columns = view.grid
    cells = np.full((rows, columns + view.row_ends), -1, np.int16)
    cells[:, :columns] = number
    return np.concatenate([cells.ravel(), np.full(view.after, -1, np.int16)])


def token_texts(model: Model, ids: np.ndarray) -> list[str]:
    """Each token's own text; a token that is part of a character shows as the replacement character."""
    known, places = np.unique(ids, return_inverse=True)  # most of a prompt is one visual token many times
    texts = model.tokenizer.batch_decode(known[:, None].tolist(), skip_special_tokens=False)
    return [texts[place] for place in places]
