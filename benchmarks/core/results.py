"""Metrics with direction, range, n, coverage and interval, their paired differences, and the folder that holds results."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmprobe.files import make_folders, write_atomic
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.compare import exchange_p
from mmprobe.stats.estimate import Estimate, format_number
from mmprobe.stats.intervals import jackknife_interval, mean_interval, sum_groups, sums_interval


def add_truth(records: Sequence[dict[str, Any]], questions: Sequence[Sample], out: Path) -> None:
    """Add the true answer and the images of each question to its record, so that reports show them.

    A record is of a question, or has several in `answers`. Paths of images are relative to the result folder
    `out`.
    """
    samples = {sample.id: sample for sample in questions}
    for answer in list_answers(records):
        if (sample := samples.get(str(answer.get("id")))) is not None:
            answer.setdefault("truth", sample.answer)
            answer.setdefault("images", [os.path.relpath(image, out) for image in sample.images])


def list_answers(records: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the fields of each answer of the records: a record is one answer, or has several in `answers`.

    Example:
        >>> list_answers([{"id": "1"}, {"id": "2", "answers": {"same": {"id": "2/same"}}}])
        [{'id': '1'}, {'id': '2/same'}]
    """
    answers: list[Any] = []
    for record in records:
        several = record.get("answers")
        if isinstance(several, dict):
            several = list(several.values())
        answers += (
            [each for each in several if isinstance(each, dict)] if isinstance(several, list) else [record]
        )
    return answers


