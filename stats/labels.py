"""Means and comparisons of faithful and unfaithful samples, as variables of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mmprobe.stats.compare import MINIMUM, Comparison, compare_groups
from mmprobe.stats.estimate import estimate_mean, read_estimate, stack_estimates
from mmprobe.stats.intervals import Range

if TYPE_CHECKING:
    import xarray as xr

LABELS = ("all", "faithful", "unfaithful")


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


def means_by_label(
    name: str,
    values: np.ndarray,
    masks: Mapping[str, np.ndarray],
    dims: tuple[str, ...],
    sets: np.ndarray | None,
    range: Range,
) -> dict[str, Any]:
    """Return the mean of each label's samples as `name`, and its interval as `name_low` and `name_high`.

    Args:
        values: [sample, ...], without NaN.
        masks: as `label_masks` returns them.
        dims: of the variables; the first is the label's.
        sets: int [sample], the set of images of each sample. None: each sample is its own.
        range: smallest and largest possible value, as in `mean_interval`.

    Example:
        >>> masks = label_masks([True, False])
        >>> variables = means_by_label("x", np.array([[1.0], [3.0]]), masks, ("label", "layer"), None, (None, None))
        >>> variables["x"][1].tolist()
        [[2.0], [1.0], [3.0]]
    """
    means = [
        estimate_mean(values[mask], None if sets is None else sets[mask], range) for mask in masks.values()
    ]
    return stack_estimates(means).variables(name, dims)


def compare_labels(
    values: np.ndarray,
    masks: Mapping[str, np.ndarray],
    dims: tuple[str, ...],
    minimum: int = MINIMUM,
    suffix: str = "",
    sets: np.ndarray | None = None,
) -> tuple[dict[str, Any], str]:
    """Compare unfaithful with faithful samples (unfaithful minus faithful) by `compare_groups`.

    Args:
        values: [sample, ...], finite.
        masks: as `label_masks` returns them.
        dims: of the variables, which are the dimensions of `values` without the sample.
        suffix: end of the names `difference`, `effect`, `p` and `p_holm`.
        sets: int [sample], the set of images of each sample. None: each sample is its own.

    Returns:
        The variables `difference`, `difference_low`, `difference_high`, `effect`, `p` and `p_holm`, and the
        note.

    Example:
        >>> masks = label_masks([True, False, None])
        >>> compare_labels(np.zeros((3, 2)), masks, ("layer",))[1]
        '1 unfaithful and 1 faithful: not compared, 5 of each are needed'
    """
    names = ("unfaithful", "faithful")
    comparison = compare_groups(values, masks["unfaithful"], masks["faithful"], minimum, names, sets)
    return comparison.all_variables(suffix, dims), comparison.note


def read_comparison(dataset: xr.Dataset, suffix: str = "") -> Comparison:
    """Return the comparison that `compare_labels` made, from the variables of a data set.

    Example:
        >>> import xarray as xr
        >>> masks = label_masks([True, False] * 5)
        >>> variables, _ = compare_labels(np.arange(10.0), masks, ())
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
