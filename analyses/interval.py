"""An interval for a metric of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.samples import image_sets
from mmprobe.stats.estimate import Estimate, estimate_mean
from mmprobe.stats.intervals import Range

if TYPE_CHECKING:
    import pandas as pd

OwnNumbers = Mapping[str, float | None] | Sequence[float | None]
"""A number for each sample: by its id, or in the order of `Run.ids`."""


def interval(
    values: OwnNumbers | pd.Series[Any] | xr.DataArray | np.ndarray, run: Run, range: Range | None = None
) -> Estimate[float]:
    """Return the mean of one's own numbers over samples, with its 95 % interval over sets of images.

    Samples that share an image are one set, which is drawn whole: ten questions about one photograph are not ten
    independent observations. The method is that of `stats.intervals`: Wilson's interval for numbers that are all 0
    or 1, and a studentised bootstrap for others.

    Args:
        values: a number for each sample: by its id (a mapping, a series, or an array with the coordinate `sample`), or
            a sequence in the order of `run.ids`. Samples without a number (not there, None or NaN) are left out.
        run: the run of the samples.
        range: smallest and largest possible number of a metric that has ends, such as `(0, 1)`. It keeps the interval
            within them. Without it, numbers that are all the same have an interval of no width.

    Returns:
        value, low, high, n (samples with a number) and sets. The ends are NaN for fewer than two sets, which do not
        show a spread.

    Raises:
        InputError: a sample is not of the run, a number is infinite or none, or a sequence has another length.

    Example:
        >>> share = {trace.id: "red" in trace.answer for trace in run}              # doctest: +SKIP
        >>> print(mp.interval(share, run))                                          # doctest: +SKIP
        0.250 [0.081, 0.561]
    """
    numbers = {name: number for name, number in _by_sample(values, run).items() if not np.isnan(number)}
    if not np.isfinite(list(numbers.values())).all():
        name = next(name for name, number in numbers.items() if np.isinf(number))
        raise InputError(f"interval: sample {name!r}: its number is infinite")
    sets = image_sets(run.sample(name) for name in numbers)
    return estimate_mean(np.array(list(numbers.values()), float), sets, range)


def _by_sample(values: Any, run: Run) -> dict[str, float]:
    """Return the numbers by sample, NaN where there is none."""
    if isinstance(values, xr.DataArray):
        if "sample" not in values.coords or values.ndim != 1:
            raise InputError(
                f"interval: an array with dimensions {', '.join(map(str, values.dims))}: needs one, with the coordinate sample"
            )
        values = dict(zip(values["sample"].values.tolist(), values.values.tolist(), strict=True))
    elif hasattr(values, "to_dict"):  # of pandas
        values = values.to_dict()
    elif not isinstance(values, Mapping):
        if len(values) != len(run):
            raise InputError(f"interval: {len(values)} numbers for the {len(run)} samples of {run.path}")
        values = dict(zip(run.ids, values, strict=True))
    for name in values:
        if name not in run:
            raise InputError(f"interval: {run.path} has no finished sample {name!r}")
    try:
        return {name: np.nan if number is None else float(number) for name, number in values.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"interval: not a number ({error})") from None
