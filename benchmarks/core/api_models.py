"""Models behind an API, through inspect-ai: one client, which judges and benchmarks share, and its answers.

The client limits calls at a time, the time of each, and attempts.
"""

from __future__ import annotations

import asyncio
import base64
import io
import logging
import math
import mimetypes
import queue
import re
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import anyio
from anyio.lowlevel import RunVar
from PIL import Image

from mmprobe.errors import InputError
from mmprobe.files import check_readable, redact
from mmprobe.samples import Answer, Sample, Video, is_as_stored, open_image, read_picture

if TYPE_CHECKING:
    from mmprobe.settings import AskSettings
    from mmprobe.traces.asking import Answered, Ask, Unanswered

PROVIDERS = (
    *("anthropic", "azureai", "bedrock", "cloudflare", "deepseek", "fireworks", "google", "grok", "groq"),
    *("hf-inference-providers", "mistral", "mockllm", "ollama", "openai", "openai-api", "openrouter"),
    *("perplexity", "sambanova", "sglang", "together", "vllm"),
)
CONCURRENCY = 8  # calls at a time, our choice
TIMEOUT = 180  # seconds an attempt, our choice
RETRIES = 5  # attempts after the first, our choice
_KEY_REFUSED = (401, 403)

_log = logging.getLogger(__name__)
Result = TypeVar("Result")


def is_api(model: str) -> bool:
    """Return whether a model's name is one of inspect-ai's, such as `openai/gpt-4o`, and no hub id or folder.

    Example:
        >>> is_api("openai/gpt-4o"), is_api("Qwen/Qwen2.5-VL-7B-Instruct"), is_api("tiny-spd")
        (True, False, False)
    """
    provider, slash, _ = model.partition("/")
    return bool(slash) and provider in PROVIDERS


ChatPart = str | Path | Video
"""A text, an image or a video file."""


class ChatTurn(NamedTuple):
    """One turn of a conversation: its role (system, user or assistant), its text, and images before the text.

    `images` of None sends the text alone, not as a list of parts. `name` is the message's id in inspect-ai's logs.
    `parts` are texts, images and videos in another order, in place of both.
    """

    role: str
    text: str
    images: tuple[Path, ...] | None = None
    name: str | None = None
    parts: tuple[ChatPart, ...] | None = None


class Reply(NamedTuple):
    """The text of a reply, why the model stopped (`stop`, `max_tokens`, `content_filter`, ...), and the tokens of the request
    and the reply; 0 where nobody counts them."""

    text: str
    stop: str
    tokens: int = 0


NO_REPLY = "no reply"  # why a model stopped that a server answered for, without a choice


class CallFailed(Exception):
    """A call without a reply: why, and the class of the error. Its message is left out: it may hold a key."""

    def __init__(self, reason: Literal["timeout", "key refused", "error"], error: str) -> None:
        super().__init__(f"{reason} ({error})")
        self.reason = reason
        self.error = error


class _LoopClient(NamedTuple):
    """The model's client in one event loop, and the limit of its parallel calls."""

    model: Any
    limit: anyio.Semaphore


