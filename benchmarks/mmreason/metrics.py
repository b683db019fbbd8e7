"""Metrics of MMReason: final accuracy, scores of steps, relevance of pictures, kinds of error (paper 004)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from mmprobe.benchmarks.mirage.metrics import by_group
from mmprobe.benchmarks.mirage.parsing import Malformed
from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.benchmarks.results import Metric, count_metric, mean_metric
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
ERROR_TYPES: tuple[ErrorType, ...] = get_args(ErrorType)


def parse_steps(reply: str, count: int) -> list[Judgement]:
    """A judge's words on each step, `<score>correct,unverifiable,...</score>`, as many as there are steps.

    Raises:
        Malformed: no such tag or more than one, an unknown word, or another number of words; ask again.

    Example:
        >>> parse_steps("<score>Correct, incorrect</score>", 2)
        ['correct', 'incorrect']
    """
    found = re.findall(r"<score>(.*?)</score>", reply, re.DOTALL | re.IGNORECASE)
    if len(found) != 1:
        raise Malformed(f"{len(found)} <score> tags, 1 is asked for")
    words = [word.strip().lower() for word in found[0].split(",")] if found[0].strip() else []
    judgements = [judgement for word in words for judgement in SCORES if judgement == word]
    if len(judgements) != len(words):
        raise Malformed(f"<score> holds a word that is none of {', '.join(SCORES)}")
    if len(judgements) != count:
        raise Malformed(f"<score> holds {len(judgements)} words for {count} steps")
    return judgements


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


def final_accuracy(right: Sequence[bool | None]) -> dict[str, Metric]:
    """S_final: share of right final answers (section 4.3).

    Args:
        right: of each response; None where it states no answer, or the judge gave no verdict.

    Returns:
        - s_final: None counts as wrong
        - s_final_scored: over the responses with a verdict

    Example:
        >>> found = final_accuracy([True, False, None, None])
        >>> found["s_final"].value, found["s_final_scored"].value
        (0.25, 0.5)
    """
    return {
        "s_final": mean_metric([float(one is True) for one in right], "higher"),
        "s_final_scored": mean_metric([None if one is None else float(one) for one in right], "higher"),
    }


def tables(
    questions: Sequence[ReasonQuestion], right: Sequence[bool | None]
) -> dict[str, dict[str, dict[str, Metric]]]:
    """Final accuracy by discipline (table 3), by source (table 4) and by level, where one is given.

    Args:
        right: of each question's response, as for `final_accuracy`.

    Returns:
        By `discipline`, `source` and `level`, by their values, what `final_accuracy` returns.

    Example:
        >>> question = ReasonQuestion(id="1", question="2 + 2?", answer="4", discipline="math", source="own")
        >>> tables([question], [True])["discipline"]["math"]["s_final"].value
        1.0
    """
    found = {
        "discipline": by_group([question.discipline for question in questions], right, final_accuracy),
        "source": by_group([question.source for question in questions], right, final_accuracy),
    }
    levels = [(q.level, r) for q, r in zip(questions, right, strict=True) if q.level is not None]
    found["level"] = by_group([level for level, _ in levels], [r for _, r in levels], final_accuracy)
    return found


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
