"""Score tools on models with known causes: thresholds from the development models, numbers on the held-out ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, field_validator

from mmprobe.diagnosis.causes import CAUSES, RENAMED, find_implied
from mmprobe.diagnosis.rules import CONTROL
from mmprobe.stats.estimate import Estimate, estimate_mean
from mmprobe.stats.intervals import jackknife_interval

DEVELOPMENT = "development"


class ToolResult(BaseModel):
    """What one tool found of one model.

    Attributes:
        model, cause, split: of the organism or the plant; partial: whether its cause acts on some answers only.
        also: its further causes.
        kind: how it was planted, in a word; "" for an adapter.
        accepts: verdicts that are right, too.
        draw: number of the draw of pairs that it was asked about.
        tool: its name.
        scores, answers, named: as in `ToolScores`.
        acts: by id, whether the cause acts on the answer.
        passes: forward passes an answer.
        note: why there are no scores; "" if there are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    cause: str
    split: str
    partial: bool
    tool: str
    scores: dict[str, float]
    answers: dict[str, dict[str, float]]
    named: list[str] | None
    acts: dict[str, bool]
    passes: float
    note: str = ""
    also: tuple[str, ...] = ()
    kind: str = ""
    accepts: tuple[str, ...] = ()
    draw: int = 0

    @field_validator("cause")
    @classmethod
    def _rename(cls, cause: str) -> str:
        return RENAMED.get(cause, cause)

    @property
    def truth(self) -> set[str]:
        """All its causes, or `control`."""
        return {self.cause, *self.also}


def score_tool(rows: Sequence[ToolResult], split: str = "held-out") -> dict[str, Estimate[float]]:
    """Return the scores of one tool on the models of a split, with intervals over models; NaN without models.

    - macro_f1: mean over the causes, and control, that the split holds, of the F1 of naming them
    - false_alarms: share of controls that are named anything else, such as `unknown`
    - accused: share of controls of which a cause is named
    - stable: share of the models with several draws of pairs that are named the same on all of them
    - auroc CAUSE: of the score of a cause, its models against the controls; mean_auroc: their mean
    - auroc_answers: on partial models, of the answer's score, answers on which the cause acts against others;
      mean over models
    - passes: forward passes an answer

    Args:
        rows: of one tool on all models. Thresholds are chosen on those of the development models.
    """
    limits = choose_thresholds([row for row in rows if row.split == DEVELOPMENT and not row.partial])
    chosen = [row for row in rows if row.split == split]
    whole = [row for row in chosen if not row.partial]
    controls = [row for row in whole if row.cause == CONTROL]
    measures = {
        "macro_f1": _measure(lambda part: macro_f1(part, limits), whole),
        "false_alarms": _share(lambda row: name_causes(row, limits) != {CONTROL}, controls),
        "accused": _share(lambda row: bool(name_causes(row, limits) & set(CAUSES)), controls),
        "stable": _share_of(find_stable(_drawn_often(whole), limits)),
    }
    for cause in CAUSES:
        own = [row for row in whole if row.truth & {cause, CONTROL}]
        measures[f"auroc {cause}"] = _measure(partial(cause_auroc, cause=cause), own)
    measures["mean_auroc"] = _measure(mean_auroc, whole)
    measures["auroc_answers"] = _measure(answers_auroc, [row for row in chosen if row.partial])
    measures["passes"] = _measure(lambda part: _mean([row.passes for row in part]), whole, None)
    return measures


def _measure(
    compute: Callable[[Sequence[ToolResult]], float], rows: Sequence[ToolResult], largest: float | None = 1.0
) -> Estimate[float]:
    """Return a statistic with its jackknife interval over models."""
    value = compute(rows) if rows else float("nan")
    models = list(dict.fromkeys(row.model for row in rows))
    if np.isnan(value) or len(models) < 2:
        return Estimate(value, float("nan"), float("nan"), len(models))
    without = np.array([compute([row for row in rows if row.model != model]) for model in models])
    low, high = jackknife_interval(np.array(value), without, (0.0, largest))
    return Estimate(value, float(low), float(high), len(models))


def _share(test: Callable[[ToolResult], bool], rows: Sequence[ToolResult]) -> Estimate[float]:
    """Return the share of rows that pass a test, with its interval over models."""
    models = np.unique([row.model for row in rows], return_inverse=True)[1]
    share = estimate_mean(np.array([test(row) for row in rows], float), models)
    return Estimate(share.value, share.low, share.high, len(set(models)))


def _share_of(passed: Mapping[str, bool]) -> Estimate[float]:
    """Return the share of models that pass, with its interval over models."""
    return estimate_mean(np.array(list(passed.values()), float), np.arange(len(passed)))


