"""Samples: questions with their images and videos, read from JSON lines and checked before anything runs."""

from __future__ import annotations

import base64
import json
import logging
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from io import BytesIO
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args
from urllib.parse import unquote

from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    StrictBool,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from mmprobe.errors import InputError, unknown_name
from mmprobe.files import (
    NewFile,
    Record,
    check_readable,
    hash_file,
    make_folders,
    read_records,
    read_text,
    write_whole,
    writing_error,
)
from mmprobe.notebook import show_fields

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger("mmprobe")

_Kind = TypeVar("_Kind", bound=BaseModel)

MAX_IMAGE_PIXELS = 100_000_000
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # others may start programs, as EPS does
MAX_URI = 200_000_000  # characters of an image as a data: URI; our choice
MAX_VIDEO_FRAMES = 1_000_000  # of a file; these limits are our choice, too
MAX_VIDEO_PIXELS = 2_000_000_000  # of all frames that are shown: they take three bytes each
VIDEO_FORMATS = ("mov", "matroska", "avi", "gif", "mpegts")  # of FFmpeg; others may lead to further files
Box = tuple[int, int, int, int]
"""x, y, width and height in pixels of an upright image."""
BoxFormat = Literal["xywh", "xyxy", "cxcywh", "thousandths"]
"""How a box is written: its corner and size, two corners, its centre and size, or two corners in thousandths of the image."""
SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_id(value: str) -> str:
    """Return the id if it is a safe file name.

    Raises:
        ValueError: it is not. The message says what an id must be, and the caller adds the place.

    Example:
        >>> check_id("0001-same")
        '0001-same'
    """
    if not SAFE_ID.fullmatch(value) or ".." in value:
        raise ValueError(
            "must be 1 to 128 letters, digits, '.', '_' or '-', begin with a letter or digit and not contain '..'"
        )
    return value


Id = Annotated[str, AfterValidator(check_id)]
"""A string that is a safe file name."""


_URL = re.compile(r"(?!file:///)[A-Za-z][A-Za-z0-9+.-]+://")
_NOT_DOWNLOADED = "is a URL, and nothing is downloaded; save it as a file (curl -O URL) and give its path"


def _check_local(value: Any) -> Any:
    """Return a path that is not a URL. Raises ValueError otherwise."""
    if isinstance(value, str) and _URL.match(value):
        raise ValueError(f"{value!r}: {_NOT_DOWNLOADED}")
    if isinstance(value, str) and value.startswith("data:"):
        raise ValueError(f"{value[:30]!r}: is a data: URI; samples_from writes it to a file")
    return _read_file_uri(value)


def _read_file_uri(value: Any) -> Any:
    """Return the path of a `file:///` URI, and anything else as it is."""
    is_uri = isinstance(value, str) and value.startswith("file:///")
    return Path(unquote(value.removeprefix("file://"))) if is_uri else value


File = Annotated[Path, BeforeValidator(_check_local)]
"""The path of a file, and no URL."""


class Region(BaseModel):
    """A box on one image of a sample, in pixels of the original image."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: int = Field(ge=0, description="index into the sample's images, then the frames of its videos")
    box: Box = Field(description="x, y, width, height, within the upright image")


class Video(BaseModel):
    """A video: a file, or its frames as image files of one size, in order.

    A path stands for a file, and a list of paths for frames. Of a file, the model's processor chooses the frames, as many a
    second as `fps` says, or as it chooses by itself. Listed frames are shown as they are; `fps` is then how many a second
    were taken, from which some models read the times.

    Example:
        >>> Video.model_validate(["0.png", "1.png"]).files
        [PosixPath('0.png'), PosixPath('1.png')]
        >>> Video(file="clip.mp4", fps=2).model_dump(mode="json")
        {'file': 'clip.mp4', 'fps': 2.0}
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: File | None = None
    frames: list[File] = []
    fps: float | None = Field(None, gt=0, allow_inf_nan=False)

    @property
    def files(self) -> list[Path]:
        """The files of the video."""
        return self.frames if self.file is None else [self.file]

    def place(self, where: Callable[[Path], Path]) -> Video:
        """Return the video with other paths."""
        return self.model_copy(
            update={"file": self.file and where(self.file), "frames": [where(each) for each in self.frames]}
        )

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, data: Any) -> Any:
        if isinstance(data, str | Path):
            return {"file": data}
        return {"frames": data} if isinstance(data, list | tuple) else data

    @model_validator(mode="after")
    def _check_source(self) -> Video:
        if (self.file is None) != bool(self.frames):
            raise ValueError("a video is a file, or a list of one frame or more as image files")
        return self

    @model_serializer(mode="wrap")
    def _use_short_form(self, dump: SerializerFunctionWrapHandler) -> Any:
        values = {name: value for name, value in dump(self).items() if value}
        return next(iter(values.values())) if len(values) == 1 else values


class Part(BaseModel):
    """A part of a turn: a text, or the place of the sample's next image or video."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["text", "image", "video"]
    text: str | None = None

    @model_validator(mode="after")
    def _check_text(self) -> Part:
        if (self.type == "text") != (self.text is not None):
            raise ValueError("a part of type text has a text, and no other part has")
        return self

    @model_serializer(mode="wrap")
    def _drop_empty(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if value is not None}


class Turn(BaseModel):
    """A turn of a conversation, in the form of chat templates.

    `reasoning_content` is what an assistant thought before its content. `tool_calls`, `tool_call_id` and `name` are
    those of a turn with tools. A chat template may leave all four out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Literal["system", "user", "assistant", "tool"]
    content: list[Part] = []
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """The texts of the turn, with a blank between them."""
        return " ".join(part.text.strip() for part in self.content if part.text and part.text.strip())

    @model_serializer(mode="wrap")
    def _drop_empty(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if value is not None}


