"""What a judge is: its requests, its labels, its name on the command line, and the counts of its work."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from mmprobe.benchmarks.judges.card_file import describe_card
from mmprobe.errors import InputError
from mmprobe.registry import Registry, check_made

if TYPE_CHECKING:  # benchmarks import the judges
    from mmprobe.benchmarks.core.benchmark import Benchmark, Scored

_log = logging.getLogger("mmprobe")

LEXICAL = "lexical"
JUDGES: Registry[Callable[[Sequence[str], str | Path | None, bool], Judge | None]] = Registry(
    "judge",
    "judges",
    {
        "lexical": "mmprobe.benchmarks.judges.judge:_use_rules",
        "model": "mmprobe.benchmarks.judges.model:open_model_judge",
        "ensemble": "mmprobe.benchmarks.judges.ensemble:open_ensemble_judge",
    },
)
"""The kinds of judges. A factory gets the models' names, the cache and `retry_unscored`."""

Unscored = Literal["garbage", "refused", "timeout", "error", "disagreement"]
MAX_ANSWER_CHARS = 20_000  # of an answer that a judge sees, our choice; longer answers repeat themselves

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)
Labelled = list[tuple[Any, Hashable]] | None
"""What a judge labelled, as far as another judge might label something else, and the labels; None if it failed."""
Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Judgement(Generic[Item_co]):
    """The labels of one sample by a judge, which may be empty; None if it is unscored, and the reason.

    `garbage` and `refused`: no reply was usable. `timeout` and `error`: the call failed. `disagreement`: the
    judges of an ensemble disagreed. `calls` counts model calls, and replies from the cache are none.
    `truncated`: the answer was too long, so that only its beginning was judged.
    """

    items: tuple[Item_co, ...] | None
    unscored: Unscored | None = None
    calls: int = 0
    truncated: bool = False


@dataclass(frozen=True)
class JudgeRequest(Generic[Item]):
    """The task of a judge for one sample: the prompt, and the data to label as JSON values.

    `requests.judge_texts` says how a judge gets both. Data are fenced, so that text in them gives no orders, and each text is cut to `MAX_ANSWER_CHARS`. `read`
    turns a reply into labels, or raises `UnusableReply`. `images` are shown before the data. With labels that
    are `known` no model is called. `vote` finds the labels of an ensemble; None takes
    `ensemble.majority_labels`.
    """

    prompt: str
    data: Any
    read: Callable[[str], tuple[Item, ...]]
    images: tuple[Path, ...] = ()
    known: tuple[Item, ...] | None = None
    vote: Callable[[Sequence[Judgement[Item]]], Judgement[Item]] | None = None