def _drawn_often(rows: Sequence[ToolResult]) -> list[ToolResult]:
    """Return the rows of models that were asked about several draws of pairs."""
    draws = Counter(row.model for row in rows)
    return [row for row in rows if draws[row.model] > 1]


def find_stable(rows: Sequence[ToolResult], limits: Mapping[str, float]) -> dict[str, bool]:
    """Return by model whether it is named the same in all its rows."""
    named: dict[str, set[frozenset[str]]] = {}
    for row in rows:
        named.setdefault(row.model, set()).add(frozenset(name_causes(row, limits)))
    return {model: len(verdicts) == 1 for model, verdicts in named.items()}


def choose_thresholds(rows: Sequence[ToolResult]) -> dict[str, float]:
    """Return for each cause the threshold whose F1 on these models is largest; infinite without its models."""
    limits = {}
    for cause in CAUSES:
        known = [
            (row.scores[cause], cause in row.truth)
            for row in rows
            if cause in row.scores and find_implied(row.cause) != cause
        ]
        candidates = sorted({score for score, _ in known})
        middles = [(a + b) / 2 for a, b in zip(candidates[:-1], candidates[1:], strict=True)]
        ranked = [(_f1([(score >= limit, true) for score, true in known]), limit) for limit in middles]
        limits[cause] = max(ranked)[1] if ranked and max(ranked)[0] > 0 else float("inf")
    return limits


def name_causes(row: ToolResult, limits: Mapping[str, float]) -> set[str]:
    """Return the causes that a tool names: by its own thresholds if it has them; control if there is none.

    Verdicts that are right, too, do not count, and where nothing else is named, the model's own count as named.
    """
    if row.named is not None:
        named = set(row.named) - (set(row.accepts) - row.truth)
        return named if named or not row.named else row.truth
    named = {cause for cause, score in row.scores.items() if score >= limits.get(cause, float("inf"))}
    return named or {CONTROL}


def macro_f1(rows: Sequence[ToolResult], limits: Mapping[str, float]) -> float:
    """Return the mean F1 over the causes that the models have.

    To name what a model's cause implies, such as `blind` beside `looks-unused`, is neither right nor wrong.
    """
    named = [(name_causes(row, limits), row.truth) for row in rows]
    return _mean(
        [
            _f1(
                [
                    (cause in causes, cause in true)
                    for causes, true in named
                    if cause not in map(find_implied, true)
                ]
            )
            for cause in sorted(set().union(*(row.truth for row in rows)))
        ]
    )


def cause_auroc(rows: Sequence[ToolResult], cause: str) -> float:
    """Return the AUROC of a cause's score, its models against the controls; NaN without scores of both."""
    scored = [row for row in rows if cause in row.scores]
    own = [row.scores[cause] for row in scored if cause in row.truth]
    return auroc(own, [row.scores[cause] for row in scored if row.cause == CONTROL])


def mean_auroc(rows: Sequence[ToolResult]) -> float:
    """Return the mean of the causes' AUROC, of those that the models have."""
    values = [cause_auroc(rows, cause) for cause in CAUSES]
    known = [value for value in values if not np.isnan(value)]
    return _mean(known) if known else float("nan")


def answers_auroc(rows: Sequence[ToolResult]) -> float:
    """Return the AUROC of the answers' scores for the cause, mean over the models that have both kinds."""
    values = []
    for row in rows:
        scores = {name: each[row.cause] for name, each in row.answers.items() if row.cause in each}
        by_truth: dict[bool, list[float]] = {True: [], False: []}
        for name, acts in row.acts.items():
            if scores:  # an answer without a score is as little suspect as the least
                by_truth[acts].append(scores.get(name, min(scores.values())))
        values.append(auroc(by_truth[True], by_truth[False]))
    known = [value for value in values if not np.isnan(value)]
    return _mean(known) if known else float("nan")


def auroc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return the share of pairs in which the positive is larger, ties counted half; NaN without both.

    Example:
        >>> auroc([2.0, 1.0], [1.0, 0.0])
        0.875
    """
    if not len(positive) or not len(negative):
        return float("nan")
    difference = np.subtract.outer(np.asarray(positive, float), np.asarray(negative, float))
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def confusion(rows: Sequence[ToolResult], limits: Mapping[str, float]) -> dict[str, dict[str, int]]:
    """Return how many models of each cause are named as what; several names count each."""
    table: dict[str, dict[str, int]] = {}
    for row in rows:
        for name in name_causes(row, limits):
            counts = table.setdefault(" + ".join((row.cause, *row.also)), {})
            counts[name] = counts.get(name, 0) + 1
    return table


def _f1(pairs: Sequence[tuple[bool, bool]]) -> float:
    """Return F1 of (named, true)."""
    hits = sum(named and true for named, true in pairs)
    return 2 * hits / max(sum(named for named, _ in pairs) + sum(true for _, true in pairs), 1)


def _mean(values: Sequence[Any]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
