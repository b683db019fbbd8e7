"""Chats: messages with images, and the text that a model's chat template makes of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import IntEnum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from mmprobe.errors import InputError
from mmprobe.samples import Sample, check_image, open_image

if TYPE_CHECKING:
    from mmprobe.models.loading import Model

log = logging.getLogger("mmprobe")


class Group(IntEnum):
    """The origin of a token. The values are those of the trace format."""

    TEMPLATE = 0
    SYSTEM = 1
    VISUAL = 2
    USER = 3
    GENERATED = 4


Message = dict[str, Any]
"""A chat message in the form of transformers: its `role`, and as `content` a list of parts in any order, each
`{"type": "text", "text": …}` or `{"type": "image"}`."""


class Chat(NamedTuple):
    """A conversation that a model is to continue.

    Attributes:
        messages: messages of the roles system and user.
        images: the images of all messages, in order.
        name: the name of the chat in error messages, such as "sample a".
        prefill: the beginning of the answer.
    """

    messages: list[Message]
    images: list[Image.Image]
    name: str
    prefill: str = ""


class TextSpan(NamedTuple):
    """The place of a message's text in a string."""

    start: int
    end: int
    group: Group


class RenderedChat(NamedTuple):
    """A chat as one string.

    Attributes:
        text: the chat as its template renders it, up to where the model continues.
        layout: `text` with what some processors add to it before they put in the visual tokens.
        spans: the places of the messages' texts in `layout`.
    """

    text: str
    layout: str
    spans: list[TextSpan]


def build_chat(sample: Sample) -> Chat:
    """Return a sample's system text, then all its images, then its question.

    Blanks at the end of the prefill are removed, since models begin a word with the blank before it.

    Raises:
        InputError: an image cannot be decoded, or a text cannot be stored as UTF-8.
    """
    try:
        f"{sample.question}{sample.system}{sample.prefill}".encode()
    except UnicodeEncodeError:  # a terminal may hand over text in another encoding
        raise InputError(
            f"sample {sample.id}: its text contains half a surrogate pair; give it as UTF-8"
        ) from None
    content = [{"type": "image"}] * len(sample.images) + [{"type": "text", "text": sample.question}]
    messages: list[Message] = [{"role": "user", "content": content}]
    if sample.system is not None:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": sample.system}]})
    name = f"sample {sample.id}"
    images = [read_image(path, name) for path in sample.images]
    return Chat(messages, images, name, (sample.prefill or "").rstrip())


def render_chat(model: Model, chat: Chat) -> RenderedChat:
    """Render a chat with the model's chat template, with its prefill at the end.

    Control tokens in the texts of the chat are split, so that the model does not obey them.

    Raises:
        InputError: the model has no chat template, or its template changes the texts.
    """
    messages = _replace_texts(
        chat.messages, lambda text: split_control_tokens(text, model.control_tokens, chat.name)
    )
    rendered = _render_messages(model, messages, chat.images)
    if not chat.prefill:
        return rendered
    ends_apart = rendered.text[-1:].isspace() or rendered.text.endswith(tuple(model.control_tokens))
    blank = "" if ends_apart else " "  # such as after "ASSISTANT:"
    prefill = blank + split_control_tokens(chat.prefill, model.control_tokens, chat.name)
    return rendered._replace(text=rendered.text + prefill, layout=rendered.layout + prefill)


def read_image(path: Path, name: str) -> Image.Image:
    """Return an image as the chats of samples have it, in RGB.

    Args:
        name: where the image is named, for messages.

    Raises:
        InputError: it cannot be decoded.
    """
    check_image(path, name)
    try:
        with open_image(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{name}: image {path}: cannot be decoded ({error})") from None


def _replace_texts(messages: list[Message], replace: Callable[[str], str]) -> list[Message]:
    """Return the messages with a function applied to each of their texts."""

    def replace_part(part: dict[str, Any]) -> dict[str, Any]:
        return part | {"text": replace(part["text"])} if part["type"] == "text" else part

    return [
        message | {"content": [replace_part(part) for part in message["content"]]} for message in messages
    ]


def _render_messages(model: Model, messages: list[Message], images: list[Image.Image]) -> RenderedChat:
    """Render messages, and find their texts in the result.

    The template is rendered twice: with the texts, and with a placeholder for each text. Everything
    around the placeholders is template.
    """
    texts = [
        (part["text"], Group.SYSTEM if message["role"] == "system" else Group.USER)
        for message in messages
        for part in message["content"]
        if part["type"] == "text"
    ]
    numbers = count()
    placeholders = _replace_texts(messages, lambda _: f"\ue000{next(numbers)}\ue001")
    text, layout = _apply_template(model, messages, images)
    _, remainder = _apply_template(model, placeholders, images)
    spans: list[TextSpan] = []
    prefix = ""  # of the layout, up to the next text
    for number, (content, group) in enumerate(texts):
        template, _, remainder = remainder.partition(f"\ue000{number}\ue001")
        prefix += template
        following = remainder.partition("\ue000")[0]  # may begin with the blank that a template has trimmed
        if not layout.startswith(prefix + content + following):
            content = content.strip()  # some templates trim texts
        spans.append(TextSpan(len(prefix), len(prefix) + len(content), group))
        prefix += content
    if prefix + remainder != layout:
        raise InputError(
            f"{model.name}: its chat template changes the texts of messages, so groups cannot be assigned"
        )
    return RenderedChat(text, layout, spans)


def _apply_template(model: Model, messages: list[Message], images: list[Image.Image]) -> tuple[str, str]:
    """Return the messages as the template renders them, and the same with what the processor adds."""
    template = model.processor.chat_template or model.family.chat_template
    if not template:
        raise InputError(f"{model.name}: its processor has no chat template, so prompts cannot be built")
    text = model.processor.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, chat_template=template
    )
    layout = model.processor.prepare_inputs_layout(images=[images] if images else None, text=[text])
    return text, layout[1][0]


def list_control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Return the strings that a tokenizer reads as one special token, longest first."""
    added = (token.content for token in tokenizer.added_tokens_decoder.values())
    return tuple(sorted((content for content in added if len(content.strip()) > 1), key=len, reverse=True))


def split_control_tokens(text: str, tokens: Iterable[str], name: str) -> str:
    """Return a text with a space in each control token.

    Args:
        tokens: what `list_control_tokens` returns.
        name: of the text, for the warning.

    Example:
        >>> split_control_tokens("End.<|im_end|>", ["<|im_end|>"], "question 1")
        'End.< |im_end|>'
    """
    for token in tokens:
        if token in text:
            split = f"{token[0]} {token[1:]}"
            log.warning("%s: %r in its text is written %r, since the model would obey it", name, token, split)
            text = text.replace(token, split)
    return text
