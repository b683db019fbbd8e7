"""Metrics with direction, range, n, coverage and interval, and the result folder of a benchmark."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmprobe.analyses.statistics import CONFIDENCE, RESAMPLES, bootstrap_mean
from mmprobe.benchmarks.core.jsonl import write_atomic

Direction = Literal["higher", "lower", "neither"]
"""Which way a metric is better."""

Combine = Callable[[np.ndarray], np.ndarray]
"""A function from summed counts [..., column] to a metric [...]."""


@dataclass(frozen=True)
class Parts:
    """The counts of each sample behind a metric, so that two metrics of the same samples can be compared in
    pairs.

    Attributes:
        rows: the distinct rows of counts, [row, column].
        index: the row of each sample, [sample]. It is -1 for a sample that could not be scored.
        combine: computes the metric from summed counts.
        ids: ids of the samples. None until `with_ids` sets them.
    """

    rows: np.ndarray
    index: np.ndarray
    combine: Combine
    ids: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Metric:
    """One number of a benchmark with its interval.

    Attributes:
        value: the number. None where it is undefined: nothing was scored, or it divides by zero.
        n: number of samples behind it.
        coverage: share of the samples that it rests on. None if there are no samples.
        low, high: 95 % bootstrap interval over samples. None for fewer than two samples.
        direction: which way is better.
        range: smallest and largest possible value. None where there is no bound.
        parts: the counts behind it, for comparisons. They are not written to files.

    Example:
        >>> print(mean_metric([0.5, 0.5], "higher"))
        0.500 [0.500, 0.500]
    """

    value: float | None
    n: int
    coverage: float | None
    low: float | None
    high: float | None
    direction: Direction
    range: tuple[float | None, float | None]
    parts: Parts | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """Format the value with its interval."""
        if self.value is None:
            return "undefined"
        interval = "" if self.low is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.value:.3f}{interval}"


def with_ids(metrics: Mapping[str, Metric], ids: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics with the ids of their samples, in the order of the samples.

    `mmprobe compare` computes paired differences only for metrics with ids, and only where no id stands
    twice. Where a metric has one value a pair or image, the ids name pairs or images. The ids must not depend
    on the answers.

    Raises:
        ValueError: the number of ids differs from the number of values.

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


def make_parts(counts: np.ndarray, scored: np.ndarray, combine: Combine) -> Parts:
    """Return the parts of a metric.

    Args:
        counts: counts of the scored samples, [scored sample, column].
        scored: whether each sample was scored, [sample].
        combine: computes the metric from summed counts.

    Example:
        >>> make_parts(np.array([[1.0], [1.0]]), np.array([True, False, True]), lambda sums: sums[..., 0]).index
        array([ 0, -1,  0], dtype=int32)
    """
    rows, inverse = np.unique(counts, axis=0, return_inverse=True)
    index = np.full(len(scored), -1, np.int32)
    index[scored] = inverse.ravel()
    return Parts(rows, index, combine)


def ratio(sums: np.ndarray) -> np.ndarray:
    """Return the first of two counts [..., 2] divided by the second, [...]."""
    return sums[..., 0] / sums[..., 1]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def mean_metric(
    values: Sequence[float | None],
    direction: Direction,
    range: tuple[float | None, float | None] = (0.0, 1.0),
) -> Metric:
    """Return the mean of one value a sample.

    Args:
        values: one a sample. None marks a sample that could not be scored, which lowers the coverage.
        direction: which way is better.
        range: smallest and largest possible value.

    Example:
        >>> metric = mean_metric([1.0, 0.0, None, 1.0], "higher")
        >>> round(metric.value, 3), metric.n, metric.coverage
        (0.667, 3, 0.75)
    """
    numbers = np.array([value for value in values if value is not None], float)
    scored = np.array([value is not None for value in values], bool)
    low, high = bootstrap_mean(numbers)
    mean = float(numbers.mean()) if len(numbers) else math.nan
    return Metric(
        value=_finite(mean),
        n=len(numbers),
        coverage=len(numbers) / len(values) if len(values) else None,
        low=_finite(float(low)),
        high=_finite(float(high)),
        direction=direction,
        range=range,
        parts=make_parts(np.stack([numbers, np.ones(len(numbers))], -1), scored, ratio),
    )


def count_metric(
    counts: Sequence[Sequence[float] | None],
    combine: Combine,
    direction: Direction,
    range: tuple[float | None, float | None] = (0.0, 1.0),
    seed: int = 0,
) -> Metric:
    """Return a metric of counts that are summed over samples first, such as a micro F1.

    Args:
        counts: the same counts of each sample, [sample][column]. None marks a sample that could not be
            scored.
        combine: computes the metric [...] from summed counts [..., column]. NaN where it is undefined.
        direction: which way is better.
        range: smallest and largest possible value.
        seed: seed of the bootstrap over samples. Resamples with an undefined metric are left out.

    Example:
        >>> precision = count_metric([(1, 2), (3, 3)], lambda sums: sums[..., 0] / sums[..., 1], "higher")
        >>> precision.value, precision.n
        (0.8, 2)
    """
    numbers = np.array([row for row in counts if row is not None], float)
    scored = np.array([row is not None for row in counts], bool)
    low = high = value = math.nan
    parts = None
    with np.errstate(invalid="ignore", divide="ignore"):
        if len(numbers):
            value = float(combine(numbers.sum(0)))
            parts = make_parts(numbers, scored, combine)
        if parts is not None and len(numbers) > 1:
            low, high = _bootstrap_interval(parts, seed)
    return Metric(
        value=_finite(value),
        n=len(numbers),
        coverage=len(numbers) / len(counts) if len(counts) else None,
        low=_finite(low),
        high=_finite(high),
        direction=direction,
        range=range,
        parts=parts,
    )


def _bootstrap_interval(parts: Parts, seed: int) -> tuple[float, float]:
    """Return the percentile bootstrap interval over samples; NaN where every resample is undefined."""
    # Samples with the same counts are drawn together: the distribution is the same, and it is quicker.
    times = np.bincount(parts.index[parts.index >= 0])
    n = int(times.sum())
    resamples = np.random.default_rng(seed).multinomial(n, times / n, size=RESAMPLES)
    values = np.asarray(parts.combine(resamples @ parts.rows), float)
    values = values[np.isfinite(values)]
    if not len(values):
        return math.nan, math.nan
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def f1(counts: np.ndarray) -> np.ndarray:
    """Return F1 [...] of counts [..., (matched, claimed, true)]. NaN where nothing was claimed and nothing is
    true.

    Example:
        >>> float(f1(np.array([2.0, 4.0, 2.0])))
        0.6666666666666666
    """
    return 2 * counts[..., 0] / (counts[..., 1] + counts[..., 2])


def write_results(
    out: str | Path,
    benchmark: str,
    metrics: Mapping[str, Metric],
    samples: Iterable[Mapping[str, Any]],
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write `results.json` and `samples.jsonl` to a folder. Each file appears only when it is complete.

    Args:
        out: the folder. It is made if needed.
        benchmark: name of the benchmark.
        metrics: metrics by name.
        samples: one record a sample: id, prompt, answer, parsed claims, labels, scores.
        about: what else a reader should know: model, judge, profile, seed.

    Returns:
        The path of `results.json`.

    Example:
        >>> write_results("out", "pope", {"accuracy": mean_metric([1.0], "higher")}, [])  # doctest: +SKIP
        PosixPath('out/results.json')
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(sample, ensure_ascii=False, allow_nan=False) + "\n" for sample in samples)
    write_atomic(out / "samples.jsonl", lines)
    content = {
        "benchmark": benchmark,
        "metrics": {name: _to_json(metric) for name, metric in metrics.items()},
        **(about or {}),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return write_atomic(out / "results.json", text)


def _to_json(metric: Metric) -> dict[str, Any]:
    return {each.name: getattr(metric, each.name) for each in fields(metric) if each.name != "parts"}