@runtime_checkable
class Judge(Protocol):
    """What every judge can do."""

    async def ask(self, requests: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        """Return the labels that each request asks for, in the order of the requests."""


async def ask_by_name(
    judge: Judge, requests: Mapping[Name, JudgeRequest[Item]]
) -> dict[Name, Judgement[Item]]:
    """Return the judgement of each request, under the name of the request."""
    judgements = await judge.ask(list(requests.values()))
    return dict(zip(requests, judgements, strict=True))


class BlindJudge(InputError):
    """A model for text alone was shown images."""


async def ask_who_may_see(
    judge: Judge, seen: Mapping[Name, JudgeRequest[Item]], told: Mapping[Name, JudgeRequest[Item]]
) -> dict[Name, Judgement[Item]]:
    """Return the judgements of requests with images. A judge that may be blind is asked one first, then in words."""
    first = next((key for key, request in seen.items() if request.images and request.known is None), None)
    if first is None:
        return await ask_by_name(judge, seen)
    try:
        judgement = (await ask_by_name(judge, {first: seen[first]}))[first]
    except BlindJudge:
        judgement = None
    if judgement is None or judgement.unscored == "error":
        _log.warning("the model that judges or writes fails at images; it is asked in words alone")
        return await ask_by_name(judge, told)
    rest = await ask_by_name(judge, {key: request for key, request in seen.items() if key != first})
    return {key: judgement if key == first else rest[key] for key in seen}


def first_item(judgement: Judgement[Item] | None) -> Item | None:
    """Return the first label of a judgement, or None if there is none.

    Example:
        >>> first_item(Judgement(("right",))), first_item(Judgement(None, "refused"))
        ('right', None)
    """
    return judgement.items[0] if judgement is not None and judgement.items else None


def _use_rules(models: Sequence[str], cache: str | Path | None = None, retry_unscored: bool = True) -> None:
    """Label by the benchmark's own rules, without a model."""


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
    kind, models = split_judge(name)
    open_kind = JUDGES[kind]
    return check_made(open_kind, open_kind(models, cache, retry_unscored), Judge)


def split_judge(name: str) -> tuple[str, list[str]]:
    """Return the kind of a judge that is not `lexical`, and its models. Nothing is opened.

    Raises InputError where no judge has this name.

    Example:
        >>> split_judge("ensemble:openai/a,openai/b")
        ('ensemble', ['openai/a', 'openai/b'])
    """
    kind, _, model_names = name.partition(":")
    models = [model.strip() for model in model_names.split(",")]
    if kind not in JUDGES or kind == LEXICAL or not all(models) or (kind == "model" and len(models) > 1):
        raise InputError(
            f"judge {name!r}: use lexical, model:PROVIDER/MODEL, model:local/FOLDER or ensemble:A,B,C"
        )
    if len(set(models)) < len(models):
        raise InputError(f"judge {name!r}: names a model twice")
    if kind == "ensemble" and len(models) < 2:
        raise InputError(f"judge {name!r}: an ensemble needs two models or more")
    return kind, models


@dataclass(frozen=True)
class Judging:
    """Who labels the answers to a benchmark, and the counts of the work.

    Attributes:
        name: of the judge; `lexical` for the benchmark's own rules.
        judge: None for these rules.
        card: what the judge's card says.
        counts: of the last scoring, as results record them: `judged` items, model `calls` (a reply from the cache is none),
            answers that were `cut`, and `unscored` items by reason; with the `card`. Empty for rules.
    """

    name: str = LEXICAL
    judge: Judge | None = None
    card: str | None = None
    counts: dict[str, Any] = field(default_factory=dict)

    def score(self, benchmark: Benchmark, truth: Any, responses: Mapping[str, str]) -> Scored:
        """Return `benchmark.score` of answers with this judge, from within an event loop, too. Fills the counts."""
        if self.judge is None:
            return benchmark.score(truth, responses)
        counting = CountingJudge(self.judge)
        scored = run_outside_event_loop(lambda: benchmark.score(truth, responses, counting))
        self.counts.clear()
        self.counts.update(counting.counts(), card=self.card)
        return scored


RULES = Judging()
"""The rules of each benchmark, which need no judge."""


def open_judging(
    benchmark: Benchmark, name: str, cache: str | Path | None = None, retry_unscored: bool = True
) -> Judging:
    """Open a judge for a benchmark. Raises InputError as `open_judge`, or where the benchmark needs no judge.

    Example:
        >>> from mmprobe.benchmarks.core.benchmark import make_benchmark
        >>> open_judging(make_benchmark("pope"), "lexical") is RULES
        True
    """
    if name == LEXICAL:
        return RULES
    if not benchmark.judged_fields:
        raise InputError(
            f"benchmark {benchmark.name}: is scored by rules and needs no judge; use the judge 'lexical'"
        )
    judge = open_judge(name, cache, retry_unscored)
    assert judge is not None
    return Judging(name, judge, describe_card(name, judge))


def labels_at(record: Mapping[str, Any], *fields: str) -> dict[str, Labelled]:
    """Return a judge's labels in these fields of a record, by kind; None if the judge failed.

    `*` takes every item of a list. After `answers.*`, each question type is its own kind.

    Example:
        >>> labels_at({"correct": True, "steps": [{"label": "correct"}]}, "correct", "steps.*.label")
        {'correct': [(None, True)], 'steps.label': [(None, 'correct')]}
    """
    labels: dict[str, Labelled] = {}
    for field_name in fields:
        parts = field_name.split(".")
        if parts[0] == "answers":
            answers = record.get("answers")
            by_type = answers.items() if isinstance(answers, dict) else ()
            values = {
                f"{parts[-1]}, {question_type}": list(_field_values(answer, parts[2:]))
                for question_type, answer in by_type
            }
        else:
            kind = ".".join(part for part in parts if part != "*")
            values = {kind: list(_field_values(record, parts))}
        labels |= {
            kind: [(None, label) for label in items] for kind, items in values.items() if None not in items
        }
    return labels


def _field_values(value: Any, parts: Sequence[str]) -> Iterator[Any]:
    """Yield the values of a nested field; None where the field is missing."""
    if not parts:
        yield value
    elif parts[0] == "*":
        for item in value if isinstance(value, list) else [None]:
            yield from _field_values(item, parts[1:])
    else:
        yield from _field_values(value.get(parts[0]) if isinstance(value, dict) else None, parts[1:])


def describe_unscored(judging: Mapping[str, Any]) -> str:
    """Return how many items a judge left unscored and why, from the counts of its work; nothing if it left none.

    Example:
        >>> describe_unscored({"judged": 9, "unscored": {"garbage": 2}})
        'the judge left 2 of 9 unscored: garbage 2'
    """
    unscored = judging.get("unscored")
    if not unscored:
        return ""
    reasons = ", ".join(f"{reason} {count}" for reason, count in unscored.items())
    return f"the judge left {sum(unscored.values())} of {judging['judged']} unscored: {reasons}"


def run_outside_event_loop(work: Callable[[], Result]) -> Result:
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
        """Return the counts, as `Judging` describes them."""
        counts = {name: self._totals[name] for name in ("judged", "calls", "cut")}
        reasons = {name: count for name, count in sorted(self._totals.items()) if name not in counts}
        return {**counts, "unscored": reasons}

    async def ask(self, requests: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        judgements = check_made(self._judge.ask, await self._judge.ask(requests), list)
        for judgement in judgements:
            check_made(self._judge.ask, judgement, Judgement)
            self._totals.update(judged=1, calls=judgement.calls, cut=int(judgement.truncated))
            if judgement.unscored is not None:
                self._totals[judgement.unscored] += 1
        return judgements
