"""Render a sample to token ids, and tell which group each token belongs to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from mmprobe.errors import InputError
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
        inputs: tensors for `generate`, on the model's device.
        ids: int32 [token].
        group: uint8 [token], values of `Group`.
        image: int16 [token], the image a visual token shows, -1 elsewhere.
        grids: merged patch grid (height, width) of each image.
        sizes: pixels (height, width) of each image file.
    """

    inputs: Mapping[str, Any]
    ids: np.ndarray
    group: np.ndarray
    image: np.ndarray
    grids: list[tuple[int, int]]
    sizes: list[tuple[int, int]]

    @property
    def visual(self) -> np.ndarray:
        """int64 [visual], positions of the visual tokens of all images, in order."""
        return np.flatnonzero(self.group == Group.VISUAL)


Message = dict[str, Any]
"""A chat message as transformers has it: `role`, and `content` as parts `{"type": "text", "text": …}` and
`{"type": "image"}`, in any order."""


def build_prompt(model: Model, sample: Sample) -> Prompt:
    """Render a sample: its system text, then all its images, then its question.

    Raises:
        InputError: an image cannot be decoded, or the processor's output is not what the family says.
    """
    content = [{"type": "image"}] * len(sample.images) + [{"type": "text", "text": sample.question}]
    messages: list[Message] = [{"role": "user", "content": content}]
    if sample.system is not None:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": sample.system}]})
    images = [_read(path, sample.id) for path in sample.images]
    return prompt_of_messages(model, messages, images, f"sample {sample.id}")


def prompt_of_messages(
    model: Model, messages: list[Message], images: list[Image.Image], where: str
) -> Prompt:
    """Render a chat whose images stand anywhere between its texts.

    Args:
        messages: of the roles system and user; images are taken in the order of their parts.
        where: what an error message calls this prompt.

    Raises:
        InputError: the processor's output is not what the family says.
    """
    messages = [_defused(model, message, where) for message in messages]
    rendered, spans = _render(model, messages)
    found = model.processor(text=[rendered], images=images or None, return_tensors="pt")
    inputs = {name: value for name, value in found.items() if value is not None}
    grids = model.family.image_grids(inputs, model.hf.config)
    ids = inputs["input_ids"][0].numpy().astype(np.int32)
    group, image = _groups(model, ids, rendered, spans, grids, where)
    for name, value in inputs.items():
        inputs[name] = value.to(model.hf.device, model.hf.dtype if value.is_floating_point() else value.dtype)
    return Prompt(inputs, ids, group, image, grids, [(picture.height, picture.width) for picture in images])


def _read(path: Any, sample_id: str) -> Image.Image:
    check_image(path, f"sample {sample_id}")
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"sample {sample_id}: image {path}: cannot be decoded ({error})") from None


def _defused(model: Model, message: Message, where: str) -> Message:
    """A message in whose texts no control token can be read as one: a space splits what looks like one."""

    def defuse(text: str) -> str:
        for token in model.control_tokens:
            if token in text:
                split = f"{token[0]} {token[1:]}"
                log.warning(
                    "%s: %r in its text is written %r, since the model would obey it", where, token, split
                )
                text = text.replace(token, split)
        return text

    parts = [
        part | {"text": defuse(part["text"])} if part["type"] == "text" else part
        for part in message["content"]
    ]
    return message | {"content": parts}


def _render(model: Model, messages: list[Message]) -> tuple[str, list[tuple[int, int, Group]]]:
    """The prompt as one string, and where (start, end) in it the texts of system and user stand.

    The template is rendered with a stand-in for each text; what surrounds the stand-ins is template.
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
    apply = partial(model.processor.apply_chat_template, tokenize=False, add_generation_prompt=True)
    whole, rest, spans, rendered = apply(messages), apply(masked), [], ""
    for number, (text, group) in enumerate(texts):
        before, _, rest = rest.partition(f"\ue000{number}\ue001")
        rendered += before
        if not whole.startswith(rendered + text):
            text = text.strip()  # some templates trim what they are given
        spans.append((len(rendered), len(rendered) + len(text), group))
        rendered += text
    if rendered + rest != whole:
        raise InputError(
            f"{model.name}: its chat template changes the texts it is given, so groups cannot be told"
        )
    return whole, spans


def _groups(
    model: Model,
    ids: np.ndarray,
    rendered: str,
    spans: list[tuple[int, int, Group]],
    grids: list[tuple[int, int]],
    where: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Group and image of each token.

    The rendered string holds one placeholder an image where the prompt holds a grid of them;
    walking both sequences side by side carries character positions over to the prompt.
    """
    encoded = model.tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
    image_token = model.family.image_token_id(model.hf.config)
    group = np.full(len(ids), Group.TEMPLATE, np.uint8)
    image = np.full(len(ids), -1, np.int16)
    position, shown = 0, 0
    for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        if token == image_token:
            count = int(np.prod(grids[shown])) if shown < len(grids) else 0
            group[position : position + count] = Group.VISUAL
            image[position : position + count] = shown
            matches = count > 0 and (ids[position : position + count] == image_token).all()
            position, shown = position + count, shown + 1
        else:
            group[position : position + 1] = _group_at(start, end, spans)
            matches = position < len(ids) and ids[position] == token
            position += 1
        if not matches:
            break
    if position != len(ids) or shown != len(grids):
        raise InputError(
            f"{where}: {model.family.name}'s prompt does not hold its {len(grids)} images "
            f"as grids of visual tokens (token {position} of {len(ids)}, image {shown})"
        )
    return group, image


def _group_at(start: int, end: int, spans: list[tuple[int, int, Group]]) -> Group:
    return next((group for low, high, group in spans if start < high and end > low), Group.TEMPLATE)


def token_texts(model: Model, ids: np.ndarray) -> list[str]:
    """Each token's own text; a token that is part of a character shows as the replacement character."""
    return model.tokenizer.batch_decode(ids[:, None].tolist(), skip_special_tokens=False)
