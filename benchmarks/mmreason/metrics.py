"""Metrics of MMReason: final accuracy, scores of steps, relevance of pictures, kinds of error (paper 004)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar, get_args

import numpy as np

from mmprobe.benchmarks.core.results import Metric, count_metric, mean_metric, of_samples
from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.errors import InputError

Judgement = Literal["correct", "unverifiable", "incorrect"]
SCORES: dict[Judgement, float] = {"correct": 1.0, "unverifiable": 0.5, "incorrect": 0.0}
ErrorType = Literal[
    "lack_of_knowledge",
    "refusal",
    "answer_extraction",
    "misunderstood_question",
    "reasoning",
    "perception",
]
Item = TypeVar("Item")
ERROR_TYPES: tuple[ErrorType, ...] = get_args(ErrorType)


def step_score(judgements: Sequence[Judgement]) -> float | None:
    """S_inter of one response (equation 1): mean of 1, 0.5 and 0 over its steps; None if it has none.

    The paper's sentence gives the scores the other way round; its tables fit these.

    Example:
        >>> step_score(["correct", "unverifiable", "incorrect", "incorrect"])
        0.375
    """
    return sum(SCORES[one] for one in judgements) / len(judgements) if judgements else None


def step_scores(judgements: Sequence[Sequence[Judgement] | None]) -> dict[str, Metric]:
    """S_inter over responses.

    Args:
        judgements: of each response's steps; None if they were not judged. No steps is undefined as well.

    Returns:
        - s_inter: mean over responses
        - s_inter_micro: over the steps of all responses
        - correct_steps, unverifiable_steps, incorrect_steps: shares of the steps of all responses

    Example:
        >>> found = step_scores([["correct"], ["incorrect", "unverifiable", "correct"], []])
        >>> found["s_inter"].value, found["s_inter_micro"].value, found["s_inter"].n
        (0.75, 0.625, 2)
    """
    rows = [
        (*(float(list(steps).count(kind)) for kind in SCORES), float(len(steps))) if steps else None
        for steps in judgements
    ]
    worth = np.array([*SCORES.values()])
    shares = {
        f"{kind}_steps": count_metric(rows, lambda c, i=index: c[..., i] / c[..., 3], "neither")  # type: ignore[misc]
        for index, kind in enumerate(SCORES)
    }
    each = [step_score(steps) if steps else None for steps in judgements]
    return {
        "s_inter": mean_metric(each, "higher"),
        "s_inter_micro": count_metric(rows, lambda c: c[..., :3] @ worth / c[..., 3], "higher"),
        **shares,
    }


def final_accuracy(right: Sequence[bool | None]) -> Metric:
    """S_final: share of right final answers (section 4.3).

    Args:
        right: of each response; None where there is none, or its judge gave no verdict. A response that states no
            answer is wrong.

    Example:
        >>> found = final_accuracy([True, False, False, None])
        >>> round(found.value, 3), found.coverage
        (0.333, 0.75)
    """
    return mean_metric([None if one is None else float(one) for one in right], "higher")


def tables(questions: Sequence[ReasonQuestion], right: Sequence[bool | None]) -> dict[str, Metric]:
    """Final accuracy by discipline (table 3), by source (table 4) and by level, where one is given.

    Args:
        right: of each question's response, as for `final_accuracy`.

    Returns:
        `s_final[discipline=math]`, `s_final[source=MMMU]` and so on.

    Example:
        >>> question = ReasonQuestion(id="1", question="2 + 2?", answer="4", discipline="math", source="own")
        >>> tables([question], [True])["s_final[discipline=math]"].value
        1.0
    """
    found: dict[str, Metric] = {}
    for key in ("discipline", "source", "level"):
        pairs = zip((question.id for question in questions), right, strict=True)
        for value, mine in by_value([getattr(question, key) for question in questions], list(pairs)).items():
            metric = {f"s_final[{key}={value}]": final_accuracy([one for _, one in mine])}
            found |= of_samples(metric, [name for name, _ in mine])
    return found


def by_value(values: Sequence[str | None], items: Sequence[Item]) -> dict[str, list[Item]]:
    """The items of each value, values in order; what has none is left out.

    Example:
        >>> by_value(["b", None, "a", "b"], [1, 2, 3, 4])
        {'a': [3], 'b': [1, 4]}
    """
    found: dict[str, list[Item]] = {}
    for value, item in zip(values, items, strict=True):
        if value is not None:
            found.setdefault(value, []).append(item)
    return dict(sorted(found.items()))


def relevance(accuracy_text: float, accuracy_full: float) -> float | None:
    """Multimodal relevance rate from two accuracies: 1 - text only / with picture; None if the latter is 0.

    The paper gives no formula; this one fits the eight entries of its table 5.

    Example:
        >>> round(relevance(13.4, 30.8), 3)
        0.565
    """
    return 1 - accuracy_text / accuracy_full if accuracy_full else None


def relevance_rate(right_text: Sequence[bool | None], right_full: Sequence[bool | None]) -> Metric:
    """Multimodal relevance rate with its interval, over the questions that were scored both ways.

    It is below 0 where the picture does harm, and undefined where nothing is right with it.

    Args:
        right_text, right_full: whether each answer is right from the text alone, and with the picture.

    Example:
        >>> relevance_rate([True, False, False], [True, True, False]).value
        0.5
    """
    rows = [
        None if text is None or full is None else (float(text), float(full))
        for text, full in zip(right_text, right_full, strict=True)
    ]

    def rate(counts: np.ndarray) -> np.ndarray:
        return np.where(counts[..., 1] > 0, 1 - counts[..., 0] / counts[..., 1], np.nan)

    return count_metric(rows, rate, "higher", (None, 1.0))


def error_tally(errors: Sequence[ErrorType | None]) -> dict[str, Metric]:
    """Share of wrong responses that each kind of error explains (section 5.3 and figure 4).

    Args:
        errors: of each wrong response; None where none was named.

    Raises:
        InputError: a kind that the paper does not have.

    Example:
        >>> error_tally(["reasoning", "perception", "reasoning", None])["reasoning_share"].n
        3
    """
    for error in errors:
        if error is not None and error not in ERROR_TYPES:
            raise InputError(f"unknown kind of error {error!r}; it is one of {', '.join(ERROR_TYPES)}")
    return {
        f"{kind}_share": mean_metric([None if e is None else float(e == kind) for e in errors], "neither")
        for kind in ERROR_TYPES
    }
