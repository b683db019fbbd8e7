"""Intervals and comparisons of groups against cases by hand, exhaustive search and SciPy."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mmprobe.analyses.statistics import bootstrap_mean, compare_groups, hedges_g, holm

warnings.simplefilter("error")


def test_bootstrap_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(200):
        low, high = bootstrap_mean(rng.normal(size=40), resamples=500, seed=seed)
        hits += bool(low <= 0 <= high)
    assert 180 <= hits <= 198  # 95 % of 200 is 190, with the percentile bootstrap's known small shortfall


def groups(one: list[float] | np.ndarray, two: list[float] | np.ndarray) -> tuple[np.ndarray, ...]:
    mask = np.arange(len(one) + len(two)) < len(one)
    return np.concatenate([one, two]), mask, ~mask


def test_hedges_g_by_hand():
    """Means 3 and 2, pooled variance (2 * 1 + 1 * 2) / 3 = 4 / 3, factor 1 - 3 / (4 * 3 - 1) = 8 / 11."""
    g = hedges_g(np.array([2.0, 3.0, 4.0]), np.array([1.0, 3.0]))
    assert float(g) == pytest.approx(1 / np.sqrt(4 / 3) * 8 / 11)


def test_permutation_p_is_near_the_exact_one():
    values, first, second = groups([3.0, 5.0, 6.0, 8.0, 9.0], [1.0, 2.0, 3.0, 4.0, 7.0])
    observed = abs(values[:5].mean() - values[5:].mean())
    chosen = [list(pick) for pick in itertools.combinations(range(10), 5)]
    differences = [abs(values[pick].mean() - np.delete(values, pick).mean()) for pick in chosen]
    exact = np.mean(np.array(differences) >= observed - 1e-9)
    comparison = compare_groups(values, first, second)
    assert float(comparison.p) == pytest.approx(exact, abs=0.015)  # 3 standard errors of 9999 shuffles
    assert float(comparison.difference) == pytest.approx(2.8)


def test_permutation_p_agrees_with_scipy():
    rng = np.random.default_rng(3)
    one, two = rng.normal(0.4, 1, 30), rng.normal(0, 1, 25)
    comparison = compare_groups(*groups(one, two))
    assert float(comparison.p) == pytest.approx(stats.ttest_ind(one, two).pvalue, abs=0.02)


def test_groups_that_do_not_differ_have_p_1_and_no_effect_size():
    comparison = compare_groups(*groups([0.1] * 5, [0.1] * 7))
    assert (float(comparison.difference), float(comparison.p)) == (pytest.approx(0), 1.0)
    assert np.isnan(comparison.effect)


def test_p_is_never_0_and_seeds_repeat():
    values, first, second = groups(np.arange(20) + 100.0, np.arange(20.0))
    comparison = compare_groups(values, first, second, permutations=99)
    assert float(comparison.p) == 1 / 100
    again = compare_groups(values, first, second, permutations=99)
    assert (comparison.low, comparison.high) == (again.low, again.high)


def test_p_is_uniform_where_groups_are_alike():
    rng = np.random.default_rng(0)
    comparison = compare_groups(
        *groups(rng.normal(size=(12, 400)), rng.normal(size=(9, 400))), permutations=499
    )
    share = (comparison.p <= 0.1).mean()
    assert 0.055 <= share <= 0.145  # 3 standard errors of 400 tests
    assert (comparison.p_holm >= comparison.p).all()
    assert comparison.p_holm.shape == comparison.p.shape == comparison.effect.shape == (400,)


def test_the_interval_of_a_difference_covers_it():
    rng, hits = np.random.default_rng(0), 0
    for seed in range(200):
        comparison = compare_groups(
            *groups(rng.normal(1, 1, 40), rng.normal(0, 2, 30)), resamples=500, permutations=1, seed=seed
        )
        hits += bool(comparison.low <= 1 <= comparison.high)
    assert 178 <= hits <= 198


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.floats(0, 1), min_size=n, max_size=n), min_size=1)
    )
)
def test_holm_by_its_definition(rows):
    p = np.array(rows)
    for row, adjusted in zip(p, holm(p), strict=True):
        order = sorted(range(len(row)), key=lambda i: row[i])
        largest = 0.0
        for rank, index in enumerate(order):
            largest = max(largest, min(1.0, (len(row) - rank) * row[index]))
            assert adjusted[index] == pytest.approx(largest)


def test_what_cannot_be_compared_is_refused():
    values, first, second = groups([1.0] * 5, [2.0] * 5)
    for changed, message in (
        ({"minimum": 1}, "minimum 1"),
        ({"second": np.ones(10, bool)}, "both groups"),
        ({"values": np.where(first, np.nan, values)}, "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            compare_groups(**({"values": values, "first": first, "second": second} | changed))