def _read_answer(value: Any) -> Any:
    """Return an answer as text: numbers as they are written, true and false as yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:g}"
        if isinstance(value, float) and value.is_integer()
        else str(value)
        if isinstance(value, int | float)
        else value
    )


AnswerText = Annotated[str, BeforeValidator(_read_answer)]

OWN_ARGUMENTS = ("messages", "conversation", "chat_template", "tokenize", "add_generation_prompt",
                 "continue_final_message", "return_dict", "return_tensors", "images", "videos")  # fmt: skip
"""Arguments of a chat template that mmprobe gives itself."""


class Sample(BaseModel):
    """One question with its images and videos, or a conversation. The fields are those of a line of a samples file.

    In the short form, a prompt is `system`, then all `images`, then all `videos`, then `question`. `messages` says in
    place of them what each turn contains, in any order: an image part names its file in `image`, or stands for the next of
    `images`, and a video part in the same way. `images` and `videos` then have all of them in order of appearance, and
    `question` is the text of the user's last turn.

    `prefill` is text that the answer begins with. The model continues it, and the continuation is its answer.
    `template` has arguments of the model's chat template, such as `enable_thinking` or `tools`.

    Example:
        >>> parts = [{"type": "text", "text": "Image 1:"}, {"type": "image", "image": "a.png"}]
        >>> sample = Sample(id="0001", messages=[{"role": "user", "content": parts}])
        >>> sample.question, [str(image) for image in sample.images]
        ('Image 1:', ['a.png'])
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Id
    images: list[File] = []
    videos: list[Video] = []
    question: str
    system: str | None = None
    messages: list[Turn] = []
    template: dict[str, Any] = {}
    prefill: str | None = None
    answer: AnswerText | None = None
    pair_id: str | None = None
    polarity: Literal["same", "different"] | None = None
    faithful: StrictBool | None = None
    regions: list[Region] = []
    metadata: dict[str, Any] = {}

    def _repr_html_(self) -> str:
        return show_fields(self.model_dump(exclude={"images"}), self.images)

    @property
    def files(self) -> list[Path]:
        """The files of all images, then of all videos. Empty where the model sees none."""
        return [*self.images, *(file for video in self.videos for file in video.files)]

    @property
    def transcript(self) -> str:
        """What the model is shown, a line a turn, with `[image 1]` in the place of an image; without messages, the question."""
        lines, numbers = [], {"image": 0, "video": 0}
        for turn in self.messages:
            shown = []
            for part in turn.content:
                if part.text is None:
                    numbers[part.type] += 1
                    shown.append(f"[{part.type} {numbers[part.type]}]")
                else:
                    shown.append(part.text.strip())
            shown += [json.dumps(call) for call in turn.tool_calls or ()]
            lines.append(f"{turn.role}: {' '.join(each for each in shown if each)}")
        return "\n".join(lines) or self.question

    @model_validator(mode="before")
    @classmethod
    def _read_messages(cls, data: Any) -> Any:
        """Take the files out of the parts, and the question from the user's last turn."""
        if not isinstance(data, Mapping) or not data.get("messages"):
            return data
        if not isinstance(data["messages"], list):
            return {"question": "", **data}  # so that the messages are what is reported
        turns, files = _take_files(data["messages"])
        data = {**data, "messages": turns}
        for kind, of_kind in files.items():
            named = [file for file in of_kind if file is not None]
            if named and (len(named) < len(of_kind) or data.get(f"{kind}s")):
                raise ValueError(
                    f"messages: name the file in each {kind} part, or in none and list all of them in {kind}s"
                )
            if named:
                data[f"{kind}s"] = named
        if data.get("system") is not None:
            raise ValueError("system: with messages, the system prompt is a turn of its own in them")
        question = _find_question(turns)
        if question is not None and data.setdefault("question", question) != question:
            raise ValueError("question: differs from the user's last turn in messages; leave it out")
        return data

    @model_validator(mode="after")
    def _check_messages(self) -> Sample:
        if self.messages:
            kinds: list[str] = [part.type for turn in self.messages for part in turn.content]
            for kind, files in (("image", self.images), ("video", self.videos)):
                if kinds.count(kind) != len(files):
                    raise ValueError(
                        f"messages: {kinds.count(kind)} {kind} parts, and {kind}s has {len(files)}"
                    )
            if self.messages[-1].role not in ("user", "tool"):
                raise ValueError(
                    f"messages: the last turn is of the role {self.messages[-1].role}, and the model answers a user "
                    "or a tool; an answer to compare with belongs in answer, the beginning of one in prefill"
                )
        for name in OWN_ARGUMENTS:
            if name in self.template:
                raise ValueError(f"template: {name!r} is given by mmprobe; leave it out")
        return self

    @model_serializer(mode="wrap")
    def _drop_empty(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what only some samples have, so that others are stored, and hashed, as ever."""
        empty = [name for name in ("videos", "messages", "template") if not getattr(self, name)]
        return {name: value for name, value in dump(self).items() if name not in empty}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Sample:
        """Return a copy with other values, of the types of a samples file: `images` may be texts. Of a conversation, the
        messages follow them.

        Raises:
            InputError: there is no such field, a value is of another type, or the messages cannot follow: another number of
                images, or a question that changes more than one text of the user's last turn.

        Example:
            >>> Sample(id="a", question="?").model_copy(update={"images": ["b.png"]}).images
            [PosixPath('b.png')]
        """
        if update:
            update = {name: self._read_field(name, value) for name, value in update.items()}
        if update and update.get("messages"):
            update = {**update, "question": _find_question(update["messages"])}
        elif update and self.messages and "messages" not in update:
            update = {**update, **_follow(self, update)}
        return super().model_copy(update=update, deep=deep)

    def _read_field(self, name: str, value: Any) -> Any:
        """Return a value as a field of a sample has it. A copy in memory may have any id: it names no file."""
        if name not in type(self).model_fields:
            raise InputError(f"sample {self.id}: {unknown_name('field', name, type(self).model_fields)}")
        if name == "id":
            return value
        try:
            return _field_reader(name).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]
            place = "".join(f"[{part}]" for part in problem["loc"])
            raise InputError(f"sample {self.id}: {name}{place}: {problem['msg']}") from None


@cache
def _field_reader(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(Sample.model_fields[name].rebuild_annotation())


def _take_files(messages: Sequence[Any]) -> tuple[list[Any], dict[str, list[Any]]]:
    """Return messages whose parts name no file, and the images and videos, None where a part named none."""
    turns: list[Any] = []
    files: dict[str, list[Any]] = {"image": [], "video": []}
    for message in messages:
        turn = message.model_dump() if isinstance(message, Turn) else message
        if isinstance(turn, Mapping):
            content = turn.get("content")
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            parts = [] if content is None else content
            if isinstance(parts, list):
                parts = [dict(part) if isinstance(part, Mapping) else part for part in parts]
                for part in parts:
                    kind = part.get("type") if isinstance(part, dict) else None
                    if kind in files:
                        file = part.pop(kind, None)
                        if kind == "video" and file is not None and "fps" in part:
                            frames = isinstance(file, list | tuple)
                            file = {"frames" if frames else "file": file, "fps": part.pop("fps")}
                        files[kind].append(file)
            turn = {**turn, "content": parts}
        turns.append(turn)
    return turns, files


def _find_question(turns: Sequence[Any]) -> str:
    """Return the text of the user's last turn; empty where the turns are not valid, which pydantic says."""
    try:
        read = [Turn.model_validate(turn) for turn in turns]
    except ValidationError:
        return ""  # so that the invalid turn is what is reported
    questions = [turn.text for turn in read if turn.role == "user"]
    if not questions:
        raise ValueError("messages: no turn is of the role user")
    return questions[-1]


def _follow(sample: Sample, update: Mapping[str, Any]) -> dict[str, Any]:
    """Return the messages, and the fields that follow from them, of a conversation with other values."""
    turns = list(sample.messages)
    out: dict[str, Any] = {}
    for kind, files in (("image", sample.images), ("video", sample.videos)):
        shown = update.get(f"{kind}s", files)
        if len(shown) == len(files):
            continue
        if shown:
            raise InputError(
                f"sample {sample.id}: is a conversation with {len(files)} {kind}s in their places, so it cannot be shown "
                f"with {len(shown)}"
            )
        turns = [
            turn.model_copy(update={"content": [part for part in turn.content if part.type != kind]})
            for turn in turns
        ]
    if update.get("question", sample.question) != sample.question:
        last = max(index for index, turn in enumerate(turns) if turn.role == "user")
        content = _replace_question(sample, turns[last].content, update["question"])
        turns[last] = turns[last].model_copy(update={"content": content})
        out["question"] = turns[last].text
    if update.get("system") is not None:
        system = Turn(role="system", content=[Part(type="text", text=update["system"])])
        turns = [system, *(turns[1:] if turns[0].role == "system" else turns)]
        out["system"] = None
    return out | {"messages": turns}


def _replace_question(sample: Sample, parts: Sequence[Part], question: str) -> list[Part]:
    """Return the parts of the user's last turn with another question: its only text, what is put around all, or a change
    within one of them."""
    parts, old = list(parts), sample.question
    places = [index for index, part in enumerate(parts) if part.text and part.text.strip()]
    before, found, after = question.partition(old)
    if not places:
        return [*parts, Part(type="text", text=question)]
    if len(places) == 1:
        first = places[0]
        parts[first] = Part(type="text", text=question)
        return parts
    if found:
        parts[places[0]] = Part(type="text", text=before + str(parts[places[0]].text))
        parts[places[-1]] = Part(type="text", text=str(parts[places[-1]].text) + after)
        return parts
    start = len(commonprefix([old, question]))
    end = len(old) - min(
        len(commonprefix([old[::-1], question[::-1]])), len(old) - start, len(question) - start
    )
    first = 0  # character of the question with which the part's text begins
    for index in places:
        text = str(parts[index].text).strip()
        if first <= start and end <= first + len(text):
            changed = question[start : len(question) - (len(old) - end)]
            parts[index] = Part(type="text", text=text[: start - first] + changed + text[end - first :])
            return parts
        first += len(text) + 1
    raise InputError(
        f"sample {sample.id}: its last turn has {len(places)} texts, so another question cannot take their place"
    )


def with_template(samples: Iterable[Sample], arguments: Mapping[str, Any]) -> list[Sample]:
    """Return samples with arguments of the chat template, which a sample's own ones replace.

    Raises:
        InputError: mmprobe gives an argument itself, or a value is not one of JSON, as a samples file has them.

    Example:
        >>> with_template([Sample(id="a", question="?")], {"enable_thinking": False})[0].template
        {'enable_thinking': False}
    """
    for name in OWN_ARGUMENTS:
        if name in arguments:
            raise InputError(f"template: {name!r} is given by mmprobe; leave it out")
    for name, value in arguments.items():
        try:
            json.dumps(value, allow_nan=False)
        except (RecursionError, TypeError, ValueError):
            raise InputError(
                f"template: {name!r} is not a value of JSON: a text, a number, a list or an object"
            ) from None
    return [
        sample.model_copy(update={"template": {**arguments, **sample.template}}) if arguments else sample
        for sample in samples
    ]


def set_keys(sample: Sample) -> list[str]:
    """Return the keys by which samples are grouped into sets: images, pair, id of the question.

    An image is known by its content, so copies of a file are one; by its path where it cannot be read. Images that were made
    of one original have its name in `metadata["original"]`. Where there are no image files, `metadata["image"]` names
    the image. A question without its images, or with others in their place, is in the set of the question with them
    (`metadata["with_picture"]`).

    Example:
        >>> set_keys(Sample(id="a", question="?", images=["1.png"], pair_id="x"))
        ['image 1.png', 'pair x', 'question a']
    """
    keys = (
        [] if "with_picture" in sample.metadata else [f"image {_image_name(file)}" for file in sample.files]
    )
    if not sample.files and "image" in sample.metadata:
        keys = [f"image {sample.metadata.get('subtask')}/{sample.metadata['image']}"]
    if sample.pair_id is not None:
        keys.append(f"pair {sample.pair_id}")
    if "original" in sample.metadata:
        keys.append(f"original {sample.metadata['original']}")
    return [*keys, f"question {sample.metadata.get('with_picture', sample.id)}"]


def _image_name(path: Path) -> str:
    try:
        return hash_file(path)
    except OSError:
        return str(path)


def image_sets(samples: Iterable[Sample]) -> np.ndarray:
    """Return the number of each sample's set of images, int [sample] (`mmprobe.stats.sets`).

    Samples that share an image by its content, an original or a `pair_id` are one set.

    Example:
        >>> pairs = [Sample(id=name, question="?", pair_id=pair) for name, pair in zip("abc", "xyx")]
        >>> image_sets(pairs).tolist()
        [0, 1, 0]
    """
    from mmprobe.stats.sets import number_sets  # here, since `import mmprobe` is fast

    return number_sets(map(set_keys, samples))


def load_samples(path: str | Path) -> list[Sample]:
    """Read a samples file: one JSON object a line, with image paths relative to the file.

    Files of questions of other tools are read, too (`mmprobe.peers`). Every line, id and image header is checked, so that a run does not fail half-way.

    Args:
        path: a `.jsonl` file. Blank lines are ignored. Or a file of LLaVA, lmms-eval, VLMEvalKit or VQA.

    Raises:
        InputError: malformed JSON, an unknown or missing field, an empty question, a duplicate or unsafe id, or an image that is
            missing, unreadable, over 100 megapixels or grey with over 8 bits. The message names file and
            line.

    Example:
        >>> load_samples("pairs/samples.jsonl")[0].question          # doctest: +SKIP
        'Are the two pictures the same?'
    """
    from mmprobe.contents import list_unusable
    from mmprobe.peers import read_questions

    path = Path(path)
    samples: list[Sample] = []
    unusable: dict[str, list[str]] = {}
    place_of_id: dict[str, str] = {}
    headers = Headers(str(path))
    of_peer = read_questions(path) if path.is_file() else None
    for where, data in _read_lines(path) if of_peer is None else of_peer:
        sample, boxes = _parse_data(data, where, path.parent)
        if not sample.transcript.strip():
            raise InputError(f"{where}: sample {sample.id}: its question is empty; write one")
        if sample.id in place_of_id:
            earlier = place_of_id[sample.id].removeprefix(f"{path}, ")
            raise InputError(f"{where}: id {sample.id!r} was used in {earlier} already")
        place_of_id[sample.id] = where
        sizes = headers.sizes(sample, where)
        samples.append(_read_regions(sample, boxes, sizes, where))
        unusable[where] = list_unusable(sample, sizes)
    headers.tell_changes()
    if not samples:
        raise InputError(f"{path}: contains no samples")
    faults = [f"{where}: metadata.objects: {each}" for where, listed in unusable.items() for each in listed]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        log.warning("%s%s", faults[0], more)
    return samples


def draw_order(strata: Sequence[object], seed: int) -> list[int]:
    """Return the places of items in an order drawn at random, of which each beginning has every stratum in its share.

    Args:
        strata: of each item, what it is of; equal values are one stratum.

    Example:
        >>> strata = ["a"] * 6 + ["b"] * 2
        >>> sorted(strata[place] for place in draw_order(strata, 0)[:4])
        ['a', 'a', 'a', 'b']
    """
    rng = random.Random(seed)
    places: dict[str, list[int]] = {}
    for place, stratum in enumerate(strata):
        places.setdefault(repr(stratum), []).append(place)
    ranks: dict[int, Any] = {}
    for members in places.values():
        rng.shuffle(members)
        start = rng.random()
        ranks |= {place: (rank + start) / len(members) for rank, place in enumerate(members)}
    return sorted(ranks, key=lambda place: (ranks[place], place))


def choose_samples(
    samples: Sequence[Sample], limit: int | None, shuffle: int | None = None, stratify: str | None = None
) -> list[Sample]:
    """Return the first samples, or as many drawn at random, in the order of the data.

    Args:
        limit: their number; None for all.
        shuffle: seed of the draw; None takes the first ones.
        stratify: a field of the metadata, or of the sample, such as `answer`. Each of its values has its share of what is
            drawn.

    Raises:
        InputError: no sample has the field.

    Example:
        >>> samples = [Sample(id=name, question="?", metadata={"type": name[0]}) for name in ("a1", "a2", "a3", "b1")]
        >>> len(choose_samples(samples, 2)), len(choose_samples(samples, 2, shuffle=1, stratify="type"))
        (2, 2)
    """
    if limit is None or shuffle is None:
        return list(samples[:limit])
    chosen = draw_order(list_strata(samples, stratify), shuffle)[:limit]
    return [samples[place] for place in sorted(chosen)]


def list_strata(items: Sequence[Any], field: str | None) -> list[object]:
    """Return the stratum of each item: the value of a field; all have the same without one.

    Args:
        items: samples, or questions and pairs of a benchmark, which have fields, `metadata` or a `sample`.
        field: a name in the metadata, or of a field.

    Raises:
        InputError: no item has a value.

    Example:
        >>> list_strata([Sample(id="a", question="?", answer="yes", metadata={"type": "colour"})], "type")
        ['colour']
    """
    if field is None:
        return [None] * len(items)
    known = [_list_values(item) for item in items]
    values = [own.get(field) for own in known]
    if all(value is None for value in values):
        names = ", ".join(sorted({name for own in known for name in own}))
        raise InputError(f"stratify {field!r}: no sample has this field; they have {names}")
    return values


def _list_values(item: Any) -> dict[str, Any]:
    """Return the fields of a record by name, with those of its metadata in front."""
    item = getattr(item, "sample", item)
    own = item._asdict() if hasattr(item, "_asdict") else item if isinstance(item, dict) else vars(item)
    return {**own, **own.get("metadata", {})}


def check_short(samples: Iterable[Sample], use: str) -> None:
    """Check that samples are of the short form, where their questions are shown in prompts of another form.

    Args:
        use: what shows them, for the message.

    Raises:
        InputError: one is a conversation, has videos, or has arguments of the chat template.

    Example:
        >>> check_short([Sample(id="a", question="?")], "pope")
    """
    for sample in samples:
        field = next((name for name in ("messages", "template", "videos") if getattr(sample, name)), None)
        if field:
            raise InputError(
                f"sample {sample.id}: field {field!r}: {use} makes its own prompts and does not show it; trace, bench "
                "vqa and diagnose do"
            )


def check_no_videos(samples: Iterable[Sample], use: str) -> None:
    """Check that samples have no videos, where images are exchanged for those of other samples.

    Args:
        use: what exchanges them, for the message.

    Raises:
        InputError: one has a video.

    Example:
        >>> check_no_videos([Sample(id="a", question="?", images=["a.png"])], "diagnose")
    """
    for sample in samples:
        if sample.videos:
            raise InputError(
                f"sample {sample.id}: field 'videos': {use} exchanges images alone; leave the sample out, or exchange its "
                "frames with image_interchange"
            )


def load_short_samples(path: str | Path, use: str) -> list[Sample]:
    """Read a samples file, all of the short form. Arguments and errors are those of `load_samples` and `check_short`."""
    samples = load_samples(path)
    check_short(samples, use)
    return samples


def samples_from(
    rows: Iterable[Mapping[str, Any]] | Any,
    folder: str | Path,
    *,
    question: str = "question",
    image: str | Sequence[str] = "image",
    video: str | Sequence[str] = "video",
    id: str | None = None,
    box_format: BoxFormat = "xywh",
    **fields: str,
) -> list[Sample]:
    """Return samples from the rows of a `datasets.Dataset`, of a table of pandas, polars or pyarrow, or from mappings.

    A row without a question may be a conversation, in a column `messages` or `conversations`: turns of a `role` and its
    `content`, as OpenAI and transformers write them, or of `from` and `value`, as LLaVA does. `<image>` and `<video>` in the
    texts of the latter, and parts of type image or video without a file, stand for the row's images and videos in order. A
    last turn of the assistant is the answer to compare with (`answer`), and is not shown to the model.

    Arrays are lists, and NaN, NA and NaT are missing. Of a `ClassLabel` column, names are taken. An answer may be a number,
    or true or false, which are yes and no. Of several people's answers, the most frequent is `answer`, and the others
    `metadata["answers"]`: of ten and more people those that three gave, as VQA counts them (Antol et al. 2015). All that ten and
    more people gave are `metadata["annotators"]`.

    Args:
        rows: mappings, or a table. An image may be an array of its pixels, a `PIL.Image`, a path, the bytes of a file, `{"bytes": …, "path": …}` as
            `datasets` stores it, a `data:` URI, or a list of them. A video may be a path, bytes, such a mapping or URI, a
            list of its frames, which are images, or `{"file": …, "fps": …}` and `{"frames": …, "fps": …}`.
        folder: where images and videos that are not files yet are written.
        question: the column of the questions.
        image: the column of the images; several columns are images in this order. Rows may lack an image. Without a
            column `image`, it is `images`.
        video: the column of the videos, in the same way. A cell of `videos` is a list of videos, of any other column one
            video.
        id: the column of the ids; the default numbers the rows from 000000.
        box_format: how the boxes of `regions` are written (`BoxFormat`).
        fields: columns of further fields by name, such as `answer="label"`, or `messages="chat"`.

    Raises:
        InputError: a row lacks a column, or a value cannot be used, such as a URL: nothing is downloaded. The message names
            row and column.

    Example:
        >>> samples_from([{"text": "What is this?", "gold": "a star"}], "images", question="text", answer="gold")
        [Sample(id='000000', images=[], ... question='What is this?', ... answer='a star', ...)]
    """
    samples, headers, names = [], Headers(str(folder)), _find_label_names(rows)
    for number, row in enumerate(_list_rows(rows)):
        where = f"row {number}"
        if not isinstance(row, Mapping):
            raise InputError(f"{where}: is a {type(row).__name__}, not a mapping of columns to values")
        row = {column: _to_plain(_name_labels(value, names.get(column))) for column, value in row.items()}
        columns = {"question": question, **({"id": id} if id else {}), **fields}
        if question not in row:
            own = next((name for name in ("messages", "conversations") if name in row), None)
            columns |= {"messages": own} if own and "messages" not in fields else {}
        if "messages" in columns:
            del columns["question"]
        for column in columns.values():
            if column not in row:
                raise InputError(f"{where}: no column {column!r}; it has {', '.join(map(str, row))}")
        values = {"id": f"{number:06}"} | {field: row[column] for field, column in columns.items()}
        shown = {"image": _list_cells(row, image, "image"), "video": _list_cells(row, video, "video")}
        if "messages" in columns:
            read, shown = _read_conversation(values["messages"], shown, "answer" not in fields, where)
            values |= read
        place = Path(folder) / f"{number:06}"
        values["images"] = [
            _image_file(each, place.with_name(f"{place.name}-{index}.png"), where)
            for index, each in enumerate(shown["image"])
        ]
        if shown["video"]:
            values["videos"] = [
                _read_video(each, place.with_name(f"{place.name}-video-{index}"), where)
                for index, each in enumerate(shown["video"])
            ]
        values = _merge_answers(values)
        values |= {"box_format": box_format} if values.get("regions") else {}
        values = {field: value for field, value in values.items() if value is not None}
        boxes = _take_regions(values, where)
        sample = _make_sample({**values, "id": str(values["id"])}, where)
        samples.append(_read_regions(sample, boxes, headers.sizes(sample, where), where))
    headers.tell_changes()
    return samples


def _list_rows(rows: Any) -> Iterable[Any]:
    """Return the rows of a table, mappings."""
    for method, options in (("to_pylist", {}), ("to_dicts", {}), ("to_dict", {"orient": "records"})):
        if hasattr(rows, "columns") and hasattr(rows, method):  # of pyarrow, polars, pandas
            return getattr(rows, method)(**options)
    return rows


def _find_label_names(rows: Any) -> dict[str, Callable[[int], str]]:
    """Return the function from numbers to names of each `ClassLabel` column of a `datasets.Dataset`, alone or in lists."""
    features = getattr(rows, "features", None)
    if not isinstance(features, Mapping):
        return {}
    inner: dict[str, Any] = {
        column: getattr(feature, "feature", feature) for column, feature in features.items()
    }
    return {column: feature.int2str for column, feature in inner.items() if hasattr(feature, "int2str")}


def _name_labels(value: Any, name: Callable[[int], str] | None) -> Any:
    """Return the name of a label, or those of a list of labels; -1, which stands for none, is None."""
    if name is None or value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return [_name_labels(each, name) for each in value]
    return None if value < 0 else name(int(value))


def _to_plain(value: Any) -> Any:
    """Return a value with lists in place of arrays, Python's numbers in place of numpy's, and None in place of NaN, NA and NaT.

    An array of pixels becomes an image.
    """
    if type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return None
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, Mapping):
        return {name: _to_plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(each) for each in value]
    if type(value).__module__ != "numpy" or not hasattr(value, "tolist"):
        return value
    if value.dtype == "uint8" and value.ndim in (2, 3) and value.shape[2:] in ((), (3,), (4,)):
        return Image.fromarray(value)
    return _to_plain(value.tolist())


