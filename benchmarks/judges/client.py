"""Call a model that inspect-ai reaches, with limits on parallel calls, time and attempts."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import anyio
from anyio.lowlevel import RunVar

from mmprobe.benchmarks.judges.cache import Reply
from mmprobe.benchmarks.judges.types import Unscored
from mmprobe.errors import InputError

_KEY_REFUSED = (401, 403)

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

Message = tuple[str, str] | tuple[str, str, tuple[Path, ...]]
"""Role, text, and images that stand before the text."""


class _LoopClient(NamedTuple):
    """The model's client in one event loop, and the limit of its parallel calls."""

    model: Any
    limit: anyio.Semaphore


class ModelClient:
    """A model of inspect-ai. Any number of tasks and event loops can share it.

    `model` is a name such as `openai/gpt-4o` or an `inspect_ai.model.Model`, `sampling` its temperature, seed
    and max_tokens. `timeout` is in seconds, for one attempt; `retries` are further attempts where the
    provider is busy or slow. Raises InputError as `open_model`.
    """

    def __init__(
        self,
        model: Any,
        sampling: Mapping[str, Any],
        concurrency: int = 8,
        timeout: float = 120.0,
        retries: int = 3,
    ) -> None:
        self.name = str(model)
        self._model = model
        # Opened here, so that a missing key shows before any work.
        self._unused_model: Any = open_model(model)
        self._sampling = dict(sampling)
        self._concurrency = concurrency
        self._timeout = timeout
        self._retries = retries
        self._loop_client: RunVar[_LoopClient] = RunVar("client")
        self._logged_errors: set[str] = set()

    async def call(self, messages: Sequence[Message]) -> Reply | Unscored:
        """Return the reply to messages, or why the call failed. Raises InputError if the API key is refused."""
        from inspect_ai.model import (
            ChatMessageAssistant,
            ChatMessageSystem,
            ChatMessageUser,
            ContentImage,
            ContentText,
            GenerateConfig,
        )

        classes = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
        config = GenerateConfig(
            **self._sampling,
            max_retries=self._retries,
            attempt_timeout=math.ceil(self._timeout),
            max_connections=self._concurrency,
        )

        def content(message: Message) -> Any:
            from mmprobe.benchmarks.core.api_models import data_uri  # it imports the judges

            if len(message) == 2:
                return message[1]
            return [
                *(ContentImage(image=data_uri(path)) for path in message[2]),
                ContentText(text=message[1]),
            ]

        client = self._open_in_loop()
        try:
            # Waiting for a turn is not timed.
            async with client.limit:
                with anyio.fail_after(self._timeout * (self._retries + 1)):
                    output = await client.model.generate(
                        [classes[message[0]](content=content(message)) for message in messages],
                        config=config,
                        cache=False,
                    )
        except TimeoutError:
            return "timeout"
        except Exception as error:  # of any provider; its message is not logged, because it may hold a key
            if getattr(error, "status_code", None) in _KEY_REFUSED:
                raise InputError(f"judge {self.name}: the provider refuses the API key; check it") from None
            if "Timeout" in type(error).__name__:  # the timeouts of inspect-ai and of the providers
                return "timeout"
            self._log_once(type(error).__name__)
            return "error"
        if not output.choices:
            return Reply("", "unknown")
        return Reply(output.completion, str(output.stop_reason))

    def _log_once(self, error: str) -> None:
        if error not in self._logged_errors:
            _log.warning(
                "judge %s: a call failed (%s); further errors of this kind are only counted", self.name, error
            )
        self._logged_errors.add(error)

    def _open_in_loop(self) -> _LoopClient:
        """Return the client of the running event loop.

        Each loop needs its own, because a provider's client works only in the loop of its first use.
        """
        client = self._loop_client.get(None)
        if client is None:
            model = self._unused_model or open_model(self._model)
            self._unused_model = None
            # inspect-ai's own limit spans all loops, but one loop cannot wake another
            model.api.connection_key = lambda: f"mmprobe judge {id(self)} {id(model)}"
            client = _LoopClient(model, anyio.Semaphore(self._concurrency))
            self._loop_client.set(client)
        return client


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


def open_model(model: Any) -> Any:
    """Open the inspect-ai model of a name, or raise InputError that says what is missing. A model stays."""
    try:
        from inspect_ai.model import Model, get_model
    except ImportError:
        raise InputError(
            "a model as judge needs inspect-ai, which is missing: pip install 'mmprobe[eval]'"
        ) from None
    if isinstance(model, Model):
        return model
    try:
        return get_model(model, memoize=False)
    except Exception as error:  # a private class of inspect-ai, or an error of the provider's package
        if isinstance(error, (ValueError, ImportError)) or type(error).__name__ == "PrerequisiteError":
            raise InputError(f"judge {model}: {one_line(error)}") from None
        raise InputError(f"judge {model}: cannot be opened ({type(error).__name__})") from None


def one_line(error: Exception) -> str:
    """Return the message of an error of inspect-ai on one line, without its markup for colours.

    Example:
        >>> one_line(ValueError("[bold]ERROR[/bold]: no package.\\n\\n[bold]pip install openai[/bold]"))
        'ERROR: no package. pip install openai'
    """
    text = re.sub(r"\[/?[a-z #0-9]*\]", "", str(error))
    return " ".join(text.split())[:300] or type(error).__name__
