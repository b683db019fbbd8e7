"""Metrics of MIRAGE (arXiv:2505.24238): accuracy, factuality, hallucination rates, and LHS."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from mmprobe.benchmarks.core.results import (
    Metric,
    accuracy_metrics,
    change_metric,
    count_metric,
    mean_metric,
    metrics_by_group,
    ratio,
    share,
    with_bounds,
    with_ids,
)
from mmprobe.benchmarks.mirage.corrections import correction_metrics
from mmprobe.benchmarks.mirage.data import MirageProfile, MirageQuestion, true_chain, true_references
from mmprobe.benchmarks.mirage.hints import has_hints
from mmprobe.benchmarks.mirage.labels import (
    DIMENSIONS,
    KINDS,
    UNREAD,
    Kind,
    LhsScores,
    Matches,
    MatchLabel,
    MirageLabels,
)
from mmprobe.errors import InputError


def accuracy(correct: Sequence[bool | None], scored: Sequence[bool] | None = None) -> dict[str, Metric]:
    """Return the share of right answers (section 4.1).

    `accuracy` is over all scored questions (by default all); a response without an answer (None) is wrong.
    `accuracy[read]` is over the questions with an answer.

    Example:
        >>> metrics = accuracy([True, False, None, None])
        >>> metrics["accuracy"].value, metrics["accuracy[read]"].value
        (0.25, 0.5)
    """
    return accuracy_metrics("accuracy", correct, scored)


def factuality(
    matches: Sequence[Matches | None],
    name: str = "f_step",
    reasonable: float = 0.0,
    profile: MirageProfile = "paper",
    unread: Sequence[int] = (),
) -> dict[str, Metric]:
    """Return F_step or F_claim (equations 1 and 2).

    Precision is the share of predicted items that the truth covers, recall the share of true items that the
    response states, and F their harmonic mean, or 0 if no item matches. NAME, precision_... and recall_...
    are means over questions; NAME_zero is the same where a response without any item counts 0, since silence
    raises NAME; NAME_micro is from the counts of all questions. `reasonable`, 0 to 1, is the weight of
    REASONABLE as a match; the paper's matches are binary, and our default is 0.

    In profile `code`, as the released code has it, REASONABLE counts as 1 in precision and not in recall, true items are those
    labelled MATCH or CONFLICT, and what is undefined counts 0.

    A response whose items nobody could read or match (None) is left out. `unread` has its number of true items, and 0
    elsewhere: the bounds say what the metrics would be if it stated as many items, and none or all of them were true.

    Example:
        >>> matches = Matches(predicted=("MATCH", "CONFLICT"), true=("MATCH",))
        >>> round(factuality([matches])["f_step"].value, 3)
        0.667
    """
    if not 0 <= reasonable <= 1:
        raise InputError(f"reasonable {reasonable}: must be a share from 0 to 1")
    item = name.removeprefix("f_")
    count = _count_by_code if profile == "code" else partial(_count_matches, reasonable=reasonable)
    rows = [None if match is None else count(match) for match in matches]
    counts = [None if row is None else np.array(row, float) for row in rows]

    def per_question(compute: Callable[[np.ndarray], np.ndarray]) -> list[float | None]:
        with np.errstate(invalid="ignore", divide="ignore"):
            values = [math.nan if row is None else float(compute(row)) for row in counts]
        if profile == "code":
            values = [
                0.0 if row is not None and not math.isfinite(value) else value
                for row, value in zip(rows, values, strict=True)
            ]
        return [value if math.isfinite(value) else None for value in values]

    scores = per_question(_f_score)
    with_zeros = [0.0 if row is not None and row[1] == 0 else f for row, f in zip(rows, scores, strict=True)]
    true_items = unread or [0] * len(rows)
    is_unread = [n > 0 for n in true_items]
    least, most = (
        [(right * n, n, right * n, n) if n else row for row, n in zip(rows, true_items, strict=True)]
        for right in (0, 1)
    )
    pooled = count_metric(rows, _f_score, "higher")
    return {
        name: mean_metric(scores, "higher", unread=is_unread),
        f"{name}_zero": mean_metric(with_zeros, "higher", unread=is_unread),
        f"precision_{item}": mean_metric(per_question(ratio), "higher", unread=is_unread),
        f"recall_{item}": mean_metric(per_question(share(2, 3)), "higher", unread=is_unread),
        f"{name}_micro": with_bounds(pooled, sum(is_unread), _f_score, least, most),
    }


def _count_matches(matches: Matches, reasonable: float) -> tuple[float, float, float, float]:
    """Return the numbers of matched predicted, predicted, matched true, and true items."""

    def count(labels: tuple[MatchLabel, ...]) -> float:
        return labels.count("MATCH") + reasonable * labels.count("REASONABLE")

    return count(matches.predicted), len(matches.predicted), count(matches.true), len(matches.true)


def _count_by_code(matches: Matches) -> tuple[float, float, float, float]:
    """Return the counts of `_count_matches` as the released code counts."""
    predicted, true = matches.predicted, matches.true
    n_matched, n_true = true.count("MATCH"), true.count("MATCH") + true.count("CONFLICT")
    return predicted.count("MATCH") + predicted.count("REASONABLE"), len(predicted), n_matched, n_true


def _f_score(counts: np.ndarray) -> np.ndarray:
    precision, recall = counts[..., 0] / counts[..., 1], counts[..., 2] / counts[..., 3]
    total = precision + recall
    return np.where(total == 0, 0.0, 2 * precision * recall / np.where(total == 0, 1, total))


def hallucination_rates(
    verdicts: Sequence[Mapping[Kind, bool] | None], silent: Sequence[bool] = (), asked: Sequence[bool] = ()
) -> dict[str, Metric]:
    """Return the share of reasoning chains with each kind of hallucination (table 3), and with any kind.

    `NAME_zero` is the same where a response without a verdict that is empty (`silent`) counts 0: a share of all responses,
    and not of the chains. A chain that was `asked` about (by default none) and got no verdict is left out, and counted: the
    bounds say what the rates would be with or without a hallucination in it.

    Example:
        >>> rates = hallucination_rates([dict.fromkeys(KINDS, False) | {"spatial": True}, None])
        >>> rates["spatial_rate"].value, rates["any_rate"].n
        (1.0, 1)
    """
    empty, known = silent or [False] * len(verdicts), asked or [False] * len(verdicts)

    def rate(read: Callable[[Mapping[Kind, bool]], bool], silence: float | None) -> Metric:
        values = [
            (silence if is_silent else None) if verdict is None else float(read(verdict))
            for verdict, is_silent in zip(verdicts, empty, strict=True)
        ]
        unread = [was and value is None for value, was in zip(values, known, strict=True)]
        return mean_metric(values, "lower", unread=unread)

    readers: dict[str, Callable[[Mapping[Kind, bool]], bool]] = {
        f"{kind}_rate": partial(_has_kind, kind) for kind in KINDS
    }
    readers["any_rate"] = lambda verdict: any(verdict.values())
    rates = {name: rate(read, None) for name, read in readers.items()}
    return rates | {f"{name}_zero": rate(read, 0.0) for name, read in readers.items()}


def _has_kind(kind: Kind, verdict: Mapping[Kind, bool]) -> bool:
    return verdict[kind]


def lhs(
    scores: Sequence[LhsScores], silent: Sequence[bool] = (), asked: Sequence[bool] = ()
) -> dict[str, Metric]:
    """Return the LLMs hallucination score (equation 3). Higher means less hallucination.

    A question's score is the mean over judges of the mean over references of the mean of its five scores of 1
    to 5, [question][judge][reference]; missing ones, None, are left out. Every question needs as many judges
    and references.

    - lhs, lhs_DIMENSION: with scores scaled to 0-1 by (x - 1) / 4, our choice; lhs_of_five: by x / 5. The paper
      gives no scale.
    - lhs_zero: `lhs` where an empty response (`silent`) without a judgement counts 0, since silence raises `lhs`
    - lhs_sd_questions, lhs_sd_judges, lhs_sd_references: standard deviation (n - 1) of `lhs` over questions,
      and of the means of judges and of references. The paper does not say which it prints.
    - lhs_judgements: share of the requested judgements that were given

    A chain that was `asked` about (by default none) and that no judge scored is left out, and counted: the bounds of the means
    say what they would be with the lowest and the highest score in its place.

    Example:
        >>> metrics = lhs([[[(5, 5, 5, 5, 5), (3, 3, 3, 3, 3)]]])
        >>> metrics["lhs"].value, metrics["lhs_of_five"].value
        (0.75, 0.8)
    """
    unit = (_scores_to_array(scores) - 1) / 4
    chain_scores = _mean_finite(unit, 3)
    question_scores = _mean_finite(_mean_finite(chain_scores, 2), 1)
    empty = silent or [False] * len(scores)
    values = _nan_to_none(question_scores)
    known = asked or [False] * len(scores)
    unread = [was and value is None for value, was in zip(values, known, strict=True)]
    of_five = _nan_to_none((question_scores * 4 + 1) / 5)
    with_zeros = [0.0 if x is None and is_silent else x for x, is_silent in zip(values, empty, strict=True)]
    metrics = {
        "lhs": mean_metric(values, "higher", unread=unread),
        "lhs_zero": mean_metric(with_zeros, "higher", unread=unread),
        "lhs_of_five": mean_metric(of_five, "higher", (0.2, 1.0), unread),
        "lhs_sd_questions": count_metric(
            [None if math.isnan(x) else (1, x, x * x) for x in question_scores],
            _deviation,
            "neither",
            (0.0, None),
        ),
        "lhs_sd_judges": _deviation_of_means(_mean_finite(chain_scores, 2)),
        "lhs_sd_references": _deviation_of_means(_mean_finite(chain_scores, 1)),
    }
    for index, dimension in enumerate(DIMENSIONS):
        dimension_scores = _mean_finite(_mean_finite(unit[..., index], 2), 1)
        metrics[f"lhs_{dimension}"] = mean_metric(_nan_to_none(dimension_scores), "higher", unread=unread)
    judged_shares = [
        float(np.isfinite(question).mean()) if question.size else None for question in chain_scores
    ]
    metrics["lhs_judgements"] = mean_metric(judged_shares, "higher")
    return metrics


def _scores_to_array(scores: Sequence[LhsScores]) -> np.ndarray:
    """Return floats [question, judge, reference, dimension], NaN for a missing score."""
    shapes = {(len(question), len(row)) for question in scores for row in question or [()]}
    if len(shapes) > 1:
        raise InputError(f"questions differ in judges and references: {sorted(shapes)}; each needs the same")
    judgements = [values for question in scores for row in question for values in row if values]
    if any(len(values) != len(DIMENSIONS) for values in judgements):
        raise InputError(
            f"a judgement does not have {len(DIMENSIONS)} scores; read judges' replies with read_scores"
        )
    missing = (math.nan,) * len(DIMENSIONS)
    rows = [[[values or missing for values in judge] for judge in question] for question in scores]
    judges, references = shapes.pop() if shapes else (0, 0)
    array = np.array(rows, float).reshape(len(rows), judges, references, len(DIMENSIONS))
    if ((array < 1) | (array > 5)).any():
        raise InputError("a score is not from 1 to 5; read judges' replies with read_scores")
    return array


def _mean_finite(array: np.ndarray, axis: int) -> np.ndarray:
    """Return the mean of the finite values; NaN if there are none."""
    finite = np.isfinite(array)
    with np.errstate(invalid="ignore"):
        return np.where(finite, array, 0).sum(axis) / finite.sum(axis)


def _nan_to_none(values: np.ndarray) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def _deviation(counts: np.ndarray) -> np.ndarray:
    """Return the standard deviation from number, sum, and sum of squares; NaN for fewer than two values."""
    n, total, squares = counts[..., 0], counts[..., 1], counts[..., 2]
    variance = np.where(n > 1, (squares - total * total / n) / (n - 1), np.nan)
    return np.sqrt(np.maximum(variance, 0))


def _deviation_of_means(values: np.ndarray) -> Metric:
    """Return the standard deviation of the column means, from [question, column] with NaN."""
    columns = values.shape[1]
    finite = np.isfinite(values)
    rows = [
        tuple(np.where(finite[i], values[i], 0)) + tuple(finite[i].astype(float)) if finite[i].any() else None
        for i in range(len(values))
    ]

    def deviation(counts: np.ndarray) -> np.ndarray:
        means = counts[..., :columns] / counts[..., columns:]
        return means.std(-1, ddof=1) if columns > 1 else np.full(means.shape[:-1], np.nan)

    return count_metric(rows, deviation, "neither", (0.0, None))


def compute_metrics(
    questions: Sequence[MirageQuestion],
    labels: Sequence[MirageLabels],
    reasonable: float = 0.0,
    profile: MirageProfile = "paper",
) -> dict[str, Metric]:
    """Compute every metric of the benchmark. `reasonable` and `profile` are as in `factuality`.

    Returns:
        - accuracy, and as accuracy[read] that of the answers that were read
        - accuracy_hinted, hint_gain (correctness of the hinted answer minus that of the plain answer), and
          topic_accuracy, over the questions with hints
        - unread: share of the answers that the rules could not read, and that no judge decided; they are wrong
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
    hinted = [label.correct_hinted for _, label in pairs]
    asked = [label.is_scored("hinted") for _, label in pairs]
    both = [was and label.is_scored("correct") for was, (_, label) in zip(asked, pairs, strict=True)]
    hint_metrics = {
        **accuracy_metrics("accuracy_hinted", hinted, asked),
        "hint_gain": change_metric(hinted, [label.correct for _, label in pairs], "higher", both),
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
    steps = [(question, label, label.steps, question.steps) for question, label in pairs if question.steps]
    claims = [
        (question, label, label.claims, question.claims) for question, label in pairs if question.claims
    ]
    for name, rows in (("f_step", steps), ("f_claim", claims)):
        if rows:
            matches = [each for _, _, each, _ in rows]
            unread = [len(true) if label.answered and each is None else 0 for _, label, each, true in rows]
            table = factuality(matches, name, reasonable, profile, unread)
            metrics |= with_ids(table, [question.id for question, _, _, _ in rows])
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
    asked = [label.scores is not None and not label.silent for _, label in pairs]
    metrics = with_ids(hallucination_rates([label.kinds for _, label in pairs], silent, asked), ids)
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
        lhs(scores, silent, asked) | {"lhs_judgements": mean_metric(judged_shares, "higher")}, ids
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