VQA_PEOPLE, VQA_AGREEING = 10, 3
"""An answer that three of ten people gave is right (Antol et al. 2015, VQA)."""


def merge_answers(answers: Sequence[Any]) -> tuple[str | None, list[str]]:
    """Return the most frequent of several people's answers, and the others that count as right.

    Args:
        answers: texts, or mappings with the text in `answer` as in VQA's files.

    Example:
        >>> merge_answers(["2"] * 6 + ["3"] * 3 + ["4"])
        ('2', ['3'])
        >>> merge_answers(["a cat", "cat"])
        ('a cat', ['cat'])
    """
    given = [each.get("answer") if isinstance(each, Mapping) else each for each in answers]
    counts = Counter(str(_read_answer(each)) for each in given if each is not None)
    least = VQA_AGREEING if len(given) >= VQA_PEOPLE else 1
    ordered = counts.most_common()
    return (ordered[0][0] if ordered else None), [text for text, n in ordered[1:] if n >= least]


def _merge_answers(data: Any) -> Any:
    """Return the fields of a sample, with one answer in place of a list of several people's."""
    answers = data.get("answer") if isinstance(data, dict) else None
    if not isinstance(answers, list) or not all(
        isinstance(each, str | int | float | dict) for each in answers
    ):
        return data
    answer, further = merge_answers(answers)
    metadata = data.get("metadata") or {}
    if further and isinstance(metadata, dict):
        metadata = {"answers": further, **metadata}
    if len(answers) >= VQA_PEOPLE and isinstance(metadata, dict):
        given = [each.get("answer") if isinstance(each, dict) else each for each in answers]
        metadata = {**metadata, "annotators": [str(_read_answer(each)) for each in given if each is not None]}
    return {**data, "answer": answer, "metadata": metadata}


