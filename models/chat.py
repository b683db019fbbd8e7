"""Chats: messages with images and videos, and the text that a model's chat template makes of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import TemplateError
from PIL import Image

from mmprobe.errors import InputError
from mmprobe.samples import Sample, Video, check_image, check_video, open_image, read_frames, read_video_info

if TYPE_CHECKING:
    from mmprobe.models.loading import Model

log = logging.getLogger("mmprobe")


class Group(IntEnum):
    """The origin of a token. The values are those of the trace format.

    The results of tools are of the user's group: the model did not write them. `ASSISTANT` are the texts of its earlier
    turns, and `GENERATED` those of its answer.
    """

    TEMPLATE = 0
    SYSTEM = 1
    VISUAL = 2
    USER = 3
    GENERATED = 4
    ASSISTANT = 5


Message = dict[str, Any]
"""A chat message in the form of transformers: its `role`, and as `content` a list of parts in any order, each
`{"type": "text", "text": …}`, `{"type": "image"}` or `{"type": "video"}`. It may have more keys, as `mmprobe.samples.Turn` has."""
GROUP_OF_ROLE = {"system": Group.SYSTEM, "assistant": Group.ASSISTANT}  # of others: user


class Clip(NamedTuple):
    """The frames of a video that a model is shown.

    Attributes:
        start: index of the first of them among the chat's images.
        indices: their indices among all frames of the video.
        total: number of all frames of the video.
        fps: frames of the video a second; None where it is not known.
    """

    start: int
    indices: list[int]
    total: int
    fps: float | None

    @property
    def pictures(self) -> slice:
        """The frames' places among the chat's images."""
        return slice(self.start, self.start + len(self.indices))


class Chat(NamedTuple):
    """A conversation that a model is to continue.

    Attributes:
        messages: messages of the roles system, user, assistant and tool.
        images: the images of all messages, in order, and then the frames of all videos.
        name: the name of the chat in error messages, such as "sample a".
        prefill: the beginning of the answer.
        template: arguments of the chat template.
        clips: which of the images are frames of which video.
    """

    messages: list[Message]
    images: list[Image.Image]
    name: str
    prefill: str = ""
    template: Mapping[str, Any] = MappingProxyType({})
    clips: tuple[Clip, ...] = ()

    @property
    def n_images(self) -> int:
        """Number of images that are not frames of a video. They come first."""
        return self.clips[0].start if self.clips else len(self.images)


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


def build_chat(sample: Sample, model: Model | None = None) -> Chat:
    """Return a sample's messages; in the short form its system text, all its images, all its videos and its question.

    Blanks at the end of the prefill are removed, since models begin a word with the blank before it.

    Args:
        model: its processor chooses the frames of video files. A sample without videos does without it.

    Raises:
        InputError: an image or a video cannot be decoded, the model is not shown videos, or a text cannot be stored as
            UTF-8.
    """
    try:
        sample.model_dump_json(include={"question", "system", "prefill", "messages", "template"})
    except ValueError:  # a terminal may hand over text in another encoding
        raise InputError(
            f"sample {sample.id}: its text contains half a surrogate pair; give it as UTF-8"
        ) from None
    messages: list[Message] = [turn.model_dump() for turn in sample.messages]
    if not messages:
        shown = [{"type": "image"}] * len(sample.images) + [{"type": "video"}] * len(sample.videos)
        content = [*shown, {"type": "text", "text": sample.question}]
        messages = [{"role": "user", "content": content}]
        if sample.system is not None:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": sample.system}]})
    name = f"sample {sample.id}"
    images = [read_image(path, name) for path in sample.images]
    clips: list[Clip] = []
    if sample.videos:
        assert model is not None, "a sample with videos is read for a model"
        check_videos(model, [sample])
    for video in sample.videos:
        assert model is not None
        frames, clip = _read_video(video, model, len(images), name)
        images += frames
        clips.append(clip)
    return Chat(messages, images, name, (sample.prefill or "").rstrip(), sample.template, tuple(clips))


def check_videos(model: Model, samples: Iterable[Sample]) -> None:
    """Raise InputError if a sample has a video and the model cannot be shown any."""
    for sample in samples:
        if sample.videos and model.why_no_videos:
            raise InputError(f"sample {sample.id}: videos: {model.why_no_videos}")


def _read_video(video: Video, model: Model, start: int, name: str) -> tuple[list[Image.Image], Clip]:
    """Return the frames of a video that a model is shown: those that are listed, or those that its processor chooses."""
    if video.file is None:
        check_video(video, name)
        frames = [read_image(path, name) for path in video.frames]
        return frames, Clip(start, list(range(len(frames))), len(frames), video.fps)
    info = read_video_info(video.file, name)
    processor = model.processor.video_processor
    indices = list(range(info.frames))
    if processor.do_sample_frames or video.fps is not None:
        from transformers.video_utils import VideoMetadata  # a second, which chats without videos do not need

        height, width = info.size
        metadata = VideoMetadata(info.frames, info.fps, width, height, info.frames / info.fps)
        options = {} if video.fps is None else {"fps": video.fps}
        try:
            chosen = processor.sample_frames(metadata=metadata, **options)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name}: video {video.file}: the processor of {model.name} cannot choose its frames ({error})"
            ) from None
        indices = [int(index) for index in chosen]
    return read_frames(video.file, indices, name), Clip(start, indices, info.frames, info.fps)


def render_chat(model: Model, chat: Chat) -> RenderedChat:
    """Render a chat with the model's chat template, with its prefill at the end.

    Control tokens in the texts of the chat are split, so that the model does not obey them.

    Raises:
        InputError: the model has no chat template, or its template changes the texts.
    """

    def split(text: str) -> str:
        return split_control_tokens(text, model.control_tokens, chat.name)

    messages = [
        {
            name: value if name in ("role", "content") else _map_texts(value, split)
            for name, value in each.items()
        }
        for each in _replace_texts(chat.messages, split)
    ]
    rendered = _render_messages(
        model, chat._replace(messages=messages, template=_map_texts(chat.template, split))
    )
    if not chat.prefill:
        return rendered
    ends_apart = rendered.text[-1:].isspace() or rendered.text.endswith(tuple(model.control_tokens))
    blank = "" if ends_apart else " "  # such as after "ASSISTANT:"
    prefill = blank + split(chat.prefill)
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


def _map_texts(value: Any, replace: Callable[[str], str]) -> Any:
    """Return a JSON value with a function applied to each of its texts."""
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, Mapping):
        return {name: _map_texts(each, replace) for name, each in value.items()}
    if isinstance(value, list):
        return [_map_texts(each, replace) for each in value]
    return value


def _render_messages(model: Model, chat: Chat) -> RenderedChat:
    """Render messages, and find their texts in the result.

    The template is rendered twice: with the texts, and with a placeholder for each text. Everything
    around the placeholders is template.
    """
    texts = [
        (part["text"], message["role"])
        for message in chat.messages
        for part in message["content"]
        if part["type"] == "text"
    ]
    numbers = count()
    placeholders = _replace_texts(chat.messages, lambda _: f"\ue000{next(numbers)}\ue001")
    text, layout = _apply_template(model, chat)
    _, remainder = _apply_template(model, chat._replace(messages=placeholders))
    spans: list[TextSpan] = []
    prefix = ""  # of the layout, up to the next text
    for number, (content, role) in enumerate(texts):
        template, found, remainder = remainder.partition(f"\ue000{number}\ue001")
        if not found and content.strip():
            raise InputError(
                f"{chat.name}: the chat template of {model.name} leaves out a text of the role {role}, so the model "
                "would not see it"
            )
        prefix += template
        following = remainder.partition("\ue000")[0]  # may begin with the blank that a template has trimmed
        forms = (
            content,
            content.strip(),
            content.rpartition("</think>")[2].lstrip("\n"),
        )  # as templates shorten it
        content = next((form for form in forms if layout.startswith(prefix + form + following)), forms[1])
        spans.append(TextSpan(len(prefix), len(prefix) + len(content), GROUP_OF_ROLE.get(role, Group.USER)))
        prefix += content
    if prefix + remainder != layout:
        raise InputError(
            f"{model.name}: its chat template changes the texts of messages, so groups cannot be assigned"
        )
    return RenderedChat(text, layout, spans)


def _apply_template(model: Model, chat: Chat) -> tuple[str, str]:
    """Return the messages as the template renders them, and the same with what the processor adds."""
    template = model.processor.chat_template or model.family.chat_template
    if not template:
        raise InputError(f"{model.name}: its processor has no chat template, so prompts cannot be built")
    for name in chat.template:
        if not re.search(rf"\b{re.escape(name)}\b", str(template)):
            raise InputError(f"{chat.name}: template: the chat template of {model.name} has no {name!r}")
    if "tool_calls" not in str(template) and any("tool_calls" in message for message in chat.messages):
        raise InputError(f"{chat.name}: the chat template of {model.name} has no tool_calls")
    if "role" not in str(template) and any(each["role"] in ("assistant", "tool") for each in chat.messages):
        raise InputError(
            f"{chat.name}: the chat template of {model.name} has no roles, so no earlier turns can be shown"
        )
    try:
        text = model.processor.apply_chat_template(
            chat.messages, tokenize=False, add_generation_prompt=True, chat_template=template, **chat.template
        )
    except (TemplateError, TypeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{chat.name}: the chat template of {model.name} refuses the conversation ({reason})"
        ) from None
    images = [chat.images] if chat.images else None
    layout = model.processor.prepare_inputs_layout(images=images, text=[text])
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
