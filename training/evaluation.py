"""What a policy answers on held-out questions: format, answer, and what is true of its reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.benchmarks.core.results import Metric, group_by_images, mean_metric, with_ids
from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES
from mmprobe.models import Model
from mmprobe.samples import Sample
from mmprobe.training.curriculum import sample_responses
from mmprobe.training.logos import check_reasoning, reward_response
from mmprobe.training.settings import LogosSettings


def evaluate_policy(
    model: Model, samples: Sequence[Sample], settings: LogosSettings
) -> tuple[dict[str, Metric], list[dict[str, Any]]]:
    """Return metrics of a policy's greedy responses, with 95 % intervals over sets of images, and a record of each.

    - format, accuracy: the two rewards
    - reasoning_faithful: share of responses whose reasoning states something, and nothing false (drawn world)
    - faithful_when_right: the same among right answers

    Example:
        >>> metrics, records = evaluate_policy(model, held_out, LogosSettings())       # doctest: +SKIP
    """
    records = [
        judge_response(sample, response)
        for sample, (response,) in zip(
            samples, sample_responses(model, samples, 0, settings, settings.seed), strict=True
        )
    ]
    return collect_metrics(samples, records), records


def judge_response(sample: Sample, response: str) -> dict[str, Any]:
    """Return the record of a response: its rewards, and whether its reasoning is true of the images."""
    rewards = reward_response(sample, response)
    drawn = sample.metadata.get("type") in QUESTION_TYPES
    check = check_reasoning(sample, response) if drawn else None
    return {
        "id": sample.id,
        "question": sample.question,
        "response": response,
        "format": rewards.format,
        "accuracy": rewards.accuracy,
        "faithful": None if check is None else _lists_are_true(check.errors, response),
    }


def _lists_are_true(errors: Sequence[str], response: str) -> bool:
    """Return whether the reasoning lists both pictures, and no listed object is false."""
    both = all(f"Picture {number}:" in response for number in ("one", "two"))
    return both and not any(error.startswith("not in picture") for error in errors)


def collect_metrics(samples: Sequence[Sample], records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """Return the metrics of records, one a sample."""
    ids = [sample.id for sample in samples]
    columns: dict[str, list[float | None]] = {
        "format": [record["format"] for record in records],
        "accuracy": [record["accuracy"] for record in records],
        "reasoning_faithful": [_number(record["faithful"]) for record in records],
        "faithful_when_right": [
            _number(record["faithful"]) if record["accuracy"] else None for record in records
        ],
    }
    metrics = {name: mean_metric(values, "higher") for name, values in columns.items()}
    return group_by_images(with_ids(metrics, ids), samples)


def _number(value: bool | None) -> float | None:
    return None if value is None else float(value)
