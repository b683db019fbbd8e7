"""Compute the metrics of MMReason from labels."""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.core.results import Metric, mean_metric, with_ids
from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.benchmarks.mmreason.labels import UNREAD, ReasonLabels
from mmprobe.benchmarks.mmreason.metrics import (
    accuracy_tables,
    error_tally,
    relevance_rate,
    step_scores,
)


def compute_metrics(questions: Sequence[ReasonQuestion], labels: Sequence[ReasonLabels]) -> dict[str, Metric]:
    """Compute every metric of the benchmark.

    Returns:
        - s_final: share of right final answers (section 4.3); also `s_final[discipline=…]`, `[source=…]`, `[level=…]`
        - s_final_text: the same without images, for the questions with images
        - relevance_rate: 1 - right without images / right with images
        - no_answer: share of responses that state no answer; they are wrong
        - unread: share of responses whose answer the rules could not read; they count in no accuracy
        - s_inter and the other metrics of `step_scores`, for the questions with a solution
        - no_steps: share of responses without any step; their s_inter is undefined
        - `perception_share` and so on for each type of error, for the wrong answers, if a judge labelled
          errors
    """
    ids = [question.id for question in questions]
    correct = [label.correct for label in labels]
    no_answer = [None if label.correct is None else label.final_answer is None for label in labels]
    unread = [label.unscored.get("answer") == UNREAD if label.answered else None for label in labels]
    metrics = {
        "s_final": mean_metric(correct, "higher"),
        "no_answer": mean_metric(no_answer, "lower"),
        "unread": mean_metric(unread, "lower"),
    }
    metrics = with_ids(metrics, ids)
    with_images = [index for index, question in enumerate(questions) if question.images]
    if with_images:
        correct_text = [labels[index].correct_text for index in with_images]
        image_metrics = {
            "s_final_text": mean_metric(correct_text, "higher"),
            "relevance_rate": relevance_rate(correct_text, [correct[index] for index in with_images]),
        }
        metrics |= with_ids(image_metrics, [ids[index] for index in with_images])
    with_solution = [index for index, question in enumerate(questions) if question.solution]
    if with_solution:
        steps = [labels[index].steps for index in with_solution]
        step_labels = [None if pairs is None else [label for _, label in pairs] for pairs in steps]
        step_metrics = step_scores(step_labels)
        no_steps = [None if pairs is None else not pairs for pairs in steps]
        step_metrics["no_steps"] = mean_metric(no_steps, "lower")
        metrics |= with_ids(step_metrics, [ids[index] for index in with_solution])
    errors = [label.error for label in labels if label.correct is False]
    if any(error is not None for error in errors):
        metrics |= error_tally(errors)
    return metrics | accuracy_tables(questions, correct)


def unscored_rates(questions: Sequence[ReasonQuestion], labels: Sequence[ReasonLabels]) -> dict[str, Metric]:
    """Return the share of responses that a judge gave no verdict on, for answers and for steps."""
    with_solution = [label for question, label in zip(questions, labels, strict=True) if question.solution]
    return {
        "unscored_answers": _unscored_rate(labels, "answer"),
        "unscored_steps": _unscored_rate(with_solution, "steps"),
    }


def _unscored_rate(labels: Sequence[ReasonLabels], request: str) -> Metric:
    return mean_metric([request in label.unscored if label.answered else None for label in labels], "lower")
