"""AUC of several weightings, and without each group."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from mmprobe.stats.auc import auc_without_groups, estimate_auc, estimate_auc_within, weighted_auc
from mmprobe.stats.intervals import statistic_interval


def share_of_pairs_won(score: np.ndarray, unfaithful: np.ndarray) -> float:
    """Return the AUC by its definition: the share of (unfaithful, faithful) pairs in the right order."""
    won = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for high in score[unfaithful == 1]
        for low in score[unfaithful == 0]
    ]
    return sum(won) / len(won)


def test_weighted_auc_is_that_of_repeated_samples():
    rng = np.random.default_rng(4)
    score, positive = rng.integers(0, 6, 30), rng.random(30) < 0.4
    counts = rng.integers(0, 4, (20, 30))
    expected = [roc_auc_score(np.repeat(positive, n), np.repeat(score, n)) for n in counts]
    np.testing.assert_allclose(weighted_auc(score, positive, counts), expected)
    assert weighted_auc(score, positive).item() == pytest.approx(
        share_of_pairs_won(score, positive.astype(int))
    )
    assert np.isnan(weighted_auc(score, positive, np.where(positive, 0, 1)[None]).item())


def without_each(groups: np.ndarray) -> np.ndarray:
    """Return weights [group, sample] that leave out a group each."""
    return (groups != np.arange(groups.max() + 1)[:, None]).astype(float)


@pytest.mark.parametrize("n_values", [3, 10**6], ids=["ties", "no ties"])
def test_auc_without_groups_is_that_of_the_other_samples(n_values):
    """Groups of one to many samples, in no order, with both classes or one."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        score, positive = rng.integers(-n_values, n_values, 50) / 7, rng.random(50) < 0.4
        groups = np.unique(rng.integers(0, 12, 50) ** 2, return_inverse=True)[1]
        expected = [roc_auc_score(positive[groups != g], score[groups != g]) for g in range(groups.max() + 1)]
        np.testing.assert_allclose(auc_without_groups(score, positive, groups), expected, rtol=1e-12)
        by_weights = weighted_auc(score, positive, without_each(groups))
        np.testing.assert_array_equal(auc_without_groups(score, positive, groups), by_weights)


def test_auc_without_the_only_group_of_a_class_is_unknown():
    groups, positive = np.array([0, 0, 1, 1, 2]), np.array([True, True, False, False, False])
    without = auc_without_groups(np.arange(5.0), positive, groups)
    np.testing.assert_array_equal(without, [np.nan, 0.0, 0.0])


def test_the_interval_of_an_auc_is_that_of_any_statistic():
    rng = np.random.default_rng(6)
    score, positive, groups = rng.integers(0, 9, 80), rng.random(80) < 0.5, rng.integers(0, 25, 80) * 3
    expected = statistic_interval(lambda w: weighted_auc(score, positive, w), groups, 80, (0.0, 1.0))
    auc = estimate_auc(score, positive, groups)
    np.testing.assert_allclose([auc.low, auc.high], expected, rtol=1e-12)


def test_auc_within_strata_counts_pairs_of_one_stratum():
    """Against a slow count; a score that tells only strata apart is worth nothing within them."""
    rng = np.random.default_rng(0)
    strata, groups = rng.integers(0, 4, 60), rng.integers(0, 12, 60)
    positive = rng.random(60) < 0.2 + 0.2 * strata
    score = rng.integers(0, 5, 60) + positive
    wins = [
        (score[one] > score[two]) + 0.5 * (score[one] == score[two])
        for one in np.flatnonzero(positive)
        for two in np.flatnonzero(~positive)
        if strata[one] == strata[two]
    ]
    found = estimate_auc_within(score, positive, strata, groups)
    assert found.value == pytest.approx(np.mean(wins))
    assert found.low < found.value < found.high and (found.n, found.sets) == (60, len(np.unique(groups)))
    assert estimate_auc(strata, positive, groups).value > 0.6
    assert estimate_auc_within(strata, positive, strata, groups).value == 0.5
    assert np.isnan(estimate_auc_within(score, positive, np.arange(60), groups).value)
