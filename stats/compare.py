"""Comparisons of two groups of samples: difference, effect size, tests that they differ and that they are equal.

Faithful and unfaithful samples are the most common groups (`ByLabel`); their means and their comparison are variables of
a data set.

Intervals are those of `intervals`. Questions about the same images are one set (`sets.number_sets`): sets are
drawn whole, and labels are shuffled in sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtr, stdtrit

from mmprobe.errors import InputError
from mmprobe.stats.estimate import Estimate, estimate_mean, read_estimate, stack_estimates
from mmprobe.stats.intervals import CONFIDENCE, Range, jackknife_interval, sum_groups

if TYPE_CHECKING:
    import xarray as xr


LABELS = ("all", "faithful", "unfaithful")
PERMUTATIONS = 9999
MINIMUM = 5  # samples that each group of a comparison needs; our choice
_BLOCK = 100  # permutations in memory at a time,
_MOST_LABELS = 500_000  # or fewer of many samples, so that there are at most this many labels


@dataclass(frozen=True, kw_only=True)
class Comparison(Estimate[np.ndarray]):
    """The difference of the means of two groups of samples, with its interval, effect size and test.

    The arrays have the shape of one sample's values. They are all NaN if a group is too small.

    Attributes:
        effect: Hedges' g.
        p, p_holm: of a permutation test, and adjusted for the number of layers.
        n_first, n_second: numbers of samples of the groups; n is their sum.
        note: why the groups were not compared, or "".
    """

    effect: np.ndarray
    p: np.ndarray
    p_holm: np.ndarray
    n_first: int
    n_second: int
    note: str = ""

    def all_variables(self, suffix: str, dims: str | Sequence[str]) -> dict[str, tuple[Any, ...]]:
        """Return `difference` with its interval, `effect`, `p` and `p_holm`, each with the suffix, for a data set.

        Example:
            >>> high, low = np.arange(20) < 10, np.arange(20) >= 10
            >>> list(compare_groups(np.where(high, 3.0, 1.0), high, low).all_variables("_mean", ()))[:3]
            ['difference_mean', 'difference_mean_low', 'difference_mean_high']
        """
        tests = {"effect": self.effect, "p": self.p, "p_holm": self.p_holm}
        named = {f"{name}{suffix}": (dims, array) for name, array in tests.items()}
        return self.variables(f"difference{suffix}", dims) | named


def compare_groups(
    values: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    minimum: int = MINIMUM,
    names: tuple[str, str] = ("first", "second"),
    sets: np.ndarray | None = None,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Comparison:
    """Compare the means of two groups of samples.

    - value: mean of the first group minus mean of the second, in the unit of the values.
    - low, high: its interval (`intervals.jackknife_interval` over sets of images). Student's t has as many
      degrees of freedom as the group with fewer sets has sets, less 1.
    - effect: Hedges' g, NaN where no value differs from its group's mean (`hedges_g`).
    - p: two-sided permutation test of the difference, (k + 1) / (permutations + 1), where k counts the
      shuffles of the labels with a difference at least as large. All values of a sample share the shuffles.
      Sets of the same size exchange their labels, and so do the samples of a set. Both leave the distribution
      as it is if the labels say nothing about the values, however alike the samples of a set are.
    - p_holm: p adjusted by Holm's step-down rule over the last axis (the layers). It equals p if a sample has
      a single value.

    Args:
        values: [sample, ...], finite in the two groups.
        first, second: bool [sample], without a sample in common.
        minimum: samples that each group needs, 2 or more. If a group has fewer, all numbers are NaN and
            `note` gives the reason.
        names: names of the groups in the note.
        sets: int [sample], the set of images of each sample. None: each sample is its own.
        permutations, seed: the defaults 9999 and 0 are our choice.

    Raises:
        InputError: minimum is under 2.
        ValueError: a value is not finite, or a sample is in both groups.

    Example:
        >>> high, low = np.arange(20) < 10, np.arange(20) >= 10
        >>> comparison = compare_groups(np.where(high, 3.0, 1.0) + np.tile([0.0, 1.0], 10), high, low)
        >>> float(comparison.value), bool(comparison.p < 0.001), comparison.n_first
        (2.0, True, 10)
    """
    first, second = np.asarray(first, bool), np.asarray(second, bool)
    if minimum < 2:
        raise InputError(f"minimum {minimum}: must be 2 or more")
    if (first & second).any():
        raise ValueError("a sample is in both groups")
    one, two = np.asarray(values, float)[first], np.asarray(values, float)[second]
    if not (np.isfinite(one).all() and np.isfinite(two).all()):
        raise ValueError("values of the groups must be finite")
    if min(len(one), len(two)) < minimum:
        nan = np.full((6, *one.shape[1:]), np.nan)
        counts = f"{len(one)} {names[0]} and {len(two)} {names[1]}"
        return Comparison(
            value=nan[0],
            low=nan[1],
            high=nan[2],
            n=len(one) + len(two),
            effect=nan[3],
            p=nan[4],
            p_holm=nan[5],
            n_first=len(one),
            n_second=len(two),
            note=f"{counts}: not compared, {minimum} of each are needed",
        )
    of_either = first | second
    sets = np.arange(of_either.sum()) if sets is None else np.asarray(sets)[of_either]
    chosen, in_first = np.asarray(values, float)[of_either], first[of_either]
    low, high = _difference_interval(chosen, in_first, sets, seed)
    p = _permutation_p(chosen, in_first, sets, permutations, seed)
    return Comparison(
        value=np.asarray(one.mean(0) - two.mean(0)),
        low=low,
        high=high,
        n=len(one) + len(two),
        sets=len(np.unique(sets)),
        effect=hedges_g(one, two),
        p=p,
        p_holm=holm(p),
        n_first=len(one),
        n_second=len(two),
    )


def _difference_interval(
    values: np.ndarray, in_first: np.ndarray, sets: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval [...] of the mean of the first group minus the mean of the others."""
    shares = bool(np.isin(values, (0, 1)).all())
    values = values - values.mean(0)
    means, left = [], []
    for mask in (in_first, ~in_first):
        weights = mask.reshape(-1, *[1] * (values.ndim - 1))
        sums, sizes = sum_groups(values * weights, sets), sum_groups(weights * 1.0, sets)
        means.append(sums.sum(0) / sizes.sum())
        with np.errstate(invalid="ignore", divide="ignore"):
            left.append((sums.sum(0) - sums) / (sizes.sum() - sizes))
    freedom = min(len(np.unique(sets[mask])) for mask in (in_first, ~in_first)) - 1
    if freedom < 1:
        unknown = np.full(values.shape[1:], np.nan)
        return unknown, unknown.copy()
    difference = np.asarray(means[0] - means[1])
    ends = (-1.0, 1.0) if shares else (None, None)
    return jackknife_interval(difference, left[0] - left[1], ends, freedom, seed)