def _list_cells(row: Mapping[str, Any], columns: str | Sequence[str], kind: str) -> list[Any]:
    """Return the images or the videos of a row."""
    names = [columns] if isinstance(columns, str) else list(columns)
    if names == [kind] and kind not in row:
        names = [f"{kind}s"]
    takes_lists = kind == "image" or names == ["videos"]  # a list in any other column is a video's frames
    cells = [row.get(name) for name in names]
    listed = [each for cell in cells for each in (cell if isinstance(cell, list) and takes_lists else [cell])]
    return [each for each in listed if each is not None]


_ROLES = {"human": "user", "gpt": "assistant"}  # of LLaVA
_MARKS = re.compile("<(image|video)>")


def _read_conversation(
    turns: Any, given: Mapping[str, list[Any]], takes_answer: bool, where: str
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return `messages` and `answer` of a conversation as data sets store it, and its images and videos in order of appearance.

    Args:
        given: images and videos of the row, to which parts without a file refer in order.
        takes_answer: whether a last turn of the assistant is the answer.
    """
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise InputError(f"{where}: a conversation is a list of turns, each with role and content")
    left = {kind: list(files) for kind, files in given.items()}
    shown: dict[str, list[Any]] = {kind: [] for kind in given}
    messages = []
    for turn in turns:
        turn = {name: value for name, value in turn.items() if value is not None}  # datasets fills rows up
        if "from" in turn:
            role = str(turn.pop("from"))
            turn = {"role": _ROLES.get(role, role), "content": turn.pop("value", ""), **turn}
        content = turn.get("content", [])
        read = []
        for part in _split_marks(content, given) if isinstance(content, str) else content:
            kind, value = _read_part(part, where)
            if kind in shown:
                if value is None and not left[kind]:
                    raise InputError(
                        f"{where}: more {kind}s in the texts than the {len(given[kind])} of the row"
                    )
                shown[kind].append(left[kind].pop(0) if value is None else value)
            read.append({"type": kind} if kind in shown else {"type": kind, "text": value})
        messages.append({**turn, "content": read})
    for kind, files in left.items():
        if files and len(files) < len(given[kind]):
            places = len(given[kind]) - len(files)
            raise InputError(f"{where}: the texts have {places} places for {len(given[kind])} {kind}s")
    first = next((message for message in messages if message.get("role") == "user"), None)
    if first is not None:  # no place for any: before the user's first text, as LLaVA shows them
        first["content"] = [{"type": kind} for kind, files in left.items() for _ in files] + first["content"]
        shown = {kind: [*left[kind], *files] for kind, files in shown.items()}
    out: dict[str, Any] = {"messages": messages}
    if messages and messages[-1].get("role") == "assistant" and takes_answer:
        texts = [part.get("text") or "" for part in messages.pop()["content"]]
        out["answer"] = " ".join(texts).strip()
    return out, shown


def _split_marks(text: str, given: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the parts of a text with `<image>` and `<video>` marks. Line breaks around a mark belong to it.

    Args:
        given: images and videos of the row; without any of a kind, its mark is text.
    """
    parts: list[dict[str, Any]] = []
    start = 0
    for mark in [*_MARKS.finditer(text), None]:
        if mark and not given[mark[1]]:
            continue
        piece = text[start : mark.start() if mark else len(text)]
        piece = piece.removeprefix("\n") if parts else piece
        if piece.strip("\n") or (mark is None and not parts):
            parts.append({"type": "text", "text": piece})
        if mark:
            parts.append({"type": mark[1]})
            start = mark.end()
    return parts


def _read_part(part: Any, where: str) -> tuple[str, Any]:
    """Return a part's type, text, image or video, and its text, image or video; None for an image or a video of the row."""
    if not isinstance(part, Mapping):
        raise InputError(f"{where}: a part of a turn is a {type(part).__name__}, not an object with a type")
    given = {name: value for name, value in part.items() if value is not None}
    kind = str(given.get("type", "text" if "text" in given else "")).removeprefix("input_")
    if kind == "text":
        return kind, given.get("text", "")
    kind = kind.removesuffix("_url")
    if kind not in ("image", "video"):
        raise InputError(
            f"{where}: a part of type {given.get('type')!r}; known are text, image, image_url, video and video_url"
        )
    names = (kind, f"{kind}_url", "path", "url", "bytes", "base64")
    value = next((given[name] for name in names if name in given), None)
    if "base64" in given and value is given["base64"]:
        value = f"data:{kind}/unknown;base64,{value}"
    if isinstance(value, Mapping) and "url" in value:
        value = value["url"]
    if kind == "video" and value is not None:
        for name in ("nframes", "num_frames", "video_start", "video_end"):
            if name in given:
                raise InputError(f"{where}: a video with {name!r}: list the frames to show, or give fps")
        if "fps" in given:
            value = {"frames" if isinstance(value, list | tuple) else "file": value, "fps": given["fps"]}
    return kind, value


def _image_file(image: Any, file: Path, where: str) -> Path:
    """Return the file of an image. An image in memory is written to `file` first, with its format's ending."""
    if isinstance(image, Image.Image):
        _check_mode(image.mode, f"{where}: image")
        make_folders(file.parent)
        try:
            grey = image.mode == "L"  # a file a third as large
            write_image(read_picture(image).convert("L" if grey else "RGB"), file)
        except (OSError, SyntaxError, ValueError) as error:
            raise InputError(f"{where}: image cannot be decoded ({error})") from None
    else:
        file = _find_file(image, file, where, "image")
    check_image(file, where)
    return file


def _read_video(video: Any, file: Path, where: str) -> dict[str, Any]:
    """Return the fields of a video. What is in memory is written to `file` first, with an ending."""
    if isinstance(video, Video):
        return dict(video)
    fields: dict[str, Any] = {}
    if isinstance(video, Mapping) and video.keys() & {"file", "frames"}:
        fields = {name: value for name, value in video.items() if name not in ("file", "frames")}
        video = video.get("frames") or video.get("file")
    if isinstance(video, list | tuple):
        frames = [
            _image_file(each, file.with_name(f"{file.name}-{index}.png"), where)
            for index, each in enumerate(video)
        ]
        return {"frames": frames, **fields}
    return {"file": _find_file(video, file, where, "video"), **fields}


_FORMS = {
    "image": "an image is a PIL image, a path, bytes or a data: URI",
    "video": "a video is a path, bytes, a data: URI or a list of frames (of datasets, Video(decode=False))",
}


def _find_file(given: Any, file: Path, where: str, kind: str) -> Path:
    """Return the file of an image or a video. Bytes are written to `file` first, with their format's ending."""
    if isinstance(given, Mapping):  # as datasets stores it
        given = given.get("bytes") or given.get("path")
    if isinstance(given, str) and given.startswith("data:"):
        given = _read_data_uri(given, where, kind)
    if isinstance(given, bytes):
        return _write_bytes(given, file, where, kind)
    given = _read_file_uri(given)
    if isinstance(given, str) and _URL.match(given):
        raise InputError(f"{where}: {kind} {given!r}: {_NOT_DOWNLOADED}, or its bytes")
    if isinstance(given, str | Path):
        return Path(given).absolute()
    raise InputError(f"{where}: {_FORMS[kind]}, not a {type(given).__name__}")


def _read_data_uri(uri: str, where: str, kind: str = "image") -> bytes:
    """Return the bytes of a `data:` URI in base64.

    Args:
        where: where it is named, for messages.
        kind: what it must be: an image or a video.

    Raises:
        InputError: it is not one.

    Example:
        >>> _read_data_uri("data:image/png;base64,AAAA", "here")
        b'\\x00\\x00\\x00'
    """
    if len(uri) > MAX_URI:
        raise InputError(
            f"{where}: the data: URI of an image is over {MAX_URI:,} characters; save the image as a file"
        )
    head, _, data = uri.partition(",")
    try:
        if not head.startswith(f"data:{kind}/") or not head.endswith(";base64"):
            raise ValueError
        return base64.b64decode(data, validate=True)
    except ValueError:
        article = "an" if kind == "image" else "a"
        raise InputError(
            f"{where}: {head[:40]!r}: is not {article} {kind} as a data: URI in base64"
        ) from None


_VIDEO_STARTS = {".mp4": (4, b"ftyp"), ".mkv": (0, b"\x1aE\xdf\xa3"), ".avi": (8, b"AVI "), ".gif": (0, b"GIF8"),
                 ".ts": (0, b"G")}  # fmt: skip
"""Where the bytes of a video say its format: MOV is of MP4's, and WebM of MKV's."""


def _write_bytes(content: bytes, file: Path, where: str, kind: str) -> Path:
    """Write the bytes of an image or a video as they are, and return the file, whose ending is that of their format."""
    if kind == "image":
        try:
            with open_image(BytesIO(content)) as image:
                file = file.with_suffix(f".{str(image.format).lower()}")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            raise InputError(
                f"{where}: the bytes of an image are not PNG, JPEG, WebP, GIF, BMP or TIFF"
            ) from None
    else:
        ending = next(
            (end for end, (at, mark) in _VIDEO_STARTS.items() if content.startswith(mark, at)), None
        )
        if ending is None:
            raise InputError(
                f"{where}: the bytes of a video are not MP4, MOV, MKV, WebM, AVI, GIF or MPEG-TS"
            )
        file = file.with_suffix(ending)
    make_folders(file.parent)
    write_whole({file: content})
    return file


def _make_sample(data: Any, where: str) -> Sample:
    sample = _validate(Sample, data, where)
    try:
        Sample.model_validate_json(sample.model_dump_json())  # as a trace will store it
    except ValueError as error:
        why = str(error).splitlines()[0]
        reason = "half a surrogate pair" if "surrogate" in why else f"what JSON cannot store ({why})"
        raise InputError(f"{where}: contains {reason}") from None
    return sample


def _validate(kind: type[_Kind], data: Any, where: str) -> _Kind:
    """Return a record of a line. Raises InputError with the first problem and its field."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "line"
        near = get_close_matches(field, kind.model_fields, n=1) if first["type"] == "extra_forbidden" else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"] and first["type"] == "value_error":
            raise InputError(f"{where}: {message}") from None
        raise InputError(f"{where}: field {field!r}: {message}{hint}") from None


class Headers:
    """The headers of the images and videos of samples, each read once.

    Args:
        where: of the samples, for what `tell_changes` says.
    """

    def __init__(self, where: str):
        self.where = where
        self._known: dict[Path, ImageHeader] = {}
        self._videos: dict[Path, tuple[int, int]] = {}

    def sizes(self, sample: Sample, where: str) -> list[tuple[int, int]]:
        """Return the (height, width) of each picture that a region may be of: the images, and the listed frames of videos.

        Raises:
            InputError: one cannot be read.
        """
        for image in sample.images:
            if image not in self._known:
                self._known[image] = read_header(image, where)
        sizes = [self._known[image].size for image in sample.images]
        for video in sample.videos:
            first = video.files[0]
            if first not in self._videos:
                self._videos[first] = check_video(video, where)
            sizes += [self._videos[first]] * len(video.frames)
        return sizes

    def tell_changes(self) -> None:
        """Say in one line which images models see otherwise than they are stored."""
        changes = ((image, change) for image, header in self._known.items() for change in header.changes)
        tell_changes(changes, self.where, len(self._known))


_told: set[tuple[Path, str]] = set()


def tell_changes(changes: Iterable[tuple[Path, str]], where: str, total: int) -> None:
    """Say in one line how many images are seen otherwise than they are stored. What was said of an image is not said again.

    Args:
        changes: images, each with what is changed, in words.
        where: of the images.
        total: number of images there.

    Example:
        >>> tell_changes([], "photographs", 4)
    """
    new = dict.fromkeys(change for change in changes if change not in _told)
    _told.update(new)
    if counts := Counter(change for _, change in new):
        words = ", ".join(f"{number} {change}" for change, number in counts.items())
        log.warning("%s: of %d images, %s", where, total, words)


class _GivenRegion(BaseModel):
    """A region as a line has it, in the form that the line's `box_format` names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: int = Field(ge=0)
    box: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat]


