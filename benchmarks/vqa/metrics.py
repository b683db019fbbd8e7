"""How many answers to questions of one's own are right, in all and by the kind of the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.benchmarks.core.results import Metric, mean_metric, metrics_by_group, with_ids


def compute_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """Compute the accuracy of the answers that were read, and the share of those that were not, in all and by kind."""

    def compute(members: Sequence[int]) -> dict[str, Metric]:
        chosen = [records[index] for index in members]
        right = [None if each["correct"] is None else float(each["correct"]) for each in chosen]
        unread = [None if each["response"] is None else float(each["correct"] is None) for each in chosen]
        metrics = {"accuracy": mean_metric(right, "higher"), "unread": mean_metric(unread, "lower")}
        return with_ids(metrics, [each["id"] for each in chosen])

    kinds = [record["kind"] for record in records]
    return compute(range(len(records))) | metrics_by_group("kind", kinds, compute, smallest=2)
