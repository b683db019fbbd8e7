"""Compute the metrics of MIRAGE from labels."""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.core.results import Metric, change_metric, mean_metric, metrics_by_group, with_ids
from mmprobe.benchmarks.mirage.corrections import correction_metrics
from mmprobe.benchmarks.mirage.data import MirageProfile, MirageQuestion, true_chain, true_references
from mmprobe.benchmarks.mirage.hints import has_hints
from mmprobe.benchmarks.mirage.labels import UNREAD, LhsScores, MirageLabels
from mmprobe.benchmarks.mirage.metrics import accuracy, factuality, hallucination_rates, lhs


def compute_metrics(
    questions: Sequence[MirageQuestion],
    labels: Sequence[MirageLabels],
    reasonable: float = 0.0,
    profile: MirageProfile = "paper",
) -> dict[str, Metric]:
    """Compute every metric of the benchmark. `reasonable` and `profile` are as in `factuality`.

    Returns:
        - accuracy, accuracy_answered
        - accuracy_hinted, hint_gain (correctness of the hinted answer minus that of the plain answer), and
          topic_accuracy, over the questions with hints
        - unread: share of the answers that the rules could not read, and that no judge decided
        - the metrics of `correction_metrics`, over the questions that were asked again
        - f_step, f_claim, and the other metrics of `factuality`, over the questions with true steps or claims
        - the metrics of `hallucination_rates` and `lhs`, over the questions with a true chain, if a judge
          scored them
        - `NAME[topic=…]` and `NAME[type=…]` if the questions have several topics or types. Of the judge's
          metrics, `lhs` and the rates are split.
    """
    metrics = _answer_metrics(questions, labels)
    metrics |= _factuality_metrics(questions, labels, reasonable, profile)
    metrics |= _judge_metrics(questions, labels)
    metrics |= correction_metrics(questions, labels)

    def compute(members: list[int]) -> dict[str, Metric]:
        group_questions, group_labels = [questions[i] for i in members], [labels[i] for i in members]
        table = _answer_metrics(group_questions, group_labels)
        table |= _factuality_metrics(group_questions, group_labels, reasonable, profile)
        judged = _judge_metrics(group_questions, group_labels)
        return table | {
            name: metric for name, metric in judged.items() if name in ("lhs", "lhs_zero") or "_rate" in name
        }

    metrics |= metrics_by_group("topic", [question.topic for question in questions], compute, smallest=2)
    return metrics | metrics_by_group("type", [question.type for question in questions], compute, smallest=2)


def _answer_metrics(questions: Sequence[MirageQuestion], labels: Sequence[MirageLabels]) -> dict[str, Metric]:
    unread = [label.unscored.get("correct") == UNREAD if label.answered else None for label in labels]
    metrics = accuracy([label.correct for label in labels], [label.is_scored("correct") for label in labels])
    metrics["unread"] = mean_metric(unread, "lower")
    metrics = with_ids(metrics, [question.id for question in questions])
    pairs = [
        (question, label) for question, label in zip(questions, labels, strict=True) if has_hints(question)
    ]
    if not any(label.answered_hinted for _, label in pairs):
        return metrics
    hinted = [label.correct_hinted is True if label.is_scored("hinted") else None for _, label in pairs]
    plain = [label.correct is True if label.is_scored("correct") else None for _, label in pairs]
    hint_metrics = {
        "accuracy_hinted": mean_metric(hinted, "higher"),
        "hint_gain": change_metric(hinted, plain, "higher"),
    }
    if any(label.classified for _, label in pairs):
        correct_topics = [
            label.topic == question.topic if label.classified else None for question, label in pairs
        ]
        hint_metrics["topic_accuracy"] = mean_metric(correct_topics, "higher")
    return metrics | with_ids(hint_metrics, [question.id for question, _ in pairs])


def _factuality_metrics(
    questions: Sequence[MirageQuestion],
    labels: Sequence[MirageLabels],
    reasonable: float,
    profile: MirageProfile,
) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    pairs = list(zip(questions, labels, strict=True))
    steps = [(question.id, label.steps) for question, label in pairs if question.steps]
    claims = [(question.id, label.claims) for question, label in pairs if question.claims]
    for name, rows in (("f_step", steps), ("f_claim", claims)):
        if rows:
            ids = [question_id for question_id, _ in rows]
            metrics |= with_ids(factuality([matches for _, matches in rows], name, reasonable, profile), ids)
    return metrics


def _judge_metrics(questions: Sequence[MirageQuestion], labels: Sequence[MirageLabels]) -> dict[str, Metric]:
    """Compute the hallucination rates and the LHS; empty if no judge was asked."""
    pairs = [
        (question, label) for question, label in zip(questions, labels, strict=True) if true_chain(question)
    ]
    if not any(label.scores is not None for _, label in pairs):
        return {}
    ids = [question.id for question, _ in pairs]
    silent = [label.silent for _, label in pairs]
    metrics = with_ids(hallucination_rates([label.kinds for _, label in pairs], silent), ids)
    judges = max(len(label.scores or ()) for _, label in pairs)
    references = max(len(true_references(question)) for question, _ in pairs)
    scores = [_pad_scores(label.scores or (), judges, references) for _, label in pairs]
    judged_shares = [
        None
        if label.scores is None
        else sum(row is not None for rows in label.scores for row in rows)
        / (judges * len(true_references(question)))
        for question, label in pairs
    ]
    return metrics | with_ids(
        lhs(scores, silent) | {"lhs_judgements": mean_metric(judged_shares, "higher")}, ids
    )


def _pad_scores(scores: LhsScores, judges: int, references: int) -> LhsScores:
    """Pad the scores of one question with None to [judges][references]."""
    empty_row: list[None] = [None] * references
    rows = [[*row, *empty_row[len(row) :]] for row in scores]
    return rows + [empty_row] * (judges - len(rows))


def unscored_rates(labels: Sequence[MirageLabels], requests: Sequence[str]) -> dict[str, Metric]:
    """Return the share of answered questions that a judge failed on, by the kind of request."""
    return {
        f"unscored_{request}": mean_metric(
            [request in label.unscored if label.answered else None for label in labels], "lower"
        )
        for request in requests
    }
