"""POPE: yes-or-no questions about objects that are, or are not, in a picture.

Li et al. (2023), "Evaluating Object Hallucination in Large Vision-Language Models", arXiv 2305.10355. Each
picture gets three questions about objects it shows and three about objects it does not show, which are drawn
at random, or the most frequent ones of all pictures (popular), or those that most often stand beside the
objects it does show (adversarial).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from mmprobe.benchmarks.answers.yes_no import parse_yes_no
from mmprobe.benchmarks.core.results import Direction, Metric, count_metric, of_samples
from mmprobe.benchmarks.pope.data import SETTINGS
from mmprobe.errors import InputError
from mmprobe.samples import Sample

# Counts of a question, one of them 1: what it was answered, and whether that is right.
_TP, _FP, _TN, _FN, _UNKNOWN_YES, _UNKNOWN_NO = range(6)


_CELLS = {
    ("yes", "yes"): _TP,
    ("yes", "no"): _FP,
    ("no", "no"): _TN,
    ("no", "yes"): _FN,
    ("unknown", "yes"): _UNKNOWN_YES,
    ("unknown", "no"): _UNKNOWN_NO,
}


def _share(over: Sequence[int], under: Sequence[int]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda counts: counts[..., list(over)].sum(-1) / counts[..., list(under)].sum(-1)


_ALL, _KNOWN = (0, 1, 2, 3, 4, 5), (0, 1, 2, 3)


_METRICS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Direction]] = {
    "accuracy": (_share((_TP, _TN), _ALL), "higher"),
    "precision": (_share((_TP,), (_TP, _FP)), "higher"),
    "recall": (_share((_TP,), (_TP, _FN, _UNKNOWN_YES)), "higher"),
    "f1": (_share((_TP, _TP), (_TP, _TP, _FP, _FN, _UNKNOWN_YES)), "higher"),
    "yes_ratio": (_share((_TP, _FP), _ALL), "neither"),
    "unknown": (_share((_UNKNOWN_YES, _UNKNOWN_NO), _ALL), "lower"),
    "accuracy_known": (_share((_TP, _TN), _KNOWN), "higher"),
    "recall_known": (_share((_TP,), (_TP, _FN)), "higher"),
    "f1_known": (_share((_TP, _TP), (_TP, _TP, _FP, _FN)), "higher"),
    "yes_ratio_known": (_share((_TP, _FP), _KNOWN), "neither"),
}


def score_pope(
    samples: Sequence[Sample], responses: Mapping[str, str]
) -> tuple[dict[str, Metric], list[dict[str, Any]]]:
    """Accuracy, precision, recall and F1 (positive = yes), and the share of answers that say yes.

    An answer that says neither yes nor no is unknown: it is wrong in `accuracy`, `recall` and `f1`, left out of
    `accuracy_known`, `recall_known` and `f1_known`, and counted by `unknown`. `yes_ratio` is the share of all
    answers, `yes_ratio_known` of those that say yes or no. A question without an answer lowers the coverage.

    Args:
        samples: the questions, their answers yes or no.
        responses: what was answered, by the sample's id.

    Returns:
        Metrics by name, and again for each setting (`accuracy_random`) if there are several; and a row a
        question with what was said and whether it is right.

    Raises:
        InputError: a response to no question of these.

    Example:
        >>> questions = [Sample(id=name, question="?", answer="yes") for name in "12"]
        >>> metrics, rows = score_pope(questions, {"1": "Yes.", "2": "Perhaps"})
        >>> metrics["accuracy"].value, metrics["accuracy_known"].value, metrics["unknown"].value, rows[1]["said"]
        (0.5, 1.0, 0.5, 'unknown')
    """
    known = {sample.id for sample in samples}
    for name in responses:
        if name not in known:
            raise InputError(f"POPE: response {name!r} answers no question of the data")
    counts: list[list[int] | None] = []
    rows = []
    for sample in samples:
        answer, label = responses.get(sample.id), (sample.answer or "").lower()
        if label not in ("yes", "no"):
            raise InputError(f"sample {sample.id}: its answer is neither yes nor no")
        said = None if answer is None else parse_yes_no(answer)
        counts.append(None if said is None else [int(_CELLS[said, label] == cell) for cell in range(6)])
        rows.append(
            {
                "id": sample.id,
                "question": sample.question,
                "answer": answer,
                "label": label,
                "said": said,
                "correct": None if said is None else said == label,
                "setting": sample.metadata.get("setting"),
            }
        )
    metrics = _measured(counts, rows)
    settings = [setting for setting in SETTINGS if any(row["setting"] == setting for row in rows)]
    for setting in settings if len(settings) > 1 else []:
        of_setting = [row["setting"] == setting for row in rows]
        part = _measured(list(compress(counts, of_setting)), list(compress(rows, of_setting)))
        metrics |= {f"{name}_{setting}": metric for name, metric in part.items()}
    return metrics, rows


def _measured(counts: Sequence[list[int] | None], rows: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    metrics = {name: count_metric(counts, of, direction) for name, (of, direction) in _METRICS.items()}
    return of_samples(metrics, [row["id"] for row in rows])