class _GivenRegions(BaseModel):
    box_format: BoxFormat = "xywh"
    regions: list[_GivenRegion] = []


def _take_regions(data: Any, where: str) -> _GivenRegions | None:
    """Take the regions of another form than a sample's out of a line; None if its form is that."""
    if not isinstance(data, dict) or "box_format" not in data:
        return None
    given = {name: data.pop(name) for name in ("box_format", "regions") if name in data}
    return _validate(_GivenRegions, given, where)


def convert_box(
    box: Sequence[float], form: BoxFormat, size: tuple[int, int]
) -> tuple[float, float, float, float]:
    """Return a box as x, y, width and height in pixels.

    Args:
        form: how it is written.
        size: (height, width) of its image.

    Example:
        >>> convert_box([500, 0, 1000, 500], "thousandths", (40, 80))
        (40.0, 0.0, 40.0, 20.0)
    """
    a, b, c, d = box
    if form == "cxcywh":
        return a - c / 2, b - d / 2, c, d
    if form == "thousandths":
        height, width = size
        a, b, c, d = a * width / 1000, b * height / 1000, c * width / 1000, d * height / 1000
    return (a, b, c, d) if form == "xywh" else (a, b, c - a, d - b)


def _read_regions(
    sample: Sample, given: _GivenRegions | None, sizes: Sequence[tuple[int, int]], where: str
) -> Sample:
    """Return a sample with its regions, in pixels and inside their images.

    Raises:
        InputError: a box is empty, is not inside its image, or there is no such image.
    """
    form: BoxFormat = "xywh" if given is None else given.box_format
    listed = [(each.image, each.box) for each in (sample.regions if given is None else given.regions)]
    regions = []
    for image, box in listed:
        if image >= len(sizes):
            raise InputError(f"{where}: field 'regions': image {image} of {len(sizes)}")
        height, width = sizes[image]
        x, y, across, down = convert_box(box, form, sizes[image])
        left, top, right, bottom = (round(edge) for edge in (x, y, x + across, y + down))
        if not (0 <= left < right <= width and 0 <= top < bottom <= height):
            raise InputError(
                f"{where}: field 'regions': box {list(box)} is empty or outside its image, which has {width} x {height} "
                f"pixels; it is read as {form}, and box_format may name {' or '.join(get_args(BoxFormat))}"
            )
        regions.append(Region(image=image, box=(left, top, right - left, bottom - top)))
    return sample.model_copy(update={"regions": regions}) if given is not None else sample