def _permutation_p(
    values: np.ndarray, in_first: np.ndarray, sets: np.ndarray, permutations: int, seed: int
) -> np.ndarray:
    """Return the two-sided p [...] of a difference of means."""
    centred = values - values.mean(0)
    scale = np.abs(centred).max(0)
    weights = np.where(in_first, 1 / in_first.sum(), -1 / (~in_first).sum())
    observed = np.abs(np.tensordot(weights, centred, 1)) - 1e-10 * scale  # rounding must not break a tie
    rng = np.random.default_rng(seed)
    larger = np.zeros(centred.shape[1:], int)
    block = max(1, min(_BLOCK, _MOST_LABELS // len(weights)))
    for start in range(0, permutations, block):
        drawn = shuffle_in_sets(weights, sets, min(block, permutations - start), rng)
        larger += (np.abs(np.tensordot(drawn, centred, 1)) >= observed).sum(0)
    return (larger + 1) / (permutations + 1)


def shuffle_in_sets(labels: np.ndarray, sets: np.ndarray, times: int, rng: np.random.Generator) -> np.ndarray:
    """Return shuffles [time, sample] of labels [sample] that keep sets together.

    Sets of the same size exchange their labels, and so do the samples of a set.

    Example:
        >>> sets = np.array([0, 0, 1, 1, 2])
        >>> drawn = shuffle_in_sets(np.array([1, 1, 0, 0, 1]), sets, 50, np.random.default_rng(0))
        >>> bool((drawn[:, 0] == drawn[:, 1]).all()), bool((drawn[:, 4] == 1).all()), drawn[:, 0].min()
        (True, True, np.int64(0))
    """
    shuffled = np.empty((times, len(labels)), labels.dtype)
    _, number, sizes = np.unique(sets, return_inverse=True, return_counts=True)
    order = np.argsort(number, kind="stable")
    for size in np.unique(sizes):
        members = order[sizes[number[order]] == size].reshape(-1, size)  # [set, sample of the set]
        places = rng.permuted(np.tile(np.arange(len(members)), (times, 1)), axis=1)
        drawn = labels[members][places]
        if size > 1:
            drawn = rng.permuted(drawn, axis=2)
        shuffled[:, members] = drawn
    return shuffled


def hedges_g(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Return Hedges' g of two groups [sample, ...].

    It is the difference of the means over the pooled standard deviation (n - 1), times
    1 - 3 / (4 (n1 + n2 - 2) - 1); NaN where no value differs from its group's mean.

    Example:
        >>> round(float(hedges_g(np.array([2.0, 3.0, 4.0]), np.array([1.0, 2.0, 3.0]))), 6)
        0.8
    """
    freedom = len(one) + len(two) - 2
    spread = np.sqrt(((len(one) - 1) * one.var(0, ddof=1) + (len(two) - 1) * two.var(0, ddof=1)) / freedom)
    varies = spread > 1e-12 * np.maximum(np.abs(one).max(0), np.abs(two).max(0))
    g = np.full(spread.shape, np.nan)
    np.divide(one.mean(0) - two.mean(0), spread, out=g, where=varies)
    return g * (1 - 3 / (4 * freedom - 1))


def sign_flip_p(differences: np.ndarray, sets: np.ndarray) -> float:
    """Return the two-sided p that the mean of paired differences is 0; the signs of a set's differences flip together.

    Where each sample is its own set and the values are 0 and 1, it is McNemar's exact test.

    Args:
        differences: [sample], of two values of the same sample.
        sets: int [sample], the set of images of each sample.

    Example:
        >>> sign_flip_p(np.ones(8), np.arange(8)) == 2 / 2**8
        True
        >>> sign_flip_p(np.array([0.0, 1.0]), np.arange(2))  # one set that differs says nothing
        1.0
    """
    sums = np.bincount(sets, differences)[:, None]
    return exchange_p(lambda counts: counts[..., 0], sums, np.zeros_like(sums))


def exchange_p(combine: Callable[[np.ndarray], np.ndarray], first: np.ndarray, second: np.ndarray) -> float:
    """Return the two-sided p that a statistic of summed counts is the same of two that answered the same questions.

    If it made no difference who answered, the counts of a set of images might as well be exchanged between the two. All
    exchanges are tried where there are fewer than 9999, else so many random ones: (k + 1) / (9999 + 1), where k counts those
    with a difference at least as large. An exchange after which the statistic is undefined shows no difference.

    Args:
        combine: from counts [..., column] to the statistic [...], such as a share of sums.
        first, second: counts of each set of images, [set, column].

    Returns:
        NaN where the difference is undefined; 1 where fewer than two sets differ.

    Example:
        >>> right, asked = np.ones((8, 1)), np.ones((8, 1))
        >>> first, second = np.hstack([right, asked]), np.hstack([0 * right, asked])
        >>> exchange_p(lambda counts: counts[..., 0] / counts[..., 1], first, second) == 2 / 2**8
        True
    """
    halves, total = (first - second) / 2, (first + second).sum(0) / 2

    def measure(signs: np.ndarray) -> np.ndarray:
        moved = signs @ halves
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.abs(combine(total + moved) - combine(total - moved))

    observed = float(measure(np.ones(len(halves))))
    if not np.isfinite(observed):
        return float("nan")
    halves = halves[halves.any(1)]
    count = len(halves)
    if count < 2:
        return 1.0
    least = observed - 1e-10 * max(1.0, observed)  # rounding must not break a tie
    if 2**count <= PERMUTATIONS:
        signs = 2.0 * (np.arange(2**count)[:, None] >> np.arange(count) & 1) - 1
        return float((np.nan_to_num(measure(signs)) >= least).mean())
    rng = np.random.default_rng(0)
    larger = 0
    block = max(1, min(PERMUTATIONS, _MOST_LABELS // count))
    for start in range(0, PERMUTATIONS, block):
        signs = rng.choice((-1.0, 1.0), (min(block, PERMUTATIONS - start), count))
        larger += int((np.nan_to_num(measure(signs)) >= least).sum())
    return (larger + 1) / (PERMUTATIONS + 1)


def holm(p: np.ndarray) -> np.ndarray:
    """Adjust p values [..., test] by Holm's rule over the last axis; a single p value is unchanged.

    SciPy has only the control of the false discovery rate (`false_discovery_control`), which is another promise.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
        [0.03, 0.06, 0.06]
    """
    p = np.asarray(p, float)
    if not p.ndim:
        return p
    order = np.argsort(p, axis=-1)
    factor = p.shape[-1] - np.arange(p.shape[-1])
    stepped = np.maximum.accumulate(np.take_along_axis(p, order, -1) * factor, axis=-1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(stepped, 1), -1)
    return adjusted


def p_equivalent(
    values: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    margin: float,
    sets: np.ndarray,
    minimum: int = MINIMUM,
) -> np.ndarray:
    """Return p of the two one-sided tests that the means of two groups differ by less than a margin.

    A small p says that the difference is between -margin and margin (Schuirmann, 1987). The test is
    Welch's, with the standard error of sets of images in place of the one of samples. If each sample is its
    own set, it is Welch's exactly.

    Args:
        values: [sample, ...], finite in the two groups.
        first, second: bool [sample], without a sample in common.
        margin: above 0, in the unit of the values.
        sets: int [sample], the set of images of each sample.
        minimum: samples and sets of images that each group needs, else p is NaN; the default 5 is our choice.

    Returns:
        [...], the larger p of the two tests.

    Example:
        >>> first, values = np.arange(20) < 10, np.tile([0.0, 0.1], 10)
        >>> bool(p_equivalent(values, first, ~first, 0.2, np.arange(20)) < 0.001)
        True
    """
    difference, error, freedom = _measure_difference(values, first, second, sets, minimum)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = (margin - np.abs(difference)) / error  # of the nearer end of the margin
    return np.asarray(stdtr(freedom, -distance))


def estimate_difference(
    values: np.ndarray, first: np.ndarray, second: np.ndarray, sets: np.ndarray, minimum: int = MINIMUM
) -> Estimate[np.ndarray]:
    """Return the difference of the means of two groups with its 95 % interval.

    The interval is between -margin and margin if and only if `p_equivalent` is below 0.025. The arguments
    are those of `p_equivalent`.

    Example:
        >>> first, values = np.arange(20) < 10, np.tile([0.0, 1.0], 10)
        >>> difference = estimate_difference(values, first, ~first, np.arange(20))
        >>> float(difference.value), round(float(difference.high), 3)
        (0.0, 0.495)
    """
    difference, error, freedom = _measure_difference(values, first, second, sets, minimum)
    width = stdtrit(freedom, (1 + CONFIDENCE) / 2) * error
    either = np.asarray(first) | np.asarray(second)
    count = int(either.sum())
    return Estimate(difference, difference - width, difference + width, count, len(np.unique(sets[either])))


def _measure_difference(
    values: np.ndarray, first: np.ndarray, second: np.ndarray, sets: np.ndarray, minimum: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the difference of the means, its standard error over sets of images, and its degrees of freedom.

    A set adds the sum of its samples' parts in the difference, so questions about the same images are one
    observation, even if they occur in both groups.
    """
    values = np.asarray(values, float)
    unknown = np.full(values.shape[1:], np.nan)
    parts = np.zeros((2, int(sets.max(initial=0)) + 1, *values.shape[1:]))
    means, n_sets = [], []
    for part, mask in zip(parts, (first, second), strict=True):
        count = len(np.unique(sets[mask]))
        if min(mask.sum(), count) < max(2, minimum):
            return unknown, unknown, unknown
        mean = values[mask].mean(0)
        np.add.at(part, sets[mask], (values[mask] - mean) / mask.sum() * np.sqrt(count / (count - 1)))
        means.append(mean)
        n_sets.append(count)
    variances = (parts**2).sum(1)
    error = np.sqrt(((parts[0] - parts[1]) ** 2).sum(0))
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = variances.sum(0) ** 2 / sum(
            variance**2 / (count - 1) for variance, count in zip(variances, n_sets, strict=True)
        )
    freedom = np.where(np.isfinite(freedom), freedom, min(n_sets) - 1)
    return means[0] - means[1], error, freedom


def label_masks(faithful: Sequence[bool | None]) -> dict[str, np.ndarray]:
    """Return a mask bool [sample] of the samples with each label: all, faithful, unfaithful.

    A sample without a label (None) is only in `all`.

    Example:
        >>> [int(mask.sum()) for mask in label_masks([True, None, False, False]).values()]
        [4, 1, 2]
    """
    masks = [
        [True] * len(faithful),
        [label is True for label in faithful],
        [label is False for label in faithful],
    ]
    return {name: np.array(mask, bool) for name, mask in zip(LABELS, masks, strict=True)}


@dataclass(frozen=True)
class ByLabel:
    """Samples by their label: the means of each label's samples, and a comparison of two labels.

    Attributes:
        masks: bool [sample] of each label, as `label_masks` returns them.
        sets: int [sample], the set of images of each sample. None: each sample is its own.

    Example:
        >>> labels = ByLabel(label_masks([True, False, None]))
        >>> labels.means("x", np.array([[1.0], [3.0], [np.nan]]), (None, None))["x"]
        (('label', 'layer'), array([[2.],
               [1.],
               [3.]]))
        >>> labels.compare(np.zeros((3, 2)))[1]
        '1 unfaithful and 1 faithful: not compared, 5 of each are needed'
    """

    masks: Mapping[str, np.ndarray]
    sets: np.ndarray | None = None

    def counts(self) -> dict[str, Any]:
        """Return the numbers of samples: `n_label` of each label, `n_faithful` and `n_unfaithful`."""
        counts = {label: int(mask.sum()) for label, mask in self.masks.items()}
        alone = {f"n_{label}": ((), counts[label]) for label in ("faithful", "unfaithful")}
        return {"n_label": ("label", list(counts.values()))} | alone

    def means(
        self, name: str, values: np.ndarray, range: Range, dims: tuple[str, ...] = ("label", "layer")
    ) -> dict[str, Any]:
        """Return the mean of each label's samples as `name`, and its interval as `name_low` and `name_high`.

        Args:
            values: [sample, ...]; samples with a NaN are left out.
            range: smallest and largest possible value, as in `mean_interval`.
            dims: of the variables; the first is the label's.
        """
        known = self._known(values)
        means = [
            estimate_mean(values[mask & known], None if self.sets is None else self.sets[mask & known], range)
            for mask in self.masks.values()
        ]
        return stack_estimates(means).variables(name, dims)

    def compare(
        self,
        values: np.ndarray,
        dims: tuple[str, ...] = ("layer",),
        minimum: int = MINIMUM,
        suffix: str = "",
        names: tuple[str, str] = ("unfaithful", "faithful"),
    ) -> tuple[dict[str, Any], str]:
        """Compare two labels, the first minus the second, by `compare_groups`.

        Args:
            values: [sample, ...]; samples with a NaN are left out.
            dims: of the variables, which are the dimensions of `values` without the sample.
            suffix: end of the names `difference`, `effect`, `p` and `p_holm`.

        Returns:
            The variables `difference`, `difference_low`, `difference_high`, `effect`, `p` and `p_holm`, and the note.
        """
        known = self._known(values)
        first, second = (self.masks[name] & known for name in names)
        filled = np.where(known.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)
        comparison = compare_groups(filled, first, second, minimum, names, self.sets)
        return comparison.all_variables(suffix, dims), comparison.note

    def _known(self, values: np.ndarray) -> np.ndarray:
        return ~np.isnan(values.reshape(len(values), -1)).any(1)


def read_comparison(dataset: xr.Dataset, suffix: str = "") -> Comparison:
    """Return the comparison that `ByLabel.compare` made, from the variables of a data set.

    Example:
        >>> import xarray as xr
        >>> variables, _ = ByLabel(label_masks([True, False] * 5)).compare(np.arange(10.0), ())
        >>> dataset = xr.Dataset(variables | {"n_faithful": 5, "n_unfaithful": 5})
        >>> read_comparison(dataset).value
        1.0
    """
    difference = read_estimate(dataset, f"difference{suffix}")
    first, second = (int(dataset[f"n_{label}"]) for label in ("unfaithful", "faithful"))
    return Comparison(
        value=difference.value,
        low=difference.low,
        high=difference.high,
        n=first + second,
        effect=dataset[f"effect{suffix}"].values,
        p=dataset[f"p{suffix}"].values,
        p_holm=dataset[f"p_holm{suffix}"].values,
        n_first=first,
        n_second=second,
    )
