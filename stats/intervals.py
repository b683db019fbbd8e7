"""95 % intervals for everything that is counted over samples, in one place.

Questions about the same images are not independent. All functions here take the set of images that each
sample belongs to (`sets.number_sets`). What is drawn is a set with all its samples, in memory that does not
grow with the number of sets (`draw_groups`).

- A share of 0 and 1 (`share_interval`): Wilson's interval on the effective number of samples.
- Everything else: a studentised bootstrap over sets. The statistic is computed again without each set (the
  jackknife), which says how far each set pulls it. These pulls are drawn with replacement 2000 times, and
  each draw gives t = mean / standard error. The ends are value - t_high * se and value - t_low * se
  (bootstrap-t, Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 12.5; over clusters:
  Cameron, Gelbach and Miller, 2008, doi:10.1162/rest.90.3.414).

Three choices are our own, made by simulation (docs/intervals.md). Each end is at least as far away as Student's
t puts it. Its degrees of freedom are sets - 1, and fewer where few sets have most samples. No draw has a standard
error under a fifth of the sample's, so that draws of equal sets do not make the interval infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

CONFIDENCE = 0.95
SMALLEST_ERROR = 0.2  # of a draw, in standard errors of the sample; our choice
UNEQUAL_SIZES = 0.6  # how much the effective number of groups counts beside their number; our choice
_TAIL = (1 - CONFIDENCE) / 2
_COLUMNS = 512  # statistics in memory at a time
RESAMPLES = 2000
WEIGHTS = 500_000  # of groups or samples in memory at a time
_TOGETHER = 500  # most resamples at a time
_KEPT = 1000  # most groups whose draws are kept for the next statistic

Interval = tuple[np.ndarray, np.ndarray]
Range = tuple[float | None, float | None]
QUANTITY: Range = (None, None)  # the range of what has no ends, such as an effect in nat
LENGTH: Range = (0.0, None)
LOGPROB: Range = (None, 0.0)
FRACTION: Range = (0.0, 1.0)
COSINE: Range = (-1.0, 1.0)  # also of correlations, and of differences of two fractions


def mean_interval(
    values: np.ndarray, groups: np.ndarray | None, range: Range | None = None, seed: int = 0
) -> Interval:
    """Return the interval of the mean over samples, drawn in whole groups.

    Without a range, means of nothing but 0 and 1 are shares and get `share_interval`.

    Args:
        values: [sample, ...]. The interval is NaN where a value is.
        groups: int [sample], the set of images of each sample. None: each sample is its own.
        range: smallest and largest value of a quantity that is not a share: `QUANTITY` for an effect.
        seed: of the bootstrap.

    Returns:
        Low and high end [...]. Both are NaN for fewer than two groups, which do not show a spread. Where all
        values are equal, they are those of `_unseen_interval`: without a range they have no width.

    Example:
        >>> low, high = mean_interval(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 0, 1, 2]))
        >>> bool(low < 2.5 < high)
        True
        >>> low, high = mean_interval(np.array([1.0, 1.0, 1.0]), None)
        >>> round(float(low), 2), float(high)
        (0.44, 1.0)
        >>> [float(end) for end in mean_interval(np.zeros(3), None, QUANTITY)]
        [0.0, 0.0]
    """
    values = np.asarray(values, float)
    shape, values = values.shape[1:], values.reshape(len(values), int(np.prod(values.shape[1:])))
    sums, sizes = sum_groups(values, groups), sum_groups(np.ones(len(values)), groups)
    low, high = np.full((2, values.shape[1]), np.nan)
    if len(sizes) > 1:
        binary = ((values == 0) | (values == 1)).all(0) & (range is None)
        low[binary], high[binary] = share_interval(sums[:, binary], sizes)
        sums, mean = sums[:, ~binary], _finite_or_nan(values[:, ~binary].mean(0))
        others = (len(values) - sizes)[:, None]
        pulls = (sums - sizes[:, None] * mean) * (len(sizes) - 1) / others
        low[~binary], high[~binary] = _studentised(
            mean, pulls, range or QUANTITY, degrees_of_freedom(sizes), seed
        )
    return low.reshape(shape), high.reshape(shape)


def share_interval(successes: np.ndarray, trials: np.ndarray) -> Interval:
    """Return Wilson's interval (1927) of a share on the effective number of trials.

    The effective number is n / deff (Korn and Graubard, 1998). deff is the variance of the share over groups
    divided by its variance if all trials were independent, and 1 or more. Few groups show deff badly, so the
    number is also multiplied by (t of n - 1 / t of groups - 1)^2, to the power of deff - 1 where it is under 2
    (our choice). No group counts for less than one trial: the number is at least n^2 / (sum of squared group sizes), as
    if all trials of a group were the same. It is this number where all agree, which does not show what they share.

    The interval is written here, since SciPy's (`binomtest(...).proportion_ci`) and statsmodels' take whole numbers
    of independent trials, and the effective number is not whole. For groups of one trial it is SciPy's
    (tests/stats/test_intervals.py).

    Args:
        successes: [group, ...]. A trial may succeed in part, as a draw does: that varies less than 0 and 1 do, so the
            interval is then wider than need be.
        trials: [group], 1 or more each.

    Returns:
        Low and high end [...]. Both are NaN for fewer than two groups.

    Example:
        >>> low, high = share_interval(np.array([2.0, 0.0, 1.0]), np.array([2, 2, 2]))
        >>> round(float(low), 2), round(float(high), 2)
        (0.13, 0.87)
    """
    shape, k = successes.shape[1:], len(trials)
    successes = np.asarray(successes, float).reshape(k, -1)
    if k < 2:
        return np.full(shape, np.nan), np.full(shape, np.nan)
    n = float(trials.sum())
    share = successes.sum(0) / n
    variance = k / (k - 1) * ((successes - trials[:, None] * share) ** 2).sum(0) / n**2
    effect = np.full(len(share), np.inf)
    np.divide(variance * (n - 1), share * (1 - share), out=effect, where=(share > 0) & (share < 1))
    few = (stdtrit(n - 1, _TAIL) / stdtrit(k - 1, _TAIL)) ** 2
    effective = few ** np.clip(effect - 1, 0, 1) / np.maximum(effect, 1) * n
    low, high = _wilson(share, np.clip(effective, n**2 / float(trials @ trials), n))
    return low.reshape(shape), high.reshape(shape)


def sums_interval(
    combine: Callable[[np.ndarray], np.ndarray],
    counts: np.ndarray,
    groups: np.ndarray | None,
    range: Range = (None, None),
    seed: int = 0,
) -> Interval:
    """Return the interval of a statistic that is computed from sums over samples, such as F1.

    Args:
        combine: from sums [..., column] to the statistic [...].
        counts: [sample, ..., column]. Groups that add 0 to all sums are not counted.
        groups: int [sample]; None: each sample is its own.
        range: smallest and largest possible value. The ends stay within. Where no group differs, the interval
            has the width that as many groups leave open: see `_unseen_interval`.
        seed: of the bootstrap.

    Returns:
        Low and high end [...]. Both are NaN for fewer than two groups, and where the statistic needs one of
        the groups to be defined.

    Example:
        >>> counts = np.array([[1.0, 2.0], [3.0, 3.0], [1.0, 4.0]])
        >>> low, high = sums_interval(lambda sums: sums[..., 0] / sums[..., 1], counts, None)
        >>> bool(low < 5 / 9 < high)
        True
    """
    counts = np.asarray(counts, float)
    counted = (counts != 0).any(tuple(np.arange(1, counts.ndim)))
    counts, groups = counts[counted], None if groups is None else np.asarray(groups)[counted]
    sums, sizes = sum_groups(counts, groups), sum_groups(np.ones(len(counts)), groups)
    with np.errstate(invalid="ignore", divide="ignore"):
        total = sums.sum(0)
        value, without = np.asarray(combine(total), float), np.asarray(combine(total - sums), float)
    return jackknife_interval(value, without, range, degrees_of_freedom(sizes), seed)


def statistic_interval(
    statistic: Callable[[np.ndarray], np.ndarray],
    groups: np.ndarray | None,
    n: int,
    range: Range = (None, None),
) -> Interval:
    """Return the interval [...] of any smooth statistic of weighted samples, such as the weights of a fit.

    It computes the statistic for all samples but one group, for each group: use another function where
    there are many.

    Args:
        statistic: from weights [row, sample] to values [..., row].
        groups: int [sample]; None: each sample is its own.
        n: number of samples.
        range: as in `sums_interval`.

    Example:
        >>> values = np.array([1.0, 2.0, 4.0, 8.0])
        >>> low, high = statistic_interval(lambda w: w @ values / w.sum(1), None, 4)
        >>> bool(low < 3.75 < high)
        True
    """
    number = _number_groups(groups, n)
    count = int(number.max(initial=-1)) + 1
    value = np.asarray(statistic(np.ones((1, n))), float)[..., 0]
    left = [
        np.moveaxis(np.asarray(statistic((number != block[:, None]).astype(float)), float), -1, 0)
        for block in np.array_split(np.arange(count), max(1, count // 100, count * n // WEIGHTS))
    ]
    return jackknife_interval(value, np.concatenate(left), range, degrees_of_freedom(np.bincount(number)))


def jackknife_interval(
    value: np.ndarray,
    without: np.ndarray,
    range: Range = (None, None),
    freedom: float | None = None,
    seed: int = 0,
) -> Interval:
    """Return the interval of a statistic from its values without each group.

    Args:
        value: the statistic [...].
        without: the statistic without each group, [group, ...].
        range, seed: as in `sums_interval`.
        freedom: degrees of freedom of the standard error; groups - 1 by default.

    Example:
        >>> low, high = jackknife_interval(np.array(2.0), np.array([1.5, 2.0, 2.5]))
        >>> bool(low < 2 < high)
        True
    """
    value, without = _finite_or_nan(value), _finite_or_nan(without)
    shape, k = value.shape, len(without)
    if k < 2:
        return np.full(shape, np.nan), np.full(shape, np.nan)
    pulls = (k - 1) * (value - without).reshape(k, -1)
    low, high = _studentised(value.reshape(-1), pulls, range, freedom or k - 1, seed)
    return low.reshape(shape), high.reshape(shape)


def percentile_interval(
    statistic: Callable[[np.ndarray], np.ndarray], groups: np.ndarray | None, n: int
) -> Interval:
    """Return the interval of a statistic that jumps, such as a rank, from percentiles over draws of groups.

    The percentiles are those that make the interval of a mean as wide as Student's t (Hesterberg, 2015,
    doi:10.1080/00031305.2015.1089789, section 5.3). Draws for which the statistic is NaN are left out.

    Args:
        statistic: from weights [resample, sample] to values [..., resample].
        groups, n: as in `statistic_interval`.

    Returns:
        Low and high end [...]; NaN for fewer than two groups.

    Example:
        >>> median = lambda w: np.array([np.median(np.repeat([1, 2, 3, 4], row.astype(int))) for row in w])
        >>> [float(end) for end in percentile_interval(median, None, 4)]
        [1.0, 4.0]
    """
    number = _number_groups(groups, n)
    k = int(number.max(initial=-1)) + 1
    draws = draw_groups(k, 0) if k > 1 else [np.ones((1, k))]
    rows = max(1, min(100, WEIGHTS // max(n, 1)))
    blocks = (times[start : start + rows] for times in draws for start in range(0, len(times), rows))
    values = np.concatenate([statistic(block[:, number].astype(float)) for block in blocks], -1)
    if k < 2:
        return np.full(values.shape[:-1], np.nan), np.full(values.shape[:-1], np.nan)
    tail = float(ndtr(np.sqrt(k / (k - 1)) * stdtrit(k - 1, _TAIL)))
    usable = np.isfinite(values).any(-1, keepdims=True)
    filled = np.where(usable, values, 0.0)
    ends = np.nanquantile(filled, [tail, 1 - tail], axis=-1, method="inverted_cdf")
    low, high = np.where(usable[..., 0], ends, np.nan)
    return low, high


def central_range(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of the middle 95 % of values [shuffle], such as scores by chance.

    Example:
        >>> [round(end, 3) for end in central_range(np.arange(1001) / 1000)]
        [0.025, 0.975]
    """
    low, high = np.quantile(values, [_TAIL, 1 - _TAIL]).tolist()
    return low, high


