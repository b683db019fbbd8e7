"""Metrics of MIRAGE against numbers made by hand, and against the paper's tables where they suffice."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy.stats import linregress

from mmprobe.benchmarks.mirage.correlations import correlations
from mmprobe.benchmarks.mirage.hints import hinted
from mmprobe.benchmarks.mirage.labels import DIMENSIONS, KINDS, Matches
from mmprobe.benchmarks.mirage.metrics import accuracy, by_group, factuality, hallucination_rates, lhs
from mmprobe.errors import InputError
from mmprobe.training.logos import (
    advantages,
    clipped_loss,
    follows_format,
    kept_by_curriculum,
    kept_by_reward_filtration,
    reward,
)

M, R, C = "MATCH", "REASONABLE", "CONFLICT"


def test_accuracy_with_and_without_the_unanswered():
    found = accuracy([True, True, False, None])
    assert found["accuracy"].value == 0.5 and found["accuracy"].n == 4
    assert found["accuracy_answered"].value == pytest.approx(2 / 3)
    assert found["accuracy_answered"].n == 3 and found["accuracy_answered"].coverage == 0.75
    assert accuracy([])["accuracy"].value is None
    assert accuracy([None])["accuracy_answered"].value is None


def test_a_table_by_topic():
    table = by_group(["a", "b", "a", "a"], [True, False, False, None], accuracy)
    assert list(table) == ["a", "b"]
    assert table["a"]["accuracy"].value == pytest.approx(1 / 3) and table["a"]["accuracy_answered"].n == 2
    assert table["b"]["accuracy"].value == 0


def test_factuality_by_hand():
    # first question: P = 2/4, R = 1/2, F = 1/2; second: P = 1, R = 1/3, F = 1/2; third: nothing matches, F = 0
    given = [
        Matches((M, M, R, C), (M, C)),
        Matches((M,), (M, C, R)),
        Matches((C,), (C,)),
        None,
    ]
    found = factuality(given)
    assert found["precision_step"].value == pytest.approx((0.5 + 1 + 0) / 3)
    assert found["recall_step"].value == pytest.approx((0.5 + 1 / 3 + 0) / 3)
    assert found["f_step"].value == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert found["f_step"].n == 3 and found["f_step"].coverage == 0.75
    pooled_p, pooled_r = 3 / 6, 2 / 6
    assert found["f_step_micro"].value == pytest.approx(2 * pooled_p * pooled_r / (pooled_p + pooled_r))


def test_reasonable_counts_as_much_as_it_is_told_to():
    one = [Matches((M, R), (M, R, C))]
    assert factuality(one, "f_claim")["precision_claim"].value == 0.5
    half = factuality(one, "f_claim", reasonable=0.5)
    assert half["precision_claim"].value == 0.75 and half["recall_claim"].value == 0.5
    assert half["f_claim"].value == pytest.approx(2 * 0.75 * 0.5 / 1.25)
    with pytest.raises(InputError, match="reasonable"):
        factuality(one, reasonable=1.5)


def test_factuality_without_lists_is_undefined():
    for given in ([], [None, None]):
        found = factuality(given)
        assert all(metric.value is None and metric.n == 0 for metric in found.values())
    nothing_said = factuality([Matches((), (C,))])
    assert nothing_said["f_step"].value is None and nothing_said["precision_step"].value is None
    assert nothing_said["recall_step"].value == 0


def test_hallucination_rates():
    clean = dict.fromkeys(KINDS, False)
    given = [clean, clean | {"spatial": True}, clean | {"spatial": True, "context": True}, None]
    found = hallucination_rates(given)
    assert found["spatial_rate"].value == pytest.approx(2 / 3) and found["spatial_rate"].n == 3
    assert found["context_rate"].value == pytest.approx(1 / 3)
    assert found["logical_rate"].value == 0
    assert found["any_rate"].value == pytest.approx(2 / 3)


def test_lhs_by_hand():
    # question 1: judge 1 gives 5 and 3, judge 2 gives 1 and 3; question 2: 3 and 3, 4 and none
    scores = [
        [[(5,) * 5, (3,) * 5], [(1,) * 5, (3,) * 5]],
        [[(3,) * 5, (1, 2, 3, 4, 5)], [(4,) * 5, None]],
    ]
    found = lhs(scores)
    first, second = (0.75 + 0.25) / 2, (0.5 + 0.75) / 2
    assert found["lhs"].value == pytest.approx((first + second) / 2)
    assert found["lhs_of_five"].value == pytest.approx((3 / 5 + 3.5 / 5) / 2)
    assert found["lhs_sd_questions"].value == pytest.approx(statistics.stdev([first, second]))
    assert found["lhs_sd_judges"].value == pytest.approx(
        statistics.stdev([(0.75 + 0.5) / 2, (0.25 + 0.75) / 2])
    )
    by_reference = [((1 + 0) / 2 + (0.5 + 0.75) / 2) / 2, (0.5 + 0.5) / 2]
    assert found["lhs_sd_references"].value == pytest.approx(statistics.stdev(by_reference))
    assert found[f"lhs_{DIMENSIONS[0]}"].value == pytest.approx((0.5 + ((0.5 + 0) / 2 + 0.75) / 2) / 2)
    assert found["lhs_judgements"].value == pytest.approx((1 + 0.75) / 2)


def test_lhs_that_nobody_gave_is_undefined():
    found = lhs([[[None, None]], [[None, None]]])
    assert all(
        found[name].value is None for name in ("lhs", "lhs_of_five", "lhs_sd_judges", "lhs_sd_questions")
    )
    assert found["lhs"].n == 0 and found["lhs_judgements"].value == 0
    assert lhs([])["lhs"].value is None
    alone = lhs([[[(4, 4, 4, 4, 4)]]])
    assert alone["lhs"].value == 0.75 and alone["lhs_sd_judges"].value is None
    assert alone["lhs_sd_questions"].value is None


def test_lhs_refuses_what_is_no_score():
    with pytest.raises(InputError, match="1 to 5"):
        lhs([[[(6, 1, 1, 1, 1)]]])
    with pytest.raises(InputError, match="judges and references"):
        lhs([[[None]], [[None, None]]])
    with pytest.raises(InputError, match="judges and references"):
        lhs([[], [[(1, 1, 1, 1, 1)]]])
    with pytest.raises(InputError, match="5 scores"):
        lhs([[[(1, 1, 1, 1)]]])


def test_correlations_of_hand_made_columns():
    a, b = [1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 4.0, 3.0, 7.0]
    found = correlations({"a": a, "b": b, "constant": [1.0] * 5, "holes": [1.0, None, 2.0, None, None]})
    slow = linregress(a, b)
    assert found.r[0][1] == pytest.approx(slow.rvalue) and found.r[1][0] == found.r[0][1]
    assert found.p[0][1] == pytest.approx(slow.pvalue)
    spread = 1.959963984540054 / math.sqrt(5 - 3)
    assert found.low[0][1] == pytest.approx(math.tanh(math.atanh(slow.rvalue) - spread))
    assert found.high[0][1] == pytest.approx(math.tanh(math.atanh(slow.rvalue) + spread))
    assert found.p_holm[0][1] == found.p[0][1]  # the only pair that is defined
    assert found.r[0][0] == 1 and found.p[0][0] is None
    assert found.r[0][2] is None and found.r[2][2] is None
    assert found.n[0][3] == 2 and found.r[0][3] is None
    with pytest.raises(InputError, match="lengths"):
        correlations({"a": [1.0], "b": []})


def test_holm_over_all_pairs():
    rng = np.random.default_rng(0)
    base = rng.normal(size=30)
    found = correlations(
        {n: list(base + s * rng.normal(size=30)) for n, s in [("a", 0.5), ("b", 1), ("c", 2)]}
    )
    pairs = sorted([found.p[0][1], found.p[0][2], found.p[1][2]])
    holm = sorted([found.p_holm[0][1], found.p_holm[0][2], found.p_holm[1][2]])
    assert holm[0] == pytest.approx(3 * pairs[0])
    assert holm[1] == pytest.approx(max(3 * pairs[0], 2 * pairs[1]))


TABLE_2 = """
47.6 51.5 50.7 0.7517
49.7 41.3 42.7 0.6193
44.1 47.8 47.4 0.6882
35.0 39.2 40.6 0.6332
38.8 47.4 44.6 0.7223
29.6 39.0 36.6 0.6377
24.5 29.7 26.2 0.4928
31.0 46.1 45.3 0.5717
37.4 47.1 45.0 0.6328
28.8 34.7 31.7 0.5996
19.5 21.9 18.6 0.3633
26.9 22.8 25.2 0.4478
26.7 40.1 33.4 0.5826
22.9 30.7 30.2 0.5098
22.6 29.2 24.4 0.4740
20.8 31.9 26.4 0.4838
18.7 26.9 22.3 0.4265
17.4 26.9 22.4 0.4267
37.1 43.3 38.3 0.6568
18.8 23.1 18.8 0.3422
12.9 16.6 13.8 0.3181
29.4 38.9 34.5 0.5840
"""


def test_the_papers_correlations_follow_from_its_table_of_models():
    columns = np.array([line.split() for line in TABLE_2.split("\n") if line], float).T
    found = correlations(dict(zip(("accuracy", "f_step", "f_claim", "lhs"), columns.tolist(), strict=True)))
    for (i, j), r in {(0, 1): 0.864, (0, 2): 0.918, (1, 2): 0.975}.items():
        assert found.r[i][j] == pytest.approx(r, abs=0.0006)
        assert found.p[i][j] < 0.001
    # those with the LHS, of which the paper prints two versions for some models, only come near
    for (i, j), r in {(0, 3): 0.889, (1, 3): 0.915, (2, 3): 0.933}.items():
        assert found.r[i][j] == pytest.approx(r, abs=0.04)
        assert found.p[i][j] < 0.001


def test_the_papers_p_values_are_those_of_seven_topics():
    # figure 7 prints r = 0.511 with p = 0.241, r = 0.445 with p = 0.317: of correlations over its 7 topics
    rng = np.random.default_rng(1)
    x, noise = rng.normal(size=(2, 7))
    x = (x - x.mean()) / np.linalg.norm(x - x.mean())
    noise = noise - noise.mean() - x * (noise @ x)
    noise /= np.linalg.norm(noise)
    for r, p in [(0.511, 0.241), (0.445, 0.317), (0.833, 0.020), (0.398, 0.376)]:
        found = correlations({"x": x.tolist(), "y": (r * x + math.sqrt(1 - r * r) * noise).tolist()})
        assert found.r[0][1] == pytest.approx(r, abs=1e-9)
        assert found.p[0][1] == pytest.approx(p, abs=0.0015)


def test_advantages_of_a_group_of_eight():
    rewards = np.array([2.0, 2, 1, 1, 0, 0, 1, 1])
    found = advantages(rewards)
    spread = math.sqrt((1 + 1 + 1 + 1) / 8)
    assert found.tolist() == pytest.approx([1 / spread, 1 / spread, 0, 0, -1 / spread, -1 / spread, 0, 0])
    both = advantages(np.stack([rewards, np.full(8, 0.1)]))
    assert both[0].tolist() == found.tolist() and (both[1] == 0).all()
    with pytest.raises(InputError):
        advantages(np.array([1.0, np.nan]))


def test_clipped_loss_by_hand():
    ratios = [np.array([1.5, 0.5]), np.array([0.5, 1.5, 1.0])]
    # gain 1: min(1.5, 1.2), min(0.5, 0.8); gain -1: min(-0.5, -0.8), min(-1.5, -1.2), -1
    expected = -((1.2 + 0.5) / 2 + (-0.8 - 1.5 - 1.0) / 3) / 2
    assert clipped_loss(ratios, np.array([1.0, -1.0])) == pytest.approx(expected)


def test_what_logos_trains_on():
    means = {"always": 1.0, "half": 0.5, "rare": 0.25, "never": 0.0}
    assert kept_by_curriculum(means, 0) == ["always", "half", "rare"]
    assert kept_by_curriculum(means, 1) == ["rare", "never"]
    groups = {"right": [2.0] * 8, "wrong": [0.0] * 8, "mixed": [2.0] * 7 + [1.0]}
    assert kept_by_reward_filtration(groups) == ["mixed"]


def test_format_and_reward():
    good = "<think>\n2 + 2\n</think>\n<answer>4</answer>\n"
    assert follows_format(good)
    for bad in ("4", good + "!", good * 2, "<think></think><answer>4</answer>", good.replace("</think>", "")):
        assert not follows_format(bad)
    assert [reward(f, c) for f in (False, True) for c in (False, True)] == [0, 1, 1, 2]


def test_hints_stand_around_the_question():
    assert hinted("Q", "topic", "own") == "topic\n\nQ\n\nown"
    assert hinted("Q", None, None) == "Q"
