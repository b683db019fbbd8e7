"""Prompts: chats with images and videos as the text of a model's template, and as token ids with the group and image of each."""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jinja2 import TemplateError
from PIL import Image

from mmprobe.errors import InputError
from mmprobe.models.families import View
from mmprobe.models.families.base import Frames
from mmprobe.registry import check_made
from mmprobe.samples import Sample, Video, check_video, read_frames, read_image, read_video_info
from mmprobe.thoughts import THINKING_MARKS, find_opened, is_mark

if TYPE_CHECKING:
    from transformers.video_utils import VideoMetadata

    from mmprobe.models.loading import Model


log = logging.getLogger("mmprobe")

MOST_KEPT_BYTES = 2**28  # of images as a processor made them; our choice


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
        duration: of a file, in seconds; None for listed frames.
    """

    start: int
    indices: list[int]
    total: int
    fps: float | None
    duration: float | None = None

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
    return build_blind_chat(sample)._replace(images=images, clips=tuple(clips))


def build_blind_chat(sample: Sample) -> Chat:
    """Return a sample's messages without its images, as they are rendered and not read.

    Example:
        >>> [message["role"] for message in build_blind_chat(Sample(id="a", question="?", system="Be brief.")).messages]
        ['system', 'user']
    """
    messages: list[Message] = [turn.model_dump() for turn in sample.messages]
    if not messages:
        shown = [{"type": "image"}] * len(sample.images) + [{"type": "video"}] * len(sample.videos)
        content = [*shown, {"type": "text", "text": sample.question}]
        messages = [{"role": "user", "content": content}]
        if sample.system is not None:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": sample.system}]})
    return Chat(messages, [], f"sample {sample.id}", (sample.prefill or "").rstrip(), sample.template)


def check_videos(model: Model, samples: Iterable[Sample]) -> None:
    """Raise InputError if a sample has a video and the model cannot be shown any."""
    for sample in samples:
        if sample.videos and model.why_no_videos:
            raise InputError(f"sample {sample.id}: videos: {model.why_no_videos}")


def check_template(model: Model, samples: Sequence[Sample]) -> None:
    """Raise InputError if all samples have an argument that the model's chat template does not take."""
    common = set.intersection(*(set(sample.template) for sample in samples)) if samples else set()
    _check_arguments(model, sorted(common), "")


def _check_arguments(model: Model, names: Iterable[str], where: str) -> None:
    """Raise InputError for a name that the model's chat template does not contain."""
    template = str(model.processor.chat_template or model.family.chat_template)
    for name in names:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise InputError(f"{where}template: the chat template of {model.name} has no {name!r}")


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
        try:
            indices = _choose_frames(processor, metadata, video.fps)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise InputError(
                f"{name}: video {video.file}: the processor of {model.name} cannot choose its frames ({error}); set its "
                "fps, or give its frames as image files"
            ) from None
    clip = Clip(start, indices, info.frames, info.fps, info.frames / info.fps)
    return read_frames(video.file, indices, name), clip