def _unseen_interval(value: np.ndarray, groups: int, range: Range) -> Interval:
    """Return the interval of a value that is the same in all groups.

    Wilson's upper end of 0 of so many groups says what share of groups may be otherwise. They may be anywhere
    in the range. At an end of the range this is Wilson's interval; without a range it has no width.

    Example:
        >>> low, high = _unseen_interval(np.array(1.0), 3, (0.0, 1.0))
        >>> round(float(low), 2), float(high)
        (0.44, 1.0)
    """
    unseen = _wilson(np.zeros(1), np.array([float(groups)]))[1][0]
    smallest, largest = (value if end is None else end for end in range)
    return value - unseen * (value - smallest), value + unseen * (largest - value)


def degrees_of_freedom(sizes: np.ndarray) -> float:
    """Return the degrees of freedom of a standard error over groups of these sizes [group], 1 or more.

    It is between groups - 1 and their effective number - 1, n^2 / (sum of squared sizes) - 1. Both are the
    same for equal sizes.

    Example:
        >>> degrees_of_freedom(np.array([2, 2, 2]))
        2.0
    """
    effective = float(sizes.sum()) ** 2 / max(float(sizes @ sizes), 1.0)
    return max(1.0, (1 - UNEQUAL_SIZES) * len(sizes) + UNEQUAL_SIZES * effective - 1)


