"""Metrics of MagiC (arXiv:2507.07297, section 4): MagiScore, accuracy, StepSense, and Self-Heal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from mmprobe.benchmarks.core.results import (
    Metric,
    accuracy_metrics,
    count_metric,
    f1,
    mean_metric,
    metrics_by_group,
    ratio,
    share,
    with_bounds,
    with_ids,
)
from mmprobe.benchmarks.magic.labels import UNREAD

Counts = tuple[float, float, float]
"""Of one question: relevant boxes among the predicted ones, predicted boxes, relevant boxes."""


def magiscore(
    predicted: Sequence[Collection[int] | None], relevant: Sequence[Collection[int]], name: str = "magiscore"
) -> dict[str, Metric]:
    """Return precision, recall and F1 of the cited or attended boxes against the relevant ones (section 4.1).

    Numbers of boxes are by question; None for an unusable answer. NAME_micro_... are from the counts of all
    questions. NAME_macro_... are means over questions, where an answer without a box counts as 0: the paper
    does not say so. NAME_macro_..._cited are
    means over the answers with a box.

    Example:
        >>> scores = magiscore([{1, 2}, set()], [{1}, {3}])
        >>> scores["magiscore_micro_f1"].value, scores["magiscore_macro_f1"].value
        (0.5, 0.3333333333333333)
    """
    rows: list[Counts | None] = [
        None if numbers is None else (len(set(numbers) & set(true)), len(set(numbers)), len(set(true)))
        for numbers, true in zip(predicted, relevant, strict=True)
    ]
    cited = [row if row is not None and row[1] else None for row in rows]
    metrics = {}
    for kind, compute in (("precision", ratio), ("recall", share(0, 2)), ("f1", f1)):
        metrics[f"{name}_micro_{kind}"] = count_metric(rows, compute, "higher")
        metrics[f"{name}_macro_{kind}"] = _macro(rows, compute)
        if kind != "recall":  # the recall without a box is 0 in any reading
            metrics[f"{name}_macro_{kind}_cited"] = _macro(cited, compute)
    return metrics


def _macro(rows: Sequence[Counts | None], compute: Callable[[np.ndarray], np.ndarray]) -> Metric:
    """Return the mean over questions. A question without a hit scores 0, also without a predicted box."""
    values = [
        None if row is None else float(compute(np.array(row, float))) if row[0] else 0.0 for row in rows
    ]
    return mean_metric(values, "higher")


def citation_rates(
    cited: Sequence[Collection[int] | None], missing: Sequence[int], boxes: Sequence[int]
) -> dict[str, Metric]:
    """Return the share of answers that cite no box, every box (section 5.3, exhaustive coverage), and a missing box.

    Args:
        cited: numbers of the boxes that each answer cites; None without an answer.
        missing: how often each cites a box that its image lacks.
        boxes: number of boxes of each image.

    Example:
        >>> rates = citation_rates([{1}, set(), {1, 2}], [0, 2, 0], [2, 2, 2])
        >>> [round(rates[name].value, 2) for name in ("cites_none_rate", "cites_all_rate", "cites_missing_box_rate")]
        [0.33, 0.33, 0.33]
    """
    cites_none = [None if numbers is None else float(not numbers) for numbers in cited]
    cites_all = [
        None if numbers is None else float(len(set(numbers)) == count)
        for numbers, count in zip(cited, boxes, strict=True)
    ]
    cites_missing = [
        None if numbers is None else float(count > 0) for numbers, count in zip(cited, missing, strict=True)
    ]
    return {
        "cites_none_rate": mean_metric(cites_none, "lower"),
        "cites_all_rate": mean_metric(cites_all, "lower"),
        "cites_missing_box_rate": mean_metric(cites_missing, "lower"),
    }


def answer_accuracy(
    correct: Sequence[bool | None],
    correct_full: Sequence[bool | None],
    asked: Sequence[bool] | None = None,
    has_full: Sequence[bool] | None = None,
) -> dict[str, Metric]:
    """Return the share of right answers, by the short and by the full true answer (section 4.2).

    An unread answer (None) is wrong; NAME[read] leaves it out.

    Args:
        asked: which questions were answered, and not failed on by a judge; by default all.
        has_full: which of these have a full true answer.

    Example:
        >>> metrics = answer_accuracy([True, None], [False, False])
        >>> metrics["accuracy_short"].value, metrics["accuracy_short[read]"].value
        (0.5, 1.0)
    """
    return accuracy_metrics("accuracy_short", correct, asked) | accuracy_metrics(
        "accuracy_full", correct_full, has_full or asked
    )


def step_sense(labels: Sequence[Sequence[bool | None] | None]) -> dict[str, Metric]:
    """Return the share of correct steps (table 3).

    Labels are [answer][step], None for a step or an answer without. `stepsense` pools all steps,
    `stepsense_macro` is the mean over answers, and `stepsense_labelled` the share of steps with a label, in
    the answers with labels. The bounds of `stepsense` say what it would be if all other steps of these were wrong, or right.

    Example:
        >>> metrics = step_sense([[True, True, True], [False, None], []])
        >>> [metrics[name].value for name in ("stepsense", "stepsense_macro", "stepsense_labelled")]
        [0.75, 0.5, 0.8]
    """
    labelled = [[label for label in steps or () if label is not None] for steps in labels]
    correct_rows = [(float(sum(steps)), float(len(steps))) if steps else None for steps in labelled]
    labelled_rows = [
        (float(len(known)), float(len(steps))) if steps else None
        for known, steps in zip(labelled, labels, strict=True)
    ]
    shares = [None if row is None else row[0] / row[1] for row in correct_rows]
    unlabelled, ends = _judge_rest(labels)
    pooled = count_metric(correct_rows, ratio, "higher")
    return {
        "stepsense": with_bounds(pooled, unlabelled, ratio, *ends),
        "stepsense_macro": mean_metric(shares, "higher"),
        "stepsense_labelled": count_metric(labelled_rows, ratio, "neither"),
    }


def self_heal(healed: Sequence[Sequence[bool | None]], name: str = "self_heal") -> dict[str, Metric]:
    """Return the share of injected wrong runs that the model corrects (section 4.3), of [question][run].

    The interval and `n` are over questions, because the runs of a question depend on each other. NAME_judged
    is the share of runs with a verdict; the bounds say what NAME would be if no other run, or each, were corrected.

    Example:
        >>> self_heal([[True, False], [], [True, None]])["self_heal"].value
        0.6666666666666666
    """
    with_runs = [runs for runs in healed if runs]
    verdicts = [[verdict for verdict in runs if verdict is not None] for runs in with_runs]
    healed_rows = [(float(sum(known)), float(len(known))) if known else None for known in verdicts]
    judged_rows = [
        (float(len(known)), float(len(runs))) for known, runs in zip(verdicts, with_runs, strict=True)
    ]
    unjudged, ends = _judge_rest(with_runs)
    return {
        name: with_bounds(count_metric(healed_rows, ratio, "higher"), unjudged, ratio, *ends),
        f"{name}_judged": count_metric(judged_rows, ratio, "higher"),
    }


def _judge_rest(
    verdicts: Sequence[Sequence[bool | None] | None],
) -> tuple[int, tuple[list[Sequence[float] | None], list[Sequence[float] | None]]]:
    """Return how many of [answer][item] have no verdict, and the counts with these all wrong, and all right."""
    known = [list(each) for each in verdicts if each]
    none = [each.count(None) for each in known]
    right = [each.count(True) for each in known]
    worst: list[Sequence[float] | None] = [
        (float(n), float(len(each))) for n, each in zip(right, known, strict=True)
    ]
    best: list[Sequence[float] | None] = [
        (float(n + more), float(len(each))) for n, more, each in zip(right, none, known, strict=True)
    ]
    return sum(none), (worst, best)


def compute_metrics(records: Sequence[Mapping[str, Any]], by_judge: bool) -> dict[str, Metric]:
    """Compute every metric of the benchmark from the records of `make_record`.

    Only with a judge are there `self_heal` (section 4.3) and `self_heal_explicit` (figure 17).
    """

    def column(name: str) -> list[Any]:
        return [record[name] for record in records]

    def of(chosen: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
        answered = [each["answer"] is not None for each in chosen]
        asked = [was and "short" not in each["unscored"] for was, each in zip(answered, chosen, strict=True)]
        has_full = [
            was and bool(each["true_full_answer"]) and "full" not in each["unscored"]
            for was, each in zip(answered, chosen, strict=True)
        ]
        metrics = answer_accuracy(
            [each["correct"] for each in chosen], [each["correct_full"] for each in chosen], asked, has_full
        )
        cited = [each["cited"] for each in chosen]
        metrics |= magiscore(cited, [each["relevant"] for each in chosen])
        missing, boxes = ([each[name] or 0 for each in chosen] for name in ("cited_beyond", "boxes"))
        metrics |= citation_rates(cited, missing, boxes)
        return with_ids(
            metrics | step_sense([each["correct_steps"] for each in chosen]), [each["id"] for each in chosen]
        )

    metrics = of(records)
    unread = [
        None if record["answer"] is None else float(record["unscored"].get("correct") == UNREAD)
        for record in records
    ]
    metrics["unread"] = mean_metric(unread, "lower")
    kinds = {"self_heal_answer": "right_answer"}
    if by_judge:
        kinds |= {"self_heal": "healed", "self_heal_explicit": "healed_explicit"}
    with_cases = [record for record in records if record["self_heal"]]
    heal_metrics: dict[str, Metric] = {}
    for name, kind in kinds.items():
        verdicts = [[case[kind] for case in record["self_heal"]] for record in with_cases]
        heal_metrics |= self_heal(verdicts, name)
    heal_metrics = with_ids(heal_metrics, [record["id"] for record in with_cases])
    types = [record["type"] for record in records]  # figure 2
    by_type = metrics_by_group("type", types, lambda members: of([records[i] for i in members]), smallest=2)
    return with_ids(metrics, column("id")) | heal_metrics | by_type
