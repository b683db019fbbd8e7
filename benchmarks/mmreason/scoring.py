"""From labels to the metrics of MMReason."""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.core.results import Metric, mean_metric, of_samples
from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.benchmarks.mmreason.labels import ReasonLabels
from mmprobe.benchmarks.mmreason.metrics import (
    error_tally,
    final_accuracy,
    relevance_rate,
    step_scores,
    tables,
)


def metrics_of(questions: Sequence[ReasonQuestion], labels: Sequence[ReasonLabels]) -> dict[str, Metric]:
    """Every metric of the benchmark.

    Returns:
        - s_final: share of right final answers; `s_final[discipline=…]`, `[source=…]`, `[level=…]`
        - s_final_text: the same without pictures, of the questions that have some
        - relevance_rate: 1 - right without pictures / right with them
        - no_answer: answers that state none, which are wrong
        - s_inter and what `step_scores` gives beside it, of the questions with a solution
        - no_steps: answers without any step, whose s_inter is undefined
        - with labels of errors, `perception_share` and so on for each of `ERROR_TYPES`, of the wrong answers
        - with a judge, unscored_answers and unscored_steps: shares of what was answered

    Example:
        >>> metrics_of(questions, [by_rules(one, responses) for one in questions])      # doctest: +SKIP
    """
    right = [label.right for label in labels]
    seen = [at for at, question in enumerate(questions) if question.images]
    solved = [at for at, question in enumerate(questions) if question.solution]
    no_answer = _share([None if one.right is None else one.given is None for one in labels])
    ids = [question.id for question in questions]
    found = of_samples({"s_final": final_accuracy(right), "no_answer": no_answer}, ids)
    if seen:
        alone = [labels[at].right_text for at in seen]
        of_seen = {
            "s_final_text": final_accuracy(alone),
            "relevance_rate": relevance_rate(alone, [right[at] for at in seen]),
        }
        found |= of_samples(of_seen, [ids[at] for at in seen])
    if solved:
        steps = [labels[at].steps for at in solved]
        kinds = [None if some is None else [kind for _, kind in some] for some in steps]
        none = _share([None if some is None else not some for some in steps])
        found |= of_samples(step_scores(kinds) | {"no_steps": none}, [ids[at] for at in solved])
    wrong = [label.error for label in labels if label.right is False]
    if any(error is not None for error in wrong):
        found |= error_tally(wrong)
    return found | tables(questions, right)


def unscored(questions: Sequence[ReasonQuestion], labels: Sequence[ReasonLabels]) -> dict[str, Metric]:
    """How much of what was answered a judge left without a verdict.

    Example:
        >>> question = ReasonQuestion(id="1", question="2 + 2?", answer="4", discipline="math", source="own")
        >>> unscored([question], [ReasonLabels(True, unscored={"answer": "garbage"})])["unscored_answers"].value
        1.0
    """
    solved = [label for question, label in zip(questions, labels, strict=True) if question.solution]
    return {
        "unscored_answers": _share([("answer" in one.unscored) if one.answered else None for one in labels]),
        "unscored_steps": _share([("steps" in one.unscored) if one.answered else None for one in solved]),
    }


def _share(values: Sequence[bool | None]) -> Metric:
    return mean_metric([None if value is None else float(value) for value in values], "lower")
