"""A value with its 95 % interval: the one form of every number that is counted over samples, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from mmprobe.stats.intervals import Range, mean_interval, share_interval, sum_groups, sums_interval

if TYPE_CHECKING:
    import xarray as xr


Value = TypeVar("Value")


@dataclass(frozen=True)
class Estimate(Generic[Value]):
    """A number, or an array of numbers, with its 95 % interval over sets of images.

    Attributes:
        value: a float or an array [...]; NaN (None in a `Metric`) where it is undefined.
        low, high: the ends of the interval, of the same shape; NaN or None where there is none.
        n: number of samples that it rests on; an int array [...] where the values differ in it.
        sets: number of sets of images that they are about; None where nobody counted them.

    Example:
        >>> print(Estimate(0.5, 0.25, 0.75, n=12, sets=6))
        0.500 [0.250, 0.750]
        >>> f"{Estimate(0.5, 0.25, 0.75):.0%}"
        '50% [25%, 75%]'
        >>> print(Estimate(-1.39e-17, float("nan"), float("nan"), n=1))
        0.000
    """

    value: Value
    low: Value
    high: Value
    n: Any = 0
    sets: int | None = None

    def __str__(self) -> str:
        """Format the value with its interval, with three digits after the point."""
        return format(self, ".3f")

    def __format__(self, spec: str) -> str:
        """Format the number, then its interval in brackets where there is one; all three by the same format."""
        if not _is_finite(self.value):
            return "undefined"
        spec = spec or ".3f"
        value: Any = self.value
        low: Any = self.low
        high: Any = self.high
        return format_number(value, spec) + format_interval(low, high, spec)

    def __getitem__(self, index: Any) -> Estimate[Any]:
        """Return some of the numbers of an estimate of arrays.

        Example:
            >>> Estimate(np.array([0.5, 0.1]), np.array([0.25, 0.0]), np.array([0.75, 0.3]))[0].low.item()
            0.25
        """
        value, low, high = (np.asarray(each)[index] for each in (self.value, self.low, self.high))
        return Estimate(value, low, high, self.n, self.sets)

    @property
    def sign(self) -> int:
        """1 if the interval is above 0, -1 if it is below, 0 if it includes 0 or is missing.

        Example:
            >>> Estimate(0.5, 0.25, 0.75).sign, Estimate(-0.5, -1.0, 0.0).sign
            (1, 0)
        """
        low: Any = self.low
        high: Any = self.high
        if not _is_finite(low) or not _is_finite(high):
            return 0
        return int(low > 0) - int(high < 0)

    def to_json(self) -> dict[str, Any]:
        """Return value, low, high, n and, where they were counted, sets, for JSON; undefined numbers are None.

        Example:
            >>> Estimate(0.5, float("nan"), float("nan"), n=1).to_json()
            {'value': 0.5, 'low': None, 'high': None, 'n': 1}
        """
        ends = {name: _to_json(getattr(self, name)) for name in ("value", "low", "high")}
        return {**ends, "n": _to_json(self.n)} | ({} if self.sets is None else {"sets": self.sets})

    def variables(
        self, name: str, dims: str | Sequence[str] = (), n: str | None = None
    ) -> dict[str, tuple[Any, ...]]:
        """Return `name`, `name_low` and `name_high`, as `xarray.Dataset.assign` takes them, and the counts if `n` names them.

        Example:
            >>> sorted(Estimate(0.5, 0.25, 0.75).variables("share"))
            ['share', 'share_high', 'share_low']
        """
        ends = {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}
        return {end: (dims, numbers) for end, numbers in ends.items()} | (
            {} if n is None else {n: (dims if np.ndim(self.n) else (), self.n)}
        )


def read_estimate(dataset: xr.Dataset, name: str) -> Estimate[Any]:
    """Return a variable of a data set with its interval, as `Estimate.variables` names them.

    Arrays have the dimensions of the variable; a variable without dimensions gives plain numbers.

    Example:
        >>> import xarray as xr
        >>> dataset = xr.Dataset(Estimate(0.5, 0.25, 0.75).variables("share"))
        >>> print(read_estimate(dataset, "share"))
        0.500 [0.250, 0.750]
    """
    arrays = (dataset[f"{name}{end}"] for end in ("", "_low", "_high"))
    value, low, high = (array.values if array.dims else array.item() for array in arrays)
    return Estimate(value, low, high)


def estimate_mean(values: np.ndarray, sets: np.ndarray | None, range: Range | None = None) -> Estimate[Any]:
    """Return the mean of values [sample, ...] over samples; NaN without samples. See `mean_interval`.

    Example:
        >>> print(estimate_mean(np.array([1.0, 1.0, 1.0]), None))
        1.000 [0.439, 1.000]
    """
    values = np.asarray(values, float)
    low, high = mean_interval(values, sets, range)
    mean = values.mean(0) if len(values) else np.full(values.shape[1:], np.nan)
    return _estimate(mean, low, high, len(values), sets)


def estimate_share(successes: np.ndarray, trials: np.ndarray, sets: np.ndarray | None) -> Estimate[Any]:
    """Return a share of trials, of which a sample may have several. See `share_interval`.

    Args:
        successes: [sample, ...], at most the sample's trials; a trial may succeed in part.
        trials: [sample], 1 or more each.

    Example:
        >>> print(estimate_share(np.array([2.0, 0.0, 1.0]), np.array([2, 1, 2]), None))
        0.600 [0.222, 0.887]
    """
    low, high = share_interval(sum_groups(successes, sets), sum_groups(trials, sets))
    return _estimate(successes.sum(0) / trials.sum(), low, high, int(trials.sum()), sets)


def estimate_from_sums(
    combine: Callable[[np.ndarray], np.ndarray],
    counts: np.ndarray,
    sets: np.ndarray | None,
    range: Range = (None, None),
    seed: int = 0,
) -> Estimate[Any]:
    """Return a statistic that is computed from sums over samples, such as F1. See `sums_interval`.

    Example:
        >>> counts = np.array([[1.0, 2.0], [3.0, 3.0], [1.0, 4.0]])
        >>> round(estimate_from_sums(lambda sums: sums[..., 0] / sums[..., 1], counts, None).value, 3)
        0.556
    """
    counts = np.asarray(counts, float)
    low, high = sums_interval(combine, counts, sets, range, seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = np.asarray(combine(counts.sum(0)), float)
    return _estimate(value, low, high, len(counts), sets)


def estimate_known(values: np.ndarray, sets: np.ndarray, range: Range | None = None) -> Estimate[np.ndarray]:
    """Return the mean of values [sample, ...] over the samples that are not NaN there. See `mean_interval`.

    Example:
        >>> means = estimate_known(np.array([[1.0, 1.0], [2.0, 4.0], [np.nan, 7.0]]), np.arange(3))
        >>> means.value.tolist(), means.n.tolist()
        ([1.5, 4.0], [2, 3])
    """
    shape, columns = values.shape[1:], values.reshape(len(values), -1)
    known = np.isfinite(columns)
    ends = np.full((3, columns.shape[1]), np.nan)
    for mask in np.unique(known, axis=1).T:
        alike = (known == mask[:, None]).all(0)
        mean = estimate_mean(columns[mask][:, alike], sets[mask], range)
        ends[:, alike] = mean.value, mean.low, mean.high
    value, low, high = ends.reshape(3, *shape)
    return Estimate(value, low, high, known.sum(0).reshape(shape))


def stack_estimates(
    estimates: Sequence[Estimate[Any]], shape: tuple[int, ...] | None = None
) -> Estimate[np.ndarray]:
    """Return estimates of one shape as one estimate [estimate, ...], with `n` of each.

    Args:
        shape: of the first dimensions, instead of one for all estimates.

    Example:
        >>> both = stack_estimates([Estimate(0.5, 0.25, 0.75, n=4), Estimate(0.1, 0.0, 0.3, n=5)])
        >>> both.high.tolist(), both.n.tolist()
        ([0.75, 0.3], [4, 5])
    """
    first = (len(estimates),) if shape is None else shape

    def stack(name: str, dtype: type) -> np.ndarray:
        array: np.ndarray = np.array([getattr(estimate, name) for estimate in estimates], dtype)
        return array.reshape(first + array.shape[1:])

    return Estimate(stack("value", float), stack("low", float), stack("high", float), stack("n", int))


def subtract_shares(first: Estimate[float], second: Estimate[float]) -> Estimate[float]:
    """Return the difference of two shares of other samples, with the `n` and the sets of the first.

    The interval is Newcombe's (1998, method 10), from the intervals of the two shares.

    Example:
        >>> print(subtract_shares(Estimate(0.8, 0.7, 0.9, n=10), Estimate(0.5, 0.4, 0.6, n=10)))
        0.300 [0.159, 0.441]
    """
    difference = first.value - second.value
    low = difference - math.hypot(first.value - first.low, second.high - second.value)
    high = difference + math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(difference, max(low, -1.0), min(high, 1.0), first.n, first.sets)


def _estimate(
    value: np.ndarray, low: np.ndarray, high: np.ndarray, n: int, sets: np.ndarray | None
) -> Estimate[Any]:
    """Return an estimate of arrays, or of floats where they have no dimensions."""
    count = n if sets is None else len(np.unique(sets))
    numbers: list[Any] = [each if np.ndim(each) else float(each) for each in (value, low, high)]
    return Estimate(numbers[0], numbers[1], numbers[2], n, count)


def _is_finite(number: Any) -> bool:
    return number is not None and bool(np.isfinite(number).all())


def _to_json(number: Any) -> Any:
    if isinstance(number, np.ndarray):
        return [_to_json(part) for part in number.tolist()]
    if isinstance(number, list):
        return [_to_json(part) for part in number]
    return number if number is not None and math.isfinite(number) else None


_ROUNDING = 1e-6  # what is smaller is rounding of float32 log-probabilities; our choice


def format_number(value: float | None, spec: str = "") -> str:
    """Return a number as people write it: no powers of ten, and no sign of a zero; a dash if it is unknown.

    Args:
        spec: "" for three digits that count and "+" for the same with the sign of numbers above 0; anything else is
            Python's format, such as ".2f" or ".0%".

    Example:
        >>> [format_number(number) for number in (0.12345, 1234.4, -0.0000123, -1.39e-17, float("nan"))]
        ['0.123', '1,234', '-0.0000123', '0', '–']
        >>> format_number(0.5, "+"), format_number(-0.001, "+.1f"), format_number(0.126, ".2f"), format_number(-0.001, ".0%")
        ('+0.5', '+0.0', '0.13', '0%')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if spec in ("", "+"):
        return _count_digits(value, spec)
    text = format(value, spec)
    is_zero = not any(digit in "123456789" for digit in text.partition("e")[0])
    return format(0.0, spec) if is_zero else text


def _count_digits(value: float, sign: str) -> str:
    if abs(value) < _ROUNDING:
        return "0"
    if value == int(value):
        return f"{int(value):{sign},}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:{sign},.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_interval(low: float | None, high: float | None, spec: str = "") -> str:
    """Return an interval in brackets after a space, or nothing where an end is undefined.

    Example:
        >>> format_interval(-0.001, 0.25, ".2f"), format_interval(float("nan"), float("nan"))
        (' [0.00, 0.25]', '')
    """
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    return f" [{format_number(low, spec)}, {format_number(high, spec)}]"
