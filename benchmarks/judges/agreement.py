"""Compare two judges of the same answers: their labels from result folders, and Cohen's kappa."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.core.results import Metric, count_metric
from mmprobe.benchmarks.judges.judge import Labelled
from mmprobe.errors import InputError
from mmprobe.files import read_results, result_records

RecordLabels = Sequence[Hashable] | None
"""The labels of one record; None if they cannot be compared."""
LabelPairs = dict[str, dict[str, tuple[RecordLabels, RecordLabels]]]
"""By kind of label, then by record id: the labels of both judges."""

_RESPONSE_FIELDS = (
    "response",
    "answer",
    "response_text",
    "response_hinted",
)  # of the records of any benchmark


class JudgeComparison(NamedTuple):
    """The labels of two judges side by side, and what they disagree on.

    `labels` gives by kind, such as `answer, find`, and record id the labels of both, None if they cannot be
    compared. Kinds that begin alike are also pooled, as `answer, all`. `disagreements` has a row for each
    record and kind whose labels differ.
    """

    benchmark: str
    judges: tuple[str, str]
    labels: LabelPairs
    disagreements: list[dict[str, Any]]


def compare_result_folders(first: Path, second: Path) -> JudgeComparison:
    """Read the labels of two judges from their result folders. Raises InputError for other answers."""
    benchmark, first_judge, first_records = _read_folder(first)
    second_benchmark, second_judge, second_records = _read_folder(second)
    if benchmark != second_benchmark:
        raise InputError(
            f"{second}: contains results of {second_benchmark}, {first} of {benchmark}; "
            "choose two folders of one benchmark"
        )
    form = BENCHMARKS[benchmark]
    if not form.judged_fields:
        raise InputError(f"{first}: {benchmark} is scored by rules, and no judge labels its answers")
    find_labels = form().find_labels
    for record_id in {**first_records, **second_records}:
        one, other = first_records.get(record_id), second_records.get(record_id)
        if one is None or other is None or _responses(one) != _responses(other):
            raise InputError(f"{second}: has other answers than {first}, for example in record {record_id!r}")
    labels: LabelPairs = {}
    for record_id, record in first_records.items():
        try:
            pairs = _pair_labels(find_labels(record), find_labels(second_records[record_id]))
            hash(tuple(tuple(labels or ()) for pair in pairs.values() for labels in pair))  # they are counted
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(
                f"{first} or {second}: record {record_id!r} is not a record of {benchmark}"
            ) from None
        for kind, pair in pairs.items():
            labels.setdefault(kind, {})[record_id] = pair
    disagreements = [
        {"id": record_id, "labels": kind, "first": pair[0], "second": pair[1]}
        for kind, pairs in labels.items()
        for record_id, pair in pairs.items()
        if pair[0] != pair[1]
    ]
    judges = first_judge, second_judge
    return JudgeComparison(benchmark, judges, labels | _pool_labels(labels), disagreements)


def _read_folder(folder: Path) -> tuple[str, str, dict[str, Mapping[str, Any]]]:
    """Return a result folder's benchmark, judge, and records by id."""
    results = read_results(folder)
    if not results.benchmark or results.judge is None:
        raise InputError(f"{folder / 'results.json'}: names no benchmark or no judge")
    records: dict[str, Mapping[str, Any]] = {}
    for where, record in result_records(folder):
        if "id" not in record or str(record["id"]) in records:
            raise InputError(f"{where}: is not a record with its own id")
        records[str(record["id"])] = record
    return results.benchmark, results.judge, records


def _responses(record: Mapping[str, Any]) -> Any:
    """Return the responses of a record. They do not depend on the judge."""
    answers = record.get("answers")
    if not isinstance(answers, dict):
        return [record.get(field) for field in _RESPONSE_FIELDS]
    return {
        question_type: [answer.get(field) for field in _RESPONSE_FIELDS]
        for question_type, answer in answers.items()
        if isinstance(answer, dict)
    }


def _pair_labels(
    first_labels: Mapping[str, Labelled], second_labels: Mapping[str, Labelled]
) -> dict[str, tuple[RecordLabels, RecordLabels]]:
    """Return the labels of both judges for one record, by kind; both are None unless they are of equal items."""
    pairs: dict[str, tuple[RecordLabels, RecordLabels]] = {}
    for kind in (*first_labels, *second_labels):
        one, other = first_labels.get(kind), second_labels.get(kind)
        pairs[kind] = (None, None)
        if one is not None and other is not None and [item for item, _ in one] == [item for item, _ in other]:
            pairs[kind] = tuple(label for _, label in one), tuple(label for _, label in other)
    return pairs


