"""Metrics of MIRAGE, compared with hand-computed values and with the paper's tables."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy.stats import linregress

from mmprobe.benchmarks.mirage.correlations import correlate
from mmprobe.benchmarks.mirage.labels import DIMENSIONS, KINDS, Matches
from mmprobe.benchmarks.mirage.metrics import accuracy, factuality, hallucination_rates, lhs
from mmprobe.errors import InputError

M, R, C = "MATCH", "REASONABLE", "CONFLICT"


def test_accuracy_with_and_without_missing_answers():
    metrics = accuracy([True, True, False, None])
    assert metrics["accuracy"].value == 0.5 and metrics["accuracy"].n == 4
    assert metrics["accuracy[read]"].value == pytest.approx(2 / 3)
    assert metrics["accuracy[read]"].n == 3 and metrics["accuracy[read]"].coverage == 0.75
    assert accuracy([])["accuracy"].value is None
    assert accuracy([None])["accuracy[read]"].value is None


def test_factuality_by_hand():
    # question 1: P = 2/4, R = 1/2, F = 1/2; question 2: P = 1, R = 1/3, F = 1/2; question 3: no match, F = 0
    matches = [
        Matches((M, M, R, C), (M, C)),
        Matches((M,), (M, C, R)),
        Matches((C,), (C,)),
        None,
    ]
    metrics = factuality(matches)
    assert metrics["precision_step"].value == pytest.approx((0.5 + 1 + 0) / 3)
    assert metrics["recall_step"].value == pytest.approx((0.5 + 1 / 3 + 0) / 3)
    assert metrics["f_step"].value == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert metrics["f_step"].n == 3 and metrics["f_step"].coverage == 0.75
    pooled_p, pooled_r = 3 / 6, 2 / 6
    assert metrics["f_step_micro"].value == pytest.approx(2 * pooled_p * pooled_r / (pooled_p + pooled_r))


def test_the_weight_of_reasonable_is_a_parameter():
    matches = [Matches((M, R), (M, R, C))]
    assert factuality(matches, "f_claim")["precision_claim"].value == 0.5
    half = factuality(matches, "f_claim", reasonable=0.5)
    assert half["precision_claim"].value == 0.75 and half["recall_claim"].value == 0.5
    assert half["f_claim"].value == pytest.approx(2 * 0.75 * 0.5 / 1.25)
    with pytest.raises(InputError, match="reasonable"):
        factuality(matches, reasonable=1.5)


def test_factuality_without_lists_is_undefined():
    for matches in ([], [None, None]):
        metrics = factuality(matches)
        assert all(metric.value is None and metric.n == 0 for metric in metrics.values())
    nothing_said = factuality([Matches((), (C,))])
    assert nothing_said["f_step"].value is None and nothing_said["precision_step"].value is None
    assert nothing_said["recall_step"].value == 0


def test_silence_counts_zero_in_the_zero_variant():
    """Of five answers, two say nothing and one has no verdict: the mean of F without them is twice as high."""
    matches = [Matches((M,), (M,)), Matches((), (C, C)), Matches((M, C), (M,)), Matches((), (C,)), None]
    metrics = factuality(matches, "f_claim")
    assert metrics["f_claim"].value == pytest.approx((1 + 2 / 3) / 2) and metrics["f_claim"].n == 2
    assert metrics["f_claim_zero"].value == pytest.approx((1 + 0 + 2 / 3 + 0) / 4)
    assert metrics["f_claim_zero"].n == 4 and metrics["f_claim_zero"].coverage == 0.8


def test_hallucination_rates():
    clean = dict.fromkeys(KINDS, False)
    verdicts = [clean, clean | {"spatial": True}, clean | {"spatial": True, "context": True}, None]
    rates = hallucination_rates(verdicts)
    assert rates["spatial_rate"].value == pytest.approx(2 / 3) and rates["spatial_rate"].n == 3
    assert rates["context_rate"].value == pytest.approx(1 / 3)
    assert rates["logical_rate"].value == 0
    assert rates["any_rate"].value == pytest.approx(2 / 3)


def test_silence_counts_zero_in_the_zero_variants_of_the_judge():
    """Three empty responses beside a good one: LHS without them is 0.75."""
    silent = [False, True, True, True]
    scores = [[[(4,) * 5]], [[None]], [[None]], [[None]]]
    metrics = lhs(scores, silent)
    assert (metrics["lhs"].value, metrics["lhs"].n) == (0.75, 1)
    assert (metrics["lhs_zero"].value, metrics["lhs_zero"].n) == (0.75 / 4, 4)
    verdicts = [dict.fromkeys(KINDS, True), None, None, None]
    rates = hallucination_rates(verdicts, silent)
    assert (rates["any_rate"].value, rates["any_rate_zero"].value) == (1, 0.25)
    assert hallucination_rates(verdicts)["any_rate_zero"].n == 1, "a judge that failed is no silence"


def test_factuality_as_the_released_code_counts():
    """REASONABLE counts in precision alone; true items that are neither stated nor contradicted do not count."""
    metrics = factuality([Matches((M, R, C, C), (M, C, R))], profile="code")
    assert metrics["precision_step"].value == 0.5 and metrics["recall_step"].value == 0.5
    assert metrics["f_step"].value == 0.5
    silent = factuality([Matches((), (C,)), Matches((M,), (M,)), Matches((M,), (R,))], profile="code")
    assert silent["f_step"].value == pytest.approx(1 / 3) and silent["f_step"].n == 3


def test_lhs_by_hand():
    # question 1: judge 1 gives 5 and 3, judge 2 gives 1 and 3; question 2: 3 and 3, 4 and none
    scores = [
        [[(5,) * 5, (3,) * 5], [(1,) * 5, (3,) * 5]],
        [[(3,) * 5, (1, 2, 3, 4, 5)], [(4,) * 5, None]],
    ]
    metrics = lhs(scores)
    first, second = (0.75 + 0.25) / 2, (0.5 + 0.75) / 2
    assert metrics["lhs"].value == pytest.approx((first + second) / 2)
    assert metrics["lhs_of_five"].value == pytest.approx((3 / 5 + 3.5 / 5) / 2)
    assert metrics["lhs_sd_questions"].value == pytest.approx(statistics.stdev([first, second]))
    assert metrics["lhs_sd_judges"].value == pytest.approx(
        statistics.stdev([(0.75 + 0.5) / 2, (0.25 + 0.75) / 2])
    )
    by_reference = [((1 + 0) / 2 + (0.5 + 0.75) / 2) / 2, (0.5 + 0.5) / 2]
    assert metrics["lhs_sd_references"].value == pytest.approx(statistics.stdev(by_reference))
    assert metrics[f"lhs_{DIMENSIONS[0]}"].value == pytest.approx((0.5 + ((0.5 + 0) / 2 + 0.75) / 2) / 2)
    assert metrics["lhs_judgements"].value == pytest.approx((1 + 0.75) / 2)


def test_lhs_without_scores_is_undefined():
    metrics = lhs([[[None, None]], [[None, None]]])
    assert all(
        metrics[name].value is None for name in ("lhs", "lhs_of_five", "lhs_sd_judges", "lhs_sd_questions")
    )
    assert metrics["lhs"].n == 0 and metrics["lhs_judgements"].value == 0
    assert lhs([])["lhs"].value is None
    alone = lhs([[[(4, 4, 4, 4, 4)]]])
    assert alone["lhs"].value == 0.75 and alone["lhs_sd_judges"].value is None
    assert alone["lhs_sd_questions"].value is None


def test_lhs_refuses_invalid_scores():
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
    result = correlate({"a": a, "b": b, "constant": [1.0] * 5, "holes": [1.0, None, 2.0, None, None]})
    reference = linregress(a, b)
    assert float(result.r[0, 1]) == pytest.approx(reference.rvalue) and float(result.r[1, 0]) == float(
        result.r[0, 1]
    )
    assert float(result.p[0, 1]) == pytest.approx(reference.pvalue)
    spread = 1.959963984540054 / math.sqrt(5 - 3)
    assert float(result.low[0, 1]) == pytest.approx(math.tanh(math.atanh(reference.rvalue) - spread))
    assert float(result.high[0, 1]) == pytest.approx(math.tanh(math.atanh(reference.rvalue) + spread))
    assert float(result.p_holm[0, 1]) == float(result.p[0, 1])  # the only pair that is defined
    assert float(result.r[0, 0]) == 1 and np.isnan(result.p[0, 0])
    assert np.isnan(result.r[0, 2]) and np.isnan(result.r[2, 2])
    assert float(result.n[0, 3]) == 2 and np.isnan(result.r[0, 3])
    with pytest.raises(InputError, match="lengths"):
        correlate({"a": [1.0], "b": []})


def test_holm_over_all_pairs():
    rng = np.random.default_rng(0)
    base = rng.normal(size=30)
    result = correlate({n: list(base + s * rng.normal(size=30)) for n, s in [("a", 0.5), ("b", 1), ("c", 2)]})
    pairs = sorted([float(result.p[0, 1]), float(result.p[0, 2]), float(result.p[1, 2])])
    holm = sorted([float(result.p_holm[0, 1]), float(result.p_holm[0, 2]), float(result.p_holm[1, 2])])
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
    result = correlate(dict(zip(("accuracy", "f_step", "f_claim", "lhs"), columns.tolist(), strict=True)))
    for (i, j), r in {(0, 1): 0.864, (0, 2): 0.918, (1, 2): 0.975}.items():
        assert float(result.r[i, j]) == pytest.approx(r, abs=0.0006)
        assert float(result.p[i, j]) < 0.001
    # The paper prints two versions of the LHS for some models, so these agree only roughly.
    for (i, j), r in {(0, 3): 0.889, (1, 3): 0.915, (2, 3): 0.933}.items():
        assert float(result.r[i, j]) == pytest.approx(r, abs=0.04)
        assert float(result.p[i, j]) < 0.001


def test_the_papers_p_values_follow_from_seven_topics():
    # Figure 7 prints r = 0.511 with p = 0.241, and r = 0.445 with p = 0.317. So n is 7, the number of topics.
    rng = np.random.default_rng(1)
    x, noise = rng.normal(size=(2, 7))
    x = (x - x.mean()) / np.linalg.norm(x - x.mean())
    noise = noise - noise.mean() - x * (noise @ x)
    noise /= np.linalg.norm(noise)
    for r, p in [(0.511, 0.241), (0.445, 0.317), (0.833, 0.020), (0.398, 0.376)]:
        result = correlate({"x": x.tolist(), "y": (r * x + math.sqrt(1 - r * r) * noise).tolist()})
        assert float(result.r[0, 1]) == pytest.approx(r, abs=1e-9)
        assert float(result.p[0, 1]) == pytest.approx(p, abs=0.0015)


def test_bounds_say_what_unread_chains_could_change():
    matches = Matches(predicted=("MATCH", "CONFLICT"), true=("MATCH",))
    metrics = factuality([matches, None, None], unread=[0, 3, 0])
    assert metrics["f_step"].value == pytest.approx(2 / 3) and metrics["f_step"].n == 1
    assert (
        metrics["f_step"].bounds == (pytest.approx(1 / 3), pytest.approx(5 / 6))
        and metrics["f_step"].unread == 1
    )
    precision, recall = 4 / 5, 1  # with three true items of three
    assert metrics["f_step_micro"].bounds[1] == pytest.approx(2 * precision * recall / (precision + recall))
    assert metrics["f_step_micro"].bounds[0] == pytest.approx(2 * (1 / 5) * (1 / 4) / (1 / 5 + 1 / 4))
    scores = lhs([[[(5, 5, 5, 5, 5)]], [[None]], [[None]]], asked=[True, True, False])
    assert scores["lhs"].value == 1 and scores["lhs"].bounds == (0.5, 1) and scores["lhs"].unread == 1
    assert scores["lhs_of_five"].bounds == (pytest.approx(0.6), 1)
    rates = hallucination_rates([dict.fromkeys(KINDS, True), None], asked=[True, True])
    assert rates["any_rate"].value == 1 and rates["any_rate"].bounds == (0.5, 1)
