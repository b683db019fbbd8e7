"""Intervals and comparisons of groups against cases by hand, exhaustive search and SciPy."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mmprobe.stats import compare
from mmprobe.stats.compare import compare_groups, exchange_p, hedges_g, holm, shuffle_in_sets

warnings.simplefilter("error")


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
    assert float(comparison.value) == pytest.approx(2.8)


def test_permutation_p_agrees_with_scipy():
    rng = np.random.default_rng(3)
    one, two = rng.normal(0.4, 1, 30), rng.normal(0, 1, 25)
    comparison = compare_groups(*groups(one, two))
    assert float(comparison.p) == pytest.approx(stats.ttest_ind(one, two).pvalue, abs=0.02)


def test_groups_that_do_not_differ_have_p_1_and_no_effect_size():
    comparison = compare_groups(*groups([0.1] * 5, [0.1] * 7))
    assert (float(comparison.value), float(comparison.p)) == (pytest.approx(0), 1.0)
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
            *groups(rng.normal(1, 1, 40), rng.normal(0, 2, 30)), permutations=1, seed=seed % 4
        )
        hits += bool(comparison.low <= 1 <= comparison.high)
    assert 181 <= hits <= 199


def clustered(rng: np.random.Generator, mixed: bool) -> tuple[np.ndarray, ...]:
    """Return values [sample, 1000], labels and sets; a third of a set's spread is shared."""
    sets = np.repeat(np.arange(24), np.tile([1, 2, 3, 2], 6))
    labels = np.arange(len(sets)) % 2 == 0 if mixed else (rng.random(24) < 0.5)[sets]
    own, shared = rng.normal(size=(len(sets), 1000)), rng.normal(size=(24, 1000))[sets]
    return np.sqrt(0.4) * own + np.sqrt(0.6) * shared, labels, sets


@pytest.mark.parametrize("mixed", [True, False])
def test_differences_between_clustered_groups_are_covered_and_p_is_uniform(mixed):
    """Three standard errors of 1,000 tests. Shuffled alone, p is wrong in both cases."""
    values, labels, sets = clustered(np.random.default_rng(1), mixed)
    comparison = compare_groups(values, labels, ~labels, sets=sets, permutations=499)
    covered = ((comparison.low <= 0) & (comparison.high >= 0)).mean()
    assert 0.925 <= covered <= 0.975
    assert 0.03 <= (comparison.p <= 0.05).mean() <= 0.07
    alone = compare_groups(values, labels, ~labels, permutations=499)
    assert not 0.03 <= (alone.p <= 0.05).mean() <= 0.07


def test_pairs_of_opposite_labels_are_tested_as_pairs():
    """Seven pairs, one of each label: the exact test of signs has 2^7 patterns."""
    difference = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -2.5])
    values = np.column_stack([difference, np.zeros(7)]).ravel() + np.repeat(np.arange(7) * 10.0, 2)
    signs = np.array(list(itertools.product([1, -1], repeat=7)))
    exact = (np.abs(signs @ difference) >= difference.sum() - 1e-9).mean()
    first = np.tile([True, False], 7)
    comparison = compare_groups(values, first, ~first, sets=np.repeat(np.arange(7), 2))
    assert float(comparison.p) == pytest.approx(exact, abs=0.01)
    assert float(compare_groups(values, first, ~first).p) > 0.5, "between pairs the values differ far more"


def test_few_shuffles_at_a_time_give_the_same_p(monkeypatch):
    """Of many samples, few shuffles at a time are in memory. Sets of two: other shuffles, the same p but for chance."""
    rng = np.random.default_rng(6)
    values, first = rng.normal(size=(60, 2)), rng.random(60) < 0.5
    values[first] += 0.4
    alone, pairs = (compare_groups(values, first, ~first, sets=sets).p for sets in (None, np.arange(60) // 2))
    monkeypatch.setattr(compare, "_MOST_LABELS", 420)
    again, of_pairs = (
        compare_groups(values, first, ~first, sets=sets).p for sets in (None, np.arange(60) // 2)
    )
    assert again.tolist() == alone.tolist()
    np.testing.assert_allclose(of_pairs, pairs, atol=4 * np.sqrt(0.25 / 9999))


def test_shuffles_keep_sets_of_a_size_together():
    sets = np.array([3, 3, 0, 0, 1, 5, 5, 5])
    labels = np.array([1, 1, 0, 0, 1, 0, 1, 1])
    drawn = shuffle_in_sets(labels, sets, 400, np.random.default_rng(0))
    seen = {tuple(row) for row in drawn.tolist()}
    assert len(seen) == 2 * 3, "the two pairs change places, and the set of three is shuffled within"
    assert all(row[0] == row[1] != row[2] == row[3] and row[4] == 1 and sum(row[5:]) == 2 for row in seen)


def test_shares_that_differ_wholly_are_not_certain():
    """Five of five against none of five, which is not proof that no case is otherwise."""
    comparison = compare_groups(*groups([1.0] * 5, [0.0] * 5))
    assert 0 < float(comparison.low) < 0.5 and float(comparison.high) == 1


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


def test_exchanges_equal_all_of_them_one_by_one():
    """A share of sums: each of the 2^6 exchanges of six sets is computed on its own."""
    rng = np.random.default_rng(4)
    first, second = rng.integers(0, 4, (2, 6, 2)).astype(float)
    first[:, 1] += 2
    second[:, 1] += 1

    def share(counts):
        return counts[..., 0] / counts[..., 1]

    def difference(swapped):
        one = np.where(np.array(swapped)[:, None], second, first).sum(0)
        other = np.where(np.array(swapped)[:, None], first, second).sum(0)
        return abs(one[0] / one[1] - other[0] / other[1])

    observed = difference([False] * 6)
    expected = np.mean(
        [difference(each) >= observed - 1e-12 for each in itertools.product([False, True], repeat=6)]
    )
    assert exchange_p(share, first, second) == pytest.approx(expected)
    assert np.isnan(exchange_p(share, 0 * first, second))
    assert exchange_p(share, first, first) == 1


def test_random_exchanges_come_close_to_mcnemars_test():
    """20 sets differ, 15 in one direction: too many exchanges to try all of them."""
    first, second = np.zeros((30, 2)), np.zeros((30, 2))
    first[:, 1] = second[:, 1] = 1
    first[:15, 0], second[15:20, 0] = 1, 1
    exact = stats.binomtest(15, 20).pvalue
    assert exchange_p(lambda counts: counts[..., 0] / counts[..., 1], first, second) == pytest.approx(
        exact, rel=0.25
    )
