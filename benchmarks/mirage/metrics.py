"""Metrics of MIRAGE: accuracy, factuality of steps and claims, kinds of hallucination and LHS."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from mmprobe.benchmarks.core.results import Metric, count_metric, mean_metric
from mmprobe.benchmarks.mirage.labels import DIMENSIONS, KINDS, Kind, Match, Matches, Scores
from mmprobe.errors import InputError

Value = TypeVar("Value")


def accuracy(correct: Sequence[bool | None], scored: Sequence[bool] | None = None) -> dict[str, Metric]:
    """Share of right answers (section 4.1).

    Args:
        correct: of each question; None where no answer could be found in the response.
        scored: of each question, False where there was no response, or no verdict on it; None if all were scored.

    Returns:
        - accuracy: no answer is a wrong one
        - accuracy_answered: over the questions with an answer

    Example:
        >>> found = accuracy([True, False, None, None])
        >>> found["accuracy"].value, found["accuracy_answered"].value, found["accuracy_answered"].coverage
        (0.25, 0.5, 0.5)
    """
    known = [True] * len(correct) if scored is None else scored
    either = [float(right is True) if told else None for right, told in zip(correct, known, strict=True)]
    return {
        "accuracy": mean_metric(either, "higher"),
        "accuracy_answered": mean_metric(_numbers(correct), "higher"),
    }


def _numbers(values: Sequence[float | bool | None]) -> list[float | None]:
    return [None if value is None else float(value) for value in values]


def by_group(
    groups: Sequence[str],
    values: Sequence[Value],
    metrics: Callable[[Sequence[Value]], Mapping[str, Metric]],
) -> dict[str, dict[str, Metric]]:
    """Metrics of each group of samples apart, such as the topics, in the order in which they first come.

    Args:
        groups: of each sample.
        values: of each sample, what `metrics` takes.

    Example:
        >>> table = by_group(["spatial", "logical", "spatial"], [True, False, False], accuracy)
        >>> table["spatial"]["accuracy"].value, table["logical"]["accuracy"].n
        (0.5, 1)
    """
    members: dict[str, list[Value]] = {}
    for group, value in zip(groups, values, strict=True):
        members.setdefault(group, []).append(value)
    return {group: dict(metrics(mine)) for group, mine in members.items()}


def factuality(
    matches: Sequence[Matches | None], name: str = "f_step", reasonable: float = 0.0
) -> dict[str, Metric]:
    """F_step or F_claim (equations 1 and 2).

    Precision is the share of predicted items that the truth covers, recall that of true items that were
    stated; F is their harmonic mean, 0 if nothing matches.

    Args:
        matches: of each question; None where the response or the judge gave no lists that could be used.
        name: `f_step` or `f_claim`.
        reasonable: how much of a match REASONABLE is, 0 to 1; the paper's matches are binary, ours is 0.

    Returns:
        - f_step, precision_step, recall_step: means over questions
        - f_step_micro: of the counts of all questions together

    Example:
        >>> one = Matches(("MATCH", "CONFLICT"), ("MATCH",))
        >>> round(factuality([one])["f_step"].value, 3)
        0.667
    """
    if not 0 <= reasonable <= 1:
        raise InputError(f"reasonable is {reasonable}; a share from 0 to 1 is expected")
    of = name.removeprefix("f_")
    rows = [None if found is None else _counts(found, reasonable) for found in matches]
    each = [None if row is None else np.array(row, float) for row in rows]

    def per_question(number: Callable[[np.ndarray], np.ndarray]) -> list[float | None]:
        with np.errstate(invalid="ignore", divide="ignore"):
            numbers = [math.nan if row is None else float(number(row)) for row in each]
        return [value if math.isfinite(value) else None for value in numbers]

    return {
        name: mean_metric(per_question(_f), "higher"),
        f"precision_{of}": mean_metric(per_question(lambda c: c[..., 0] / c[..., 1]), "higher"),
        f"recall_{of}": mean_metric(per_question(lambda c: c[..., 2] / c[..., 3]), "higher"),
        f"{name}_micro": count_metric(rows, _f, "higher"),
    }


def _counts(matches: Matches, reasonable: float) -> tuple[float, float, float, float]:
    """Matched predicted, predicted, matched true, true."""

    def matched(labels: tuple[Match, ...]) -> float:
        return labels.count("MATCH") + reasonable * labels.count("REASONABLE")

    return matched(matches.predicted), len(matches.predicted), matched(matches.true), len(matches.true)


def _f(counts: np.ndarray) -> np.ndarray:
    precision, recall = counts[..., 0] / counts[..., 1], counts[..., 2] / counts[..., 3]
    total = precision + recall
    return np.where(total == 0, 0.0, 2 * precision * recall / np.where(total == 0, 1, total))


def hallucination_rates(verdicts: Sequence[Mapping[Kind, bool] | None]) -> dict[str, Metric]:
    """Share of reasoning chains with each kind of hallucination (table 3), and with any.

    Args:
        verdicts: of each question, by kind; None where the judge gave none.

    Example:
        >>> found = hallucination_rates([dict.fromkeys(KINDS, False) | {"spatial": True}, None])
        >>> found["spatial_rate"].value, found["any_rate"].n
        (1.0, 1)
    """
    rates = {
        f"{kind}_rate": mean_metric([None if v is None else float(v[kind]) for v in verdicts], "lower")
        for kind in KINDS
    }
    any_ = [None if v is None else float(any(v[kind] for kind in KINDS)) for v in verdicts]
    return rates | {"any_rate": mean_metric(any_, "lower")}


def lhs(scores: Sequence[Scores]) -> dict[str, Metric]:
    """The LLMs hallucination score (equation 3): higher is less hallucination.

    A question's score is the mean over judges of the mean over references of the mean of the five scores.
    What a judge left out is left out of its means; a question that no judge scored is unscored.

    Args:
        scores: [question][judge][reference], five scores of 1 to 5 or None; the same judges and references
            for each question.

    Returns:
        - lhs: scores brought to 0-1 by (x - 1) / 4, ours; lhs_of_five: by x / 5. The paper names neither.
        - lhs_sd_questions, lhs_sd_judges, lhs_sd_references: standard deviation (n - 1) of `lhs` over the
          questions, over the judges' means and over the references' means; the paper does not say over which
        - lhs_DIMENSION: each of the five alone
        - lhs_judgements: share of the judgements asked for that were given

    Raises:
        InputError: a score is not from 1 to 5, or questions differ in judges or references.

    Example:
        >>> found = lhs([[[(5, 5, 5, 5, 5), (3, 3, 3, 3, 3)]]])
        >>> found["lhs"].value, found["lhs_of_five"].value
        (0.75, 0.8)
    """
    array = _as_array(scores)
    unit = (array - 1) / 4
    each = _mean(_mean(_mean(unit, 3), 2), 1)
    whole = _mean(unit, 3)
    found = {
        "lhs": mean_metric(_finite(each), "higher"),
        "lhs_of_five": mean_metric(_finite((each * 4 + 1) / 5), "higher", (0.2, 1.0)),
        "lhs_sd_questions": count_metric(
            [None if math.isnan(x) else (1, x, x * x) for x in each], _deviation, "neither", (0.0, None)
        ),
        "lhs_sd_judges": _deviation_of_means(_mean(whole, 2)),
        "lhs_sd_references": _deviation_of_means(_mean(whole, 1)),
    }
    for index, name in enumerate(DIMENSIONS):
        alone = _mean(_mean(unit[..., index], 2), 1)
        found[f"lhs_{name}"] = mean_metric(_finite(alone), "higher")
    given = [float(np.isfinite(question).mean()) if question.size else None for question in whole]
    found["lhs_judgements"] = mean_metric(given, "higher")
    return found


def _as_array(scores: Sequence[Scores]) -> np.ndarray:
    """Float [question, judge, reference, dimension], NaN where there is no score."""
    shapes = {(len(question), len(row)) for question in scores for row in question or [()]}
    if len(shapes) > 1:
        raise InputError(f"questions differ in judges and references: {sorted(shapes)}; each needs the same")
    if any(
        given and len(given) != len(DIMENSIONS) for question in scores for row in question for given in row
    ):
        raise InputError(
            f"a judgement has not {len(DIMENSIONS)} scores; read judges' replies with parse_scores"
        )
    nothing = (math.nan,) * len(DIMENSIONS)
    rows = [[[given or nothing for given in judge] for judge in question] for question in scores]
    judges, references = shapes.pop() if shapes else (0, 0)
    array = np.array(rows, float).reshape(len(rows), judges, references, len(DIMENSIONS))
    if ((array < 1) | (array > 5)).any():
        raise InputError("a score is not from 1 to 5; read judges' replies with parse_scores")
    return array


def _mean(array: np.ndarray, axis: int) -> np.ndarray:
    """Mean of what is not NaN; NaN where all is."""
    there = np.isfinite(array)
    with np.errstate(invalid="ignore"):
        return np.where(there, array, 0).sum(axis) / there.sum(axis)


def _finite(values: np.ndarray) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def _deviation(counts: np.ndarray) -> np.ndarray:
    """Standard deviation from number, sum and sum of squares; NaN for fewer than two."""
    n, total, squares = counts[..., 0], counts[..., 1], counts[..., 2]
    variance = np.where(n > 1, (squares - total * total / n) / (n - 1), np.nan)
    return np.sqrt(np.maximum(variance, 0))


def _deviation_of_means(values: np.ndarray) -> Metric:
    """Standard deviation over columns of their means over questions, of [question, column] with gaps."""
    columns = values.shape[1]
    there = np.isfinite(values)
    rows = [
        tuple(np.where(there[i], values[i], 0)) + tuple(there[i].astype(float)) if there[i].any() else None
        for i in range(len(values))
    ]

    def deviation(counts: np.ndarray) -> np.ndarray:
        means = counts[..., :columns] / counts[..., columns:]
        return means.std(-1, ddof=1) if columns > 1 else np.full(means.shape[:-1], np.nan)

    return count_metric(rows, deviation, "neither", (0.0, None))
