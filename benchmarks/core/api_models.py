"""Models behind an API, through inspect-ai, with limits and with retries that end."""

from __future__ import annotations

import asyncio
import base64
import logging
import mimetypes
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmprobe.benchmarks.core.benchmark import Answer, sampling_of
from mmprobe.benchmarks.judges.client import one_line
from mmprobe.errors import InputError
from mmprobe.files import regular_file
from mmprobe.samples import Lengths, Sample, length_of, longest

if TYPE_CHECKING:
    from mmprobe.benchmarks.core.runner import Answerer

PROVIDERS = (
    *("anthropic", "azureai", "bedrock", "cloudflare", "deepseek", "fireworks", "google", "grok", "groq"),
    *("hf-inference-providers", "mistral", "mockllm", "ollama", "openai", "openai-api", "openrouter"),
    *("perplexity", "sambanova", "sglang", "together", "vllm"),
)
CONCURRENCY = 8  # calls at a time, ours
TIMEOUT = 180  # seconds an attempt, ours
RETRIES = 5  # attempts after the first, ours
_log = logging.getLogger(__name__)


def is_api(model: str) -> bool:
    """Return whether a model's name is one of inspect-ai's, such as `openai/gpt-4o`, and no hub id or folder.

    Example:
        >>> is_api("openai/gpt-4o"), is_api("Qwen/Qwen2.5-VL-7B-Instruct"), is_api("tiny-spd")
        (True, False, False)
    """
    provider, slash, _ = model.partition("/")
    return bool(slash) and provider in PROVIDERS


def messages_of(sample: Sample) -> list[Any]:
    """Return a sample as inspect-ai's messages. Images are data URIs, and the question has the sample's id.

    A prefill becomes a last message of the assistant, without spaces at its end, which some providers refuse.
    Where a provider refuses the message, the question stays unanswered. Raises InputError without inspect-ai.
    """
    try:
        from inspect_ai.model import (
            ChatMessageAssistant,
            ChatMessageSystem,
            ChatMessageUser,
            ContentImage,
            ContentText,
        )
    except ImportError:
        raise InputError("models behind an API need inspect-ai: pip install 'mmprobe[eval]'") from None
    messages: list[Any] = [ChatMessageSystem(content=sample.system)] if sample.system else []
    images = [ContentImage(image=data_uri(path)) for path in sample.images]
    messages.append(ChatMessageUser(id=sample.id, content=[*images, ContentText(text=sample.question)]))
    if prefill := (sample.prefill or "").rstrip():
        messages.append(ChatMessageAssistant(content=prefill))
    return messages


def data_uri(path: Path) -> str:
    """Return a file as a base64 data URI."""
    media_type = mimetypes.guess_type(path.name)[0] or "image/png"
    return f"data:{media_type};base64,{base64.b64encode(regular_file(path).read_bytes()).decode('ascii')}"


def api_answerer(model: str | Any, max_new_tokens: Lengths) -> Answerer:
    """Return an answerer that asks a model behind an API: inspect-ai's name of it, or its `Model`.

    Answers are greedy, or as `sampling_of` a question says. A question whose calls all fail stays unanswered.
    Raises InputError where inspect-ai or the provider's package or key is missing.

    Example:
        >>> dict(api_answerer("openai/gpt-4o", 64)(samples))        # doctest: +SKIP
        {'0001': 'Yes, they are the same.'}
    """
    client = _open_client(model, longest(max_new_tokens))

    def answer(samples: Sequence[Sample]) -> Generator[tuple[str, str]]:
        results: queue.Queue[_Answer | BaseException | None] = queue.Queue()
        stop = threading.Event()

        def work() -> None:
            try:
                asyncio.run(_ask_all(client, samples, max_new_tokens, results.put, stop))
            except BaseException as error:  # the consumer raises it
                results.put(error)
            results.put(None)

        threading.Thread(target=work, daemon=True).start()
        result: _Answer | BaseException | None = None
        try:
            while (result := results.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                yield result.sample_id, result.text
                result.release()
        finally:  # a consumer that stops pays for no further questions
            stop.set()
            while result is not None:
                if isinstance(result, _Answer):
                    result.release()
                result = None if results.empty() else results.get()

    return answer


def _open_client(model: str | Any, max_new_tokens: int) -> Any:
    try:
        from inspect_ai.model import GenerateConfig, get_model
    except ImportError:
        raise InputError(f"model {model}: needs inspect-ai: pip install 'mmprobe[eval]'") from None
    config = GenerateConfig(
        max_tokens=max_new_tokens,
        temperature=0.0,
        max_retries=RETRIES,
        timeout=TIMEOUT * (1 + RETRIES),
        attempt_timeout=TIMEOUT,
        max_connections=CONCURRENCY,
    )
    try:
        return get_model(model, config=config) if isinstance(model, str) else model
    except Exception as error:  # each provider has its own errors: no package, no key, no such model
        raise InputError(f"model {model}: {one_line(error)}") from None


def is_cut_off(stop_reason: str) -> bool | None:
    """Return whether an answer was cut off at its longest length. None if the provider does not say.

    Example:
        >>> is_cut_off("max_tokens"), is_cut_off("stop"), is_cut_off("unknown")
        (True, False, None)
    """
    return None if stop_reason == "unknown" else stop_reason in ("max_tokens", "model_length")


def _config_of(sample: Sample, max_new_tokens: Lengths) -> Any:
    """Return the settings of one question, which override those of the model."""
    from inspect_ai.model import GenerateConfig

    sampling = sampling_of(sample)
    own = {} if sampling is None else sampling._asdict()
    if not isinstance(max_new_tokens, int):
        own["max_tokens"] = length_of(sample, max_new_tokens)
    return GenerateConfig(**own)


class _Answer(NamedTuple):
    """An answer, and the function that frees its turn once it is on disk."""

    sample_id: str
    text: str
    release: Callable[[], object]


async def _ask_all(
    client: Any,
    samples: Sequence[Sample],
    max_new_tokens: Lengths,
    put: Callable[[_Answer], None],
    stop: threading.Event,
) -> None:
    """Ask all questions, `CONCURRENCY` at a time.

    A question keeps its turn until the consumer asks for the next answer. By then its answer is on disk, so a
    kill costs no more answers than there are turns.
    """
    loop = asyncio.get_running_loop()
    turns = asyncio.Semaphore(CONCURRENCY)

    async def ask(sample: Sample) -> None:
        async with turns:
            if stop.is_set():
                return
            try:
                output = await client.generate(messages_of(sample), config=_config_of(sample, max_new_tokens))
            except InputError:
                raise
            except Exception as error:
                _log.warning("%s: unanswered (%s)", sample.id, type(error).__name__)
                return
            released = asyncio.Event()

            def release() -> None:
                if not loop.is_closed():  # another question's error closes it
                    loop.call_soon_threadsafe(released.set)

            cut_off = is_cut_off(output.stop_reason)
            put(_Answer(sample.id, Answer(output.completion.strip(), cut_off), release))
            if not stop.is_set():
                await released.wait()

    await asyncio.gather(*(ask(sample) for sample in samples))
