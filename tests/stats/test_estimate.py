"""Estimates: their text, their JSON, and their way into a data set and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr

from mmprobe.benchmarks.core.results import mean_metric
from mmprobe.stats.estimate import (
    Estimate,
    estimate_from_sums,
    estimate_known,
    estimate_mean,
    read_estimate,
    stack_estimates,
)
from mmprobe.stats.intervals import QUANTITY, mean_interval, sums_interval

NAN = float("nan")
VALUES = np.random.default_rng(0).normal(size=(12, 2, 3))
SETS = np.repeat(np.arange(6), 2)


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.5, 0.25, 0.75), "0.500 [0.250, 0.750]"),
        (Estimate(0.5, NAN, NAN), "0.500"),
        (Estimate(NAN, NAN, NAN), "undefined"),
        (mean_metric([1.0], "higher"), "1.000"),
        (mean_metric([None], "higher"), "undefined"),
    ],
)
def test_the_text_has_the_interval_where_there_is_one(estimate, text):
    assert str(estimate) == f"{estimate}" == text


def test_a_format_is_that_of_all_three_numbers():
    assert f"{Estimate(0.5, -0.25, 0.75):+.1%}" == "+50.0% [-25.0%, +75.0%]"


def test_json_has_null_for_what_is_undefined():
    estimate = Estimate(np.array([0.5, NAN]), np.array([0.25, NAN]), np.array([0.75, NAN]), np.array([3, 0]))
    expected = {"value": [0.5, None], "low": [0.25, None], "high": [0.75, None], "n": [3, 0]}
    assert json.loads(json.dumps(estimate.to_json(), allow_nan=False)) == expected


def test_a_data_set_gives_back_what_it_was_given():
    mean = estimate_mean(VALUES, SETS, QUANTITY)
    assert (mean.n, mean.sets) == (12, 6)
    out = xr.Dataset(mean.variables("effect", ("layer", "head"), n="n"))
    assert list(out) == ["effect", "effect_low", "effect_high", "n"] and out["n"].item() == 12
    assert out["effect_low"].dims == ("layer", "head")
    again = read_estimate(out, "effect")
    for name in ("value", "low", "high"):
        np.testing.assert_array_equal(getattr(again, name), getattr(mean, name))
    assert read_estimate(out.isel(layer=0, head=1), "effect").value == mean[0, 1].value


def test_means_and_intervals_are_those_of_the_functions_of_arrays():
    mean = estimate_mean(VALUES, SETS, QUANTITY)
    np.testing.assert_array_equal(mean.value, VALUES.mean(0))
    np.testing.assert_array_equal([mean.low, mean.high], mean_interval(VALUES, SETS, QUANTITY))

    def ratio(sums: np.ndarray) -> np.ndarray:
        return np.asarray(sums[..., 0] / sums[..., 1])

    counts = np.abs(VALUES[:, 0])
    whole = estimate_from_sums(ratio, counts, SETS)
    low, high = sums_interval(ratio, counts, SETS)
    assert (whole.value, whole.low, whole.high) == (ratio(counts.sum(0)), low, high)


def test_means_of_what_is_known_skip_gaps_column_by_column():
    """A column of zeros is a quantity, not a share; a column with gaps counts the samples that it has."""
    values = VALUES.copy()
    values[:, 0, 0], values[:3, 0, 1], values[:, 1, 0] = 0, NAN, NAN
    means = estimate_known(values, SETS, QUANTITY)
    alone = estimate_mean(values[3:, 0, 1], SETS[3:], QUANTITY)
    assert means.n.tolist() == [[12, 9, 12], [0, 12, 12]]
    np.testing.assert_allclose(
        [means[0, 1].value, means[0, 1].low, means[0, 1].high], [alone.value, alone.low, alone.high]
    )
    assert means.low[0, 0] == means.high[0, 0] == 0
    assert np.isnan([means.value[1, 0], means.low[1, 0], means.high[1, 0]]).all()
    assert estimate_known(values[:, :, :0], SETS, QUANTITY).value.shape == (2, 0)


def test_estimates_are_stacked_in_any_shape():
    stacked = stack_estimates([Estimate(float(i), i - 1.0, i + 1.0, n=i) for i in range(6)], (2, 3))
    assert stacked.value.tolist() == [[0, 1, 2], [3, 4, 5]] and stacked.n[1, 2] == 5


def test_the_sign_is_0_unless_the_interval_excludes_0():
    signs = [Estimate(1.0, *ends).sign for ends in ((0.5, 2.0), (-2.0, -0.5), (0.0, 2.0), (NAN, NAN))]
    assert signs == [1, -1, 0, 0]
