"""Models behind an API, through inspect-ai: as what answers questions, with limits and retries that end."""

from __future__ import annotations

import asyncio
import base64
import logging
import mimetypes
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.benchmarks.core.runner import Answer
from mmprobe.errors import InputError
from mmprobe.samples import Sample

PROVIDERS = (
    *("anthropic", "azureai", "bedrock", "cloudflare", "deepseek", "fireworks", "google", "grok", "groq"),
    *("hf-inference-providers", "mistral", "mockllm", "ollama", "openai", "openai-api", "openrouter"),
    *("perplexity", "sambanova", "sglang", "together", "vllm"),
)
CONCURRENCY, TIMEOUT, RETRIES = 8, 180, 5  # calls at a time, seconds an attempt, further attempts; ours
_log = logging.getLogger(__name__)


def is_api(model: str) -> bool:
    """Whether a model's name is one of inspect-ai's, such as `openai/gpt-4o`, and not a hub id or folder.

    Example:
        >>> is_api("openai/gpt-4o"), is_api("Qwen/Qwen2.5-VL-7B-Instruct"), is_api("tiny-spd")
        (True, False, False)
    """
    provider, slash, _ = model.partition("/")
    return bool(slash) and provider in PROVIDERS


def messages_of(sample: Sample) -> list[Any]:
    """A sample as inspect-ai's messages; pictures go in as data URIs, and the question's id is the message's.

    A prefill is a last message of the assistant's, without blanks at its end, which some providers refuse. Not every
    provider's models go on from such a message, and some refuse it altogether: its question is then unanswered.

    Raises:
        InputError: inspect-ai is missing.

    Example:
        >>> messages_of(samples[0])[-1].id                          # doctest: +SKIP
        '0001'
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
    system = [ChatMessageSystem(content=sample.system)] if sample.system else []
    pictures = [ContentImage(image=data_uri(picture)) for picture in sample.images]
    question = ChatMessageUser(id=sample.id, content=[*pictures, ContentText(text=sample.question)])
    begun = (sample.prefill or "").rstrip()
    return [*system, question, *([ChatMessageAssistant(content=begun)] if begun else [])]


def data_uri(path: Path) -> str:
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def api(
    model: str | Any, max_new_tokens: int, temperature: float | None = 0.0, seed: int | None = None
) -> Answer:
    """Answers of a model behind an API. What fails for good is left unanswered, with a warning.

    Args:
        model: as inspect-ai names it, or an `inspect_ai.model.Model`.
        max_new_tokens: longest answer.
        temperature, seed: of the sampling; None leaves them to the provider.

    Raises:
        InputError: inspect-ai or the provider's package is missing, or the provider or its key is unknown.

    Example:
        >>> dict(api("openai/gpt-4o", 64)(samples))                 # doctest: +SKIP
        {'0001': 'Yes, they are the same.'}
    """
    client = _client(model, max_new_tokens, temperature, seed)

    def answer(samples: Sequence[Sample]) -> Generator[tuple[str, str]]:
        told: queue.Queue[_Told | BaseException | None] = queue.Queue()
        stop = threading.Event()

        def work() -> None:
            try:
                asyncio.run(_ask_all(client, samples, told.put, stop))
            except BaseException as error:  # it belongs to who waits for the answers
                told.put(error)
            told.put(None)

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        found: _Told | BaseException | None = None
        try:
            while (found := told.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found.name, found.text
                found.taken()
        finally:  # who no longer listens pays for no further questions
            stop.set()
            while found is not None:
                if isinstance(found, _Told):
                    found.taken()
                found = None if told.empty() else told.get()

    return answer


def _client(model: str | Any, max_new_tokens: int, temperature: float | None, seed: int | None) -> Any:
    try:
        from inspect_ai.model import GenerateConfig, get_model
    except ImportError:
        raise InputError(f"model {model}: needs inspect-ai: pip install 'mmprobe[eval]'") from None
    config = GenerateConfig(
        max_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        max_retries=RETRIES,
        timeout=TIMEOUT * (1 + RETRIES),
        attempt_timeout=TIMEOUT,
        max_connections=CONCURRENCY,
    )
    try:
        return get_model(model, config=config) if isinstance(model, str) else model
    except Exception as error:  # each provider has its own errors: no package, no key, no such model
        raise InputError(f"model {model}: {str(error).strip().splitlines()[0]}") from None


class _Told(NamedTuple):
    """An answer, and what to call once it is safe."""

    name: str
    text: str
    taken: Callable[[], object]


async def _ask_all(
    client: Any, samples: Sequence[Sample], tell: Callable[[_Told], None], stop: threading.Event
) -> None:
    """Ask, a few at a time. A question's turn ends when who listens comes back for the next answer.

    By then an answer is on disk, so that a kill costs no more answers than there are turns.
    """
    loop = asyncio.get_running_loop()
    limit = asyncio.Semaphore(CONCURRENCY)

    async def ask(sample: Sample) -> None:
        async with limit:
            if stop.is_set():
                return
            try:
                output = await client.generate(messages_of(sample))
            except InputError:
                raise
            except Exception as error:
                _log.warning("%s: unanswered (%s)", sample.id, type(error).__name__)
                return
            safe = asyncio.Event()

            def taken() -> None:
                if not loop.is_closed():  # it is where another question ended them all
                    loop.call_soon_threadsafe(safe.set)

            tell(_Told(sample.id, output.completion.strip(), taken))
            if not stop.is_set():
                await safe.wait()

    await asyncio.gather(*(ask(sample) for sample in samples))