class ModelClient:
    """A model of inspect-ai. Any number of tasks and event loops can share it.

    Args:
        model: a name such as `openai/gpt-4o`, or an `inspect_ai.model.Model`.
        settings: of every call: temperature, seed, max_tokens.
        concurrency: turns at a time in one event loop.
        timeout: seconds, for one attempt. A call may take this times 1 + retries.
        retries: further attempts where the provider is busy or slow.
        use: what the model is used as, for messages.

    Raises:
        InputError: inspect-ai, the provider, its package or its key is missing.
    """

    def __init__(
        self,
        model: Any,
        settings: Mapping[str, Any] = MappingProxyType({}),
        concurrency: int = CONCURRENCY,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        use: str = "model",
    ) -> None:
        self._model = model
        self._use = use
        # Opened here, so that a missing key shows before any work.
        self._unused_model: Any = open_model(model, use)
        self._settings = dict(settings)
        self._concurrency = concurrency
        self._timeout = timeout
        self._retries = retries
        self._loop_client: RunVar[_LoopClient] = RunVar("client")

    def turn(self) -> anyio.Semaphore:
        """Return the limit of this event loop. A call is made within a turn: `async with client.turn(): …`.

        Waiting for a turn is not timed, and a turn may last longer than its call.
        """
        return self._open_in_loop().limit

    async def call(self, messages: Sequence[ChatTurn], settings: Mapping[str, Any] | None = None) -> Reply:
        """Return the reply to messages. `settings` are of this call, and override those of the client.

        Raises:
            CallFailed: the provider gave no reply.
            InputError: an image is not a regular file.
            OSError: an image cannot be read.
        """
        from inspect_ai.model import GenerateConfig

        config = GenerateConfig(
            **{**self._settings, **(settings or {})},
            max_retries=self._retries,
            attempt_timeout=math.ceil(self._timeout),
            max_connections=self._concurrency,
        )
        chat = [inspect_message(message) for message in messages]
        try:
            with anyio.fail_after(self._timeout * (self._retries + 1)):
                output = await self._open_in_loop().model.generate(chat, config=config, cache=False)
        except Exception as error:  # of any provider
            attempt = getattr(error, "last_attempt", None)  # of tenacity's RetryError, which does not say why
            cause = error if attempt is None else attempt.exception() or error
            kind = type(cause).__name__
            if getattr(cause, "status_code", None) in _KEY_REFUSED:
                raise CallFailed("key refused", kind) from None
            # those of inspect-ai and of the providers, too
            late = isinstance(cause, TimeoutError) or "Timeout" in kind
            raise CallFailed("timeout" if late else "error", kind) from None
        if not output.choices:
            return Reply("", NO_REPLY)
        tokens = 0 if output.usage is None else output.usage.total_tokens
        return Reply(
            redact(output.completion), str(output.stop_reason), tokens
        )  # a server may repeat its key

    def _open_in_loop(self) -> _LoopClient:
        """Return the client of the running event loop.

        Each loop needs its own, because a provider's client works only in the loop of its first use.
        """
        client = self._loop_client.get(None)
        if client is None:
            model = self._unused_model or open_model(self._model, self._use)
            self._unused_model = None
            # inspect-ai's own limit spans all loops, but one loop cannot wake another
            model.api.connection_key = lambda: f"mmprobe {id(self)} {id(model)}"
            client = _LoopClient(model, anyio.Semaphore(self._concurrency))
            self._loop_client.set(client)
        return client


def open_model(model: Any, use: str = "model") -> Any:
    """Open the inspect-ai model of a name. A `Model` is returned as it is.

    Raises:
        InputError: what is missing, after the model's `use` and name.
    """
    try:
        from inspect_ai.model import Model, get_model
    except ImportError:
        raise InputError(f"{use} {model}: needs inspect-ai: pip install 'mmprobe[eval]'") from None
    if isinstance(model, Model):
        return model
    try:
        return get_model(model, memoize=False)
    except Exception as error:  # a private class of inspect-ai, or an error of the provider's package
        if isinstance(error, (ValueError, ImportError)) or type(error).__name__ == "PrerequisiteError":
            raise InputError(f"{use} {model}: {_one_line(error)}") from None
        raise InputError(f"{use} {model}: cannot be opened ({type(error).__name__})") from None


def _one_line(error: Exception) -> str:
    """Return the message of an error of inspect-ai on one line, without its markup for colours.

    Example:
        >>> _one_line(ValueError("[bold]ERROR[/bold]: no package.\\n\\n[bold]pip install openai[/bold]"))
        'ERROR: no package. pip install openai'
    """
    text = re.sub(r"\[/?[a-z #0-9]*\]", "", str(error))
    return " ".join(text.split())[:300] or type(error).__name__


