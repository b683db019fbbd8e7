"""Metrics of MagiC: MagiScore, accuracy, StepSense, Self-Heal (paper 001, section 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from mmprobe.benchmarks.core.results import Metric, count_metric, f1, mean_metric


def magiscore(
    found: Sequence[Collection[int] | None], relevant: Sequence[Collection[int]], name: str = "magiscore"
) -> dict[str, Metric]:
    """Which boxes were named, or attended to, against which matter: precision, recall and F1 (section 4.1).

    Args:
        found: numbers of boxes for each question; None for an answer that cannot be used.
        relevant: numbers of the relevant boxes of each question.
        name: what the metrics' names begin with.

    Returns:
        - NAME_micro_precision, _recall, _f1: of the counts of all questions together
        - NAME_macro_precision, _recall, _f1: means over questions; where no box was named, precision and F1
          are undefined and left out
        - NAME_macro_precision_zero, NAME_macro_f1_zero: the same, no named box counting as 0. The
          paper's table has macro precisions far below the micro ones, which only this reading explains.

    Example:
        >>> scores = magiscore([{1, 2}, set()], [{1}, {3}])
        >>> scores["magiscore_micro_f1"].value, scores["magiscore_macro_f1_zero"].value
        (0.5, 0.3333333333333333)
    """
    rows: list[tuple[float, float, float] | None] = [
        None if numbers is None else (len(set(numbers) & set(true)), len(set(numbers)), len(set(true)))
        for numbers, true in zip(found, relevant, strict=True)
    ]
    micro = {
        "precision": count_metric(rows, _precision, "higher"),
        "recall": count_metric(rows, _recall, "higher"),
        "f1": count_metric(rows, f1, "higher"),
    }
    precision, recall = _each(rows, _precision), _each(rows, _recall)
    pooled = _each(rows, f1)
    f = [
        None if p is None or r is None else value
        for p, r, value in zip(precision, recall, pooled, strict=True)
    ]
    zeros = [None if row is None else row[1] == 0 for row in rows]
    return {f"{name}_micro_{kind}": metric for kind, metric in micro.items()} | {
        f"{name}_macro_precision": mean_metric(precision, "higher"),
        f"{name}_macro_recall": mean_metric(recall, "higher"),
        f"{name}_macro_f1": mean_metric(f, "higher"),
        f"{name}_macro_precision_zero": mean_metric(_or_zero(precision, zeros), "higher"),
        f"{name}_macro_f1_zero": mean_metric(_or_zero(f, zeros), "higher"),
    }


def _precision(counts: np.ndarray) -> np.ndarray:
    return counts[..., 0] / counts[..., 1]


def _recall(counts: np.ndarray) -> np.ndarray:
    return counts[..., 0] / counts[..., 2]


def _each(
    rows: Sequence[tuple[float, float, float] | None], of: Callable[[np.ndarray], np.ndarray]
) -> list[float | None]:
    with np.errstate(invalid="ignore", divide="ignore"):
        values = [math.nan if row is None else float(of(np.array(row, float))) for row in rows]
    return [value if math.isfinite(value) else None for value in values]


def _or_zero(values: Sequence[float | None], zero: Sequence[bool | None]) -> list[float | None]:
    return [0.0 if nothing else value for value, nothing in zip(values, zero, strict=True)]


def citations(found: Sequence[Collection[int] | None], beyond: Sequence[int]) -> dict[str, Metric]:
    """How often answers name boxes at all, and boxes that do not exist.

    Args:
        found: numbers of existing boxes that each answer names; None for an answer that cannot be used.
        beyond: how many numbers without a box each names.

    Example:
        >>> citations([{1}, set()], [0, 2])["cites_none_rate"].value
        0.5
    """
    rows = list(zip(found, beyond, strict=True))
    return {
        "cites_none_rate": mean_metric([None if f is None else float(not f) for f, _ in rows], "lower"),
        "cites_missing_box_rate": mean_metric(
            [None if f is None else float(b > 0) for f, b in rows], "lower"
        ),
    }


def answer_accuracy(short: Sequence[bool | None], full: Sequence[bool | None]) -> dict[str, Metric]:
    """Share of answers that a judge finds right, by the short true answer and by the full one (section 4.2).

    Args:
        short, full: verdicts on each question; None where the judge gave none.

    Example:
        >>> answer_accuracy([True, None], [False, False])["accuracy_short"].value
        1.0
    """
    return {
        "accuracy_short": mean_metric([None if v is None else float(v) for v in short], "higher"),
        "accuracy_full": mean_metric([None if v is None else float(v) for v in full], "higher"),
    }


def step_sense(labels: Sequence[Sequence[bool | None] | None]) -> dict[str, Metric]:
    """Share of correct steps (table 3).

    Args:
        labels: of each answer, whether each of its steps is correct, None for a step of which it cannot be told;
            None, or no step of which it can, is undefined.

    Returns:
        - stepsense: correct steps of all answers over their labelled steps
        - stepsense_macro: mean over answers of each one's share
        - stepsense_labelled: share of the steps of answers with labels that have one

    Example:
        >>> found = step_sense([[True, True, True], [False, None], []])
        >>> [found[name].value for name in ("stepsense", "stepsense_macro", "stepsense_labelled")]
        [0.75, 0.5, 0.8]
    """
    known = [[label for label in steps or () if label is not None] for steps in labels]
    rows = [(float(sum(steps)), float(len(steps))) if steps else None for steps in known]
    told = [
        (float(len(own)), float(len(steps))) if steps else None
        for own, steps in zip(known, labels, strict=True)
    ]
    return {
        "stepsense": count_metric(rows, _precision, "higher"),
        "stepsense_macro": mean_metric([None if row is None else row[0] / row[1] for row in rows], "higher"),
        "stepsense_labelled": count_metric(told, _precision, "neither"),
    }


def self_heal(healed: Sequence[Sequence[bool | None]], name: str = "self_heal") -> dict[str, Metric]:
    """Share of injected wrong runs that the model corrects as it goes on (section 4.3).

    Args:
        healed: [question][run], the verdicts; None where there is none.
        name: of the metric, for verdicts that are not the paper's.

    Returns:
        - NAME: over runs; its interval is over questions, whose runs depend on each other; `n` counts
          the questions with a verdict
        - NAME_judged: share of the runs with a verdict

    Example:
        >>> self_heal([[True, False], [], [True, None]])["self_heal"].value
        0.6666666666666666
    """
    given = [[verdict for verdict in runs if verdict is not None] for runs in healed]
    asked = [(found, runs) for found, runs in zip(given, healed, strict=True) if runs]
    rows = [(float(sum(found)), float(len(found))) if found else None for found, _ in asked]
    judged = [(float(len(found)), float(len(runs))) for found, runs in asked]
    return {
        name: count_metric(rows, _precision, "higher"),
        f"{name}_judged": count_metric(judged, _precision, "higher"),
    }