def find_false_claims(record: Mapping[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """Return the parts of the answers of one record that are claims with an error, by the answer's id.

    A record is a line of samples.jsonl whose `answers` have `id`, `response`, `claims` with their `text`, and
    `errors`.

    Example:
        >>> claims = {"claims": [{"text": "It moved."}], "errors": ["fabrication"]}
        >>> find_false_claims({"answers": {"same": {"id": "a", "response": "No. It moved.", **claims}}})
        {'a': [(4, 13)]}
    """
    answers = record.get("answers")
    by_id = {}
    for answer in answers.values() if isinstance(answers, dict) else ():
        if not isinstance(answer, dict) or not {"id", "response", "claims"} <= answer.keys():
            continue
        parts = []
        for claim, error in zip(answer["claims"] or (), answer.get("errors") or (), strict=False):
            place = answer["response"].find(claim.get("text") or "\0") if error is not None else -1
            if place >= 0:
                parts.append((place, place + len(claim["text"])))
        if parts:
            by_id[answer["id"]] = parts
    return by_id


Direction = Literal["higher", "lower", "neither"]
"""Which way a metric is better."""

Combine = Callable[[np.ndarray], np.ndarray]
"""A function from summed counts [..., column] to a metric [...]."""


@dataclass(frozen=True)
class Parts:
    """The counts of each sample of a metric, so that two metrics of the same samples can be compared in
    pairs.

    Attributes:
        rows: the distinct rows of counts, [row, column].
        index: the row of each sample, [sample]. It is -1 for a sample that could not be scored.
        combine: computes the metric from summed counts.
        ids: ids of the samples. None until `with_ids` sets them.
        groups: the set of images of each sample, [sample]. None until `with_groups` sets them.
    """

    rows: np.ndarray
    index: np.ndarray
    combine: Combine
    ids: tuple[str, ...] | None = None
    groups: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class Metric(Estimate[float | None]):
    """One number of a benchmark with its interval over sets of images.

    Attributes:
        value: the number. None where it is undefined: nothing was scored, or it divides by zero.
        low, high: the ends of the interval. None for fewer than two sets.
        coverage: share of the samples that it rests on. None if there are no samples.
        direction: which way is better.
        range: smallest and largest possible value. None where there is no bound.
        unread: how many answers nobody could read; None where the metric is not about answers that are read.
        bounds: what the value would be if the unread answers were as bad, and as good, as can be. None without unread ones.
        parts: the counts that it was computed from, for comparisons. They are not written to files.

    Example:
        >>> print(mean_metric([1.0, 1.0, 1.0], "higher"))
        1.000 [0.439, 1.000]
    """

    coverage: float | None
    direction: Direction
    range: tuple[float | None, float | None]
    unread: int | None = None
    bounds: tuple[float | None, float | None] | None = None
    parts: Parts | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the fields in the order of results.json, where the sets of images are called groups.

        Example:
            >>> list(mean_metric([1.0, 1.0, 1.0], "higher").to_json())
            ['value', 'n', 'coverage', 'low', 'high', 'direction', 'range', 'n_groups']
        """
        own = super().to_json()
        return {
            "value": own["value"],
            "n": own["n"],
            "coverage": self.coverage,
            "low": own["low"],
            "high": own["high"],
            "direction": self.direction,
            "range": self.range,
            "n_groups": self.sets,
            **({} if self.unread is None else {"unread": self.unread, "bounds": self.bounds}),
        }

    @property
    def remark(self) -> str:
        """What the unread answers make of the value; nothing if there are none.

        Example:
            >>> accuracy_metrics("accuracy", [True, True, False, None])["accuracy"].remark
            '1 unread counts as wrong; at most 0.750'
        """
        if not self.unread:
            return ""
        low, high = self.bounds or (None, None)
        worst, best = (low, high) if self.direction != "lower" else (high, low)
        verb = "counts" if self.unread == 1 else "count"
        if self.direction == "higher" and self.value is not None and self.value == low:
            return f"{self.unread} unread {verb} as wrong; at most {format_number(best, '.3f')}"
        ends = " and ".join(format_number(end, ".3f") for end in (low, high))
        return (
            f"{self.unread} unread; between {ends}"
            if worst is not None or best is not None
            else f"{self.unread} unread"
        )


def with_ids(metrics: Mapping[str, Metric], ids: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics with the ids of their samples, in the order of the samples.

    Only metrics with ids have paired differences, and only where each id occurs once. Where a metric has one
    value a pair or image, the ids name pairs or images. They must not depend on the answers. Raises
    ValueError for another number of ids than of values.

    Example:
        >>> metrics = with_ids({"accuracy": mean_metric([1.0, None], "higher")}, ["0001", "0002"])
        >>> metrics["accuracy"].parts.ids
        ('0001', '0002')
    """
    names = tuple(ids)
    updated = dict(metrics)
    for name, metric in metrics.items():
        if metric.parts is None:
            continue
        if len(metric.parts.index) != len(names):
            raise ValueError(f"{name}: made of {len(metric.parts.index)} values, not of {len(names)} samples")
        if len(set(names)) == len(names):
            updated[name] = replace(metric, parts=replace(metric.parts, ids=names))
    return updated


def with_groups(metrics: Mapping[str, Metric], groups: Mapping[str, int]) -> dict[str, Metric]:
    """Return the metrics with intervals that draw whole sets of images. Metrics without ids stay.

    `groups` gives the number of the set of images, by id or by its part before a slash. Another sample is a
    its own set.

    Example:
        >>> metric = with_ids({"accuracy": mean_metric([1.0, 1.0, 0.0, 0.0], "higher")}, "abcd")["accuracy"]
        >>> grouped = with_groups({"accuracy": metric}, {"a": 0, "b": 0, "c": 1, "d": 1})["accuracy"]
        >>> grouped.n, grouped.sets, grouped.low < metric.low
        (4, 2, True)
    """
    return {name: _with_groups(metric, groups) for name, metric in metrics.items()}


def group_by_images(metrics: Mapping[str, Metric], samples: Sequence[Sample]) -> dict[str, Metric]:
    """Return `with_groups` of metrics, whose ids name samples, pairs or images.

    Of the questions that were asked, `samples`, those about the same images or pair are one set.

    Example:
        >>> samples = [Sample(id=name, question="?", images=["1.png"]) for name in "ab"]
        >>> metrics = with_ids({"accuracy": mean_metric([1.0, 0.0], "higher")}, "ab")
        >>> group_by_images(metrics, samples)["accuracy"].sets
        1
    """
    groups: dict[str, int] = {}
    for sample, number in zip(samples, image_sets(samples).tolist(), strict=True):
        image = f"{sample.metadata.get('subtask')}/{sample.metadata.get('image')}"  # as MME counts
        names = (sample.id, sample.pair_id, image)
        groups |= {str(name): number for name in names if name is not None and str(name) not in groups}
    return with_groups(metrics, groups)


def _with_groups(metric: Metric, groups: Mapping[str, int]) -> Metric:
    if metric.parts is None or metric.parts.ids is None:
        return metric
    others = itertools.count(max(groups.values(), default=-1) + 1)
    known = [groups.get(name, groups.get(name.partition("/")[0])) for name in metric.parts.ids]
    numbers = np.array([next(others) if number is None else number for number in known], int)
    parts = replace(metric.parts, groups=numbers)
    sets = len(np.unique(numbers[parts.index >= 0]))
    if sets == metric.n:
        return replace(metric, parts=parts)
    low, high = _interval(parts, metric.range)
    return replace(metric, parts=parts, low=low, high=high, sets=sets)


def ratio(sums: np.ndarray) -> np.ndarray:
    """Return the first of two counts [..., 2] divided by the second, [...]."""
    return sums[..., 0] / sums[..., 1]


def share(numerator: int | Sequence[int], denominator: int | Sequence[int]) -> Combine:
    """Return the function from counts [..., column] to the sum of some columns divided by that of others."""
    above, below = (list(np.atleast_1d(columns)) for columns in (numerator, denominator))
    return lambda counts: counts[..., above].sum(-1) / counts[..., below].sum(-1)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def mean_metric(
    values: Sequence[float | None],
    direction: Direction,
    range: tuple[float | None, float | None] = (0.0, 1.0),
    unread: Sequence[bool] | None = None,
) -> Metric:
    """Return the mean of one value a sample. None, for a sample without a score, lowers the coverage.

    `unread` says which answers nobody could read, whatever they count as: they may have any value of the range.

    Example:
        >>> metric = mean_metric([1.0, 0.0, None, 1.0], "higher")
        >>> round(metric.value, 3), metric.n, metric.coverage
        (0.667, 3, 0.75)
    """
    rows = [None if value is None else (float(value), 1.0) for value in values]
    if unread is None:
        return count_metric(rows, ratio, direction, range)
    ends = [
        [(end, 1.0) if is_unread else row for row, is_unread in zip(rows, unread, strict=True)]
        if end is not None
        else None
        for end in range
    ]
    return with_bounds(count_metric(rows, ratio, direction, range), sum(unread), ratio, *ends)


def with_bounds(
    metric: Metric,
    unread: int,
    combine: Combine,
    least: Sequence[Sequence[float] | None] | None,
    most: Sequence[Sequence[float] | None] | None,
) -> Metric:
    """Return a metric that says how many answers are unread, and what it would be with them at both ends.

    `least` and `most` are the counts of `count_metric` with other counts of the unread answers; None where there is no end.

    Example:
        >>> counts, least, most = [(1, 1), None], [(1, 1), (0, 1)], [(1, 1), (1, 1)]
        >>> with_bounds(count_metric(counts, ratio, "lower"), 1, ratio, least, most).bounds
        (0.5, 1.0)
    """
    ends = []
    for rows in (least, most):
        known = [row for row in rows or () if row is not None]
        with np.errstate(invalid="ignore", divide="ignore"):
            ends.append(_finite(float(combine(np.array(known, float).sum(0)))) if known else None)
    return replace(metric, unread=unread, bounds=(ends[0], ends[1]) if unread else None)


def accuracy_metrics(
    name: str,
    right: Sequence[bool | None],
    asked: Sequence[bool] | None = None,
    direction: Direction = "higher",
) -> dict[str, Metric]:
    """Return the share of right answers of all that were asked, and as `NAME[read]` of those that were read.

    An answer is right, not right, or unread (None): it counts as wrong, as in VLMEvalKit and lmms-eval. Questions without an
    answer (not `asked`) lower the coverage.

    Example:
        >>> metrics = accuracy_metrics("accuracy", [True, False, None])
        >>> round(metrics["accuracy"].value, 3), metrics["accuracy[read]"].value, metrics["accuracy"].bounds
        (0.333, 0.5, (0.3333333333333333, 0.6666666666666666))
    """
    known = [True] * len(right) if asked is None else asked
    values = [float(value is True) if was else None for value, was in zip(right, known, strict=True)]
    unread = [was and value is None for value, was in zip(right, known, strict=True)]
    read = [
        float(value) if was and value is not None else None for value, was in zip(right, known, strict=True)
    ]
    return {
        name: mean_metric(values, direction, unread=unread),
        f"{name}[read]": mean_metric(read, direction),
    }


def change_metric(
    after: Sequence[float | None],
    before: Sequence[float | None],
    direction: Direction,
    asked: Sequence[bool] | None = None,
    unread: float | None = 0.0,
) -> Metric:
    """Return the mean change of a value from 0 to 1, over the samples that have both.

    With `asked`, which were asked both ways, a None of these is unread: it counts as `unread`, or is left out where that is
    None, and the bounds say what the change is between.

    Example:
        >>> change_metric([True, 1.0, None], [False, 1.0, 1.0], "higher").value
        0.5
        >>> change_metric([True, 1.0, None], [False, 1.0, 1.0], "higher", [True] * 3).bounds
        (0.0, 0.3333333333333333)
    """
    pairs = list(zip(after, before, strict=True))
    if asked is None:
        changes = [None if a is None or b is None else float(a) - float(b) for a, b in pairs]
        return mean_metric(changes, direction, (-1.0, 1.0))

    def count(unread_after: float | None, unread_before: float | None) -> list[tuple[float, float] | None]:
        filled = [
            (unread_after if a is None else float(a), unread_before if b is None else float(b))
            for a, b in pairs
        ]
        return [
            (a - b, 1.0) if was and a is not None and b is not None else None
            for (a, b), was in zip(filled, asked, strict=True)
        ]

    n_unread = sum(was and None in pair for pair, was in zip(pairs, asked, strict=True))
    metric = count_metric(count(unread, unread), ratio, direction, (-1.0, 1.0))
    return with_bounds(metric, n_unread, ratio, count(0.0, 1.0), count(1.0, 0.0))


def count_metric(
    counts: Sequence[Sequence[float] | None],
    combine: Combine,
    direction: Direction,
    range: tuple[float | None, float | None] = (0.0, 1.0),
) -> Metric:
    """Return a metric of counts that are summed over samples first, such as a micro F1.

    `counts` are [sample][column], None for a sample that could not be scored. `combine` computes the metric
    [...] from summed counts [..., column], NaN where it is undefined.

    Example:
        >>> precision = count_metric([(1, 2), (3, 3)], lambda sums: sums[..., 0] / sums[..., 1], "higher")
        >>> precision.value, precision.n
        (0.8, 2)
    """
    scored = np.array([row is not None for row in counts], bool)
    if not scored.any():
        coverage = 0.0 if len(counts) else None
        return Metric(None, None, None, 0, 0, coverage=coverage, direction=direction, range=range)
    numbers = np.array([row for row in counts if row is not None], float)
    rows, inverse = np.unique(numbers, axis=0, return_inverse=True)
    index = np.full(len(scored), -1, np.int32)
    index[scored] = inverse.ravel()
    parts = Parts(rows, index, combine)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(combine(numbers.sum(0)))
    low, high = _interval(parts, range)
    n = len(numbers)
    return Metric(
        _finite(value),
        low,
        high,
        n,
        n,
        coverage=n / len(scored),
        direction=direction,
        range=range,
        parts=parts,
    )


def _interval(parts: Parts, range: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    """Return the interval over groups. The share of samples with some property gets that of a share."""
    scored = parts.index >= 0
    groups = None if parts.groups is None else parts.groups[scored]
    counts = parts.rows[parts.index[scored]]
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.asarray(parts.combine(parts.rows), float)[parts.index[scored]]
        total = parts.combine(counts.sum(0))
    known = np.isfinite(values)
    binary = np.isin(values[known], (0, 1)).all()
    if known.any() and binary and math.isclose(total, values[known].mean(), abs_tol=1e-12):
        low, high = mean_interval(values[known], None if groups is None else groups[known])
    else:
        low, high = sums_interval(parts.combine, counts, groups, range)
    return _finite(float(low)), _finite(float(high))


def f1(counts: np.ndarray) -> np.ndarray:
    """Return F1 [...] of counts [..., (matched, claimed, true)]. NaN where nothing was claimed and nothing is
    true.

    Example:
        >>> float(f1(np.array([2.0, 4.0, 2.0])))
        0.6666666666666666
    """
    return 2 * counts[..., 0] / (counts[..., 1] + counts[..., 2])


_UNDEFINED = Estimate(math.nan, math.nan, math.nan)


def paired_difference(metric: Metric | None, baseline: Metric | None) -> Estimate[float]:
    """Return a metric minus a baseline over the samples of both, with a paired 95 % interval.

    Sets of images are drawn whole, for both metrics at once. The result for a mean is the mean difference of
    the samples; for a number made of sums (F1, MME's score) it is the difference of the two numbers. All
    numbers are NaN and n is 0 where a metric is None or has no sample ids (`with_ids`). The interval
    is NaN for fewer than two sets of images. A metric minus itself is 0, without width.

    Example:
        >>> first, second = (
        ...     with_ids({"m": mean_metric(values, "higher")}, "abc")["m"] for values in ([1, 1, 0], [0, 1, None])
        ... )
        >>> difference = paired_difference(first, second)
        >>> difference.value, difference.n
        (0.5, 2)
    """
    shared = _shared_ids(metric, baseline)
    if metric is None or baseline is None or not shared:
        return _UNDEFINED
    both = _paired_sums(metric, baseline, shared)
    with np.errstate(invalid="ignore", divide="ignore"):
        value, minus = (parts.combine(sums.sum(0)) for parts, sums in both)
        without, minus_without = (parts.combine(sums.sum(0) - sums) for parts, sums in both)
    difference = np.asarray(value - minus, float)
    if metric is baseline:
        return Estimate(0.0, 0.0, 0.0, len(shared)) if np.isfinite(difference) else _UNDEFINED
    smallest, largest = metric.range
    width = None if smallest is None or largest is None else largest - smallest
    ends = (None if width is None else -width, width)
    low, high = jackknife_interval(difference, np.asarray(without - minus_without, float), ends)
    finite = float(difference) if np.isfinite(difference) else math.nan
    return Estimate(finite, float(low), float(high), len(shared))


def paired_p(metric: Metric | None, baseline: Metric | None) -> float:
    """Return the two-sided p that a metric is the baseline's, over the samples of both; NaN without any (`exchange_p`).

    Example:
        >>> first, second = (
        ...     with_ids({"m": mean_metric([value] * 8, "higher")}, "abcdefgh")["m"] for value in (1.0, 0.0)
        ... )
        >>> paired_p(first, second) == 2 / 2**8
        True
    """
    shared = _shared_ids(metric, baseline)
    if metric is None or baseline is None or not shared:
        return math.nan
    (parts, sums), (_, baseline_sums) = _paired_sums(metric, baseline, shared)
    return exchange_p(parts.combine, sums, baseline_sums)


def _paired_sums(
    metric: Metric, baseline: Metric, shared: list[str]
) -> tuple[tuple[Parts, np.ndarray], tuple[Parts, np.ndarray]]:
    """Return the counts of both by set of images, [set, column], without sets that have none."""
    assert metric.parts is not None and baseline.parts is not None
    rows, baseline_rows = _row_by_id(metric.parts), _row_by_id(baseline.parts)
    groups = _groups_of(metric.parts, shared)
    sums = sum_groups(metric.parts.rows[[rows[name] for name in shared]], groups)
    baseline_sums = sum_groups(baseline.parts.rows[[baseline_rows[name] for name in shared]], groups)
    counted = (sums != 0).any(1) | (baseline_sums != 0).any(1)
    return (metric.parts, sums[counted]), (baseline.parts, baseline_sums[counted])


def values_on_shared(metric: Metric | None, baseline: Metric | None) -> tuple[float, float]:
    """Return a metric and a baseline over the samples of both, whose difference `paired_difference` is; NaN without any.

    Example:
        >>> first, second = (
        ...     with_ids({"m": mean_metric(values, "higher")}, "abc")["m"] for values in ([1, 1, 0], [0, 1, None])
        ... )
        >>> values_on_shared(first, second)
        (1.0, 0.5)
    """
    shared = _shared_ids(metric, baseline)
    values = []
    for each in (metric, baseline):
        if each is None or each.parts is None or not shared:
            return math.nan, math.nan
        rows = _row_by_id(each.parts)
        with np.errstate(invalid="ignore", divide="ignore"):
            values.append(float(each.parts.combine(each.parts.rows[[rows[name] for name in shared]].sum(0))))
    return values[0], values[1]


def _shared_ids(metric: Metric | None, baseline: Metric | None) -> list[str]:
    if metric is None or baseline is None or metric.parts is None or baseline.parts is None:
        return []
    rows, baseline_rows = _row_by_id(metric.parts), _row_by_id(baseline.parts)
    return [name for name in rows if name in baseline_rows]


def _groups_of(parts: Parts, names: list[str]) -> np.ndarray | None:
    """Return the set of images of each of some samples; None where each is its own."""
    if parts.groups is None or parts.ids is None:
        return None
    group = dict(zip(parts.ids, parts.groups.tolist(), strict=True))
    return np.array([group[name] for name in names])


def _row_by_id(parts: Parts) -> dict[str, int]:
    """Return the row of counts of each scored sample, by id."""
    return {name: row for name, row in zip(parts.ids or (), parts.index.tolist(), strict=False) if row >= 0}


def metrics_by_group(
    key: str,
    groups: Sequence[str | None],
    compute: Callable[[list[int]], Mapping[str, Metric]],
    smallest: int = 1,
) -> dict[str, Metric]:
    """Return the metrics of each group of samples, as `NAME[key=group]`. A group of None is none.

    `compute` makes metrics from the indices of samples; those of the answers that were read (`NAME[read]`) are left out.
    With fewer groups than `smallest` there are no metrics.

    Example:
        >>> values = [1.0, 0.0, 1.0]
        >>> by_size = metrics_by_group(
        ...     "size", ["big", "small", "big"], lambda indices: {"m": mean_metric([values[i] for i in indices], "higher")}
        ... )
        >>> by_size["m[size=big]"].value, by_size["m[size=small]"].value
        (1.0, 0.0)
    """
    members: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        if group is not None:
            members.setdefault(group, []).append(index)
    if len(members) < smallest:
        return {}
    return {
        f"{name}[{key}={group}]": metric
        for group, indices in members.items()
        for name, metric in compute(indices).items()
        if not name.endswith("[read]")
    }


def write_results(
    out: str | Path,
    benchmark: str,
    metrics: Mapping[str, Metric],
    samples: Iterable[Mapping[str, Any]],
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write `results.json` and `samples.jsonl` to a folder; each appears only when it is complete.

    `samples` contains one record a sample, `about` what else a reader should know. Returns the path of
    `results.json`.

    Example:
        >>> write_results("out", "pope", {"accuracy": mean_metric([1.0], "higher")}, [])  # doctest: +SKIP
        PosixPath('out/results.json')
    """
    out = Path(out)
    make_folders(out)
    lines = "".join(json.dumps(sample, ensure_ascii=False, allow_nan=False) + "\n" for sample in samples)
    write_atomic(out / "samples.jsonl", lines)
    content = {
        "benchmark": benchmark,
        "metrics": {name: metric.to_json() for name, metric in metrics.items()},
        **(about or {}),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return write_atomic(out / "results.json", text)