async def run_all(jobs: Sequence[Callable[[], Awaitable[Result]]]) -> list[Result]:
    """Run all jobs at once, and return their results. The first InputError or OSError cancels the others."""
    results: list[Any] = [None] * len(jobs)
    fatal: list[InputError | OSError] = []

    async def run(index: int, job: Callable[[], Awaitable[Result]]) -> None:
        try:
            results[index] = await job()
        except (InputError, OSError) as error:
            fatal.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for index, job in enumerate(jobs):
            group.start_soon(run, index, job)
    if fatal:
        raise fatal[0]
    return results


def messages_of(sample: Sample) -> list[ChatTurn]:
    """Return a sample as messages. The question has the sample's id.

    A prefill becomes a last message of the assistant, without spaces at its end, which some providers refuse.
    Where a provider refuses the message, the question stays unanswered.

    Raises:
        InputError: the sample has turns with tools, arguments of a chat template, or a video as a list of frames, which no API
            takes.
    """
    if sample.template or any(turn.role == "tool" or turn.tool_calls for turn in sample.messages):
        field = "template" if sample.template else "messages with tools"
        raise InputError(f"sample {sample.id}: {field}: not for models behind an API; leave it out")
    if any(video.file is None for video in sample.videos):
        raise InputError(
            f"sample {sample.id}: an API takes each video as a file; give a file, or give the frames as images"
        )
    if sample.messages:
        messages = _turns_of(sample)
    else:
        messages = [ChatTurn("system", sample.system)] if sample.system else []
        turn = ChatTurn("user", sample.question, tuple(sample.images), sample.id)
        parts: tuple[ChatPart, ...] = (*sample.images, *sample.videos, sample.question)
        messages.append(turn._replace(images=None, parts=parts) if sample.videos else turn)
    if prefill := (sample.prefill or "").rstrip():
        messages.append(ChatTurn("assistant", prefill))
    return messages


def _turns_of(sample: Sample) -> list[ChatTurn]:
    """Return the turns of a conversation, with the images and videos in their places. The last has the sample's id."""
    images, videos, turns = iter(sample.images), iter(sample.videos), []
    for turn in sample.messages:
        parts: tuple[ChatPart, ...] = tuple(
            part.text if part.text is not None else next(images) if part.type == "image" else next(videos)
            for part in turn.content
        )
        name = sample.id if turn is sample.messages[-1] else None
        plain = len(parts) == 1 and isinstance(parts[0], str) and turn.role != "user"
        turns.append(ChatTurn(turn.role, turn.text, name=name, parts=None if plain else parts))
    return turns


def inspect_message(message: ChatTurn) -> Any:
    """Return a message as inspect-ai's, with images as data URIs."""
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageUser,
        ContentImage,
        ContentText,
        ContentVideo,
    )

    classes = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
    content: Any = message.text
    if message.images is not None:
        images = [ContentImage(image=image_uri(path)) for path in message.images]
        content = [*images, ContentText(text=message.text)]
    if message.parts is not None:
        content = [
            ContentText(text=part)
            if isinstance(part, str)
            else ContentImage(image=image_uri(part))
            if isinstance(part, Path)
            else ContentVideo(
                video=data_uri(Path(str(part.file))), format=_video_format(Path(str(part.file)))
            )
            for part in message.parts
        ]
    own_id = {} if message.name is None else {"id": message.name}
    return classes[message.role](content=content, **own_id)


def _video_format(path: Path) -> Any:
    """Return the format of a video that providers take, by the name of its file.

    Raises:
        InputError: they take others.
    """
    formats = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mpeg": "mpeg", ".mpg": "mpeg"}
    if path.suffix.lower() not in formats:
        raise InputError(f"video {path}: an API takes MP4, MOV or MPEG; convert it to one of these")
    return formats[path.suffix.lower()]


def image_uri(path: Path) -> str:
    """Return an image as a base64 data URI: what a local model is shown of it.

    Servers differ in what they make of EXIF data, transparency, palettes, deep colours and several frames. The file of an
    image that has none of these is sent as it is, and of any other image what `read_picture` makes of it, as PNG.
    """
    with open_image(path) as image:
        if is_as_stored(image):
            return _to_uri(check_readable(path).read_bytes(), Image.MIME[str(image.format)])
    png = io.BytesIO()
    read_picture(path).save(png, "PNG")
    return _to_uri(png.getvalue(), "image/png")