def _choose_frames(processor: Any, metadata: VideoMetadata, fps: float | None) -> list[int]:
    """Return the frames that a video processor chooses, as many a second as `fps` says.

    Processors with a number of frames of their own may not heed a rate: then they are told the number that it makes.

    Raises:
        ArithmeticError, TypeError, ValueError: it cannot choose.
    """
    rate = {} if fps is None else {"fps": fps}
    own = getattr(processor, "num_frames", None)
    try:
        chosen = [int(index) for index in processor.sample_frames(metadata=metadata, **rate)]
    except ValueError:
        if fps is None or own is None:
            raise
        chosen = []
    if fps is None or own is None or chosen and len(chosen) != own:
        return chosen
    wanted = max(
        1, min(int(metadata.total_num_frames / (metadata.fps or 0.0) * fps), metadata.total_num_frames)
    )
    told = [int(index) for index in processor.sample_frames(metadata=metadata, num_frames=wanted)]
    return told if len(told) == wanted or not chosen else chosen  # SmolVLM's number is the most that it takes


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
    _check_arguments(model, chat.template, f"{chat.name}: ")
    if "tool_calls" not in str(template) and any("tool_calls" in message for message in chat.messages):
        raise InputError(f"{chat.name}: the chat template of {model.name} has no tool_calls")
    if "role" not in str(template) and any(each["role"] in ("assistant", "tool") for each in chat.messages):
        raise InputError(
            f"{chat.name}: the chat template of {model.name} has no roles, so no earlier turns can be shown"
        )
    # the processor's own is not named: SmolVLM's takes another one for videos
    own = {} if model.processor.chat_template else {"chat_template": template}
    try:
        text = model.processor.apply_chat_template(
            chat.messages, tokenize=False, add_generation_prompt=True, **own, **chat.template
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


@dataclass(frozen=True)
class Prompt:
    """A sample as the model reads it.

    Attributes:
        ids: token ids, int32 [token].
        group: values of `Group`, uint8 [token].
        image: the index of the view that a visual token shows, int16 [token]; -1 for other tokens.
        views: grids of visual tokens, in the order of their tokens; one for each image and each few frames of a video, or
            several where a family cuts images into tiles.
        sources: for each view, the index of the picture that it shows, or of the first: the sample's images are counted,
            and then the frames of its videos.
        sizes: pixels (height, width) of each picture's file.
        clips: which of the pictures are frames of which video.
        padding: number of padding tokens before the prompt in its batch.
    """

    ids: np.ndarray
    group: np.ndarray
    image: np.ndarray
    views: list[View]
    sources: list[int]
    sizes: list[tuple[int, int]]
    padding: int = 0
    clips: tuple[Clip, ...] = ()

    def shows(self, view: int, picture: int) -> bool:
        """Return whether a view shows a picture: an image, or a frame of a video."""
        return self.sources[view] <= picture < self.sources[view] + self.views[view].pictures

    @property
    def grids(self) -> list[tuple[int, int]]:
        """Rows and columns of each view's visual tokens."""
        return [view.grid for view in self.views]

    @property
    def visual_positions(self) -> np.ndarray:
        """Positions of all visual tokens in the prompt, int64 [visual], in the order of the views.

        In families that are traced without a map of patches, these are tokens that belong to no view.
        """
        return np.flatnonzero(self.image >= 0 if self.views else self.group == Group.VISUAL)

    @property
    def visual_keys(self) -> np.ndarray | None:
        """Indices of the views' cells among the keys of a cross-attention layer, int64 [visual].

        None for models whose visual tokens are in the prompt.
        """
        if not self.views or self.views[0].first_key is None:
            return None
        return np.concatenate(
            [np.arange(view.grid[0] * view.grid[1]) + (view.first_key or 0) for view in self.views]
        )


class Batch(NamedTuple):
    """Several prompts, padded on the left.

    Attributes:
        inputs: tensors for `generate`, on the model's device.
        prompts: the prompt of each row.
    """

    inputs: dict[str, Any]
    prompts: list[Prompt]


class _Tokens(NamedTuple):
    """The tokens of one row of a batch.

    Attributes:
        ids: int32 [token].
        offsets: int [token, 2], start and end of each token in the string that was tokenised.
        replacements: what the processor put into that string in place of images, in transformers' form.
    """

    ids: np.ndarray
    offsets: np.ndarray
    replacements: list[dict[str, Any]]


def build_batch(model: Model, chats: Sequence[Chat]) -> Batch:
    """Render chats, tokenise them and pad them on the left.

    Images may come anywhere between the texts. The tokens of a prefill belong to the group template: the
    user did not write them and the model did not generate them, so they count neither as question nor as
    answer.

    Args:
        chats: all of them with images, or none; and so with videos.

    Raises:
        InputError: a prompt is longer than the model's context, the processor refuses the images, its output does
            not match the family's views, or there are several and the family takes one at a time.
    """
    if len(chats) > 1 and not model.family.batches:
        names = ", ".join(chat.name for chat in chats)
        raise InputError(
            f"{names}: {model.family.name} computes other values for a prompt in a batch; use a batch size of 1"
        )
    _check_clips(model, chats)
    rendered_chats = [render_chat(model, chat) for chat in chats]
    outputs = _process(model, chats, [rendered.text for rendered in rendered_chats])
    _check_lengths(model, chats, outputs["attention_mask"].sum(1).tolist())
    offsets, replacements = outputs.pop("offset_mapping"), outputs.pop("text_replacement_offsets", None)
    views = iter(_build_views(model, chats, outputs))
    clips = iter(_build_video_views(model, chats, outputs))
    prompts = []
    for row, (chat, rendered) in enumerate(zip(chats, rendered_chats, strict=True)):
        is_token = outputs["attention_mask"][row].numpy().astype(bool)
        tokens = _Tokens(
            outputs["input_ids"][row].numpy()[is_token].astype(np.int32),
            np.asarray(offsets[row])[is_token],
            list(replacements[row]) if replacements is not None and len(replacements) else [],
        )
        shown = _order_views(
            chat, [next(views) for _ in range(chat.n_images)], [next(clips) for _ in chat.clips]
        )
        padding = int((~is_token).sum())
        prompts.append(_build_prompt(model, chat, rendered, tokens, shown, padding))
    inputs = {
        name: value.to(model.device, model.hf.dtype if value.is_floating_point() else value.dtype)
        for name, value in outputs.items()
        if value is not None and value.numel() and name != "labels"
    }
    return Batch(inputs, prompts)


def _check_clips(model: Model, chats: Sequence[Chat]) -> None:
    """Raise InputError for videos that the family's processor cannot take together, or with images."""
    counts = sorted({len(clip.indices) for chat in chats for clip in chat.clips})
    names = ", ".join(chat.name for chat in chats)
    if model.family.equal_videos and len(counts) > 1:
        several = "; use a batch size of 1, or" if len(chats) > 1 else ";"
        raise InputError(
            f"{names}: videos of {' and '.join(map(str, counts))} frames, and {model.family.name} takes one number of "
            f"frames at a time{several} show as many of each"
        )
    both = next((chat for chat in chats if chat.clips and chat.n_images), None)
    if model.family.videos_alone and both is not None:
        raise InputError(
            f"{both.name}: has images and videos, and {model.family.name} takes either; show one kind"
        )


class _Shown(NamedTuple):
    """An image or a video of a chat: its views, and the picture that each of them shows first."""

    views: list[View]
    sources: list[int]


def _build_views(model: Model, chats: Sequence[Chat], outputs: dict[str, Any]) -> Iterable[list[View]]:
    """Return the views of each image of a batch."""
    sizes = [(image.height, image.width) for chat in chats for image in chat.images[: chat.n_images]]
    build = model.family.views
    return check_made(build, build(outputs, sizes, model.processor, model.hf.config), Iterable)


def _build_video_views(model: Model, chats: Sequence[Chat], outputs: dict[str, Any]) -> Iterable[list[View]]:
    """Return the views of each video of a batch."""
    videos = [
        Frames(len(clip.indices), chat.images[clip.start].height, chat.images[clip.start].width)
        for chat in chats
        for clip in chat.clips
    ]
    build = model.family.video_views
    if not videos or build is None:
        return []
    return check_made(build, build(outputs, videos, model.processor, model.hf.config), Iterable)


def _order_views(chat: Chat, images: list[list[View]], videos: list[list[View]]) -> list[_Shown]:
    """Return the views of a chat's images and videos in the order of their tokens."""
    shown = {
        "image": iter([_Shown(views, [number] * len(views)) for number, views in enumerate(images)]),
        "video": iter(
            [
                _Shown(
                    views,
                    (clip.start + np.cumsum([0, *(view.pictures for view in views)])[:-1]).tolist(),
                )
                for clip, views in zip(chat.clips, videos, strict=True)
            ]
        ),
    }
    parts = [part["type"] for message in chat.messages for part in message["content"]]
    return [next(shown[kind]) for kind in parts if kind in shown]


def _check_lengths(model: Model, chats: Sequence[Chat], counts: Sequence[int]) -> None:
    """Raise InputError if a prompt has more tokens than the model's context."""
    limit = getattr(model.hf.config.get_text_config(), "max_position_embeddings", None)
    for chat, tokens in zip(chats, counts, strict=True):
        if limit is not None and tokens > limit:
            raise InputError(
                f"{chat.name}: its prompt has {tokens:,} tokens, and the context of {model.name} has {limit:,}; "
                "shorten its texts, or show fewer or smaller images"
            )


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MOST_PIECES = 16  # tokens of characters that no token ends between, of up to four bytes each; our choice


def decode_tokens(model: Model, ids: np.ndarray) -> list[str]:
    """Return each token's own text, for display. What is a part of a character shows as its bytes.

    Tokenizers whose tokens do not tell their bytes show it as the replacement character.

    Example:
        >>> from mmprobe.models import load_model
        >>> model = load_model("tiny-spd", device="cpu")
        >>> decode_tokens(model, np.array(model.tokenizer("é")["input_ids"]))
        ['<0xC3>', '<0xA9>']
    """
    return _show_parts(model, ids, _decode_alone(model, ids))


def _decode_alone(model: Model, ids: np.ndarray) -> list[str]:
    unique_ids, indices = np.unique(ids, return_inverse=True)  # one visual token is most of a prompt
    texts = model.tokenizer.batch_decode(unique_ids[:, None].tolist(), skip_special_tokens=False)
    return [texts[index] for index in indices]


def _show_parts(model: Model, ids: np.ndarray, texts: Sequence[str]) -> list[str]:
    return [
        _show_bytes(model, number, text) if REPLACEMENT in text else text
        for number, text in zip(ids.tolist(), texts, strict=True)
    ]


def _show_bytes(model: Model, number: int, text: str) -> str:
    """Return the text of a token with `<0xF0>` for each byte that is a part of a character."""
    token = str(model.tokenizer.convert_ids_to_tokens(number))
    if re.fullmatch("<0x[0-9A-F]{2}>", token):  # SentencePiece
        return token
    byte_of = _byte_letters()
    if not all(letter in byte_of for letter in token):
        return text
    raw = bytes(byte_of[letter] for letter in token)
    if raw.decode("utf-8", "replace").strip() != text.strip():
        return text
    return re.sub(
        "[\udc80-\udcff]",
        lambda part: f"<0x{ord(part[0]) - 0xDC00:02X}>",
        raw.decode("utf-8", "surrogateescape"),
    )


@cache
def _byte_letters() -> Mapping[str, int]:
    """Return the byte of each letter of byte-level tokens, as GPT-2 writes them."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}


def decode_sequence(model: Model, ids: np.ndarray) -> list[str]:
    """Return the texts of a sequence's tokens, for display; together they are its text.

    A character of several tokens, such as an emoji, is at its last one, and the text of the others is empty. Parts of
    characters that nothing completes show as their bytes.
    """
    alone = _decode_alone(model, ids)
    texts = _show_parts(model, ids, alone)
    first = None  # of the tokens that are part of a character
    for place, text in enumerate(alone):
        if first is None and REPLACEMENT in text:
            first = place
        if first is None:
            continue
        whole = model.tokenizer.decode(ids[first : place + 1].tolist(), skip_special_tokens=False)
        if REPLACEMENT not in whole:
            texts[first : place + 1] = [""] * (place - first) + [whole]
        if REPLACEMENT not in whole or place - first + 1 >= MOST_PIECES:
            first = None
    return texts


def decode_answer(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return an answer's text without control tokens but for the marks of thoughts and answers.

    Marks are control tokens in some tokenizers, such as Magistral's. Without them, nobody could tell what is thought from
    what is said.

    Example:
        >>> from mmprobe.models import load_model
        >>> tokenizer = load_model("tiny-spd", device="cpu").tokenizer
        >>> decode_answer(tokenizer, tokenizer("Yes.<|im_end|>")["input_ids"])
        'Yes.'
    """
    special = set(tokenizer.all_special_ids) | {
        number for number, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    texts, first = [], 0
    for place, number in enumerate(ids):
        if number in special and is_mark(mark := str(tokenizer.convert_ids_to_tokens(number))):
            texts += [tokenizer.decode(list(ids[first:place]), skip_special_tokens=True), mark]
            first = place + 1
    return "".join([*texts, tokenizer.decode(list(ids[first:]), skip_special_tokens=True)])


def find_opened_thought(model: Model, chat: Chat, text: str) -> str:
    """Return the mark of a thought that the end of a chat's prompt opens and an answer does not close; empty if none.

    Args:
        chat: its images are not used.
        text: the answer.
    """
    template = f"{model.processor.chat_template or model.family.chat_template}{chat.prefill}".lower()
    if not any(mark in template for mark in THINKING_MARKS):  # most models
        return ""
    rendered = render_chat(model, chat)
    end = max((span.end for span in rendered.spans), default=0)
    return find_opened(text, rendered.layout[end:])


class ImageProcessor:
    """A model's image processor, which keeps what it made of the newest images.

    Questions about the same images often follow each other, and large images take longer to prepare than short answers
    to read. A call with equal pixels, arguments and settings returns a copy.

    Example:
        >>> from mmprobe.models import load_model
        >>> image, process = Image.new("RGB", (112, 112)), load_model("tiny-spd").image_processor
        >>> bool((process([image])["pixel_values"] == process([image.copy()])["pixel_values"]).all())
        True
    """

    def __init__(self, processor: Any):
        self._processor = processor
        self._newest: tuple[Any, Any] = (None, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)

    def __call__(self, images: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the processor's output for images, in any nesting that it takes."""
        key = [
            _hash_images(images),
            repr((args, sorted(kwargs.items()), sorted(vars(self._processor).items()))),
        ]
        kept, made = self._newest
        if key != kept:
            made = self._processor(images, *args, **kwargs)
            if sum(getattr(value, "nbytes", 0) for value in made.values()) > MOST_KEPT_BYTES:
                return made
            self._newest = key, made
        return copy.deepcopy(made)  # methods change their inputs


def _hash_images(images: Any) -> Any:
    if isinstance(images, list | tuple):
        return [_hash_images(each) for each in images]
    pixels = np.ascontiguousarray(images)
    return pixels.shape, pixels.dtype.str, hashlib.sha1(pixels.data, usedforsecurity=False).digest()


def _process(model: Model, chats: Sequence[Chat], texts: list[str]) -> dict[str, Any]:
    """Return the output of the model's processor, tensors by name."""
    images: list[list[Any]] = [list(chat.images[: chat.n_images]) for chat in chats]
    if model.family.infers_axes:
        images = [[np.moveaxis(np.asarray(image), -1, 0) for image in each] for each in images]
    options: dict[str, Any] = {}
    clips = [(chat, clip) for chat in chats for clip in chat.clips]
    if clips:
        metadata = [
            {
                "total_num_frames": clip.total,
                "fps": clip.fps,
                "frames_indices": list(clip.indices),
                "duration": clip.duration,
            }
            for _, clip in clips
        ]
        # the frames are those that the processor chose of a file, or all that are listed
        options["videos"] = [chat.images[clip.pictures] for chat, clip in clips]
        options["videos_kwargs"] = {
            "do_sample_frames": False,
            "video_metadata": metadata,
            **model.family.video_options,
        }
    has_bos = model.tokenizer.bos_token is not None and texts[0].startswith(model.tokenizer.bos_token)
    if has_bos:
        options["add_special_tokens"] = False  # else there would be two
    if "mm_token_type_ids" in inspect.signature(model.hf.forward).parameters:
        options["return_mm_token_type_ids"] = True  # from which M-RoPE makes positions
    processor = copy.copy(model.processor)
    processor.image_processor = model.image_processor
    try:
        outputs = processor(
            text=texts,
            images=images if any(images) else None,
            return_tensors="pt",
            padding=True,
            padding_side="left",
            return_offsets_mapping=True,
            return_text_replacement_offsets=True,
            **options,
        )
    except torch.OutOfMemoryError:
        raise
    except (
        ValueError,
        TypeError,
        RuntimeError,
    ) as error:  # an image 200 times as wide as high, tiles of unlike sizes
        if len(chats) > 1:
            for chat in chats:
                build_batch(model, [chat])  # raises an error that names the chat
        names = ", ".join(chat.name for chat in chats)
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{names}: the processor of {model.name} refuses the text or the images ({reason})"
        ) from None
    return dict(outputs)


def _build_prompt(
    model: Model,
    chat: Chat,
    rendered: RenderedChat,
    tokens: _Tokens,
    shown: list[_Shown],
    padding: int,
) -> Prompt:
    views = [view for each in shown for view in each.views]
    sources = [source for each in shown for source in each.sources]
    spans = (
        _follow_prefix(rendered, tokens)
        if tokens.replacements
        else _shift_spans(model, chat, rendered, tokens)
    )
    group = _assign_groups(tokens, spans)
    if views and views[0].first_key is not None:  # the images are seen by cross-attention
        image = np.full(len(tokens.ids), -1, np.int16)
    elif model.family.without_map:
        image = np.full(len(tokens.ids), -1, np.int16)
        group[tokens.ids == model.family.image_token_id(model.hf.config)] = Group.VISUAL
    else:
        image = _assign_views(model, chat.name, tokens, [each.views for each in shown])
    group[image >= 0] = Group.VISUAL
    if any(0 in view.grid for view in views):
        image, views, sources = _leave_out_empty(chat, image, views, sources)
    sizes = [(image.height, image.width) for image in chat.images]
    return Prompt(tokens.ids, group, image, views, sources, sizes, padding, chat.clips)


def _leave_out_empty(
    chat: Chat, image: np.ndarray, views: list[View], sources: list[int]
) -> tuple[np.ndarray, list[View], list[int]]:
    """Return the image of each token, the views and their sources without the views that have no cell.

    Where tiles are joined and their padding is removed, nothing may be left of an image that is long and thin.

    Raises:
        InputError: nothing is left of any view of an image.
    """
    kept = [number for number, view in enumerate(views) if 0 not in view.grid]
    if lost := sorted({*sources} - {sources[number] for number in kept}):
        height, width = chat.images[lost[0]].height, chat.images[lost[0]].width
        raise InputError(
            f"{chat.name}: image {lost[0]} has {width} x {height} pixels, of which the processor leaves nothing; cut it"
        )
    places = np.full(len(views) + 1, -1, np.int16)  # the last is that of tokens without a view
    places[kept] = np.arange(len(kept))
    return places[image], [views[number] for number in kept], [sources[number] for number in kept]


def _follow_prefix(rendered: RenderedChat, tokens: _Tokens) -> list[TextSpan]:
    """Return the spans of the texts where the processor may have put a token before all, as Molmo2's does."""
    added = int(tokens.offsets[-1, 1]) - _shift_offset(len(rendered.layout), tokens.replacements)
    if added <= 0 or added != tokens.offsets[0, 1]:
        return rendered.spans
    return [span._replace(start=span.start + added, end=span.end + added) for span in rendered.spans]


def _shift_spans(model: Model, chat: Chat, rendered: RenderedChat, tokens: _Tokens) -> list[TextSpan]:
    """Return the spans of the texts in the string that was tokenised, if the processor does not say what it put in.

    Texts before the first image are where they were, and those after the last are as far from the end.

    Raises:
        InputError: a text is between images.
    """
    added = int(tokens.offsets[-1, 1]) - len(rendered.layout)
    if not added:
        return rendered.spans
    if chat.clips:
        raise InputError(
            f"{chat.name}: videos: the processor of {model.name} does not say where it puts visual tokens"
        )
    parts = [part["type"] for message in chat.messages for part in message["content"]]
    before = [parts[:index].count("image") for index, kind in enumerate(parts) if kind == "text"]
    if any(0 < count < len(chat.images) for count in before):
        raise InputError(
            f"{chat.name}: the processor of {model.name} does not say where it puts visual tokens, so no text can be "
            "between two images; put all images first"
        )
    return [
        span._replace(start=span.start + added, end=span.end + added) if count and added > 0 else span
        for span, count in zip(rendered.spans, before, strict=True)
    ]


def _assign_groups(tokens: _Tokens, spans: list[TextSpan]) -> np.ndarray:
    """Return the group of each token by its place in the string, uint8 [token], without visual tokens."""
    starts, ends = tokens.offsets[:, 0], tokens.offsets[:, 1]
    group = np.full(len(tokens.ids), Group.TEMPLATE, np.uint8)
    for span in spans:
        start = _shift_offset(span.start, tokens.replacements)
        end = _shift_offset(span.end, tokens.replacements)
        group[(starts < end) & (ends > start)] = span.group
    return group


def _assign_views(model: Model, name: str, tokens: _Tokens, views_of_shown: list[list[View]]) -> np.ndarray:
    """Return the index of the view that each token shows, int16 [token]; -1 for tokens that show none.

    Args:
        views_of_shown: the views of each image and each video, in the order of their tokens.

    Raises:
        InputError: an image or a video has another number of visual tokens than its views have cells.
    """
    starts, ends = tokens.offsets[:, 0], tokens.offsets[:, 1]
    assigned = np.full(len(tokens.ids), -1, np.int16)
    first = 0  # index of the first view of the image or video
    for number, (replacement, views) in enumerate(zip(tokens.replacements, views_of_shown, strict=True)):
        start, end = replacement["new_span"]
        is_video = replacement.get("type") == "video"
        find_id = model.family.video_token_id if is_video else model.family.image_token_id
        is_visual = tokens.ids == find_id(model.hf.config)
        positions = np.flatnonzero(is_visual & (starts >= start) & (ends <= end))
        indices = np.concatenate([_fill_grid(view, first + offset) for offset, view in enumerate(views)])
        if len(positions) != len(indices):
            raise InputError(
                f"{name}: {model.family.name}'s prompt contains {len(positions)} visual tokens for "
                f"{'video' if is_video else 'image'} {number}, its views make {len(indices)}"
            )
        assigned[positions] = indices
        first += len(views)
    return assigned


def _shift_offset(offset: int, replacements: list[dict[str, Any]]) -> int:
    """Return the place of a character after the visual tokens have been put in before it."""
    return offset + sum(
        len(replacement["replacement"]) - (replacement["span"][1] - replacement["span"][0])
        for replacement in replacements
        if replacement["span"][1] <= offset
    )


def _fill_grid(view: View, index: int) -> np.ndarray:
    """Return `index` for each token of the view that shows a cell, else -1; int16 [token]."""
    rows, columns = view.grid
    cells = np.full((rows, columns + view.row_end_tokens), -1, np.int16)
    cells[:, :columns] = index
    before, after = (np.full(count, -1, np.int16) for count in (view.start_tokens, view.end_tokens))
    return np.concatenate([before, cells.ravel(), after])
