"""The `model` judge: any model that inspect-ai reaches, told to label and nothing more."""

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

from mmprobe.benchmarks.judges import (
    LONGEST_ANSWER,
    Item,
    JudgedClaim,
    Judgement,
    JudgeRequest,
    Match,
    PairLabel,
    Unscored,
)
from mmprobe.benchmarks.judges.cache import Reply, ReplyCache, cache_key
from mmprobe.benchmarks.judges.parsing import Unusable, read_claims, read_labels, read_matches
from mmprobe.benchmarks.judges.prompts import CLAIMS, MATCHES, PAIRS, REPAIR, fence
from mmprobe.errors import InputError

_SHOWN_REPLY = 4_000  # characters of a useless reply that its judge is shown again
_REFUSED_KEY = (401, 403)

_log = logging.getLogger(__name__)


@dataclass
class _Flight:
    """A call on its way, which others that want the same reply wait for."""

    done: anyio.Event
    reply: Reply | Unscored | None = None  # None once done: it was cancelled


@dataclass
class _Loop:
    """What belongs to one event loop: the model's client, the limit of calls at a time, the calls on their way."""

    model: Any
    limit: anyio.Semaphore
    flying: dict[str, _Flight] = field(default_factory=dict)


class ModelJudge:
    """A judge that asks a model; one can be shared by any number of tasks.

    The model extracts claims without seeing the truth, and labels claims that were extracted before. Its replies
    must follow a strict form, claims must quote the answer letter by letter; a reply that does not is sent back up
    to `repairs` times, then the sample is unscored. Replies come from the cache where it has them.

    Args:
        model: as inspect-ai names it, such as `openai/gpt-4o`, or an `inspect_ai.model.Model`.
        cache: file for the replies; None remembers them while the judge lives.
        concurrency: calls at a time.
        timeout: seconds that one attempt of a call may take; a call, with the waits between its attempts, may take
            this times 1 + retries.
        retries: further attempts where the provider is busy or slow.
        repairs: further replies asked for where one cannot be used.
        temperature, seed, max_tokens: of the sampling; None leaves the first two to the provider.

    Raises:
        InputError: inspect-ai or the provider's package is missing, the provider or its API key is unknown, a number
            is out of range.

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
                "judge: concurrency and max_tokens must be 1 or more, timeout above 0, retries and repairs 0 or more"
            )
        self.name = str(model)
        self.sampling: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_tokens": max_tokens}
        self._wanted = model
        self._opened: Any = open_model(model)  # now, so that a missing key is told before any work
        self._cache = ReplyCache(cache)
        self._concurrency, self._timeout, self._retries, self._repairs = (
            concurrency,
            timeout,
            retries,
            repairs,
        )
        self._loop: RunVar[_Loop] = RunVar("judge")
        self._told: set[str] = set()

    async def ask(self, questions: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        """The labels that each question asks for, of whatever benchmark; texts go in up to 20,000 characters."""
        return await self._all([partial(self._ask_shortened, one) for one in questions])

    async def extract(self, answers: Sequence[str]) -> list[Judgement[JudgedClaim]]:
        """The differences that each answer claims; an empty answer claims none, without a call.

        Args:
            answers: what was answered; only the first 20,000 characters are judged.
        """
        return await self._all([partial(self._extract, answer) for answer in answers])

    async def label_pairs(self, samples: Sequence[Sequence[tuple[str, str]]]) -> list[Judgement[PairLabel]]:
        """For each sample's pairs of claims, one from each of two answers, whether they agree.

        Args:
            samples: the texts of each pair's claims; a sample without pairs gets no labels, without a call.
        """
        return await self._all([partial(self._label_pairs, pairs) for pairs in samples])

    async def match(self, samples: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Judgement[Match]]:
        """For each sample's claims, which true difference each one tells, or what is wrong with it.

        Args:
            samples: the claims' texts and the true differences' descriptions of each. Where nothing is claimed, and
                where nothing is true (every claim is then a fabrication), no call is needed.
        """
        return await self._all([partial(self._match, claims, truths) for claims, truths in samples])

    async def _ask_shortened(self, question: JudgeRequest[Item]) -> Judgement[Item]:
        data = _shortened(question.data)
        return await self._ask(question.system, data, question.read, cut=data != question.data)

    async def _extract(self, answer: str) -> Judgement[JudgedClaim]:
        cut, answer = len(answer) > LONGEST_ANSWER, answer[:LONGEST_ANSWER]
        if not answer.strip():
            return Judgement((), cut=cut)
        return await self._ask(CLAIMS, {"answer": answer}, partial(read_claims, answer=answer), cut)

    async def _label_pairs(self, pairs: Sequence[tuple[str, str]]) -> Judgement[PairLabel]:
        if not pairs:
            return Judgement(())
        data = {"pairs": [{"first": first, "second": second} for first, second in pairs]}
        return await self._ask(PAIRS, data, partial(read_labels, count=len(pairs)))

    async def _match(self, claims: Sequence[str], truths: Sequence[str]) -> Judgement[Match]:
        if not claims or not truths:
            return Judgement(tuple(Match(None, "fabrication") for _ in claims))
        data = {"claims": _numbered(claims), "truths": _numbered(truths)}
        read = partial(read_matches, claims=len(claims), truths=len(truths))
        return await self._ask(MATCHES, data, read)

    async def _all(self, jobs: Sequence[Callable[[], Awaitable[Judgement[Item]]]]) -> list[Judgement[Item]]:
        found: list[Any] = [None] * len(jobs)
        fatal: list[InputError] = []

        async def run(place: int, job: Callable[[], Awaitable[Judgement[Item]]]) -> None:
            try:
                found[place] = await job()
                bar.update()
            except InputError as error:
                fatal.append(error)
                group.cancel_scope.cancel()

        with tqdm(total=len(jobs), desc=self.name, unit="answer", disable=len(jobs) < 2 or None) as bar:
            async with anyio.create_task_group() as group:
                for place, job in enumerate(jobs):
                    group.start_soon(run, place, job)
        if fatal:
            raise fatal[0]
        return found

    async def _ask(
        self, system: str, data: Any, read: Callable[[str], tuple[Item, ...]], cut: bool = False
    ) -> Judgement[Item]:
        """Ask, and ask again for what cannot be used."""
        messages = [("system", system), ("user", fence(data))]
        calls, refused = 0, False
        for _ in range(self._repairs + 1):
            reply, asked = await self._reply(messages)
            calls += asked
            if not isinstance(reply, Reply):
                return Judgement(None, reply, calls, cut)
            try:
                return Judgement(read(reply.text), None, calls, cut)
            except Unusable as problem:
                refused = reply.stop == "content_filter"
                again = reply.text[:_SHOWN_REPLY].strip() or "(nothing)"
                messages = [*messages, ("assistant", again), ("user", REPAIR.format(problem))]
        return Judgement(None, "refused" if refused else "garbage", calls, cut)

    async def _reply(self, messages: Sequence[tuple[str, str]]) -> tuple[Reply | Unscored, int]:
        """The reply to messages, and whether a model was asked: it is not if the cache or another task has it."""
        loop = self._of_this_loop()
        key = cache_key(self.name, messages, self.sampling)
        while key in loop.flying:
            flight = loop.flying[key]
            await flight.done.wait()
            if flight.reply is not None:
                return flight.reply, 0
        known = self._cache.get(key)
        if known is not None:
            return known, 0
        flight = loop.flying[key] = _Flight(anyio.Event())
        try:
            async with loop.limit:
                reply = flight.reply = await self._call(loop.model, messages)
            if isinstance(reply, Reply):
                self._cache.put(key, reply)
        finally:
            del loop.flying[key]
            flight.done.set()
        return reply, 1

    async def _call(self, model: Any, messages: Sequence[tuple[str, str]]) -> Reply | Unscored:
        from inspect_ai.model import (
            ChatMessageAssistant,
            ChatMessageSystem,
            ChatMessageUser,
            GenerateConfig,
        )

        kinds = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
        config = GenerateConfig(
            **self.sampling,
            max_retries=self._retries,
            attempt_timeout=math.ceil(self._timeout),
            max_connections=self._concurrency,
        )
        try:
            with anyio.fail_after(self._timeout * (self._retries + 1)):
                output = await model.generate(
                    [kinds[role](content=text) for role, text in messages], config=config, cache=False
                )
        except TimeoutError:
            return "timeout"
        except Exception as error:  # of any provider; its message is not shown, since it may hold a key
            if getattr(error, "status_code", None) in _REFUSED_KEY:
                raise InputError(f"judge {self.name}: the provider refuses the API key; check it") from None
            if "Timeout" in type(error).__name__:  # inspect-ai's and the providers' own
                return "timeout"
            kind = type(error).__name__
            if kind not in self._told:
                _log.warning(
                    "judge %s: a call failed (%s); others like it are counted alone", self.name, kind
                )
            self._told.add(kind)
            return "error"
        if not output.choices:
            return Reply("", "unknown")
        return Reply(output.completion, str(output.stop_reason))

    def _of_this_loop(self) -> _Loop:
        """Clients of providers work in the event loop that they were first used in, so each loop gets its own."""
        loop = self._loop.get(None)
        if loop is None:
            model, self._opened = self._opened or open_model(self._wanted), None
            # inspect-ai's own limit stands over all loops, and one loop cannot wake another
            model.api.connection_key = lambda: f"mmprobe judge {id(self)} {id(model)}"
            loop = _Loop(model, anyio.Semaphore(self._concurrency))
            self._loop.set(loop)
        return loop


def _shortened(data: Any) -> Any:
    """Data for JSON, whose texts are cut to the longest that is judged."""
    if isinstance(data, str):
        return data[:LONGEST_ANSWER]
    if isinstance(data, Mapping):
        return {name: _shortened(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(_shortened(value) for value in data)
    return data


def _numbered(texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"number": number, "text": text} for number, text in enumerate(texts, 1)]


def open_model(model: Any) -> Any:
    """The inspect-ai model of a name; a model stays as it is.

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
    except Exception as error:  # inspect-ai's own, which is no public name, or one of the provider's package
        if isinstance(error, (ValueError, ImportError)) or type(error).__name__ == "PrerequisiteError":
            raise InputError(f"judge {model}: {_plain(str(error))}") from None
        raise InputError(f"judge {model}: cannot be opened ({type(error).__name__})") from None


def _plain(message: str) -> str:
    """A message of inspect-ai on one line, without its markup for colours."""
    return " ".join(re.sub(r"\[/?[a-z #0-9]*\]", "", message).split())[:300]