def _read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place of each line of a samples file, and its JSON."""
    text = read_text(path)
    if text.lstrip().startswith("["):
        raise InputError(f"{path}: is one JSON array; write one JSON object a line (jq -c '.[]' does it)")
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would split at U+2028 in a text
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            yield where, json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
        except (RecursionError, ValueError):
            raise InputError(
                f"{where}: not JSON that can be read (nested too deeply, or a number too long)"
            ) from None


def _parse_data(data: Any, where: str, folder: Path) -> tuple[Sample, _GivenRegions | None]:
    """Return the sample of a line, and its regions where these have another form."""
    data = _merge_answers(data)
    boxes = _take_regions(data, where)
    sample = _make_sample(data, where)
    return place_files(sample, lambda file: (folder / file).absolute()), boxes


def place_files(sample: Sample, where: Callable[[Path], Path]) -> Sample:
    """Return a sample with other paths of its images and videos.

    Example:
        >>> place_files(Sample(id="a", question="?", images=["a.png"]), Path("/b").joinpath).images
        [PosixPath('/b/a.png')]
    """
    files: dict[str, Any] = {"images": [where(image) for image in sample.images]}
    if sample.videos:
        files["videos"] = [video.place(where) for video in sample.videos]
    return sample.model_copy(update=files)


def open_image(source: Path | BytesIO) -> ImageFile.ImageFile:
    """Open an image of a user, a file or its bytes, to look at its header. `read_picture` gives what models see.

    Its content must be PNG, JPEG, WebP, GIF, BMP or TIFF, whatever its name.

    Raises:
        UnidentifiedImageError: it has another format.
        OSError: it is not a regular file, or cannot be read.
    """
    file = source if isinstance(source, BytesIO) else check_readable(source)
    return Image.open(file, formats=IMAGE_FORMATS)


def read_picture(source: Path | BytesIO | Image.Image) -> Image.Image:
    """Return an image as models see it: its first frame, upright as its EXIF data say, in RGB with 8 bits.

    This is what transformers' `load_image` makes of it. Transparency is left out, not painted over a background.

    Raises:
        OSError, SyntaxError, ValueError, Image.DecompressionBombError: it cannot be decoded, or not turned into RGB.

    Example:
        >>> read_picture(Image.new("CMYK", (2, 1))).mode
        'RGB'
    """
    if isinstance(source, Image.Image):
        return ImageOps.exif_transpose(source).convert("RGB")
    with open_image(source) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


_METADATA = (b"eXIf", b"tiff:Orientation", b"Raw profile type exif")


def _find_orientation(image: ImageFile.ImageFile) -> int:
    """Return how an open image is stored, 1 to 8 as in EXIF; 1 is upright. It is found without decoding the image.

    Pillow turns TIFF files by itself, so theirs is 1.
    """
    if image.format == "TIFF":
        return 1
    if (
        image.format == "PNG" and image.fp is not None
    ):  # may say so after its pixels, for which Pillow decodes them all
        place = image.fp.tell()
        image.fp.seek(0)
        content = image.fp.read()
        image.fp.seek(place)
        if not any(mark in content for mark in _METADATA):
            return 1
    found = image.getexif().get(ExifTags.Base.Orientation, 1)
    return found if found in range(1, 9) else 1


def is_turned(path: Path) -> bool:
    """Return whether an image or a video file is stored in another way than upright; False for other files."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_image(path) as image:
                return _find_orientation(image) != 1
    except UnidentifiedImageError:
        try:
            with _open_video(path, str(path)) as container:
                return _count_turns(_first_frame(container, str(path))) != 0
        except InputError:
            return False
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False


