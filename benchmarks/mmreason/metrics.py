"""Metrics of MMReason (arXiv:2506.23563): final accuracy, step scores, relevance rate, and errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmprobe.benchmarks.core.results import (
    Metric,
    accuracy_metrics,
    change_metric,
    count_metric,
    mean_metric,
    metrics_by_group,
    share,
    with_bounds,
    with_ids,
)
from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.benchmarks.mmreason.labels import ERROR_TYPES, UNREAD, ErrorType, ReasonLabels, StepLabel
from mmprobe.errors import InputError

STEP_SCORES: dict[StepLabel, float] = {"correct": 1.0, "unverifiable": 0.5, "incorrect": 0.0}


def accuracy_tables(
    questions: Sequence[ReasonQuestion], correct: Sequence[bool | None], asked: Sequence[bool] | None = None
) -> dict[str, Metric]:
    """Return the final accuracy by discipline (table 3), by source (table 4), and by level. `asked` is as in `accuracy_metrics`.

    Example:
        >>> question = ReasonQuestion(id="1", question="2 + 2?", answer="4", discipline="math", source="own")
        >>> accuracy_tables([question], [True])["s_final[discipline=math]"].value
        1.0
    """

    known = [True] * len(correct) if asked is None else asked

    def compute(members: list[int]) -> dict[str, Metric]:
        metrics = accuracy_metrics("s_final", [correct[i] for i in members], [known[i] for i in members])
        return with_ids(metrics, [questions[i].id for i in members])

    metrics: dict[str, Metric] = {}
    for field in ("discipline", "source", "level"):
        metrics |= metrics_by_group(field, [getattr(question, field) for question in questions], compute)
    return metrics


def step_score(labels: Sequence[StepLabel]) -> float | None:
    """Return S_inter of one response (equation 1): the mean of the scores of its steps; None without steps.

    A correct step scores 1, an unverifiable one 0.5, an incorrect one 0. The text of the paper gives the
    scores in reverse; its tables fit these.

    Example:
        >>> step_score(["correct", "unverifiable", "incorrect", "incorrect"])
        0.375
    """
    return sum(STEP_SCORES[label] for label in labels) / len(labels) if labels else None


def step_scores(
    labels: Sequence[Sequence[StepLabel] | None], asked: Sequence[bool] = ()
) -> dict[str, Metric]:
    """Return S_inter over responses, from the labels of their steps; None if they were not judged.

    `s_inter` is the mean over responses, `s_inter_micro` that over the steps of all, and `correct_steps` and
    so on are shares of these steps. A response without steps is undefined. One of those `asked` (by default none) whose steps
    nobody could read is left out, and counted: the bounds of `s_inter` say what it would be with all its steps wrong, or right.

    Example:
        >>> metrics = step_scores([["correct"], ["incorrect", "unverifiable", "correct"], []])
        >>> metrics["s_inter"].value, metrics["s_inter_micro"].value, metrics["s_inter"].n
        (0.75, 0.625, 2)
    """
    rows = [
        (*(float(list(steps).count(label)) for label in STEP_SCORES), float(len(steps))) if steps else None
        for steps in labels
    ]
    known = asked or [False] * len(labels)
    unread = [was and steps is None for steps, was in zip(labels, known, strict=True)]
    weights = np.array([*STEP_SCORES.values()])
    shares = {
        f"{label}_steps": count_metric(rows, share(index, 3), "neither")
        for index, label in enumerate(STEP_SCORES)
    }
    return {
        "s_inter": mean_metric(
            [step_score(steps) if steps else None for steps in labels], "higher", unread=unread
        ),
        "s_inter_micro": count_metric(rows, lambda c: c[..., :3] @ weights / c[..., 3], "higher"),
        **shares,
    }


def relevance_rate(
    correct_text: Sequence[bool | None],
    correct_full: Sequence[bool | None],
    asked: Sequence[bool] | None = None,
) -> Metric:
    """Return the multimodal relevance rate: 1 - accuracy without images / accuracy with images.

    Both are over the questions that were asked both ways; an unread answer (None) is wrong. The rate is below 0 if the images
    do harm, and undefined if no answer with images is right. The paper gives no formula; this one fits the
    eight entries of table 5.

    Example:
        >>> relevance_rate([True, False, False], [True, True, False]).value
        0.5
    """
    known = [True] * len(correct_text) if asked is None else asked
    pairs = list(zip(correct_text, correct_full, known, strict=True))

    def count(unread_text: bool, unread_full: bool) -> list[tuple[float, float] | None]:
        return [
            (float(unread_text if text is None else text), float(unread_full if full is None else full))
            if was
            else None
            for text, full, was in pairs
        ]

    def rate(counts: np.ndarray) -> np.ndarray:
        return np.where(counts[..., 1] > 0, 1 - counts[..., 0] / counts[..., 1], np.nan)

    metric = count_metric(count(False, False), rate, "higher", (None, 1.0))
    unread = sum(was and (text is None or full is None) for text, full, was in pairs)
    return with_bounds(metric, unread, rate, count(True, False), count(False, True))


def choice_metrics(
    correct: Sequence[tuple[bool | None, bool | None]], asked: Sequence[tuple[bool, bool]] | None = None
) -> dict[str, Metric]:
    """Return the accuracies of table 2, over the questions that have options, from (without, with) them.

    `s_final_open` is that without the options, {Q, I}; `s_final_choices` that with them, {Q, C, I}; and
    `choices_gain` the second minus the first, over the questions that were asked both ways (`asked`). An unread answer
    (None) is wrong; NAME[read] leaves it out.

    Example:
        >>> choice_metrics([(False, True), (True, True), (None, False)])["choices_gain"].value
        0.3333333333333333
    """
    without, with_choices = [pair[0] for pair in correct], [pair[1] for pair in correct]
    known = [(True, True)] * len(correct) if asked is None else asked
    return {
        **accuracy_metrics("s_final_open", without, [pair[0] for pair in known]),
        **accuracy_metrics("s_final_choices", with_choices, [pair[1] for pair in known]),
        "choices_gain": change_metric(with_choices, without, "neither", [all(was) for was in known]),
    }


def error_tally(errors: Sequence[ErrorType | None]) -> dict[str, Metric]:
    """Return the share of wrong responses with each type of error (section 5.3 and figure 4).

    Example:
        >>> error_tally(["reasoning", "perception", "reasoning", None])["reasoning_share"].n
        3
    """
    for error in errors:
        if error is not None and error not in ERROR_TYPES:
            raise InputError(f"unknown type of error {error!r}; use one of {', '.join(ERROR_TYPES)}")
    return {
        f"{error_type}_share": mean_metric(
            [None if error is None else error == error_type for error in errors], "neither"
        )
        for error_type in ERROR_TYPES
    }


def compute_metrics(questions: Sequence[ReasonQuestion], labels: Sequence[ReasonLabels]) -> dict[str, Metric]:
    """Compute every metric of the benchmark.

    Returns:
        - s_final: share of right final answers (section 4.3); also `s_final[discipline=…]`, `[source=…]`, `[level=…]`.
          An unread answer is wrong; `s_final[read]` leaves it out
        - s_final_text: the same without images, for the questions with images
        - relevance_rate: 1 - right without images / right with images
        - no_answer: share of responses that state no answer; they are wrong
        - unread: share of responses whose answer the rules could not read; they are wrong
        - s_inter and the other metrics of `step_scores`, for the questions with a solution
        - no_steps: share of responses without any step; their s_inter is undefined
        - `perception_share` and so on for each type of error, for the wrong answers, if a judge labelled
          errors
    """
    ids = [question.id for question in questions]
    correct = [label.correct for label in labels]
    asked = [label.is_scored("answer") for label in labels]
    no_answer = [None if label.correct is None else label.final_answer is None for label in labels]
    unread = [label.unscored.get("answer") == UNREAD if label.answered else None for label in labels]
    metrics = {
        **accuracy_metrics("s_final", correct, asked),
        "no_answer": mean_metric(no_answer, "lower"),
        "unread": mean_metric(unread, "lower"),
    }
    metrics = with_ids(metrics, ids)
    with_images = [index for index, question in enumerate(questions) if question.images]
    if with_images:
        pairs = [
            (
                labels[index].correct_text if labels[index].is_scored("text") else None,
                correct[index] if asked[index] else None,
                labels[index].is_scored("text"),
                asked[index],
            )
            for index in with_images
        ]
        image_metrics = {
            **accuracy_metrics("s_final_text", [pair[0] for pair in pairs], [pair[2] for pair in pairs]),
            "relevance_rate": relevance_rate(
                [pair[0] for pair in pairs],
                [pair[1] for pair in pairs],
                [pair[2] and pair[3] for pair in pairs],
            ),
        }
        metrics |= with_ids(image_metrics, [ids[index] for index in with_images])
    with_solution = [index for index, question in enumerate(questions) if question.solution]
    if with_solution:
        steps = [labels[index].steps for index in with_solution]
        step_labels = [None if pairs is None else [label for _, label in pairs] for pairs in steps]
        step_metrics = step_scores(step_labels, [labels[index].answered for index in with_solution])
        no_steps = [None if pairs is None else not pairs for pairs in steps]
        step_metrics["no_steps"] = mean_metric(no_steps, "lower")
        metrics |= with_ids(step_metrics, [ids[index] for index in with_solution])
    errors = [label.error for label in labels if label.correct is False]
    if any(error is not None for error in errors):
        metrics |= error_tally(errors)
    return metrics | accuracy_tables(questions, correct, asked)


def unscored_rates(questions: Sequence[ReasonQuestion], labels: Sequence[ReasonLabels]) -> dict[str, Metric]:
    """Return the share of responses that a judge gave no verdict on, for answers and for steps."""
    with_solution = [label for question, label in zip(questions, labels, strict=True) if question.solution]
    return {
        "unscored_answers": _unscored_rate(labels, "answer"),
        "unscored_steps": _unscored_rate(with_solution, "steps"),
    }


def _unscored_rate(labels: Sequence[ReasonLabels], request: str) -> Metric:
    return mean_metric([request in label.unscored if label.answered else None for label in labels], "lower")
