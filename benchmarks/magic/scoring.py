"""Compute the metrics of MagiC from records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.benchmarks.core.results import Metric, mean_metric, with_ids
from mmprobe.benchmarks.magic.labels import UNREAD
from mmprobe.benchmarks.magic.metrics import answer_accuracy, citation_rates, magiscore, self_heal, step_sense


def compute_metrics(records: Sequence[Mapping[str, Any]], by_judge: bool) -> dict[str, Metric]:
    """Compute every metric of the benchmark from the records of `make_record`.

    Only with a judge are there `self_heal` (section 4.3) and `self_heal_explicit` (figure 17).
    """

    def column(name: str) -> list[Any]:
        return [record[name] for record in records]

    metrics = answer_accuracy(column("correct"), column("correct_full"))
    metrics |= magiscore(column("cited"), column("relevant"))
    metrics |= citation_rates(column("cited"), [count or 0 for count in column("cited_beyond")])
    metrics |= step_sense(column("correct_steps"))
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
    return with_ids(metrics, column("id")) | heal_metrics