def hash_picture(path: Path) -> str:
    """Return a hash of an image's or a video's file. It says whether the image is turned upright, as versions before 0.3 did
    not do: what they made of such an image is not taken for what is made of it now.

    Raises:
        OSError: it cannot be read.
    """
    return hash_file(path) + (" upright" if is_turned(path) else "")


def _has_16_bits(image: ImageFile.ImageFile) -> bool:
    """Return whether the file of an open image has 16 bits a channel, of which Pillow reads 8."""
    return bool(image.tile) and "16" in str(image.tile[0][3])


def is_as_stored(image: ImageFile.ImageFile) -> bool:
    """Return whether every reader of an open image sees what `read_picture` returns, so that its file can be sent as it is."""
    return (
        image.format in ("PNG", "JPEG", "WEBP")
        and image.mode in ("L", "RGB")
        and not _has_16_bits(image)
        and "transparency" not in image.info
        and getattr(image, "n_frames", 1) == 1
        and _find_orientation(image) == 1
    )


@cache
def _becomes_rgb(mode: str) -> bool:
    """Return whether Pillow turns images of a mode into RGB without loss of their greys."""
    if mode[0] in "IF":  # more than 8 bits: it would make all above 255 white
        return False
    try:
        Image.new(mode, (1, 1)).convert("RGB")
    except ValueError:
        return False
    return True


def write_image(image: Image.Image, file: Path) -> None:
    """Write an image as PNG. The file appears when it is complete.

    Raises:
        InputError: it cannot be written.
        OSError: the disk is full.

    Example:
        >>> write_image(Image.new("RGB", (2, 2)), Path("out/a.png"))        # doctest: +SKIP
    """
    try:
        with NewFile(file) as new:
            image.save(new.part, format="PNG")
            new.sync()
            new.place()
    except OSError as error:
        raise writing_error(file, error) from None


class ImageHeader(NamedTuple):
    """What the header of an image says.

    Attributes:
        size: (height, width) of the upright image.
        changes: what `read_picture` changes, in words.
    """

    size: tuple[int, int]
    changes: tuple[str, ...]


def check_image(path: Path, where: str, any_depth: bool = False) -> tuple[int, int]:
    """Return the (height, width) of an upright image. Arguments and errors are those of `read_header`."""
    return read_header(path, where, any_depth).size