def sum_groups(values: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Return the sum of values [sample, ...] in each group, [group, ...]; the values themselves for None."""
    if groups is None or not len(values):
        return values
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(np.asarray(groups)[order], prepend=-1))
    return np.asarray(np.add.reduceat(values[order], starts, axis=0))


def _finite_or_nan(values: np.ndarray) -> np.ndarray:
    """Return NaN for what is infinite, such as a ratio to a sum of 0: no interval follows from it."""
    return np.where(np.isfinite(values), values, np.nan)


def _number_groups(groups: np.ndarray | None, n: int) -> np.ndarray:
    """Return the number of each sample's group, from 0 without gaps."""
    return np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1].ravel()


def _wilson(share: np.ndarray, n: np.ndarray) -> Interval:
    z = ndtri(1 - _TAIL)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return np.where(share == 0, 0.0, centre - half), np.where(share == 1, 1.0, centre + half)


def _studentised(value: np.ndarray, pulls: np.ndarray, range: Range, freedom: float, seed: int) -> Interval:
    """Return the studentised bootstrap interval [statistic] from pulls [group, statistic]."""
    k = len(pulls)
    low, high = np.full((2, len(value)), np.nan)
    pulls = pulls - pulls.mean(0)
    spread = np.sqrt((pulls**2).mean(0))
    error = spread / np.sqrt(k - 1)
    same = error <= 1e-10 * np.maximum(np.abs(value), 1e-5)
    low[same], high[same] = _unseen_interval(value[same], k, range)
    student = -stdtrit(freedom, _TAIL)
    drawn = np.flatnonzero(np.isfinite(spread) & ~same)
    for block in np.array_split(drawn, max(1, -(-len(drawn) // _COLUMNS))):
        t_low, t_high = _student_quantiles(pulls[:, block] / spread[block], seed)
        low[block] = value[block] - np.maximum(t_high, student) * error[block]
        high[block] = value[block] + np.maximum(-t_low, student) * error[block]
    smallest, largest = (float("nan") if end is None else end for end in range)
    return np.fmax(low, smallest) + 0 * low, np.fmin(high, largest) + 0 * high


def _student_quantiles(pulls: np.ndarray, seed: int) -> Interval:
    """Return two quantiles [statistic] of t over draws of pulls [group, statistic] of mean 0 and sd 1."""
    k = len(pulls)
    single = pulls.T.astype(np.float32)
    squared = single**2
    t = []
    for drawn in draw_groups(k, seed):
        times = drawn.T.astype(np.float32)
        mean = single @ times / k
        t.append(mean / np.sqrt(np.maximum(squared @ times / k - mean**2, SMALLEST_ERROR**2)))
    ends = np.quantile(np.concatenate(t, 1), [_TAIL, 1 - _TAIL], axis=1).astype(float) * np.sqrt(k - 1)
    return ends[0], ends[1]


def draw_groups(count: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each group is drawn with replacement, uint16 [resample, group], some resamples at a time.

    Example:
        >>> blocks = list(draw_groups(3, seed=0))
        >>> sum(map(len, blocks)), {int(total) for block in blocks for total in block.sum(1)}
        (2000, {3})
    """
    yield from _keep_draws(count, seed) if count <= _KEPT else _draw_anew(count, seed)


@lru_cache(maxsize=4)
def _keep_draws(count: int, seed: int) -> tuple[np.ndarray, ...]:
    return tuple(_draw_anew(count, seed))


def _draw_anew(count: int, seed: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    together = max(1, min(_TOGETHER, WEIGHTS // count))
    for start in range(0, RESAMPLES, together):
        rows = min(together, RESAMPLES - start)
        drawn = rng.integers(count, size=(rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.uint16)
        times.flags.writeable = False
        yield times
