"""POPE: yes-or-no questions about objects that an image shows or does not show.

Li et al. (2023), "Evaluating Object Hallucination in Large Vision-Language Models", arXiv:2305.10355. Each
image gets three questions about objects that it shows, and three about absent objects. The absent objects are
drawn at random, or are the most frequent objects of all images (popular), or the objects that most often
share an image with the shown objects (adversarial).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.benchmarks.answers.yes_no import first_word
from mmprobe.benchmarks.core.results import Combine, Direction, Metric, count_metric, share, with_ids
from mmprobe.benchmarks.pope.data import SETTINGS
from mmprobe.errors import InputError
from mmprobe.samples import Sample

# Columns of a question's counts. Exactly one of them is 1.
_TP, _FP, _TN, _FN, _UNKNOWN_YES, _UNKNOWN_NO = range(6)
_ALL = (_TP, _FP, _TN, _FN, _UNKNOWN_YES, _UNKNOWN_NO)
_KNOWN = (_TP, _FP, _TN, _FN)
_COLUMNS = {  # (answer, label) -> column
    ("yes", "yes"): _TP,
    ("yes", "no"): _FP,
    ("no", "no"): _TN,
    ("no", "yes"): _FN,
    ("unknown", "yes"): _UNKNOWN_YES,
    ("unknown", "no"): _UNKNOWN_NO,
}


_METRICS: dict[str, tuple[Combine, Direction]] = {
    "accuracy": (share((_TP, _TN), _ALL), "higher"),
    "precision": (share((_TP,), (_TP, _FP)), "higher"),
    "recall": (share((_TP,), (_TP, _FN, _UNKNOWN_YES)), "higher"),
    "f1": (share((_TP, _TP), (_TP, _TP, _FP, _FN, _UNKNOWN_YES)), "higher"),
    "yes_ratio": (share((_TP, _FP), _ALL), "neither"),
    "unknown": (share((_UNKNOWN_YES, _UNKNOWN_NO), _ALL), "lower"),
    "unread": (share((_UNKNOWN_YES, _UNKNOWN_NO), _ALL), "lower"),
    "accuracy_known": (share((_TP, _TN), _KNOWN), "higher"),
    "recall_known": (share((_TP,), (_TP, _FN)), "higher"),
    "f1_known": (share((_TP, _TP), (_TP, _TP, _FP, _FN)), "higher"),
    "yes_ratio_known": (share((_TP, _FP), _KNOWN), "neither"),
}


def make_record(sample: Sample, answer: str | None) -> dict[str, Any]:
    """Return the record of a question with its answer, read as yes, no or unknown."""
    label = (sample.answer or "").lower()
    if label not in ("yes", "no"):
        raise InputError(f"sample {sample.id}: its answer is neither yes nor no")
    parsed = None if answer is None else first_word(answer)
    return {
        "id": sample.id,
        "question": sample.question,
        "answer": answer,
        "label": label,
        "said": parsed,
        "correct": None if parsed is None else parsed == label,
        "setting": sample.metadata.get("setting"),
    }


def compute_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """Compute accuracy, precision, recall, F1 (positive = yes) and the share of answers that say yes.

    An answer that says neither yes nor no is unknown. It is wrong in `accuracy`, `recall` and `f1`, is left
    out of `accuracy_known`, `recall_known` and `f1_known`, and is counted by `unknown`. `yes_ratio` is a
    share of all answers, and `yes_ratio_known` of the answers that say yes or no. A missing answer lowers the
    coverage.
    """
    metrics = _compute_group(records)
    settings = [setting for setting in SETTINGS if any(record["setting"] == setting for record in records)]
    if len(settings) > 1:
        for setting in settings:
            group = _compute_group([record for record in records if record["setting"] == setting])
            metrics |= {f"{name}_{setting}": metric for name, metric in group.items()}
    return metrics


def _compute_group(records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    counts = [_count(record) for record in records]
    metrics = {
        name: count_metric(counts, combine, direction) for name, (combine, direction) in _METRICS.items()
    }
    return with_ids(metrics, [record["id"] for record in records])


def _count(record: Mapping[str, Any]) -> list[int] | None:
    if record["said"] is None:
        return None
    return [int(_COLUMNS[record["said"], record["label"]] == column) for column in _ALL]
