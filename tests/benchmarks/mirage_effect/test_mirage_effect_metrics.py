"""Metrics of the mirage effect, compared with hand-computed values and known distributions."""

from __future__ import annotations

import numpy as np
import pytest

from mmprobe.benchmarks.core.results import change_metric
from mmprobe.benchmarks.mirage_effect.labels import ImagelessLabels
from mmprobe.benchmarks.mirage_effect.metrics import (
    NO_ANSWER,
    answer_shares,
    answer_similarity,
    answers_kept,
    entropy,
    mirage_rates,
    mirage_scores,
)


def test_mirage_rates_by_hand():
    labels = [ImagelessLabels(False, True)] * 3 + [
        ImagelessLabels(False, False),
        ImagelessLabels(True, True),
        ImagelessLabels(True, False),
        None,
    ]
    rates = mirage_rates(labels)
    assert rates["mirage_rate"].value == pytest.approx(4 / 6)
    assert rates["describes_rate"].value == pytest.approx(4 / 6)
    assert rates["mirage_rate_described"].value == pytest.approx(3 / 6)
    assert rates["mirage_rate"].n == 6 and rates["mirage_rate"].coverage == pytest.approx(6 / 7)
    assert rates["mirage_rate"].bounds == pytest.approx((4 / 7, 5 / 7)) and rates["mirage_rate"].unread == 1
    assert mirage_rates([None])["mirage_rate"].value is None


def test_mirage_scores_by_hand():
    # asked both ways: 6; right without 3, right with 4, each with an unread one; chance (4 x 1/4 + 1/2 + 0) / 6
    without = [True, True, False, False, True, None]
    with_image = [True, False, True, True, None, True]
    scores = mirage_scores(without, with_image, [4, 4, 2, None, 4, 4])
    assert scores["accuracy_without"].value == 3 / 6 and scores["accuracy_with"].value == pytest.approx(4 / 6)
    assert scores["mirage_score"].value == pytest.approx(3 / 4) and scores["mirage_score"].n == 6
    assert scores["mirage_score"].bounds == pytest.approx((3 / 5, 1)), "3 of 5, and 4 of 4"
    assert scores["mirage_score_above_chance"].value == pytest.approx((3 - 1.5) / (4 - 1.5))
    assert scores["visual_gain"].value == pytest.approx(1 / 6)
    assert scores["visual_gain"].bounds == pytest.approx((0, 2 / 6))
    assert scores["mirage_score"].low <= 3 / 4 <= scores["mirage_score"].high


def test_changes_count_unread_answers_as_wrong_or_leave_them_out_and_bound_both():
    after, before, asked = [True, None, True, True], [False, True, None, None], [True, True, True, False]
    wrong = change_metric(after, before, "neither", asked)
    assert wrong.value == pytest.approx((1 - 1 + 1) / 3) and wrong.unread == 2
    left_out = change_metric(after, before, "neither", asked, unread=None)
    assert left_out.value == 1 and left_out.n == 1
    assert wrong.bounds == left_out.bounds == (pytest.approx((1 - 1 + 0) / 3), pytest.approx((1 + 0 + 1) / 3))


def test_hedged_answers_are_wrong_as_in_the_paper():
    """Ten questions, all right with images; without, five are right and five hedge: the paper's ratio is a half."""
    scores = mirage_scores([True] * 5 + [None] * 5, [True] * 10, [4] * 10)
    assert scores["mirage_score"].value == scores["accuracy_without"].value == 0.5
    assert scores["accuracy_without[read]"].value == 1


def test_mirage_score_is_undefined_without_accuracy_and_at_chance():
    nothing = mirage_scores([True, False], [False, False], [4, 4])
    assert nothing["mirage_score"].value is None and nothing["mirage_score"].n == 2
    assert nothing["accuracy_without"].value == 0.5
    chance = mirage_scores([True] + [False] * 3, [True] + [False] * 3, [4] * 4)
    assert chance["mirage_score"].value == 1 and chance["mirage_score_above_chance"].value is None
    worse = mirage_scores([False] * 4, [True] * 4, [4] * 4)
    assert worse["mirage_score_above_chance"].value == pytest.approx(-1 / 3)
    assert mirage_scores([], [], [])["mirage_score"].value is None


def test_shares_by_hand():
    shares = answer_shares(["stemi"] * 5 + ["normal"] * 2 + [None])
    assert list(shares) == ["stemi", "normal", NO_ANSWER]
    assert [share.value for share in shares.values()] == [5 / 8, 2 / 8, 1 / 8] and answer_shares([]) == {}
    assert entropy(np.array([5, 2, 1])) == pytest.approx(-sum(p * np.log2(p) for p in (5 / 8, 2 / 8, 1 / 8)))
    assert entropy(np.array([4])) == 0


def test_similarity_by_hand():
    result = answer_similarity(["a", "a", "b", "c"], ["a", "b", "b", "d"])
    assert result.similarity.value == pytest.approx(1 - (1 / 4 + 1 / 4 + 1 / 4 + 1 / 4) / 2)
    assert answer_similarity(["a"] * 9, ["a"] * 5).p == 1
    disjoint = answer_similarity(["a"] * 20, ["b"] * 20)
    assert disjoint.similarity.value == 0 and disjoint.p == pytest.approx(1 / 10_000)
    assert answer_similarity([], ["a"]).similarity.value is None


def test_answers_of_one_distribution_are_as_similar_as_by_chance():
    rng = np.random.default_rng(0)
    p, gap = [], []
    for _ in range(60):
        first, second = (list(rng.choice(list("abcd"), 30)) for _ in range(2))
        result = answer_similarity(first, second, permutations=499)
        p.append(result.p)
        gap.append(result.similarity.value - result.by_chance)
    assert abs(np.mean(gap)) < 0.03 and 0.35 < np.mean(p) < 0.7
    assert np.mean(np.array(p) < 0.05) < 0.15


def test_answers_kept_by_hand():
    kept = answers_kept(["A", "B", "C", None], ["A", "C", "C", None])
    assert kept.value == pytest.approx(2 / 3) and kept.n == 3
