"""POPE: yes-or-no questions about objects that an image shows or does not show.

Li et al. (2023), "Evaluating Object Hallucination in Large Vision-Language Models", arXiv:2305.10355. Each
image gets three questions about objects that it shows, and three about absent objects. The absent objects are
drawn at random, or are the most frequent objects of all images (popular), or the objects that most often
share an image with the shown objects (adversarial).

Profile `own` reads yes or no where an answer begins with it, and leaves unread answers out. Profile `code` is the rule of
the authors' `evaluate.py`, oddities included. For a table beside published numbers use `code`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mmprobe.benchmarks.answers.yes_no import first_word
from mmprobe.benchmarks.core.benchmark import ScoringRules
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
    "accuracy": (share((_TP, _TN), _KNOWN), "higher"),
    "precision": (share((_TP,), (_TP, _FP)), "higher"),
    "recall": (share((_TP,), (_TP, _FN)), "higher"),
    "f1": (share((_TP, _TP), (_TP, _TP, _FP, _FN)), "higher"),
    "yes_ratio": (share((_TP, _FP), _KNOWN), "neither"),
}
_UNREAD: dict[str, tuple[Combine, Direction]] = {
    "unknown": (share((_UNKNOWN_YES, _UNKNOWN_NO), _ALL), "lower"),
    "unread": (share((_UNKNOWN_YES, _UNKNOWN_NO), _ALL), "lower"),
}


def read_published(answer: str) -> Literal["yes", "no"]:
    """Return the answer by the rule of the authors' code, which leaves no answer unread.

    The first sentence, up to the first full stop, is split at spaces without its commas. It says no if one of its words
    is exactly `No`, `no` or `not`; all else is yes: an empty answer, `NO`, `No!`, `Not at all`, and a no before a line
    break or after the first full stop.

    Example:
        >>> [read_published(answer) for answer in ("There is not, I think.", "Not at all. No", "NO", "")]
        ['no', 'yes', 'yes', 'yes']
    """
    words = answer.partition(".")[0].replace(",", "").split(" ")
    return "no" if {"No", "no", "not"} & set(words) else "yes"


def make_record(sample: Sample, answer: str | None, profile: ScoringRules = "own") -> dict[str, Any]:
    """Return the record of a question with its answer, read as yes or no, or in profile `own` as unknown."""
    label = (sample.answer or "").lower()
    if label not in ("yes", "no"):
        raise InputError(f"sample {sample.id}: its answer is neither yes nor no")
    read = read_published if profile == "code" else first_word
    parsed = None if answer is None else read(answer)
    return {
        "id": sample.id,
        "question": sample.question,
        "answer": answer,
        "label": label,
        "said": parsed,
        "correct": None if parsed in (None, "unknown") else parsed == label,
        "setting": sample.metadata.get("setting"),
    }


def compute_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """Compute accuracy, precision, recall, F1 (positive = yes) and the share of answers that say yes.

    An answer that was not read is in none of them; `unknown` and `unread` are the share of such answers. They and missing
    answers lower the coverage.
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
    read = [None if record["said"] == "unknown" else row for record, row in zip(records, counts, strict=True)]
    metrics = {
        name: count_metric(rows, combine, direction)
        for table, rows in ((_METRICS, read), (_UNREAD, counts))
        for name, (combine, direction) in table.items()
    }
    return with_ids(metrics, [record["id"] for record in records])


def _count(record: Mapping[str, Any]) -> list[int] | None:
    if record["said"] is None:
        return None
    return [int(_COLUMNS[record["said"], record["label"]] == column) for column in _ALL]
