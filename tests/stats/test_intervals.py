"""Intervals: coverage by simulation, SciPy's Wilson interval, slow references, and cases by hand."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from mmprobe.stats import intervals
from mmprobe.stats.auc import weighted_auc
from mmprobe.stats.intervals import (
    QUANTITY,
    SMALLEST_ERROR,
    mean_interval,
    percentile_interval,
    share_interval,
    statistic_interval,
    sums_interval,
)

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("write_intervals", ROOT / "research" / "write_intervals.py")
calibration: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(calibration)
KNOWN = {  # rows outside 93 to 97 %: what so few samples cannot show, and Wilson's caution with 12 answers
    ("lognormal 1", "1 to 3", 12),
    ("lognormal 1", "1 to 5", 12),
    ("lognormal 1", "1 to 5", 60),
    ("lognormal 1", "6", 12),
    ("exponential", "1 to 3", 12),
    ("exponential", "1 to 5", 12),
    ("share", "1 to 3", 12),
    ("share", "1 to 5", 12),
    ("share", "6", 12),
}


@pytest.mark.exhaustive
def test_95_percent_of_intervals_cover_the_truth():
    """1,000 simulations a row: the standard error is 0.007. The page has 4,000."""
    for cell in calibration.simulate(1000):
        known = cell[:3] in KNOWN
        low, high = (0.86, 0.99) if known else (0.915, 0.98)
        assert low <= cell.covered <= high, cell


@pytest.mark.parametrize("data", ["share", "exponential"])
@pytest.mark.parametrize("n", [12, 60])
def test_clustered_data_are_covered(data, n):
    """1,000 simulations: the standard error is 0.007. Draws of single samples cover 75 to 89 %."""
    groups = calibration.make_groups(n, (1, 2, 3, 2, 1, 3))
    values, truth = calibration.draw_values(data, groups, 0.4, 1000, np.random.default_rng(1))
    assert 0.915 <= calibration.share_covered(mean_interval(values, groups), truth) <= 0.98
    assert calibration.share_covered(calibration.percentile_bootstrap(values), truth) < 0.9


@pytest.mark.parametrize("shares", [(3, 3), (0, 12), (1, 7), (37, 61)])
def test_shares_of_independent_samples_are_scipys_wilson_interval(shares):
    successes, n = shares
    expected = stats.binomtest(successes, n).proportion_ci(method="wilson")
    values = np.arange(n) < successes
    np.testing.assert_allclose(mean_interval(values, None), expected, atol=1e-12)
    np.testing.assert_allclose(mean_interval(values, np.arange(n)), expected, atol=1e-12)


def test_shares_of_whole_groups_count_each_group_once():
    """Ten sets of four answers that always agree are ten answers; all forty alike count ten, too."""
    answers = np.repeat([1, 0, 1, 1, 0, 1, 1, 0, 1, 1], 4)
    groups = np.repeat(np.arange(10), 4)
    ten = stats.binomtest(7, 10).proportion_ci(method="wilson")
    np.testing.assert_allclose(mean_interval(answers, groups), ten, atol=1e-12)
    np.testing.assert_allclose(mean_interval(np.ones(40), groups)[0], mean_interval(np.ones(10), None)[0])
    low, high = mean_interval(answers, None)
    assert high - low < 0.6 * (ten[1] - ten[0])


def test_the_design_effect_by_hand():
    """Sets of 4 with 4, 4, 1, 1 right: share 10 / 16. Residuals 1.5, 1.5, -1.5, -1.5, so the variance is
    4 / 3 * 9 / 256 = 3 / 64. Alone it would be 15 / 64 / 15 = 1 / 64: deff 3, and t of 15 and 3 differ."""
    few = (stats.t.ppf(0.975, 15) / stats.t.ppf(0.975, 3)) ** 2
    n = max(16 / 3 * few, 4)
    z = stats.norm.ppf(0.975)
    centre = (0.625 + z**2 / 2 / n) / (1 + z**2 / n)
    low, high = share_interval(np.array([4, 4, 1, 1]), np.array([4, 4, 4, 4]))
    assert float(low + high) / 2 == pytest.approx(centre)
    values = np.array([1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0])
    assert mean_interval(values, np.repeat(np.arange(4), 4))[0] == pytest.approx(low)


def test_a_small_design_effect_by_hand():
    """Sets of 4 with 4, 3, 1, 2 right: residuals 1.5, 0.5, -1.5, -0.5, so the variance is 4 / 3 * 5 / 256.
    Alone it would be 1 / 64: deff 5 / 3, and few groups count to the power of 2 / 3."""
    few = (stats.t.ppf(0.975, 15) / stats.t.ppf(0.975, 3)) ** 2
    n = 16 / (5 / 3) * few ** (2 / 3)
    z = stats.norm.ppf(0.975)
    centre = (0.625 + z**2 / 2 / n) / (1 + z**2 / n)
    low, high = share_interval(np.array([4, 3, 1, 2]), np.array([4, 4, 4, 4]))
    assert float(low + high) / 2 == pytest.approx(centre)


def test_one_large_group_costs_degrees_of_freedom_by_hand():
    """Thirty groups of one sample, and one of ten whose values are the mean: n^2 / (sum of squares) is 1600 / 130."""
    values = np.concatenate([np.tile([-1.0, 1.0], 15), np.zeros(10)])
    groups = np.minimum(np.arange(40), 30)
    freedom = 0.4 * 31 + 0.6 * 1600 / 130 - 1
    pulls = np.concatenate([np.tile([-1.0, 1.0], 15) * 30 / 39, [0.0]])
    error = np.sqrt((pulls**2).sum() / 31 / 30)
    low, high = mean_interval(values, groups)
    assert high == pytest.approx(stats.t.ppf(0.975, freedom) * error) and low == pytest.approx(-high)
    counts = np.stack([values, np.ones(40)], 1)
    by_sums = sums_interval(lambda sums: sums[..., 0] / sums[..., 1], counts, groups)
    assert float(by_sums[1]) == pytest.approx(float(high), rel=0.01)


def test_means_agree_with_a_slow_bootstrap():
    rng = np.random.default_rng(5)
    groups = np.repeat(np.arange(14), rng.integers(1, 5, 14))
    values = rng.exponential(size=(len(groups), 2))
    sets = [values[groups == number] for number in range(14)]
    left = np.array([np.concatenate(sets[:k] + sets[k + 1 :]).mean(0) for k in range(14)])
    pulls = 13 * (values.mean(0) - left)
    pulls -= pulls.mean(0)
    error = np.sqrt((pulls**2).sum(0) / 14 / 13)
    t = []
    for _ in range(4000):
        drawn = pulls[rng.integers(14, size=14)]
        own = drawn.std(0) / np.sqrt(13)
        t.append(drawn.mean(0) / np.maximum(own, SMALLEST_ERROR * error))
    student = stats.t.ppf(0.975, 13)
    ends = np.percentile(t, [2.5, 97.5], axis=0)
    low, high = mean_interval(values, groups)
    width = high - low
    slow = values.mean(0) - np.maximum(ends[1], student) * error
    assert (np.abs(low - slow) < 0.05 * width).all()
    slow = values.mean(0) - np.minimum(ends[0], -student) * error
    assert (np.abs(high - slow) < 0.08 * width).all()
    assert (high - values.mean(0) > values.mean(0) - low).all(), "skewed to the right"


def test_each_column_is_alone():
    """Shares, means and undefined values can be side by side, in any shape."""
    rng = np.random.default_rng(0)
    values = np.stack([rng.random(9) < 0.5, rng.normal(size=9), np.full(9, 0.3), np.full(9, np.nan)], -1)
    low, high = mean_interval(values.reshape(9, 2, 2), None)
    for column in range(4):
        alone = mean_interval(values[:, column], None)
        np.testing.assert_allclose((low.ravel()[column], high.ravel()[column]), alone, rtol=1e-6)
    assert (low[1, 0], high[1, 0]) == (0.3, 0.3) and np.isnan(low[1, 1])
    many = rng.normal(size=(20, 1100))
    np.testing.assert_allclose(
        mean_interval(many, None)[1][700], mean_interval(many[:, 700], None)[1], rtol=1e-5
    )


def test_an_effect_of_0_or_1_in_all_samples_is_no_share():
    groups = np.repeat(np.arange(6), 2)
    for value in (0.0, 1.0):
        same = np.full(12, value)
        assert mean_interval(same, groups) != (value, value), "a share"
        assert mean_interval(same, groups, QUANTITY) == (value, value)
    np.testing.assert_allclose(  # what six sets leave open in a range
        mean_interval(np.zeros(12), groups, (-2.0, None)),
        (-2 * share_interval(np.zeros(6), np.ones(6))[1], 0),
    )
    changes = np.array([0.0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 1])
    sums = np.stack([changes, np.ones(12)], 1)
    expected = sums_interval(lambda total: total[..., 0] / total[..., 1], sums, groups)
    np.testing.assert_allclose(mean_interval(changes, groups, QUANTITY), expected, rtol=1e-6)


def test_one_set_of_images_shows_no_spread():
    for values in (np.array([0.2, 0.4, 0.9]), np.array([1.0, 0.0, 1.0])):
        assert np.isnan(mean_interval(values, np.zeros(3, int))).all()
    assert np.isnan(mean_interval(np.zeros((0, 2)), None)).all()


def f1(sums: np.ndarray) -> np.ndarray:
    return 2 * sums[..., 0] / (sums[..., 1] + sums[..., 2])


def test_sums_and_weights_give_the_same_interval():
    rng = np.random.default_rng(2)
    counts = rng.integers(1, 6, (40, 3)).astype(float)
    groups = rng.integers(0, 12, 40)
    by_sums = sums_interval(f1, counts, groups)
    by_weights = statistic_interval(lambda weights: f1(weights @ counts), groups, 40)
    np.testing.assert_allclose(by_sums, by_weights, rtol=1e-6)
    mean = sums_interval(
        lambda sums: sums[..., 0] / sums[..., 1], np.stack([counts[:, 0], np.ones(40)], -1), groups
    )
    np.testing.assert_allclose(mean, mean_interval(counts[:, 0], groups), rtol=1e-6)


def test_f1_of_clustered_samples_is_covered():
    """600 simulations of 25 sets: 95 % less or more 4 standard errors of 0.009."""
    rng, covered = np.random.default_rng(0), 0
    groups = np.repeat(np.arange(25), np.tile([1, 2, 3, 4, 2], 5))
    for seed in range(600):
        skill = rng.beta(4, 2, 25)[groups]
        true = rng.integers(1, 4, len(groups))
        found = rng.binomial(true, skill)
        claimed = found + rng.poisson(0.5, len(groups))
        low, high = sums_interval(f1, np.stack([found, claimed, true], -1), groups, (0, 1), seed % 4)
        covered += bool(low <= 2 * 2 * 2 / 3 / (2 * 2 / 3 + 0.5 + 2) <= high)
    assert 0.915 <= covered / 600 <= 0.985


def test_no_difference_between_sets_leaves_what_they_have_not_seen():
    """F1 is 1 in each of 3 sets: Wilson's 3 of 3. Without a range nothing is known of the ends."""
    counts = np.array([[2.0, 2, 2], [1, 1, 1], [4, 4, 4], [0, 0, 0]])
    three = stats.binomtest(3, 3).proportion_ci(method="wilson")
    np.testing.assert_allclose(sums_interval(f1, counts, None, (0, 1)), three, atol=1e-12)
    np.testing.assert_allclose(sums_interval(f1, counts, None), [1, 1])
    low, high = sums_interval(
        lambda sums: sums[..., 0] / sums[..., 1], np.array([[1.0, 2]] * 12), None, (0, 1)
    )
    half = stats.binomtest(0, 12).proportion_ci(method="wilson").high / 2
    assert (float(low), float(high)) == (pytest.approx(0.5 - half), pytest.approx(0.5 + half))


