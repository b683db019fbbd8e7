"""A judge by its name on the command line, put in the place of a benchmark's rules."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmprobe.benchmarks.judges import Item, Judge, JudgedClaim, Judgement, JudgeRequest, Match, PairLabel
from mmprobe.benchmarks.judges.ensemble import EnsembleJudge
from mmprobe.benchmarks.judges.model import ModelJudge, open_model
from mmprobe.errors import InputError

if TYPE_CHECKING:  # a benchmark knows what a judge is
    from mmprobe.benchmarks.core.benchmark import Benchmark, Scored

LEXICAL = "lexical"


def open_judge(name: str, cache: str | Path | None = None) -> Judge | None:
    """The judge of a name: `lexical`, `model:openai/gpt-4o`, `ensemble:openai/a,openai/b,openai/c`.

    Args:
        name: as above; models are named as inspect-ai names them.
        cache: file of replies; None remembers them while the judge lives.

    Returns:
        None for `lexical`, which is a benchmark's own rules.

    Raises:
        InputError: there is no such judge, or a model of it cannot be opened: a provider, its package or its key is
            missing. Nothing has been asked then.

    Example:
        >>> open_judge("lexical") is None
        True
    """
    if name == LEXICAL:
        return None
    kind, _, told = name.partition(":")
    models = [model.strip() for model in told.split(",")]
    if kind not in ("model", "ensemble") or not all(models) or (kind == "model" and len(models) > 1):
        raise InputError(f"judge {name!r}: use lexical, model:PROVIDER/MODEL or ensemble:A,B,C")
    if len(set(models)) < len(models):
        raise InputError(f"judge {name!r}: names a model twice")
    if kind == "ensemble" and len(models) < 2:
        raise InputError(f"judge {name!r}: an ensemble needs two models or more")
    for model in models[1:]:  # the last one's key is missed before the first one's cache is made
        open_model(model)
    judges = [ModelJudge(model, cache) for model in models]
    return judges[0] if kind == "model" else EnsembleJudge(judges)


def with_judge(
    benchmark: Benchmark, name: str, cache: str | Path | None = None
) -> tuple[Benchmark, dict[str, Any]]:
    """The benchmark with a judge in the place of its rules, and what the judge was asked.

    Args:
        benchmark: whose answers are judged.
        name, cache: of `open_judge`.

    Returns:
        The benchmark, whose `score` asks the judge; and counts, filled whenever it has scored: `judged` (answers,
        pairs of answers or whatever else the judge was asked about, one by one), `calls` of models (what the cache
        knew is none), `cut` (answers so long that only their beginning was judged) and `unscored`, by reason. With
        `lexical`, the benchmark as it is, and no counts ever.

    Raises:
        InputError: as `open_judge`; or the benchmark needs no judge.

    Example:
        >>> benchmark, counts = with_judge(find_benchmark("spd-faith"), "model:openai/gpt-4o")  # doctest: +SKIP
    """
    if name == LEXICAL:
        return benchmark, {}
    judged = benchmark.judged
    if judged is None:
        raise InputError(
            f"benchmark {benchmark.name}: is scored by rules and needs no judge; leave --judge out"
        )
    judge = open_judge(name, cache)
    assert judge is not None
    counts: dict[str, Any] = {}

    def score(truth: Any, responses: Mapping[str, str]) -> Scored:
        counting = _Counting(judge)
        found = _apart(lambda: judged(truth, responses, counting))
        counts.clear()
        counts.update(counting.counts())
        return found

    return replace(benchmark, score=score), counts


def _apart(work: Any) -> Any:
    """The result of work that starts an event loop: in a thread of its own where one runs already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # it belongs to who waits
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


class _Counting:
    """A judge that keeps count of what another one says, or the members of an ensemble do."""

    def __init__(self, judge: Judge, totals: Counter[str] | None = None) -> None:
        self._judge = judge
        self._totals: Counter[str] = Counter() if totals is None else totals
        self.members = [_Counting(member, self._totals) for member in getattr(judge, "members", ())]

    def counts(self) -> dict[str, Any]:
        told = {name: self._totals[name] for name in ("judged", "calls", "cut")}
        reasons = {name: count for name, count in sorted(self._totals.items()) if name not in told}
        return {**told, "unscored": reasons}

    async def ask(self, questions: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        return self._noted(await self._judge.ask(questions))

    async def extract(self, answers: Sequence[str]) -> list[Judgement[JudgedClaim]]:
        return self._noted(await self._judge.extract(answers))

    async def label_pairs(self, samples: Sequence[Sequence[tuple[str, str]]]) -> list[Judgement[PairLabel]]:
        return self._noted(await self._judge.label_pairs(samples))

    async def match(self, samples: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Judgement[Match]]:
        return self._noted(await self._judge.match(samples))

    def _noted(self, judgements: list[Judgement[Item]]) -> list[Judgement[Item]]:
        for judgement in judgements:
            self._totals.update(judged=1, calls=judgement.calls, cut=int(judgement.cut))
            if judgement.unscored is not None:
                self._totals[judgement.unscored] += 1
        return judgements
