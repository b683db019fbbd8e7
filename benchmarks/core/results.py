"""What every benchmark reports: metrics with direction, range, n, coverage and interval, in a result folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmprobe.analyses.statistics import CONFIDENCE, RESAMPLES, bootstrap_mean
from mmprobe.benchmarks.core.jsonl import write_whole

Direction = Literal["higher", "lower", "neither"]


Of = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Parts:
    """What each sample adds to a metric, so that two of the same samples can be compared pair by pair.

    Attributes:
        kinds: the counts that samples have, each once, [kind, column].
        which: the kind of each sample asked, [sample]; -1 for one that could not be scored.
        of: from summed counts [..., column] to the number [...].
        ids: of the samples; None until `of_samples` tells them.
    """

    kinds: np.ndarray
    which: np.ndarray
    of: Of
    ids: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Metric:
    """One number of a benchmark and what is needed to judge it.

    Attributes:
        value: None where it is undefined (nothing was scored, or it divides by nothing).
        n: samples that it rests on.
        coverage: share of the samples asked that it rests on; None if none was asked.
        low, high: bootstrap interval over samples; None for fewer than two.
        direction: which way is better.
        range: smallest and largest possible value; None where there is no bound.
        parts: what it was computed from, for comparisons; is not written to files.
    """

    value: float | None
    n: int
    coverage: float | None
    low: float | None
    high: float | None
    direction: Direction
    range: tuple[float | None, float | None]
    parts: Parts | None = field(default=None, repr=False, compare=False)


def of_samples(metrics: Mapping[str, Metric], ids: Sequence[str]) -> dict[str, Metric]:
    """The metrics with the ids of the samples whose values they were made of, in the order of these values.

    Metrics without them have no paired differences in `mmprobe compare`; nor do those where an id stands twice. Where
    values are not one a question, the ids name what they are of (a pair, a picture); they have to name the same
    whatever was answered.

    Raises:
        ValueError: a metric has not one value an id.

    Example:
        >>> found = of_samples({"accuracy": mean_metric([1.0, None], "higher")}, ["0001", "0002"])
        >>> found["accuracy"].parts.ids
        ('0001', '0002')
    """
    names = tuple(ids)
    found = dict(metrics)
    for name, metric in metrics.items():
        if metric.parts is None:
            continue
        if len(metric.parts.which) != len(names):
            raise ValueError(f"{name}: made of {len(metric.parts.which)} values, not of {len(names)} samples")
        if len(set(names)) == len(names):
            found[name] = replace(metric, parts=replace(metric.parts, ids=names))
    return found


def parts_of(rows: np.ndarray, scored: np.ndarray, of: Of) -> Parts:
    """The parts of a metric from the counts of the scored samples [scored sample, column] and who is scored [sample].

    Example:
        >>> parts_of(np.array([[1.0], [1.0]]), np.array([True, False, True]), lambda sums: sums[..., 0]).which
        array([ 0, -1,  0], dtype=int32)
    """
    kinds, inverse = np.unique(rows, axis=0, return_inverse=True)
    which = np.full(len(scored), -1, np.int32)
    which[scored] = inverse.ravel()
    return Parts(kinds, which, of)


def ratio(sums: np.ndarray) -> np.ndarray:
    """The first of two counts [..., 2] by the second."""
    return sums[..., 0] / sums[..., 1]


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def mean_metric(
    values: Sequence[float | None],
    direction: Direction,
    range: tuple[float | None, float | None] = (0.0, 1.0),
) -> Metric:
    """The mean of one value a sample; None marks a sample that could not be scored, and lowers the coverage.

    Example:
        >>> found = mean_metric([1.0, 0.0, None, 1.0], "higher")
        >>> round(found.value, 3), found.n, found.coverage
        (0.667, 3, 0.75)
    """
    scored = np.array([value for value in values if value is not None], float)
    low, high = bootstrap_mean(scored)
    mean = float(scored.mean()) if len(scored) else math.nan
    coverage = len(scored) / len(values) if len(values) else None
    given = np.array([value is not None for value in values], bool)
    parts = parts_of(np.stack([scored, np.ones(len(scored))], -1), given, ratio)
    ends = _number(float(low)), _number(float(high))
    return Metric(_number(mean), len(scored), coverage, *ends, direction, range, parts)


def count_metric(
    counts: Sequence[Sequence[float] | None],
    of: Of,
    direction: Direction,
    range: tuple[float | None, float | None] = (0.0, 1.0),
    seed: int = 0,
) -> Metric:
    """A number made of counts that are summed over samples first, such as a micro F1.

    Args:
        counts: the same counts of each sample, [sample][count]; None marks a sample that could not be scored.
        of: from summed counts [..., count] to the number [...]; NaN where it is undefined.
        seed: of the bootstrap over samples. Draws where the number is undefined are left out.

    Example:
        >>> precision = count_metric([(1, 2), (3, 3)], lambda c: c[..., 0] / c[..., 1], "higher")
        >>> precision.value, precision.n
        (0.8, 2)
    """
    scored = np.array([row for row in counts if row is not None], float)
    coverage = len(scored) / len(counts) if len(counts) else None
    low = high = value = math.nan
    parts = None
    with np.errstate(invalid="ignore", divide="ignore"):
        if len(scored):
            value = float(of(scored.sum(0)))
            parts = parts_of(scored, np.array([row is not None for row in counts]), of)
        if parts is not None and len(scored) > 1:
            # Samples with the same counts are drawn together, which gives the same distribution and is quick.
            times = np.bincount(parts.which[parts.which >= 0])
            rng = np.random.default_rng(seed)
            drawn = rng.multinomial(len(scored), times / len(scored), size=RESAMPLES)
            numbers = np.asarray(of(drawn @ parts.kinds), float)
            numbers = numbers[np.isfinite(numbers)]
            if len(numbers):
                tail = 50 * (1 - CONFIDENCE)
                low, high = np.percentile(numbers, [tail, 100 - tail])
    return Metric(_number(value), len(scored), coverage, _number(low), _number(high), direction, range, parts)


def f1(counts: np.ndarray) -> np.ndarray:
    """F1 [...] of counts [..., (matched, claimed, true)]; NaN where nothing was claimed and nothing is true.

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
    """Write `results.json` and `samples.jsonl` to a folder; each appears only when it is whole.

    Args:
        out: folder, made if needed.
        benchmark: its name.
        metrics: by name.
        samples: one object a sample: id, prompt, answer, parsed claims, labels, scores.
        about: whatever else the reader should know (model, judge, profile, seed).

    Returns:
        The results file.

    Example:
        >>> write_results("out", "pope", {"accuracy": mean_metric([1.0], "higher")}, [])  # doctest: +SKIP
        PosixPath('out/results.json')
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(sample, ensure_ascii=False, allow_nan=False) + "\n" for sample in samples)
    write_whole(out / "samples.jsonl", lines)
    content = {
        "benchmark": benchmark,
        "metrics": {name: _written(metric) for name, metric in metrics.items()},
        **(about or {}),
    }
    return write_whole(
        out / "results.json", json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )


def _written(metric: Metric) -> dict[str, Any]:
    return {each.name: getattr(metric, each.name) for each in fields(metric) if each.name != "parts"}
