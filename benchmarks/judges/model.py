"""The `model` judge: it asks any model that inspect-ai reaches to label answers."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import RunVar
from tqdm import tqdm

from mmprobe.benchmarks.judges.cache import Reply, ReplyCache, cache_key
from mmprobe.benchmarks.judges.parsing import UnusableReply, read_claims, read_labels, read_matches
from mmprobe.benchmarks.judges.prompts import CLAIMS, MATCHES, PAIRS, REPAIR, fence
from mmprobe.benchmarks.judges.types import (
    MAX_ANSWER_CHARS,
    Item,
    JudgedClaim,
    Judgement,
    JudgeRequest,
    Match,
    PairLabel,
    Unscored,
)
from mmprobe.errors import InputError

_MAX_REPLY_CHARS = 4_000  # characters of an unusable reply that are sent back with the request for a repair
_KEY_REFUSED = (401, 403)

_log = logging.getLogger(__name__)


@dataclass
class _PendingCall:
    """A call without a reply yet. Tasks that need the same reply wait for it."""

    done: anyio.Event
    reply: Reply | Unscored | None = None  # still None when done: the call was cancelled


@dataclass
class _LoopState:
    """The state of one event loop: the model's client, the limit of parallel calls, and the pending calls."""

    model: Any
    limit: anyio.Semaphore
    pending: dict[str, _PendingCall] = field(default_factory=dict)


