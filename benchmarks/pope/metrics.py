"""POPE: yes-or-no questions about objects that an image shows or does not show.

Li et al. (2023), "Evaluating Object Hallucination in Large Vision-Language Models", arXiv:2305.10355. Each
image gets three questions about objects that it shows, and three about absent objects. The absent objects are
drawn at random, or are the most frequent objects of all images (popular), or the objects that most often
share an image with the shown objects (adversarial).

Profile `own` reads yes or no as `answers.yes_no` does; an unread answer is wrong. Profile `code` is the rule of the
authors' `evaluate.py`, oddities included. For a table beside published numbers use `code`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mmprobe.benchmarks.core.results import (
    Combine,
    Direction,
    Metric,
    count_metric,
    share,
    with_bounds,
    with_ids,
)
from mmprobe.benchmarks.pope.data import SETTINGS
from mmprobe.errors import InputError
from mmprobe.samples import Sample

# Columns of a question's counts. Exactly one of them is 1.
_TP, _FP, _TN, _FN, _UNKNOWN_YES, _UNKNOWN_NO = range(6)
_ALL = (_TP, _FP, _TN, _FN, _UNKNOWN_YES, _UNKNOWN_NO)
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
}
_OPPOSITE = {"yes": "no", "no": "yes"}
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


def make_record(sample: Sample, answer: str | None, said: str | None) -> dict[str, Any]:
    """Return the record of a question with its answer, and the yes, no or unknown that it says."""
    label = (sample.answer or "").lower()
    if label not in ("yes", "no"):
        raise InputError(f"sample {sample.id}: its answer is neither yes nor no")
    return {
        "id": sample.id,
        "question": sample.question,
        "answer": answer,
        "label": label,
        "said": said,
        "correct": None if said in (None, "unknown") else said == label,
        "setting": sample.metadata.get("setting"),
    }


def compute_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """Compute accuracy, precision, recall, F1 (positive = yes) and the share of answers that say yes.

    An unread answer is wrong, no yes, and misses an object that is there. `NAME[read]` leaves unread answers out, and `unknown` and `unread` are their share. Missing answers lower the coverage.
    """
    metrics = _compute_group(records)
    settings = [setting for setting in SETTINGS if any(record["setting"] == setting for record in records)]
    if len(settings) > 1:
        for setting in settings:
            group = _compute_group([record for record in records if record["setting"] == setting])
            metrics |= {f"{name}_{setting}": each for name, each in group.items() if "[" not in name}
    return metrics


def _compute_group(records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    counts = [_count(record) for record in records]
    is_unread = [record["said"] == "unknown" for record in records]
    read, least, most = (
        [
            row if not unread else None if said is None else _count({**record, "said": said(record["label"])})
            for record, row, unread in zip(records, counts, is_unread, strict=True)
        ]
        for said in (None, _OPPOSITE.get, str)
    )
    yes, no = (
        [
            row if not unread else _count({**record, "said": word})
            for record, row, unread in zip(records, counts, is_unread, strict=True)
        ]
        for word in ("yes", "no")
    )
    metrics = {
        name: count_metric(counts, combine, direction)
        for name, (combine, direction) in (_METRICS | _UNREAD).items()
    }
    for name, (combine, direction) in _METRICS.items():
        ends = (no, yes) if name == "yes_ratio" else (least, most)
        metrics[name] = with_bounds(metrics[name], sum(is_unread), combine, *ends)
        metrics[f"{name}[read]"] = count_metric(read, combine, direction)
    return with_ids(metrics, [record["id"] for record in records])


def _count(record: Mapping[str, Any]) -> list[int] | None:
    if record["said"] is None:
        return None
    return [int(_COLUMNS[record["said"], record["label"]] == column) for column in _ALL]
