"""Open a judge by its name, and let it label the answers of a benchmark."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mmprobe.benchmarks.judges.client import open_model
from mmprobe.benchmarks.judges.ensemble import EnsembleJudge
from mmprobe.benchmarks.judges.model import ModelJudge
from mmprobe.benchmarks.judges.types import Item, Judge, Judgement, JudgeRequest
from mmprobe.errors import InputError

if TYPE_CHECKING:  # benchmarks import the judges
    from mmprobe.benchmarks.core.benchmark import Benchmark, Scored, Truth

LEXICAL = "lexical"

Result = TypeVar("Result")


def open_judge(name: str, cache: str | Path | None = None, retry_unscored: bool = True) -> Judge | None:
    """Open a judge by its name, with a file for its replies; None for `lexical`, the benchmark's own rules.

    Raises InputError where no judge has this name, or the provider, package or key of a model is missing. No
    model has been asked yet.

    Example:
        >>> open_judge("lexical") is None
        True
    """
    if name == LEXICAL:
        return None
    kind, _, model_names = name.partition(":")
    models = [model.strip() for model in model_names.split(",")]
    if kind not in ("model", "ensemble") or not all(models) or (kind == "model" and len(models) > 1):
        raise InputError(f"judge {name!r}: use lexical, model:PROVIDER/MODEL or ensemble:A,B,C")
    if len(set(models)) < len(models):
        raise InputError(f"judge {name!r}: names a model twice")
    if kind == "ensemble" and len(models) < 2:
        raise InputError(f"judge {name!r}: an ensemble needs two models or more")
    # A missing key of the last model must show before the first model's cache is made.
    for model in models[1:]:
        open_model(model)
    judges = [ModelJudge(model, cache, retry_unscored=retry_unscored) for model in models]
    return judges[0] if kind == "model" else EnsembleJudge(judges)


def with_judge(
    benchmark: Benchmark[Truth], name: str, cache: str | Path | None = None, retry_unscored: bool = True
) -> tuple[Benchmark[Truth], dict[str, Any]]:
    """Return a benchmark whose `score_answers` asks a judge, and counts of the judge's work.

    Every call of `score_answers` fills the counts: `judged` items, model `calls` (a reply from the cache is
    none), answers that were `cut`, and `unscored` items by reason. With `lexical`: the benchmark itself, and
    empty counts. Raises InputError as `open_judge`, or where the benchmark needs no judge.
    """
    if name == LEXICAL:
        return benchmark, {}
    score_with_judge = benchmark.score_with_judge
    if score_with_judge is None:
        raise InputError(
            f"benchmark {benchmark.name}: is scored by rules and needs no judge; use the judge 'lexical'"
        )
    judge = open_judge(name, cache, retry_unscored)
    assert judge is not None
    counts: dict[str, Any] = {}

    def score_answers(truth: Truth, responses: Mapping[str, str]) -> Scored:
        counting_judge = CountingJudge(judge)
        scored = _run_outside_event_loop(lambda: score_with_judge(truth, responses, counting_judge))
        counts.clear()
        counts.update(counting_judge.counts())
        return scored

    return replace(benchmark, score_answers=score_answers), counts


def _run_outside_event_loop(work: Callable[[], Result]) -> Result:
    """Run a function that starts an event loop; in its own thread if this thread runs a loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again in the waiting thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class CountingJudge:
    """A judge that counts the judgements of another judge, with those of its members, in `totals`."""

    def __init__(self, judge: Judge, totals: Counter[str] | None = None) -> None:
        self._judge = judge
        self._totals: Counter[str] = Counter() if totals is None else totals
        self.members = [CountingJudge(member, self._totals) for member in getattr(judge, "members", ())]

    def counts(self) -> dict[str, Any]:
        """Return the counts, as `with_judge` describes them."""
        counts = {name: self._totals[name] for name in ("judged", "calls", "cut")}
        reasons = {name: count for name, count in sorted(self._totals.items()) if name not in counts}
        return {**counts, "unscored": reasons}

    async def ask(self, requests: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        judgements = await self._judge.ask(requests)
        for judgement in judgements:
            self._totals.update(judged=1, calls=judgement.calls, cut=int(judgement.truncated))
            if judgement.unscored is not None:
                self._totals[judgement.unscored] += 1
        return judgements
