"""Verdicts on claims: what a measure and its interval say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import xarray as xr

from mmprobe.stats.compare import MINIMUM, compare_groups
from mmprobe.stats.equivalence import difference_interval
from mmprobe.stats.intervals import Range, mean_interval, sums_interval

NO_PAIRS = "no such pairs"


class Finding(NamedTuple):
    """One claim, its measure, and the measured value with its interval.

    Attributes:
        source: section, figure or equation of the paper.
        n: number of answers, in words.
        verdict: `holds`, `does not hold`, `undecided`, or `no such pairs`.
        twin: name of the intervention that the claim implies (`causal_findings.TWINS`), or "" if none is known.
    """

    claim: str
    source: str
    measure: str
    value: float
    low: float
    high: float
    n: str
    verdict: str
    twin: str = ""


def to_dataset(rows: Iterable[Finding]) -> xr.Dataset:
    """Return findings as a data set over the dimension `finding`."""
    rows = list(rows)
    dtypes = {"value": float, "low": float, "high": float}
    return xr.Dataset(
        {
            name: ("finding", np.array([getattr(row, name) for row in rows], dtypes.get(name, str)))
            for name in Finding._fields
            if name != "twin"
        }
    )


def decide(low: float, high: float, expected: int) -> str:
    """Return the verdict of a claim that a value is above 0 (expected 1) or below 0 (-1), from its interval.

    Example:
        >>> decide(0.1, 0.3, 1), decide(0.1, 0.3, -1), decide(-0.1, 0.3, 1)
        ('holds', 'does not hold', 'undecided')
    """
    if not low > 0 and not high < 0:
        return "undecided"
    return "holds" if (low > 0) == (expected > 0) else "does not hold"


def mean_finding(
    claim: str,
    source: str,
    measure: str,
    values: np.ndarray,
    expected: int,
    sets: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    range: Range = (None, None),
) -> Finding:
    """Test the mean over samples.

    Args:
        values: [sample]; NaN is left out.
        expected: sign of the mean if the claim holds, 1 or -1.
        sets: int [sample], the set of images of each sample; None: each sample is its own.
        weights: [sample], of each sample in the mean; None for equal weights.
        range: smallest and largest possible value.
    """
    known = np.isfinite(values)
    values, sets = values[known], None if sets is None else sets[known]
    if weights is None:
        ends, weights = mean_interval(values, sets, range), np.ones(len(values))
    else:
        weights = weights[known]
        ends = sums_interval(_ratio, np.stack([weights * values, weights], 1), sets, range)
    low, high = (float(end) for end in ends)
    value = float(np.average(values, weights=weights)) if known.any() else np.nan
    verdict = decide(low, high, expected)
    return Finding(claim, source, measure, value, low, high, f"{known.sum()} answers", verdict)


def _ratio(sums: np.ndarray) -> np.ndarray:
    return np.asarray(sums[..., 0] / sums[..., 1])


def difference_finding(
    claim: str,
    source: str,
    measure: str,
    values: np.ndarray,
    faithful: np.ndarray,
    expected: int,
    sets: np.ndarray | None = None,
    names: tuple[str, str] = ("unfaithful", "faithful"),
) -> Finding:
    """Test the mean of unfaithful minus faithful samples, or of two other groups.

    Args:
        values: [sample]; NaN is left out.
        faithful: [sample], 0 in the first group and 1 in the second; NaN is left out.
        expected: sign of the difference if the claim holds, 1 or -1.
        sets: int [sample], the set of images of each sample; None: each sample is its own.
        names: of the two groups.
    """
    known = np.isfinite(values)
    first, second = known & (faithful == 0), known & (faithful == 1)
    comparison = compare_groups(values, first, second, sets=sets)
    value, low, high = (float(x) for x in (comparison.difference, comparison.low, comparison.high))
    n = f"{first.sum()} {names[0]}, {second.sum()} {names[1]}"
    return Finding(claim, source, measure, value, low, high, n, decide(low, high, expected))


def equivalence_finding(
    claim: str,
    source: str,
    measure: str,
    values: np.ndarray,
    faithful: np.ndarray,
    margin: float,
    sets: np.ndarray | None = None,
) -> Finding:
    """Test that unfaithful and faithful samples have the same mean, within a margin.

    The 95 % interval lies within the margin if both one-sided tests reject at 2.5 % (`p_equivalent`).

    Args:
        values, faithful, sets: as in `difference_finding`.
        margin: above 0, in the unit of the values.
    """
    known = np.isfinite(values)
    first, second = known & (faithful == 0), known & (faithful == 1)
    sets = np.arange(len(values)) if sets is None else sets
    value, low, high = (float(x) for x in difference_interval(values, first, second, sets, MINIMUM))
    verdict = "holds" if -margin < low and high < margin else "undecided"
    if low >= margin or high <= -margin:
        verdict = "does not hold"
    n = f"{first.sum()} unfaithful, {second.sum()} faithful"
    return Finding(claim, source, f"{measure}; the same within {margin:g}", value, low, high, n, verdict)
