"""The `model` judge: any model that inspect-ai reaches, or that mmprobe loads, labels answers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import RunVar
from tqdm import tqdm

from mmprobe.benchmarks.core.api_models import CallFailed, ChatTurn, ModelClient, Reply, run_all
from mmprobe.benchmarks.judges.cache import ReplyCache, cache_key
from mmprobe.benchmarks.judges.judge import MAX_ANSWER_CHARS, Item, Judgement, JudgeRequest, Unscored
from mmprobe.benchmarks.judges.local import PREFIX, LocalClient
from mmprobe.benchmarks.judges.requests import REPAIR, UnusableReply, fence, judge_texts
from mmprobe.errors import InputError
from mmprobe.samples import is_turned

_log = logging.getLogger(__name__)

_MAX_REPLY_CHARS = 4_000  # characters of an unusable reply that are sent back with the request for a repair


@dataclass
class _PendingRequest:
    """A request without a judgement yet. Tasks with the same request wait for it."""

    done: anyio.Event
    judgement: Judgement[Any] | None = None  # still None when done: the request was cancelled


@dataclass(frozen=True)
class JudgeSettings:
    """How a judge's model is called.

    Attributes:
        concurrency: calls at a time.
        timeout: seconds for one attempt; a call may take this times 1 + retries.
        retries: attempts after the first.
        repairs: how often an unusable reply is sent back; after that the sample is unscored.
        temperature, seed: None leaves them to the provider.
        max_tokens: the longest reply.
        retry_unscored: whether to send again the samples that an earlier judge with this cache left unscored.

    Raises:
        InputError: a number is out of range.
    """

    concurrency: int = 8
    timeout: float = 120.0
    retries: int = 3
    repairs: int = 3
    temperature: float | None = 0.0
    seed: int | None = 0
    max_tokens: int = 4096
    retry_unscored: bool = True

    def __post_init__(self) -> None:
        if (
            self.concurrency < 1
            or self.max_tokens < 1
            or self.timeout <= 0
            or min(self.retries, self.repairs) < 0
        ):
            raise InputError(
                "judge: concurrency and max_tokens must be 1 or more, timeout above 0, "
                "retries and repairs 0 or more"
            )


class ModelJudge:
    """A judge that calls a model of inspect-ai, or one of mmprobe (`local/FOLDER`). Any number of tasks can share one.

    Its replies must follow a strict form. The `cache` file (None: memory) keeps every reply that was understood, and the
    model is not asked for it again. Raises InputError where the model cannot be opened.

    Attributes:
        identity: its name, and the hashes of the weights of a model that is loaded here.
        tokens: of all requests and replies so far; 0 where nobody counts them.
    """

    def __init__(
        self,
        model: Any,
        cache: str | Path | None = None,
        settings: JudgeSettings = JudgeSettings(),
    ) -> None:
        self.name = str(model)
        names = ("temperature", "seed", "max_tokens")
        self.sampling: dict[str, Any] = {name: getattr(settings, name) for name in names}
        # The client first: without a key, no cache is made.
        self._client: ModelClient | LocalClient
        if self.name.startswith(PREFIX):
            local = self._client = LocalClient(self.name.removeprefix(PREFIX), self.sampling)
            self.identity = f"{self.name} {local.identity}"
        else:
            self._client = ModelClient(
                model, self.sampling, settings.concurrency, settings.timeout, settings.retries, "judge"
            )
            self.identity = self.name
        self.tokens = 0  # of all requests and replies so far
        self._cache = ReplyCache(cache)
        self._repairs = settings.repairs
        self._retry_unscored = settings.retry_unscored
        self._pending: RunVar[dict[str, _PendingRequest]] = RunVar("judge")
        self._logged_errors: set[str] = set()

    async def ask(self, requests: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        """Return the labels that each request asks for. All are asked at the same time, with a progress bar."""

        async def ask(request: JudgeRequest[Item]) -> Judgement[Item]:
            judgement = await self._ask(request)
            bar.update()
            return judgement

        with tqdm(
            total=len(requests), desc=self.name, unit="answer", disable=len(requests) < 2 or None
        ) as bar:
            return await run_all([partial(ask, request) for request in requests])

    async def _ask(self, request: JudgeRequest[Item]) -> Judgement[Item]:
        """Return the labels from the cache, from another task with the same request, or from the model."""
        data = _truncate_texts(request.data)
        truncated = data != request.data
        if request.known is not None:
            return Judgement(request.known, truncated=truncated)
        system, user = judge_texts(request.prompt, data)
        messages = [] if system is None else [ChatTurn("system", system)]
        messages.append(ChatTurn("user", user, request.images or None))
        key = self._cache_key(messages)
        pending = self._pending_requests()
        while key in pending:
            same = pending[key]
            await same.done.wait()
            if same.judgement is not None:
                return replace(same.judgement, calls=0, truncated=truncated)
        if (items := self._find_cached(key, request.read)) is not None:
            return Judgement(items, None, 0, truncated)
        if not self._retry_unscored and (reason := self._cache.get_unscored(key)):
            return Judgement(None, reason, 0, truncated)
        own = pending[key] = _PendingRequest(anyio.Event())
        try:
            own.judgement = judgement = await self._ask_model(messages, request.read, truncated)
        finally:
            del pending[key]
            own.done.set()
        return judgement

    async def _ask_model(
        self, messages: Sequence[ChatTurn], read: Callable[[str], tuple[Item, ...]], truncated: bool
    ) -> Judgement[Item]:
        """Ask the model, and ask again if its reply is unusable. Keep the reply that was understood."""
        key = self._cache_key(messages)
        unscored: Unscored = "garbage"
        for calls in range(1, self._repairs + 2):
            try:
                async with self._client.turn():
                    reply = await self._client.call(messages)
            except CallFailed as failed:
                unscored = self._reason(failed)
                break
            self.tokens += reply.tokens
            try:
                items = read(reply.text)
            except UnusableReply as problem:
                unscored = "refused" if reply.stop == "content_filter" else "garbage"
                messages = _request_repair(messages, reply, problem)
            else:
                self._cache.put(key, reply)
                return Judgement(items, None, calls, truncated)
        self._cache.put_unscored(key, unscored)
        return Judgement(None, unscored, calls, truncated)

    def _reason(self, failed: CallFailed) -> Unscored:
        """Return why a failed call leaves a sample unscored. Raises InputError if the API key is refused."""
        if failed.reason == "key refused":
            raise InputError(f"judge {self.name}: the provider refuses the API key; check it") from None
        if failed.reason == "error" and failed.error not in self._logged_errors:
            self._logged_errors.add(failed.error)
            _log.warning(
                "judge %s: a call failed (%s); further errors of this kind are only counted",
                self.name,
                failed.error,
            )
        return failed.reason

    def _find_cached(self, key: str, read: Callable[[str], tuple[Item, ...]]) -> tuple[Item, ...] | None:
        """Return the labels of an understood reply in the cache, or None."""
        reply = self._cache.get(key)
        try:
            return None if reply is None else read(reply.text)
        except UnusableReply:  # a damaged file
            return None

    def _cache_key(self, messages: Sequence[ChatTurn]) -> str:
        return cache_key(self.identity, [_hash_images(message) for message in messages], self.sampling)

    def _pending_requests(self) -> dict[str, _PendingRequest]:
        """Return the pending requests of the running event loop, by cache key."""
        pending = self._pending.get(None)
        if pending is None:
            pending = {}
            self._pending.set(pending)
        return pending


def _request_repair(messages: Sequence[ChatTurn], reply: Reply, problem: UnusableReply) -> list[ChatTurn]:
    """Add the request for another reply. A useless reply may hold orders of an answer, so it is fenced, too."""
    quoted = fence({"reply": reply.text[:_MAX_REPLY_CHARS]})
    return [
        *messages,
        ChatTurn("assistant", "(a reply that could not be used)"),
        ChatTurn("user", REPAIR.format(problem=problem, reply=quoted)),
    ]


def _hash_images(message: ChatTurn) -> list[Any]:
    """Return a message's role and text, with the hashes of its images if it has any."""
    turn = [message.role, message.text]
    if message.images is None:
        return turn
    return [
        *turn,
        [
            hashlib.sha256(path.read_bytes()).hexdigest() + (" upright" if is_turned(path) else "")
            for path in message.images
        ],
    ]


def _truncate_texts(data: Any) -> Any:
    """Cut every text in JSON values to `MAX_ANSWER_CHARS`."""
    if isinstance(data, str):
        return data[:MAX_ANSWER_CHARS]
    if isinstance(data, Mapping):
        return {name: _truncate_texts(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(_truncate_texts(value) for value in data)
    return data


def open_model_judge(
    models: Sequence[str], cache: str | Path | None = None, retry_unscored: bool = True
) -> ModelJudge:
    """Open the judge of one model, with a file for its replies."""
    (model,) = models
    return ModelJudge(model, cache, JudgeSettings(retry_unscored=retry_unscored))