def test_ends_stay_within_the_range():
    counts = np.array([[1.0, 1], [1, 1], [1, 1], [1, 1], [7, 8]])
    low, high = sums_interval(lambda sums: sums[..., 0] / sums[..., 1], counts, None, (0, 1))
    assert 0 < low < 11 / 12 < high == 1


def test_a_statistic_that_needs_one_set_has_no_interval():
    """Precision where a single sample claims something."""
    assert np.isnan(sums_interval(f1, np.array([[1.0, 1, 1], [0, 0, 0]]), None, (0, 1))).all()


def test_equal_draws_do_not_make_the_interval_infinite():
    """Of 6 samples, 5 are alike: every third draw has no spread."""
    low, high = mean_interval(np.array([0.0, 0, 0, 0, 0, 0.5]), None)
    assert -1 < low < 0 and 0.2 < high < 3


def test_auc_is_covered():
    rng, covered = np.random.default_rng(0), 0
    groups = np.repeat(np.arange(20), 3)
    truth = float(stats.norm.cdf(1 / np.sqrt(2)))
    for _ in range(200):
        positive = rng.random(60) < 0.5
        score = rng.normal(size=20)[groups] * 0.6 + rng.normal(size=60) * 0.8 + positive
        low, high = statistic_interval(lambda w: weighted_auc(score, positive, w), groups, 60, (0, 1))  # noqa: B023
        covered += bool(low <= truth <= high)
    assert 180 <= covered <= 198
    assert float(low) < roc_auc_score(positive, score) < float(high)


