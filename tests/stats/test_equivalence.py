"""Equivalence tests against scipy's t tests, and with samples that are copies of each other."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_ind

from mmprobe.stats.compare import estimate_difference, p_equivalent


def draw(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return values [sample, 3] of 9 and 25 samples, and a mask of the first."""
    rng = np.random.default_rng(seed)
    first = np.arange(34) < 9
    return rng.normal(np.where(first, 0.1, 0)[:, None], [1, 0.2, 3], (34, 3)), first


def test_independent_samples_give_the_larger_of_welchs_one_sided_tests():
    values, first = draw()
    p = p_equivalent(values, first, ~first, 0.5, np.arange(34))
    low, high = (
        ttest_ind(values[first] + shift, values[~first], equal_var=False, alternative=side).pvalue
        for shift, side in ((0.5, "greater"), (-0.5, "less"))
    )
    np.testing.assert_allclose(p, np.maximum(low, high))
    assert p[1] < 0.001 < 0.05 < p[0], "the same margin, but more spread"
    difference = estimate_difference(values, first, ~first, np.arange(34))
    low, high = difference.low, difference.high
    interval = ttest_ind(values[first], values[~first], equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose([low, high], [interval.low, interval.high])


def test_copies_of_a_sample_add_nothing():
    """Every sample three times, in the same set of images, is worth one."""
    values, first = draw(1)
    once = p_equivalent(values, first, ~first, 0.5, np.arange(34))
    copies, groups = np.tile(values, (3, 1)), np.tile(np.arange(34), 3)
    np.testing.assert_allclose(p_equivalent(copies, np.tile(first, 3), np.tile(~first, 3), 0.5, groups), once)
    as_independent = p_equivalent(copies, np.tile(first, 3), np.tile(~first, 3), 0.5, np.arange(102))
    assert as_independent[1] < once[1], "what the sets of images are for"


def test_sets_in_both_groups_cancel_what_they_share():
    """Both questions about an image share its noise, so their difference has none."""
    noise = np.random.default_rng(2).normal(size=20)
    values, groups = np.concatenate([noise, noise + 0.01]), np.tile(np.arange(20), 2)
    first = np.arange(40) < 20
    assert p_equivalent(values, first, ~first, 0.1, groups) < 1e-6
    assert p_equivalent(values, first, ~first, 0.1, np.arange(40)) > 0.2


@pytest.mark.parametrize(("margin", "expected"), [(1.0, 0), (0.25, 1)])
def test_values_without_spread(margin, expected):
    first = np.arange(12) < 6
    assert p_equivalent(np.where(first, 0.5, 0.0), first, ~first, margin, np.arange(12)) == expected


def test_few_sets_of_images_show_nothing():
    first = np.arange(12) < 6
    assert np.isnan(p_equivalent(np.arange(12.0), first, ~first, 1, np.repeat(np.arange(6), 2)))
    alone = estimate_difference(np.arange(12.0), first, ~first, np.zeros(12, int))
    assert np.isnan([alone.value, alone.low, alone.high]).all()
