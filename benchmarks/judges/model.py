"""The `model` judge: it asks any model that inspect-ai reaches to label answers."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import RunVar
from tqdm import tqdm

from mmprobe.benchmarks.judges.cache import Reply, ReplyCache, cache_key
from mmprobe.benchmarks.judges.client import Message, ModelClient
from mmprobe.benchmarks.judges.parsing import UnusableReply, read_claims, read_labels, read_matches
from mmprobe.benchmarks.judges.prompts import (
    CLAIMS,
    EARLIER_REPAIR,
    MATCHES,
    PAIRS,
    REPAIR,
    SEEN_MATCHES,
    fence,
)
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


@dataclass
class _PendingRequest:
    """A request without a judgement yet. Tasks with the same request wait for it."""

    done: anyio.Event
    judgement: Judgement[Any] | None = None  # still None when done: the request was cancelled


class ModelJudge:
    """A judge that asks a model. Any number of tasks can share one.

    The model extracts claims without seeing the truth, and labels the extracted claims. Its replies must
    follow a strict form, and claims must quote the answer letter by letter. An unusable reply is sent back up
    to `repairs` times; after that the sample is unscored. The cache keeps every reply that was understood, and
    the model is not asked for it again.

    Args:
        model: a name of inspect-ai, such as `openai/gpt-4o`, or an `inspect_ai.model.Model`.
        cache: file for the replies; None keeps them in memory.
        concurrency: number of parallel calls.
        timeout: seconds for one attempt of a call. A call with all its attempts and the waits between them
            may take this times 1 + retries.
        retries: number of further attempts if the provider is busy or slow.
        repairs: number of further replies to ask for if a reply is unusable.
        temperature, seed, max_tokens: sampling parameters. None leaves temperature and seed to the provider.
        retry_unscored: ask again about samples that an earlier judge with this cache left unscored, also if
            the model refused them. If False, they stay unscored and need no call.

    Raises:
        InputError: inspect-ai or the provider's package is missing, the provider or its API key is unknown,
            or a number is out of range.
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
        retry_unscored: bool = True,
    ) -> None:
        if concurrency < 1 or max_tokens < 1 or timeout <= 0 or min(retries, repairs) < 0:
            raise InputError(
                "judge: concurrency and max_tokens must be 1 or more, timeout above 0, "
                "retries and repairs 0 or more"
            )
        self.name = str(model)
        self.sampling: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_tokens": max_tokens}
        # The client first: without a key, no cache is made.
        self._client = ModelClient(model, self.sampling, concurrency, timeout, retries)
        self._cache = ReplyCache(cache)
        self._repairs = repairs
        self._retry_unscored = retry_unscored
        self._pending: RunVar[dict[str, _PendingRequest]] = RunVar("judge")

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

    async def match(
        self,
        samples: Sequence[tuple[Sequence[str], Sequence[str]]],
        images: Sequence[Sequence[Path]] = (),
    ) -> list[Judgement[Match]]:
        """Match the claims of each sample with its true differences, or name their errors.

        Args:
            samples: the texts of the claims and the descriptions of the true differences. A sample without
                claims needs no call. Without true differences every claim is a fabrication, also without a
                call.
            images: the two images of each sample, to show them to the model. Empty shows none.
        """
        shown = images or [()] * len(samples)
        jobs = [partial(self._match, *sample, paths) for sample, paths in zip(samples, shown, strict=True)]
        return await self._run_all(jobs)

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

    async def _match(
        self, claims: Sequence[str], truths: Sequence[str], images: Sequence[Path] = ()
    ) -> Judgement[Match]:
        if not claims or not truths:
            return Judgement(tuple(Match(None, "fabrication") for _ in claims))
        data = {"claims": _number_texts(claims), "truths": _number_texts(truths)}
        read = partial(read_matches, claims=len(claims), truths=len(truths))
        return await self._ask(SEEN_MATCHES if images else MATCHES, data, read, images=images)

    async def _run_all(
        self, jobs: Sequence[Callable[[], Awaitable[Judgement[Item]]]]
    ) -> list[Judgement[Item]]:
        """Run all jobs at the same time, with a progress bar. The first error cancels the others."""
        judgements: list[Any] = [None] * len(jobs)
        fatal: list[InputError | OSError] = []

        async def run(index: int, job: Callable[[], Awaitable[Judgement[Item]]]) -> None:
            try:
                judgements[index] = await job()
                bar.update()
            except (InputError, OSError) as error:  # OSError: a full disk under the cache
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
        self,
        system: str,
        data: Any,
        read: Callable[[str], tuple[Item, ...]],
        truncated: bool = False,
        images: Sequence[Path] = (),
    ) -> Judgement[Item]:
        """Return the labels from the cache, from another task with the same request, or from the model."""
        messages: list[Message] = [("system", system)]
        messages.append(("user", fence(data), tuple(images)) if images else ("user", fence(data)))
        key = self._cache_key(messages)
        pending = self._pending_requests()
        while key in pending:
            request = pending[key]
            await request.done.wait()
            if request.judgement is not None:
                return replace(request.judgement, calls=0, truncated=truncated)
        if (items := self._find_cached(messages, read)) is not None:
            return Judgement(items, None, 0, truncated)
        if not self._retry_unscored and (reason := self._cache.get_unscored(key)):
            return Judgement(None, reason, 0, truncated)
        request = pending[key] = _PendingRequest(anyio.Event())
        try:
            request.judgement = judgement = await self._ask_model(messages, read, truncated)
        finally:
            del pending[key]
            request.done.set()
        return judgement

    async def _ask_model(
        self, messages: Sequence[Message], read: Callable[[str], tuple[Item, ...]], truncated: bool
    ) -> Judgement[Item]:
        """Ask the model, and ask again if its reply is unusable. Keep the reply that was understood."""
        key = self._cache_key(messages)
        unscored: Unscored = "garbage"
        for calls in range(1, self._repairs + 2):
            reply = await self._client.call(messages)
            if not isinstance(reply, Reply):
                unscored = reply
                break
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

    def _find_cached(
        self, messages: Sequence[Message], read: Callable[[str], tuple[Item, ...]]
    ) -> tuple[Item, ...] | None:
        """Return the labels of an understood reply in the cache, or None.

        Files of earlier versions also hold useless replies. There, an understood reply is the reply to the
        request for a repair.
        """
        for _ in range(self._repairs + 1):
            reply = self._cache.get(self._cache_key(messages))
            if reply is None:
                return None
            try:
                return read(reply.text)
            except UnusableReply as problem:
                messages = _request_earlier_repair(messages, reply, problem)
        return None

    def _cache_key(self, messages: Sequence[Message]) -> str:
        return cache_key(self.name, [_hash_images(message) for message in messages], self.sampling)

    def _pending_requests(self) -> dict[str, _PendingRequest]:
        """Return the pending requests of the running event loop, by cache key."""
        pending = self._pending.get(None)
        if pending is None:
            pending = {}
            self._pending.set(pending)
        return pending


def _request_repair(messages: Sequence[Message], reply: Reply, problem: UnusableReply) -> list[Message]:
    """Add the request for another reply. A useless reply may hold orders of an answer, so it is fenced, too."""
    quoted = fence({"reply": reply.text[:_MAX_REPLY_CHARS]})
    return [
        *messages,
        ("assistant", "(a reply that could not be used)"),
        ("user", REPAIR.format(problem=problem, reply=quoted)),
    ]


def _request_earlier_repair(
    messages: Sequence[Message], reply: Reply, problem: UnusableReply
) -> list[Message]:
    quoted = reply.text[:_MAX_REPLY_CHARS].strip() or "(nothing)"
    return [*messages, ("assistant", quoted), ("user", EARLIER_REPAIR.format(problem))]


def _hash_images(message: Message) -> Sequence[Any]:
    """Return a message with the hashes of its images, if it has any."""
    if len(message) == 2:
        return message
    return [*message[:2], [hashlib.sha256(path.read_bytes()).hexdigest() for path in message[2]]]


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