class ModelJudge:
    """A judge that asks a model. Any number of tasks can share one.

    The model extracts claims without seeing the truth, and labels the extracted claims. Its replies must
    follow a strict form, and claims must quote the answer letter by letter. An unusable reply is sent back up
    to `repairs` times; after that the sample is unscored. Replies come from the cache if it has them.

    Args:
        model: a name of inspect-ai, such as `openai/gpt-4o`, or an `inspect_ai.model.Model`.
        cache: file for the replies; None keeps them in memory.
        concurrency: number of parallel calls.
        timeout: seconds for one attempt of a call. A call with all its attempts and the waits between them
            may take this times 1 + retries.
        retries: number of further attempts if the provider is busy or slow.
        repairs: number of further replies to ask for if a reply is unusable.
        temperature, seed, max_tokens: sampling parameters. None leaves temperature and seed to the provider.

    Raises:
        InputError: inspect-ai or the provider's package is missing, the provider or its API key is unknown,
            or a number is out of range.

    Example:
        >>> judge = ModelJudge("openai/gpt-4o", cache="judge.sqlite")               # doctest: +SKIP
        >>> asyncio.run(judge.extract(["The chair is red now."]))[0].items           # doctest: +SKIP
        (JudgedClaim(type='color', category='chair', text='The chair is red now.'),)
    """

    def __init__(
        self,
        model: Any,
        cache: str | Path | None = None,
        *,
        concurrency: int = 8,
        timeout: float = 120.0,
        retries: int = 3,
        repairs: int = 3,
        temperature: float | None = 0.0,
        seed: int | None = 0,
        max_tokens: int = 4096,
    ) -> None:
        if concurrency < 1 or max_tokens < 1 or timeout <= 0 or min(retries, repairs) < 0:
            raise InputError(
                "judge: concurrency and max_tokens must be 1 or more, timeout above 0, "
                "retries and repairs 0 or more"
            )
        self.name = str(model)
        self.sampling: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_tokens": max_tokens}
        self._model = model
        # Opened here, so that a missing key shows before any work.
        self._unused_client: Any = open_model(model)
        self._cache = ReplyCache(cache)
        self._concurrency = concurrency
        self._timeout = timeout
        self._retries = retries
        self._repairs = repairs
        self._loop_state: RunVar[_LoopState] = RunVar("judge")
        self._logged_errors: set[str] = set()

    async def ask(self, requests: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        """Return the labels that each request asks for. Each text is cut to 20,000 characters."""
        return await self._run_all([partial(self._ask_truncated, request) for request in requests])

    async def extract(self, answers: Sequence[str]) -> list[Judgement[JudgedClaim]]:
        """Return the differences that each answer claims. An empty answer claims none and needs no call.

        Args:
            answers: the answers; only the first 20,000 characters are judged.
        """
        return await self._run_all([partial(self._extract, answer) for answer in answers])

    async def label_pairs(self, samples: Sequence[Sequence[tuple[str, str]]]) -> list[Judgement[PairLabel]]:
        """Label each pair of claims of each sample. The claims of a pair come from two different answers.

        Args:
            samples: the texts of each pair of claims. A sample without pairs needs no call.
        """
        return await self._run_all([partial(self._label_pairs, pairs) for pairs in samples])

    async def match(self, samples: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Judgement[Match]]:
        """Match the claims of each sample with its true differences, or name their errors.

        Args:
            samples: the texts of the claims and the descriptions of the true differences. A sample without
                claims needs no call. Without true differences every claim is a fabrication, also without a
                call.
        """
        return await self._run_all([partial(self._match, claims, truths) for claims, truths in samples])

    async def _ask_truncated(self, request: JudgeRequest[Item]) -> Judgement[Item]:
        data = _truncate_texts(request.data)
        return await self._ask(request.system, data, request.read, truncated=data != request.data)

    async def _extract(self, answer: str) -> Judgement[JudgedClaim]:
        truncated = len(answer) > MAX_ANSWER_CHARS
        answer = answer[:MAX_ANSWER_CHARS]
        if not answer.strip():
            return Judgement((), truncated=truncated)
        return await self._ask(CLAIMS, {"answer": answer}, partial(read_claims, answer=answer), truncated)

    async def _label_pairs(self, pairs: Sequence[tuple[str, str]]) -> Judgement[PairLabel]:
        if not pairs:
            return Judgement(())
        data = {"pairs": [{"first": first, "second": second} for first, second in pairs]}
        return await self._ask(PAIRS, data, partial(read_labels, count=len(pairs)))

    async def _match(self, claims: Sequence[str], truths: Sequence[str]) -> Judgement[Match]:
        if not claims or not truths:
            return Judgement(tuple(Match(None, "fabrication") for _ in claims))
        data = {"claims": _number_texts(claims), "truths": _number_texts(truths)}
        read = partial(read_matches, claims=len(claims), truths=len(truths))
        return await self._ask(MATCHES, data, read)

    async def _run_all(
        self, jobs: Sequence[Callable[[], Awaitable[Judgement[Item]]]]
    ) -> list[Judgement[Item]]:
        """Run all jobs at the same time, with a progress bar. The first `InputError` cancels the others."""
        judgements: list[Any] = [None] * len(jobs)
        fatal: list[InputError] = []

        async def run(index: int, job: Callable[[], Awaitable[Judgement[Item]]]) -> None:
            try:
                judgements[index] = await job()
                bar.update()
            except InputError as error:
                fatal.append(error)
                group.cancel_scope.cancel()

        with tqdm(total=len(jobs), desc=self.name, unit="answer", disable=len(jobs) < 2 or None) as bar:
            async with anyio.create_task_group() as group:
                for index, job in enumerate(jobs):
                    group.start_soon(run, index, job)
        if fatal:
            raise fatal[0]
        return judgements

    async def _ask(
        self, system: str, data: Any, read: Callable[[str], tuple[Item, ...]], truncated: bool = False
    ) -> Judgement[Item]:
        """Ask the model, and ask again if its reply is unusable."""
        messages = [("system", system), ("user", fence(data))]
        calls = 0
        refused = False
        for _ in range(self._repairs + 1):
            reply, new_calls = await self._get_reply(messages)
            calls += new_calls
            if not isinstance(reply, Reply):
                return Judgement(None, reply, calls, truncated)
            try:
                return Judgement(read(reply.text), None, calls, truncated)
            except UnusableReply as problem:
                refused = reply.stop == "content_filter"
                quoted = reply.text[:_MAX_REPLY_CHARS].strip() or "(nothing)"
                messages = [*messages, ("assistant", quoted), ("user", REPAIR.format(problem))]
        return Judgement(None, "refused" if refused else "garbage", calls, truncated)

    async def _get_reply(self, messages: Sequence[tuple[str, str]]) -> tuple[Reply | Unscored, int]:
        """Return the reply and the number of calls: 0 if the cache or another task had the reply."""
        state = self._current_loop_state()
        key = cache_key(self.name, messages, self.sampling)
        while key in state.pending:
            call = state.pending[key]
            await call.done.wait()
            if call.reply is not None:
                return call.reply, 0
        cached = self._cache.get(key)
        if cached is not None:
            return cached, 0
        call = state.pending[key] = _PendingCall(anyio.Event())
        try:
            async with state.limit:
                reply = call.reply = await self._call_model(state.model, messages)
            if isinstance(reply, Reply):
                self._cache.put(key, reply)
        finally:
            del state.pending[key]
            call.done.set()
        return reply, 1

    async def _call_model(self, model: Any, messages: Sequence[tuple[str, str]]) -> Reply | Unscored:
        from inspect_ai.model import (
            ChatMessageAssistant,
            ChatMessageSystem,
            ChatMessageUser,
            GenerateConfig,
        )

        classes = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
        config = GenerateConfig(
            **self.sampling,
            max_retries=self._retries,
            attempt_timeout=math.ceil(self._timeout),
            max_connections=self._concurrency,
        )
        try:
            with anyio.fail_after(self._timeout * (self._retries + 1)):
                output = await model.generate(
                    [classes[role](content=text) for role, text in messages], config=config, cache=False
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

    def _current_loop_state(self) -> _LoopState:
        """Return the state of the running event loop.

        Each loop needs its own client, because a provider's client works only in the loop of its first use.
        """
        state = self._loop_state.get(None)
        if state is None:
            model = self._unused_client or open_model(self._model)
            self._unused_client = None
            # inspect-ai's own limit spans all loops, but one loop cannot wake another
            model.api.connection_key = lambda: f"mmprobe judge {id(self)} {id(model)}"
            state = _LoopState(model, anyio.Semaphore(self._concurrency))
            self._loop_state.set(state)
        return state


def _truncate_texts(data: Any) -> Any:
    """Cut every text in JSON values to `MAX_ANSWER_CHARS`."""
    if isinstance(data, str):
        return data[:MAX_ANSWER_CHARS]
    if isinstance(data, Mapping):
        return {name: _truncate_texts(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(_truncate_texts(value) for value in data)
    return data


def _number_texts(texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"number": number, "text": text} for number, text in enumerate(texts, 1)]


def open_model(model: Any) -> Any:
    """Open the inspect-ai model of a name. A model object is returned as it is.

    Raises:
        InputError: inspect-ai, the provider, its package or its API key is missing.

    Example:
        >>> open_model("openai/gpt-4o")                                             # doctest: +SKIP
        openai/gpt-4o
    """
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
            raise InputError(f"judge {model}: {_one_line(str(error))}") from None
        raise InputError(f"judge {model}: cannot be opened ({type(error).__name__})") from None


def _one_line(message: str) -> str:
    """Put a message of inspect-ai on one line, without its markup for colours."""
    return " ".join(re.sub(r"\[/?[a-z #0-9]*\]", "", message).split())[:300]
