"""Remove the questions that models answer without the image (arXiv:2603.21687, section 7.9, steps 1 to 3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mmprobe.benchmarks.core.results import Metric, mean_metric
from mmprobe.errors import InputError


@dataclass(frozen=True)
class CleanedQuestions:
    """A question set after cleaning.

    Attributes:
        kept: ids of the kept questions, in their order.
        compromised: by model, ids of the questions that it answered rightly without the image.
        removed: share of the questions that are removed.
        removed_by_chance: share that as many models would remove by independent random answers.
        unscored: by model, number of questions without a verdict. They count as not answered rightly.
    """

    kept: list[str]
    compromised: dict[str, list[str]]
    removed: Metric
    removed_by_chance: float | None
    unscored: dict[str, int]


def clean_questions(
    ids: Sequence[str],
    correct_without: Mapping[str, Sequence[bool | None]],
    options: Sequence[int | None],
    by_text_model: Collection[str] | None = None,
) -> CleanedQuestions:
    """Remove each question that any model answers rightly without its image.

    Args:
        ids: ids of the questions.
        correct_without: by model, whether it answered each question rightly without the image; None if not
            scored.
        options: number of options of each question; None for an open question.
        by_text_model: ids of the questions that a model trained only on text answers rightly; they are
            removed, too (step 3, optional). None without such a model.

    Raises:
        InputError: there is no model, lists have different lengths, or an id is given twice.

    Example:
        >>> correct = {"m": [True, False, False], "n": [False, False, None]}
        >>> cleaned = clean_questions(["a", "b", "c"], correct, [4] * 3)
        >>> cleaned.kept, cleaned.unscored["n"], cleaned.removed_by_chance
        (['b', 'c'], 1, 0.4375)
    """
    if not correct_without:
        raise InputError("B-Clean needs the answers of at least one model")
    if len(set(ids)) < len(ids):
        raise InputError("an id is given twice; each question needs its own")
    for model, values in [*correct_without.items(), ("options", options)]:
        if len(values) != len(ids):
            raise InputError(f"{model!r} has {len(values)} entries for {len(ids)} questions")
    compromised = {
        model: [name for name, is_correct in zip(ids, correct, strict=True) if is_correct]
        for model, correct in correct_without.items()
    }
    removed = set(by_text_model or ()).union(*compromised.values())
    n_models = len(correct_without) + (by_text_model is not None)
    return CleanedQuestions(
        kept=[name for name in ids if name not in removed],
        compromised=compromised,
        removed=mean_metric([float(name in removed) for name in ids], "neither"),
        removed_by_chance=chance_share(options, n_models),
        unscored={
            model: sum(is_correct is None for is_correct in correct)
            for model, correct in correct_without.items()
        },
    )


def chance_share(options: Sequence[int | None], n_models: int) -> float | None:
    """Return the share of questions that at least one of n models guesses: the mean of 1 - (1 - 1/k)^n.

    An open question has no number of options (None); nobody guesses it.

    Example:
        >>> round(chance_share([4], 3), 4)
        0.5781
    """
    shares = [1 - (1 - 1 / count) ** n_models if count else 0.0 for count in options]
    return float(np.mean(shares)) if shares else None