def _to_uri(content: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def data_uri(path: Path) -> str:
    """Return the file of a video as a base64 data URI."""
    media_type = mimetypes.guess_type(path.name)[0] or "video/mp4"
    return _to_uri(check_readable(path).read_bytes(), media_type)


def is_cut_off(stop_reason: str) -> bool | None:
    """Return whether an answer was cut off at its longest length. None if the provider does not say.

    Example:
        >>> is_cut_off("max_tokens"), is_cut_off("stop"), is_cut_off("unknown")
        (True, False, None)
    """
    return None if stop_reason == "unknown" else stop_reason in ("max_tokens", "model_length")


def api_answerer(model: str | Any) -> Ask:
    """Return a source of answers that calls a model behind an API: inspect-ai's name of it, or its `Model`.

    Of the settings, it uses the longest answers and the temperature. `CONCURRENCY` questions are asked at a time,
    whatever the batch size. A question whose calls all fail stays unanswered. Raises InputError where inspect-ai or the
    provider's package or key is missing.

    Example:
        >>> dict(answer(api_answerer("openai/gpt-4o"), samples, None, AskSettings()))        # doctest: +SKIP
        {'0001': 'Yes, they are the same.'}
    """
    client = ModelClient(model)

    def ask(samples: Sequence[Sample], settings: AskSettings) -> Generator[Answered]:
        results: queue.Queue[_Reply | BaseException | None] = queue.Queue()
        stop = threading.Event()

        def work() -> None:
            try:
                asyncio.run(_ask_all(client, samples, settings, results.put, stop))
            except BaseException as error:  # the consumer raises it
                results.put(error)
            results.put(None)

        threading.Thread(target=work, daemon=True).start()
        result: _Reply | BaseException | None = None
        try:
            while (result := results.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                yield result.sample_id, result.got
                result.release()
        finally:  # a consumer that stops pays for no further questions
            stop.set()
            while result is not None:
                if isinstance(result, _Reply):
                    result.release()
                result = None if results.empty() else results.get()

    return ask


class _Reply(NamedTuple):
    """An answer, and the function that frees its turn once it is on disk."""

    sample_id: str
    got: Answer | Unanswered
    release: Callable[[], object]


async def _ask_all(
    client: ModelClient,
    samples: Sequence[Sample],
    settings: AskSettings,
    put: Callable[[_Reply], None],
    stop: threading.Event,
) -> None:
    """Ask all questions, `CONCURRENCY` at a time.

    A question keeps its turn until the consumer requests the next answer. By then its answer is on disk, so a
    kill costs no more answers than there are turns.
    """
    from mmprobe.traces.asking import Unanswered

    loop = asyncio.get_running_loop()

    async def ask(sample: Sample) -> None:
        async with client.turn():
            if stop.is_set():
                return
            got: Answer | Unanswered
            try:
                reply = await client.call(messages_of(sample), _settings_of(sample, settings))
                if reply.stop == NO_REPLY:
                    raise CallFailed("error", NO_REPLY)
                got = Answer(reply.text.strip(), is_cut_off(reply.stop))
            except (CallFailed, OSError) as error:
                kind = error.error if isinstance(error, CallFailed) else type(error).__name__
                _log.warning("%s: unanswered (%s)", sample.id, kind)
                got = Unanswered(kind, "unanswered")
            released = asyncio.Event()

            def release() -> None:
                if not loop.is_closed():  # another question's error closes it
                    loop.call_soon_threadsafe(released.set)

            put(_Reply(sample.id, got, release))
            if not stop.is_set():
                await released.wait()

    await run_all([partial(ask, sample) for sample in samples])


def _settings_of(sample: Sample, settings: AskSettings) -> dict[str, Any]:
    """Return the settings of one question, which override those of the client."""
    own = settings.of(sample)
    sampled = {"seed": own.seed or 0} if own.temperature > 0 else {}
    return {"max_tokens": own.lengths, "temperature": own.temperature, **sampled}
