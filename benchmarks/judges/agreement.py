"""How well two judges agree on the same answers, from labels and from result folders."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mmprobe.benchmarks.core.jsonl import json_lines
from mmprobe.benchmarks.core.results import Metric, count_metric
from mmprobe.errors import InputError


def agreement(
    first: Sequence[Sequence[Hashable] | None], second: Sequence[Sequence[Hashable] | None]
) -> dict[str, Metric]:
    """Cohen's kappa of two judges, and the share of items that they label alike.

    kappa = (p_o - p_e) / (1 - p_e), with p_o the share labelled alike and p_e the share expected by chance from how
    often each judge gives each label (Cohen, 1960). Items are pooled over samples. Intervals are bootstrapped over
    samples, since the items of one sample are not independent.

    Args:
        first, second: each sample's labels, one an item, by the first and by the second judge; None where a judge
            left the sample unscored, which lowers the coverage.

    Returns:
        `kappa` (1 agreement, 0 as by chance; undefined where both judges always give one and the same label) and
        `agreement`; n counts samples.

    Raises:
        InputError: the judges do not have the same samples, or not the same number of items in one.

    Example:
        >>> found = agreement([["yes", "no"], ["no"], None], [["yes", "no"], ["yes"], ["no"]])
        >>> round(found["kappa"].value, 3), round(found["agreement"].value, 3), found["kappa"].n
        (0.4, 0.667, 2)
    """
    if len(first) != len(second):
        raise InputError(f"agreement: {len(first)} samples by one judge, {len(second)} by the other")
    for place, (one, two) in enumerate(zip(first, second, strict=True)):
        if one is not None and two is not None and len(one) != len(two):
            raise InputError(
                f"agreement: sample {place} (from 0) has {len(one)} labels by one judge, {len(two)} by the other"
            )
    given = (label for labels in (*first, *second) for label in labels or ())
    number = {label: place for place, label in enumerate(dict.fromkeys(given))} or {None: 0}
    tables = [_table(one, two, number) for one, two in zip(first, second, strict=True)]
    size = len(number)
    return {
        "kappa": count_metric(tables, lambda counts: _kappa(counts, size), "higher", (-1.0, 1.0)),
        "agreement": count_metric(tables, lambda counts: _alike(counts, size), "higher"),
    }


def _table(
    one: Sequence[Hashable] | None, two: Sequence[Hashable] | None, number: dict[Hashable, int]
) -> list[float] | None:
    """A sample's items by both labels, the first judge's in rows, flattened."""
    if one is None or two is None:
        return None
    counts = np.zeros((len(number), len(number)))
    for a, b in zip(one, two, strict=True):
        counts[number[a], number[b]] += 1
    return counts.ravel().tolist()


def _shares(counts: np.ndarray, size: int) -> np.ndarray:
    tables = counts.reshape(*counts.shape[:-1], size, size)
    total = tables.sum((-1, -2), keepdims=True)
    return tables / np.where(total > 0, total, np.nan)


def _alike(counts: np.ndarray, size: int) -> np.ndarray:
    return np.trace(_shares(counts, size), axis1=-2, axis2=-1)


def _kappa(counts: np.ndarray, size: int) -> np.ndarray:
    shares = _shares(counts, size)
    chance = (shares.sum(-1) * shares.sum(-2)).sum(-1)
    return (_alike(counts, size) - chance) / np.where(chance < 1 - 1e-12, 1 - chance, np.nan)


Labels = Sequence[Hashable] | None  # of one record; None where they cannot be compared


Rows = dict[str, dict[str, tuple[Labels, Labels]]]


# Where the records of a benchmark have what a judge says: fields, `*` for each of several.
_FIELDS = {
    "mirage": ("correct",),
    "magic": ("correct", "correct_full", "correct_steps.*", "self_heal.*.healed"),
    "mirage-effect": ("answers.*.notices", "answers.*.describes"),
    "mmreason": ("correct", "correct_text", "steps.*.label", "error"),
}


_TEXTS = ("response", "answer", "response_text")


class Compared(NamedTuple):
    """Two judges side by side.

    Attributes:
        benchmark: its name.
        judges: their names.
        rows: by what is labelled, such as `answer, find`, the labels that each record got from both; None for both
            where they cannot be compared. Several rows of a kind are also pooled, as `answer, all`.
        apart: id, what is labelled, and both labels, wherever they differ.
    """

    benchmark: str
    judges: tuple[str, str]
    rows: Rows
    apart: list[dict[str, Any]]


def compare_judges(first: Path, second: Path) -> Compared:
    """The labels of two result folders of the same answers.

    Raises:
        InputError: a folder is no result folder of a benchmark that judges label, or the two are not of the same
            answers.

    Example:
        >>> compare_judges(Path("results/lexical"), Path("results/gpt-4o")).judges     # doctest: +SKIP
        ('lexical', 'model:openai/gpt-4o')
    """
    (name, one_judge, one), (other_name, other_judge, other) = _opened(first), _opened(second)
    if name != other_name:
        raise InputError(f"{second}: is of {other_name}, {first} of {name}; choose two of one benchmark")
    if name != "spd-faith" and name not in _FIELDS:
        raise InputError(f"{first}: {name} is scored by rules, and no judge labels its answers")
    for record_id in {**one, **other}:
        if record_id not in one or record_id not in other or _said(one[record_id]) != _said(other[record_id]):
            raise InputError(f"{second}: has other answers than {first}, the first of them in {record_id!r}")
    rows: Rows = {}
    for record_id, record in one.items():
        try:
            found = _side_by_side(name, record, other[record_id])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{first} or {second}: record {record_id!r} is none of {name}") from None
        for what, both in found.items():
            rows.setdefault(what, {})[record_id] = both
    apart = [
        {"id": record_id, "labels": what, "first": labels[0], "second": labels[1]}
        for what, records in rows.items()
        for record_id, labels in records.items()
        if labels[0] != labels[1]
    ]
    return Compared(name, (one_judge, other_judge), rows | _pooled(rows), apart)


def _opened(folder: Path) -> tuple[str, str, dict[str, Mapping[str, Any]]]:
    """A result folder's benchmark, judge and records by id."""
    try:
        about = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        name, judge = str(about["benchmark"]), str(about["judge"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{folder}: is no result folder of mmprobe bench or mmprobe score") from None
    records: dict[str, Mapping[str, Any]] = {}
    for number, record in json_lines(folder / "samples.jsonl"):
        if not isinstance(record, dict) or "id" not in record or str(record["id"]) in records:
            raise InputError(f"{folder / 'samples.jsonl'}, line {number}: is no record with an id of its own")
        records[str(record["id"])] = record
    return name, judge, records


def _said(record: Mapping[str, Any]) -> Any:
    """The answers of a record, which no judge changes."""
    answers = record.get("answers")
    if not isinstance(answers, dict):
        return [record.get(key) for key in _TEXTS]
    return {
        kind: [told.get(key) for key in _TEXTS] for kind, told in answers.items() if isinstance(told, dict)
    }


def labels_of(name: str, record: Mapping[str, Any]) -> dict[str, Labels]:
    """A benchmark's record's labels by what they are of; None where the judge failed.

    Example:
        >>> labels_of("mmreason", {"correct": True, "steps": [{"label": "correct"}]})
        {'correct': (True,), 'steps.label': ('correct',)}
    """
    if name == "spd-faith":
        return _of_claims(record)
    found: dict[str, Labels] = {}
    for field in _FIELDS[name]:
        parts = field.split(".")
        told = ".".join(part for part in parts if part != "*")
        if parts[0] != "answers":
            values = {told: list(_values(record, parts))}
        else:
            answers = record.get("answers")
            kinds = answers.items() if isinstance(answers, dict) else ()
            values = {f"{parts[-1]}, {kind}": list(_values(one, parts[2:])) for kind, one in kinds}
        found |= {what: tuple(labels) for what, labels in values.items() if None not in labels}
    return found


def _values(value: Any, parts: Sequence[str]) -> Iterator[Any]:
    if not parts:
        yield value
    elif parts[0] == "*":
        for item in value if isinstance(value, list) else [None]:
            yield from _values(item, parts[1:])
    else:
        yield from _values(value.get(parts[0]) if isinstance(value, dict) else None, parts[1:])


def _of_claims(record: Mapping[str, Any]) -> dict[str, Labels]:
    found: dict[str, Labels] = {}
    for kind, told in record["answers"].items():
        if "claims" not in told:
            continue
        errors = told["errors"]
        whole = "claims nothing" if not errors else "unfaithful" if any(errors) else "faithful"
        found[f"answer, {kind}"] = None if "unscored" in told else (whole,)
        found[f"claim, {kind}"] = None if errors is None else tuple(error or "true" for error in errors)
    if {"same", "different"} <= record["answers"].keys():
        found["pair"] = tuple(label for _, _, label in record["agreement"])
    return found


def _side_by_side(
    name: str, one: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, tuple[Labels, Labels]]:
    mine, theirs = labels_of(name, one), labels_of(name, other)
    found = {what: (mine.get(what), theirs.get(what)) for what in (*mine, *theirs)}
    return {
        what: both if _same_things(what, one, other, *both) else (None, None) for what, both in found.items()
    }


def _same_things(
    what: str, one: Mapping[str, Any], other: Mapping[str, Any], mine: Labels, theirs: Labels
) -> bool:
    """Whether two judges labelled the same things of a record."""
    if mine is None or theirs is None or len(mine) != len(theirs):
        return False
    kind, _, question = what.partition(", ")
    return kind != "claim" or _claimed(one, question) == _claimed(other, question)


def _claimed(record: Mapping[str, Any], question: str) -> list[tuple[Any, Any]]:
    claims = record["answers"][question]["claims"] or []
    return [(claim["type"], claim["category"]) for claim in claims if not claim["negated"]]


def _pooled(rows: Rows) -> Rows:
    """The rows of a kind together, where there are several: each record's labels one after the other."""
    found: Rows = {}
    kinds = [what.partition(", ")[0] for what in rows]
    for kind in dict.fromkeys(kinds):
        members = [row for what, row in rows.items() if what.partition(", ")[0] == kind]
        for record_id in dict.fromkeys(name for row in members for name in row) if len(members) > 1 else ():
            pairs = [row[record_id] for row in members if record_id in row]
            known = [(one, other) for one, other in pairs if one is not None and other is not None]
            joined = (
                [label for one, _ in known for label in one],
                [label for _, other in known for label in other],
            )
            found.setdefault(f"{kind}, all", {})[record_id] = joined if known else (None, None)
    return found