def _pool_labels(labels: LabelPairs) -> LabelPairs:
    """Join the kinds that begin alike, such as `answer, find` and `answer, list`, as `answer, all`."""
    pooled: LabelPairs = {}
    for item in dict.fromkeys(kind.partition(", ")[0] for kind in labels):
        tables = [pairs for kind, pairs in labels.items() if kind.partition(", ")[0] == item]
        if len(tables) < 2:
            continue
        pooled[f"{item}, all"] = {
            record_id: _join_pairs([pairs[record_id] for pairs in tables if record_id in pairs])
            for record_id in dict.fromkeys(name for pairs in tables for name in pairs)
        }
    return pooled


def _join_pairs(pairs: Sequence[tuple[RecordLabels, RecordLabels]]) -> tuple[RecordLabels, RecordLabels]:
    first = [label for a, b in pairs if a is not None and b is not None for label in a]
    second = [label for a, b in pairs if a is not None and b is not None for label in b]
    comparable = any(a is not None and b is not None for a, b in pairs)
    return (first, second) if comparable else (None, None)


def compute_agreement(first: Sequence[RecordLabels], second: Sequence[RecordLabels]) -> dict[str, Metric]:
    """Return Cohen's kappa of two judges, and the share of items with equal labels (`agreement`).

    kappa = (p_o - p_e) / (1 - p_e) (Cohen, 1960): p_o is the share of equal labels, p_e the share that chance
    predicts from how often each judge gives each label. It is undefined if both give one label to every item.
    `kappa_weighted`, where every label is a number, has quadratic weights (Cohen, 1968), so that 4 and 5
    agree more than 1 and 5. Items are pooled over samples, and intervals draw samples. Labels of None lower
    the coverage. Raises InputError where the judges have different samples, or numbers of items in a sample.

    Example:
        >>> metrics = compute_agreement([["yes", "no"], ["no"], None], [["yes", "no"], ["yes"], ["no"]])
        >>> round(metrics["kappa"].value, 3), round(metrics["agreement"].value, 3), metrics["kappa"].n
        (0.4, 0.667, 2)
    """
    if len(first) != len(second):
        raise InputError(f"agreement: {len(first)} samples by one judge, {len(second)} by the other")
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        if a is not None and b is not None and len(a) != len(b):
            raise InputError(
                f"agreement: sample {index} (from 0) has {len(a)} labels by one judge, {len(b)} by the other"
            )
    all_labels = (label for labels in (*first, *second) for label in labels or ())
    label_index = {label: index for index, label in enumerate(dict.fromkeys(all_labels))} or {None: 0}
    tables = [_contingency_table(a, b, label_index) for a, b in zip(first, second, strict=True)]
    size = len(label_index)
    weights = {"kappa": 1.0 - np.eye(size)}
    if all(isinstance(label, int | float) and not isinstance(label, bool) for label in label_index):
        values = np.array(list(label_index), float)
        weights["kappa_weighted"] = (values[:, None] - values) ** 2
    kappas = {
        name: count_metric(tables, partial(_kappa, weights=weight), "higher", (-1.0, 1.0))
        for name, weight in weights.items()
    }
    return kappas | {
        "agreement": count_metric(
            tables, lambda counts: np.trace(_shares(counts, size), axis1=-2, axis2=-1), "higher"
        ),
    }


def _contingency_table(
    first: RecordLabels, second: RecordLabels, label_index: dict[Hashable, int]
) -> list[float] | None:
    """Count a sample's items by both labels, with the first judge's labels in rows; flattened."""
    if first is None or second is None:
        return None
    counts = np.zeros((len(label_index), len(label_index)))
    for a, b in zip(first, second, strict=True):
        counts[label_index[a], label_index[b]] += 1
    return counts.ravel().tolist()


def _shares(counts: np.ndarray, size: int) -> np.ndarray:
    tables = counts.reshape(*counts.shape[:-1], size, size)
    total = tables.sum((-1, -2), keepdims=True)
    return tables / np.where(total > 0, total, np.nan)


def _kappa(counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return 1 - observed / expected disagreement, weighted by [label, label]."""
    shares = _shares(counts, len(weights))
    expected = shares.sum(-1)[..., :, None] * shares.sum(-2)[..., None, :]
    observed, by_chance = ((weights * table).sum((-1, -2)) for table in (shares, expected))
    return 1 - observed / np.where(by_chance > 1e-12, by_chance, np.nan)