def read_header(path: Path, where: str, any_depth: bool = False) -> ImageHeader:
    """Return what the header of an image says, without decoding it.

    Args:
        path: the image.
        where: where the image is named, for messages.
        any_depth: accept grey images with more than 8 bits, such as maps that no model sees.

    Raises:
        InputError: the file is missing, is not an image, has another format than `open_image` reads, has over 100
            megapixels, is grey with more than 8 bits, or has colours that Pillow cannot turn into RGB.
    """
    location = (
        f"{where}: image {repr(str(path))[1:-1]}"  # a line break in the name must not break the message
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_image(path) as image:
                (width, height), mode, orientation = image.size, image.mode, 1
                if width * height <= MAX_IMAGE_PIXELS:
                    orientation = _find_orientation(image)
                changes = _list_changes(image, orientation)
    except FileNotFoundError:
        raise InputError(f"{location}: no such file") from None
    except Image.DecompressionBombError:
        raise InputError(f"{location}: over 100 megapixels; make it smaller") from None
    except UnidentifiedImageError:
        reason = "its content is not PNG, JPEG, WebP, GIF, BMP or TIFF; save it as one of them"
        if not path.stat().st_size:
            reason = "the file is empty"
        raise InputError(f"{location}: not a readable image ({reason})") from None
    except (OSError, ValueError, SyntaxError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise InputError(f"{location}: not a readable image ({reason})") from None
    if width * height > MAX_IMAGE_PIXELS:
        megapixels = width * height / 1e6
        raise InputError(f"{location}: {megapixels:.0f} megapixels, over 100; make it smaller")
    if not any_depth:
        _check_mode(mode, location)
    return ImageHeader((width, height) if orientation > 4 else (height, width), changes)


def _check_mode(mode: str, location: str) -> None:
    """Raise InputError for an image whose mode has no certain form in RGB."""
    if mode[0] in "IF":
        raise InputError(f"{location}: its greys have more than 8 bits (mode {mode}); save it with 8")
    if not _becomes_rgb(mode):
        raise InputError(f"{location}: its colours (mode {mode}) cannot be turned into RGB; save it in RGB")


def _list_changes(image: ImageFile.ImageFile, orientation: int) -> tuple[str, ...]:
    """Return what `read_picture` changes in an open image, in words."""
    changes = ["turned upright, as their EXIF data say"] if orientation != 1 else []
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        changes.append("shown without their transparency")
    elif image.mode not in ("1", "L", "P", "RGB"):
        changes.append(f"turned from {image.mode} into RGB")
    if _has_16_bits(image):
        changes.append("read with 8 of their 16 bits a channel")
    if (
        image.format != "MPO" and getattr(image, "n_frames", 1) > 1
    ):  # further pictures of a camera are previews
        changes.append("shown by the first of their frames")
    return tuple(changes)


def read_image(path: Path, where: str) -> Image.Image:
    """Return an image as models see it (`read_picture`).

    Args:
        where: where the image is named, for messages.

    Raises:
        InputError: it cannot be decoded.
    """
    check_image(path, where)
    try:
        return read_picture(path)
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{where}: image {path}: cannot be decoded ({error})") from None


class VideoInfo(NamedTuple):
    """What a video file says of itself: the number of its frames, frames a second, and (height, width) of upright ones."""

    frames: int
    fps: float
    size: tuple[int, int]


def check_video(video: Video, where: str) -> tuple[int, int]:
    """Return the (height, width) of a video's frames, of which the first of a file is decoded.

    Args:
        where: where the video is named, for messages.

    Raises:
        InputError: a file is missing or is not a video, PyAV is not installed, a frame is not an image, or the frames have
            several sizes.
    """
    if video.file is not None:
        return read_video_info(video.file, where).size
    sizes = [check_image(frame, where) for frame in video.frames]
    for frame, size in zip(video.frames, sizes, strict=True):
        if size != sizes[0]:
            shapes = " and ".join(f"{width} x {height}" for height, width in (sizes[0], size))
            raise InputError(
                f"{where}: frame {frame}: has another size than the first ({shapes} pixels); the frames of a video "
                "are of one size"
            )
    return sizes[0]


def read_video_info(file: Path, where: str) -> VideoInfo:
    """Return what a video file says of itself. Arguments and errors are those of `check_video`."""
    with _open_video(file, where) as container:
        stream = container.streams.video[0]
        fps = float(stream.average_rate or 0)
        frames = stream.frames or round(fps * float(container.duration or 0) / 1_000_000)
        if frames < 1 or fps <= 0:
            raise InputError(
                f"{where}: video {file}: does not say how many frames it has; write it anew (ffmpeg -i FILE new.mp4) or "
                "give its frames as image files"
            )
        if stream.height * stream.width > MAX_IMAGE_PIXELS:
            raise InputError(f"{where}: video {file}: its frames have over 100 megapixels; make it smaller")
        if frames > MAX_VIDEO_FRAMES:
            raise InputError(f"{where}: video {file}: has over {MAX_VIDEO_FRAMES:,} frames; cut it")
        lies = _count_turns(_first_frame(container, f"{where}: video {file}")) % 2
        size = (stream.width, stream.height) if lies else (stream.height, stream.width)
        return VideoInfo(frames, fps, size)


def _first_frame(container: Any, location: str) -> Any:
    frame = next(container.decode(video=0), None)
    if frame is None:
        raise InputError(f"{location}: contains no frames")
    return frame


def _count_turns(frame: Any) -> int:
    """Return by how many quarters, counterclockwise, a frame of PyAV is turned to be upright, as its file says."""
    return round(frame.rotation / 90) % 4


_TURNS = (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270)


def _to_upright(frame: Any) -> Image.Image:
    turns = _count_turns(frame)
    image: Image.Image = frame.to_image()
    return image.transpose(_TURNS[turns - 1]) if turns else image


def read_frames(file: Path, indices: Iterable[int], where: str) -> list[Image.Image]:
    """Return frames of a video file, in RGB, one for each index in ascending order. They are counted from 0.

    They are upright, as the file's display matrix says: so are those of torchcodec, with which transformers' processors read
    files.

    An index beyond the last frame, as headers may say too many, gives the last.

    Raises:
        InputError: the file is missing or cannot be decoded, its frames have several sizes, all of them together are too
            large for memory, or PyAV is not installed.
    """
    wanted = list(indices)
    places, end = set(wanted), max(wanted)
    found: dict[int, Image.Image] = {}
    with _open_video(file, where) as container:
        frame: Any = None
        size: tuple[int, int] | None = None
        for number, frame in enumerate(container.decode(video=0)):
            size = size or (frame.width, frame.height)
            if (frame.width, frame.height) != size:
                raise InputError(
                    f"{where}: video {file}: its frames have several sizes; write it anew with one"
                )
            if frame.width * frame.height * len(places) > MAX_VIDEO_PIXELS:
                raise InputError(
                    f"{where}: video {file}: {len(places)} frames of {frame.width} x {frame.height} pixels take over "
                    f"{3 * MAX_VIDEO_PIXELS / 1e9:.0f} GB; make it smaller, or show fewer frames a second (fps)"
                )
            if number in places:
                found[number] = _to_upright(frame)
            if number >= end:
                break
        if frame is None:
            raise InputError(f"{where}: video {file}: contains no frames")
        last = found[number] if number in found else _to_upright(frame)
    return [found.get(index, last) for index in wanted]


@contextmanager
def _open_video(file: Path, where: str) -> Iterator[Any]:
    """Open a video file with PyAV. The file is local and is read as what it is, so that it leads to no other."""
    location = f"{where}: video {repr(str(file))[1:-1]}"
    try:
        import av
    except ImportError:
        raise InputError(
            f"{location}: video files need PyAV; install it with: pip install 'mmprobe[video]', or give its frames as "
            "image files"
        ) from None
    try:
        with (
            check_readable(file).open("rb") as stream,
            av.open(stream, options={"format_whitelist": ",".join(VIDEO_FORMATS)}) as container,
        ):
            if not container.streams.video:
                raise InputError(f"{location}: contains no pictures")
            yield container
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{location}: no such file") from None
    except (OSError, ValueError, av.FFmpegError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise InputError(
            f"{location}: not a readable MP4, MOV, MKV, WebM, AVI, GIF or MPEG-TS video ({reason})"
        ) from None


def load_with_images(path: str | Path, record_type: type[Record]) -> list[Record]:
    """Read records with a field `images`, relative to the file, as absolute paths that were checked."""
    records = []
    for number, record in read_records(path, record_type):
        images = [resolve_image(image, path, number, "images")[0] for image in getattr(record, "images", [])]
        records.append(record.model_copy(update={"images": images}))
    return records


def resolve_image(
    image: Path, file: str | Path, line: int, field: str, any_depth: bool = False
) -> tuple[Path, tuple[int, int]]:
    """Return an image's absolute path and (height, width). Raises InputError with line and field."""
    path = (Path(file).parent / image).absolute()
    return path, check_image(path, f"{file}, line {line}: field {field!r}", any_depth)


def check_derived_ids(where: str | Path, ids: Iterable[str], derived: Iterable[tuple[str, str]]) -> None:
    """Raise InputError where an id derived from an original is taken already, or is not valid.

    Example:
        >>> check_derived_ids("questions.jsonl", ["1"], [("1", "1--text")])
    """
    taken = set(ids)
    for original, derived_id in derived:
        if derived_id in taken or not SAFE_ID.fullmatch(derived_id):
            reason = "is taken" if derived_id in taken else "is too long"
            raise InputError(
                f"{where}: id {original!r}: {derived_id!r}, which is derived from it, {reason}; rename one"
            )
        taken.add(derived_id)


Lengths = int | Mapping[str, int]
"""The longest answer in tokens: of all questions, or by the `type` in their metadata, with `other` for the rest."""


def length_of(sample: Sample, lengths: Lengths) -> int:
    """Return the longest answer to a question, in tokens.

    Example:
        >>> length_of(Sample(id="1", question="?", metadata={"type": "steps"}), {"steps": 512, "other": 128})
        512
    """
    if isinstance(lengths, int):
        return lengths
    return lengths.get(str(sample.metadata.get("type")), lengths["other"])


def longest(lengths: Lengths) -> int:
    """Return the longest answer to any question, in tokens.

    Example:
        >>> longest({"steps": 512, "other": 128})
        512
    """
    return lengths if isinstance(lengths, int) else max(lengths.values())


class Sampling(NamedTuple):
    """How the answer to one question is sampled."""

    temperature: float
    seed: int


def sampling_of(sample: Sample) -> Sampling | None:
    """Return how a question is sampled, as `metadata["sampling"]` says; None for the usual greedy answer.

    Example:
        >>> sampling_of(Sample(id="1", question="?", metadata={"sampling": {"temperature": 1.0, "seed": 3}}))
        Sampling(temperature=1.0, seed=3)
    """
    sampling = sample.metadata.get("sampling")
    return None if sampling is None else Sampling(**sampling)


class Answer(str):
    """The text of an answer.

    Attributes:
        truncated: whether it was cut off at the longest length; None if nobody knows.
        token_ids: ids of its tokens, where a model that is loaded gave it.
        opened: the mark of a thought with which the text begins though the prompt wrote it, and not the model.

    Example:
        >>> Answer("Yes.", truncated=False).truncated
        False
    """

    truncated: bool | None
    token_ids: list[int] | None
    opened: str

    def __new__(
        cls,
        text: str,
        truncated: bool | None = None,
        token_ids: list[int] | None = None,
        opened: str = "",
    ) -> Answer:
        answer = super().__new__(cls, text)
        answer.truncated, answer.token_ids, answer.opened = truncated, token_ids, opened
        return answer

    def line(self, id: str) -> dict[str, Any]:
        """Return the answer as a line of `responses.jsonl`, without what is not known of it."""
        line: dict[str, Any] = {"id": id, "response": self.strip()}
        if self.truncated is not None:
            line["truncated"] = self.truncated
        return line | ({"opened": self.opened} if self.opened else {})