def test_ranks_are_percentiles_over_draws_of_sets():
    """Model 1 is better by far, and 2 and 3 may change places. Each answer twice tells no more."""
    right = np.array([[1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 1, 0]])
    low, high = percentile_interval(lambda w: stats.rankdata(-(right @ w.T), axis=0), None, 6)
    assert (low.tolist(), high.tolist()) == ([1, 1.5, 2], [1.5, 3, 3])
    twice = np.repeat(right, 2, axis=1)
    pairs = np.repeat(np.arange(6), 2)
    again = percentile_interval(lambda w: stats.rankdata(-(twice @ w.T), axis=0), pairs, 12)
    np.testing.assert_array_equal(again, (low, high))


def test_blocks_of_draws_do_not_change_an_interval(monkeypatch):
    """Of many groups, few draws at a time are in memory, and none is kept."""
    rng = np.random.default_rng(5)
    values, groups, positive = rng.exponential(size=(90, 3)), rng.integers(0, 40, 90), rng.random(90) < 0.4

    def compute() -> list:
        return [
            mean_interval(values, groups),
            percentile_interval(
                lambda w: np.array([np.average(values[:, 0], weights=row) for row in w]), groups, 90
            ),
            statistic_interval(lambda w: weighted_auc(values[:, 1], positive, w), groups, 90, (0, 1)),
        ]

    whole = compute()
    monkeypatch.setattr(intervals, "WEIGHTS", 700)
    monkeypatch.setattr(intervals, "_KEPT", 20)
    blocks = [len(block) for block in intervals.draw_groups(40, 0)]
    assert set(blocks[:-1]) == {17} and sum(blocks) == intervals.RESAMPLES
    for once, again in zip(whole, compute(), strict=True):
        np.testing.assert_allclose(again, once, rtol=1e-6)  # float32 sums of other widths


