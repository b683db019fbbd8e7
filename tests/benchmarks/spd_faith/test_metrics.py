"""Each metric against numbers worked out by hand, with the traps of the paper's two readings."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.answers.lexical.claims import Claim
from mmprobe.benchmarks.spd_faith.data import Difference, Pair
from mmprobe.benchmarks.spd_faith.labels import PairLabels, Word
from mmprobe.benchmarks.spd_faith.match import Error, Label
from mmprobe.benchmarks.spd_faith.metrics import PROFILES, metrics_of
from mmprobe.benchmarks.spd_faith.scoring import listing_counts, scores_of


def pair(*edits: tuple[str, str], name: str = "p", difficulty: str | None = None) -> Pair:
    return Pair(name, tuple(Difference(kind, category) for kind, category in edits), difficulty)  # type: ignore[arg-type]


def claims(*told: tuple[str | None, str | None]) -> tuple[Claim, ...]:
    return tuple(Claim(kind, category) for kind, category in told)  # type: ignore[arg-type]


NONE = pair()
ONE = pair(("remove", "dog"))
TWO = pair(("remove", "dog"), ("color", "car"))
FOUR = pair(("remove", "dog"), ("color", "car"), ("color", "bus"), ("position", "cup"))


def counted(of: Pair, count: int | None) -> PairLabels:
    return PairLabels(of, count=count, count_asked=True)


def listed(of: Pair, *told: tuple[str | None, str | None]) -> PairLabels:
    return PairLabels(of, listed=claims(*told), listed_asked=True)


def binary(of: Pair, same: Word, different: Word, *agreement: Label) -> PairLabels:
    return PairLabels(of, same=same, different=different, agreement=agreement)


def found(of: Pair, *errors: Error | None) -> PairLabels:
    return PairLabels(of, found=errors, found_asked=True)


@pytest.mark.parametrize(
    ("of", "count", "exact", "ratio", "clamped", "tolerance", "exist"),
    [
        (TWO, 2, 1, 1, 1, 1, 1),
        (TWO, 3, 0, 1.5, 1, 0.5, 1),
        (TWO, 1, 0, 0.5, 0.5, 0.5, 1),
        (TWO, 9, 0, 4.5, 1, 0, 1),
        (TWO, 0, 0, 0, 0, 0, 0),
        (NONE, 0, 1, None, None, None, None),
        (NONE, 2, 0, None, None, None, None),
        (TWO, None, None, None, None, None, None),
    ],
)
def test_counts(of: Pair, count: int | None, exact: float, ratio: float, clamped: float, tolerance: float, exist: float) -> None:  # fmt: skip
    assert scores_of(counted(of, count)) == {
        "dqr_exact": exact,
        "dqr_ratio": ratio,
        "dqr_ratio_clamped": clamped,
        "ds_tolerance": tolerance,
        "ds_exist": exist,
    }


def test_the_appendix_pair_has_ds_above_dqr_and_the_other_reading_need_not() -> None:
    for count in range(8):
        scores = scores_of(counted(TWO, count))
        assert scores["ds_tolerance"] >= scores["dqr_exact"]  # type: ignore[operator]
    metrics = metrics_of([counted(TWO, 4), counted(TWO, 0)])
    assert metrics["ds_exist"].value == 0.5 < metrics["dqr_ratio"].value == 1.0  # type: ignore[operator]


def test_counts_not_understood_are_dropped_and_counted_0() -> None:
    metrics = metrics_of([counted(TWO, 3), counted(FOUR, 0), counted(NONE, 0), counted(ONE, None)])
    exact, zero = metrics["dqr_exact"], metrics["dqr_exact_unparsed_0"]
    assert (exact.value, exact.n, exact.coverage) == (pytest.approx(1 / 3), 3, 0.75)
    assert (zero.value, zero.n, zero.coverage) == (0.25, 4, 1.0)
    ratio, zero = metrics["dqr_ratio"], metrics["dqr_ratio_unparsed_0"]
    assert (ratio.value, ratio.n, ratio.coverage) == (0.75, 2, 0.5)
    assert (zero.value, zero.n) == (0.5, 3)  # the pair without differences stays undefined
    assert (ratio.direction, ratio.range) == ("higher", (0, None))


def test_tf1_micro_pools_counts_and_macro_is_the_mean_of_three() -> None:
    truth = pair(("color", "car"), ("color", "bus"), ("remove", "dog"))
    metrics = metrics_of([listed(truth, ("color", "car"), ("remove", "dog"), ("position", "cup"))])
    assert metrics["tf1_color"].value == pytest.approx(2 / 3)  # 1 matched, 1 claimed, 2 true
    assert metrics["tf1_remove"].value == 1
    assert metrics["tf1_position"].value == 0  # claimed, never true
    assert metrics["tf1_micro"].value == pytest.approx(2 / 3)  # 2 matched, 3 claimed, 3 true
    assert metrics["tf1_macro"].value == pytest.approx(5 / 9)
    assert metrics["tf1_color_precision"].value == 1
    assert metrics["tf1_color_recall"].value == 0.5
    assert metrics["tf1_macro_precision"].value == pytest.approx(2 / 3)
    assert metrics["tf1_macro_recall"].value == pytest.approx(0.75)  # position has no true one: undefined


def test_tf1_pools_over_samples_before_it_divides() -> None:
    metrics = metrics_of([listed(ONE, ("remove", "dog")), listed(FOUR, ("remove", "dog"))])
    assert metrics["tf1_micro"].value == pytest.approx(
        4 / 7
    )  # 2 matched, 2 claimed, 5 true; not (1 + 2/5) / 2
    assert metrics["tf1_macro"].value == pytest.approx((1 + 0 + 0) / 3)


def test_cf1_is_a_multiset_and_the_released_code_counts_duplicates() -> None:
    metrics = metrics_of(
        [listed(ONE, ("remove", "dog"), ("color", "dog"), ("remove", "dog"), ("remove", "cat"))]
    )
    assert metrics["cf1_precision"].value == 0.25
    assert metrics["cf1_recall"].value == 1
    assert metrics["cf1"].value == pytest.approx(0.4)
    assert metrics["cf1_code_recall"].value == 3
    assert metrics["cf1_code"].value == pytest.approx(2 * 3 / (4 + 1))
    assert (metrics["cf1_code"].range, metrics["cf1_code_recall"].range) == ((0, 2), (0, None))


def test_a_number_of_things_is_as_many_and_denials_are_none() -> None:
    two = PairLabels(
        pair(("remove", "dog"), ("remove", "dog"), ("remove", "dog")),
        listed=(Claim("remove", "dog", quantity=2), Claim("color", "dog", negated=True), Claim(None, None)),
        listed_asked=True,
    )
    assert listing_counts(two) == [0, 0, 0, 2, 2, 3, 0, 0, 0, 2, 2, 3, 2, 2, 3, 2]


def test_listings_not_understood_are_dropped_and_counted_as_empty() -> None:
    metrics = metrics_of([listed(ONE, ("remove", "dog")), PairLabels(ONE, listed_asked=True)])
    assert (metrics["cf1"].value, metrics["cf1"].n, metrics["cf1"].coverage) == (1, 1, 0.5)
    assert metrics["cf1_unparsed_0"].value == pytest.approx(2 / 3)  # 1 matched, 1 claimed, 2 true


def test_equal_pictures_of_which_nothing_is_claimed_leave_f1_undefined() -> None:
    metrics = metrics_of([listed(NONE), listed(NONE)])
    assert metrics["tf1_micro"].value is metrics["tf1_macro"].value is metrics["cf1"].value is None
    assert metrics_of([listed(NONE, ("color", "car"))])["cf1"].value == 0


def test_contradictions_of_the_single_difference_split() -> None:
    judged = [
        binary(ONE, "yes", "yes"),
        binary(ONE, "no", "no"),
        binary(ONE, "no", "yes"),
        binary(ONE, "no", "yes"),
        binary(ONE, "unknown", "yes"),
        binary(TWO, "yes", "yes"),  # not of this split
        binary(NONE, "yes", "yes"),
    ]
    metrics = metrics_of(judged)
    rate = metrics["contradiction_rate"]
    assert (rate.value, rate.n, rate.coverage, rate.direction) == (0.25, 4, 0.8, "lower")
    assert metrics["contradiction_rate_no_no"].value == 0.25
    assert metrics["contradiction_rate_unparsed_0"].value == pytest.approx(0.2)
    assert metrics["yes_ratio"].value == 0.25


def test_one_binary_question_alone_contradicts_nothing() -> None:
    metrics = metrics_of([PairLabels(ONE, same="yes")])
    assert "contradiction_rate" not in metrics and "consistency_ratio" not in metrics
    assert metrics["yes_ratio"].value == 1


def test_consistency_weighs_its_labels_and_no_claims_are_undefined() -> None:
    judged = [
        binary(ONE, "no", "yes", "consistent", "contradictory", "ambiguous"),
        binary(ONE, "no", "yes", "contradictory"),
        binary(ONE, "yes", "no"),
    ]
    ratio = metrics_of(judged)["consistency_ratio"]
    assert scores_of(judged[0])["consistency_ratio"] == pytest.approx(0.5 / 3)
    assert scores_of(judged[2])["consistency_ratio"] is None
    assert ratio.value == pytest.approx((1 / 6 - 1) / 2)
    assert (ratio.n, ratio.coverage, ratio.direction, ratio.range) == (
        2,
        pytest.approx(2 / 3),
        "higher",
        (-1, 1),
    )
    assert "consistency_ratio_unparsed_0" not in metrics_of(judged)


def test_drf_is_the_mean_over_samples_and_its_errors_are_shares_of_claims() -> None:
    wrong: tuple[Error, ...] = ("type_confusion", "attribute_error", "fabrication", "fabrication")
    judged = [
        found(TWO, None, "quantity_error"),
        found(FOUR, *wrong),
        found(TWO),
        PairLabels(TWO, found_asked=True),
    ]
    metrics = metrics_of(judged)
    drf = metrics["drf"]
    assert (drf.value, drf.n, drf.coverage) == (0.25, 2, 0.5)  # not 1 of 6 claims; no claims made: undefined
    assert (metrics["drf_unparsed_0"].value, metrics["drf_unparsed_0"].n) == (pytest.approx(1 / 6), 3)
    shares = {"quantity_error": 1, "type_confusion": 1, "attribute_error": 1, "fabrication": 2}
    for name, number in shares.items():
        assert metrics[f"drf_{name}"].value == pytest.approx(number / 6)
    assert metrics["drf_type_category_mismatch"].value == 0


def test_none_faithful_of_two_is_0_and_the_number_stated_is_the_other_denominator() -> None:
    two: tuple[Error, ...] = ("fabrication", "fabrication")
    assert scores_of(found(TWO, *two))["drf"] == 0
    stated = PairLabels(TWO, count=4, count_asked=True, found=(None, "fabrication"), found_asked=True)
    assert (scores_of(stated)["drf"], scores_of(stated)["drf_of_count"]) == (0.5, 0.25)
    none = PairLabels(TWO, count=0, count_asked=True, found=(None,), found_asked=True)
    assert scores_of(none)["drf_of_count"] is None


def test_groups_hold_their_own_pairs() -> None:
    easy = pair(("remove", "dog"), difficulty="easy")
    hard = pair(("color", "car"), difficulty="hard")
    metrics = metrics_of([binary(easy, "yes", "no"), binary(hard, "no", "yes"), counted(TWO, 2)])
    assert metrics["yes_ratio[difficulty=easy]"].value == 1
    assert metrics["yes_ratio[difficulty=hard]"].value == 0
    assert metrics["yes_ratio[type=remove]"].value == 1
    assert metrics["dqr_exact[type=mixed]"].n == metrics["dqr_exact[differences=2]"].n == 1
    assert "yes_ratio[differences=2]" not in metrics


def test_intervals_hold_the_value_and_are_repeated() -> None:
    judged = [counted(TWO, k % 4) for k in range(40)]
    judged += [listed(TWO, ("remove", "dog" if k % 2 else "bus")) for k in range(20)]
    first, again = metrics_of(judged), metrics_of(judged)
    assert first == again
    for name in ("dqr_ratio", "ds_tolerance", "cf1"):
        one = first[name]
        assert one.low < one.value < one.high, name  # type: ignore[operator]


def test_every_headline_metric_exists() -> None:
    everything = PairLabels(ONE, "no", "yes", 1, True, claims(("remove", "dog")), True, (None,), True, (None,), True, ("consistent",))  # fmt: skip
    metrics = metrics_of([everything])
    for names in PROFILES.values():
        assert set(names) <= set(metrics)
    assert metrics["drf_steps"].value == 1
