"""Compute the metrics of MagiC from labels."""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.core.results import Metric, with_ids
from mmprobe.benchmarks.magic.data import MagicTruth
from mmprobe.benchmarks.magic.labels import MagicLabels
from mmprobe.benchmarks.magic.metrics import answer_accuracy, citation_rates, magiscore, self_heal, step_sense
from mmprobe.benchmarks.magic.steps import CitedRegions


def compute_metrics(
    truth: MagicTruth,
    labels: Sequence[MagicLabels],
    cited: Sequence[CitedRegions | None],
    healed_answers: Sequence[Sequence[bool | None]],
    by_judge: bool,
) -> dict[str, Metric]:
    """Compute every metric of the benchmark.

    Args:
        truth: the questions and their cases of Self-Heal.
        labels: the labels of each question.
        cited: the boxes that each answer cites; None without an answer.
        healed_answers: [question][case], whether the continuation ends in the true answer; None without one.
        by_judge: whether a judge gave the labels. Only then are there `self_heal` (section 4.3) and
            `self_heal_explicit` (figure 17).
    """
    regions = [None if item is None else item.regions for item in cited]
    metrics = answer_accuracy([label.correct for label in labels], [label.correct_full for label in labels])
    metrics |= magiscore(regions, [question.relevant() for question in truth.questions])
    metrics |= citation_rates(regions, [0 if item is None else item.missing for item in cited])
    metrics |= step_sense([label.correct_steps for label in labels])
    heal_metrics = self_heal(healed_answers, "self_heal_answer")
    if by_judge:
        heal_metrics |= self_heal([label.healed for label in labels])
        heal_metrics |= self_heal([label.healed_explicit for label in labels], "self_heal_explicit")
    heal_ids = [question.id for question, cases in zip(truth.questions, truth.cases, strict=True) if cases]
    return with_ids(metrics, [question.id for question in truth.questions]) | with_ids(heal_metrics, heal_ids)