@pytest.mark.filterwarnings("error")
def test_what_is_infinite_without_a_set_has_no_interval():
    """Without the third row the sum in the denominator is 0."""
    counts = np.array([[1.0, 1.0], [1.0, -1.0], [1.0, 2.0]])
    assert np.isnan(sums_interval(lambda sums: sums[..., 0] / sums[..., 1], counts, None)).all()
    assert np.isnan(mean_interval(np.array([1.0, np.inf, 2.0]), None)).all()


def test_intervals_are_made_in_one_place():
    """No other file takes quantiles of draws."""
    folders = (
        "analyses",
        "benchmarks",
        "probes",
        "stats",
        "viz",
        "mmprobe",
        "training",
        "interventions",
        "scripts",
        "research",
    )
    found = {
        str(file.relative_to(ROOT))
        for folder in folders
        for file in (ROOT / folder).rglob("*.py")
        if re.search(r"\b(np|numpy)\.(nan)?(percentile|quantile)\(|\.quantile\(", file.read_text("utf-8"))
    }
    random_heads = "research/write_components.py"  # its quantiles say what random heads do
    tints = "scripts/real_model/draw_things.py"  # of pictures
    assert found == {"stats/intervals.py", "research/write_intervals.py", random_heads, tints}


def test_every_interval_is_given_the_sets_of_images():
    """Left out, each sample would be a separate set. The numbers are the places of the argument."""
    places = {
        "ByLabel": 1,
        "compare_groups": 5,
        "mean_interval": 1,
        "estimate_mean": 1,
        "estimate_known": 1,
        "estimate_from_sums": 2,
    }
    for folder in ("analyses", "probes"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                name = getattr(getattr(node, "func", None), "id", None)
                if name in places:
                    named = any(keyword.arg in ("sets", "groups") for keyword in node.keywords)
                    starred = any(isinstance(argument, ast.Starred) for argument in node.args)
                    assert named or starred or len(node.args) > places[name], f"{file}, line {node.lineno}"
