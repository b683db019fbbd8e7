"""Each metric against numbers computed by hand, with both definitions of the paper."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.answers.claims import Claim, parse_claims
from mmprobe.benchmarks.spd_faith.data import Difference, Pair
from mmprobe.benchmarks.spd_faith.labels import PairLabels, YesNo
from mmprobe.benchmarks.spd_faith.match import Agreement, ClaimError
from mmprobe.benchmarks.spd_faith.metrics import PROFILES, compute_metrics, compute_scores, count_list_matches
from mmprobe.benchmarks.spd_faith.rule_labels import score_by_rules


def make_pair(*edits: tuple[str, str], name: str = "p", difficulty: str | None = None) -> Pair:
    return Pair(name, tuple(Difference(kind, category) for kind, category in edits), difficulty)  # type: ignore[arg-type]


def make_claims(*items: tuple[str | None, str | None]) -> tuple[Claim, ...]:
    return tuple(Claim(kind, category) for kind, category in items)  # type: ignore[arg-type]


NONE = make_pair()
ONE = make_pair(("remove", "dog"))
TWO = make_pair(("remove", "dog"), ("color", "car"))
FOUR = make_pair(("remove", "dog"), ("color", "car"), ("color", "bus"), ("position", "cup"))


def with_count(pair: Pair, count: int | None) -> PairLabels:
    return PairLabels(pair, count=count, count_asked=True)


def with_list(pair: Pair, *items: tuple[str | None, str | None]) -> PairLabels:
    return PairLabels(pair, list_claims=make_claims(*items), list_asked=True)


def with_yes_no(pair: Pair, same: YesNo, different: YesNo, *agreement: Agreement) -> PairLabels:
    return PairLabels(pair, same=same, different=different, agreement=agreement)


def with_errors(pair: Pair, *errors: ClaimError | None) -> PairLabels:
    return PairLabels(pair, find_errors=errors, find_asked=True)


@pytest.mark.parametrize(
    ("pair", "count", "exact", "ratio", "clamped", "tolerance", "exist"),
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
def test_counts(pair: Pair, count: int | None, exact: float, ratio: float, clamped: float, tolerance: float, exist: float) -> None:  # fmt: skip
    assert compute_scores(with_count(pair, count)) == {
        "dqr_exact": exact,
        "dqr_ratio": ratio,
        "dqr_ratio_clamped": clamped,
        "ds_tolerance": tolerance,
        "ds_exist": exist,
    }


def test_the_appendix_pair_has_ds_above_dqr_and_the_other_reading_need_not() -> None:
    for count in range(8):
        scores = compute_scores(with_count(TWO, count))
        assert scores["ds_tolerance"] >= scores["dqr_exact"]  # type: ignore[operator]
    metrics = compute_metrics([with_count(TWO, 4), with_count(TWO, 0)])
    assert metrics["ds_exist"].value == 0.5 < metrics["dqr_ratio"].value == 1.0  # type: ignore[operator]


def test_counts_not_understood_are_dropped_and_counted_0() -> None:
    metrics = compute_metrics(
        [with_count(TWO, 3), with_count(FOUR, 0), with_count(NONE, 0), with_count(ONE, None)]
    )
    exact, zero = metrics["dqr_exact[read]"], metrics["dqr_exact"]
    assert (exact.value, exact.n, exact.coverage) == (pytest.approx(1 / 3), 3, 0.75)
    assert (zero.value, zero.n, zero.coverage) == (0.25, 4, 1.0)
    assert (zero.unread, zero.bounds) == (1, (0.25, 0.5))
    ratio, zero = metrics["dqr_ratio[read]"], metrics["dqr_ratio"]
    assert (ratio.value, ratio.n, ratio.coverage) == (0.75, 2, 0.5)
    assert (zero.value, zero.n) == (0.5, 3)  # the pair without differences stays undefined
    assert (ratio.direction, ratio.range, zero.bounds) == ("higher", (0, None), (0.5, None))


def test_tf1_micro_pools_counts_and_macro_is_the_mean_of_three() -> None:
    truth = make_pair(("color", "car"), ("color", "bus"), ("remove", "dog"))
    metrics = compute_metrics([with_list(truth, ("color", "car"), ("remove", "dog"), ("position", "cup"))])
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
    metrics = compute_metrics([with_list(ONE, ("remove", "dog")), with_list(FOUR, ("remove", "dog"))])
    assert metrics["tf1_micro"].value == pytest.approx(
        4 / 7
    )  # 2 matched, 2 claimed, 5 true; not (1 + 2/5) / 2
    assert metrics["tf1_macro"].value == pytest.approx((1 + 0 + 0) / 3)


def test_cf1_is_a_multiset_and_the_released_code_counts_duplicates() -> None:
    metrics = compute_metrics(
        [with_list(ONE, ("remove", "dog"), ("color", "dog"), ("remove", "dog"), ("remove", "cat"))]
    )
    assert metrics["cf1_precision"].value == 0.25
    assert metrics["cf1_recall"].value == 1
    assert metrics["cf1"].value == pytest.approx(0.4)
    assert metrics["cf1_code_recall"].value == 3
    assert metrics["cf1_code"].value == pytest.approx(2 * 3 / (4 + 1))
    assert (metrics["cf1_code"].range, metrics["cf1_code_recall"].range) == ((0, 2), (0, None))


def test_a_number_of_things_is_as_many_and_denials_are_none() -> None:
    two = PairLabels(
        make_pair(("remove", "dog"), ("remove", "dog"), ("remove", "dog")),
        list_claims=(
            Claim("remove", "dog", quantity=2),
            Claim("color", "dog", negated=True),
            Claim(None, None),
        ),
        list_asked=True,
    )
    assert count_list_matches(two) == [0, 0, 0, 2, 2, 3, 0, 0, 0, 2, 3, 3, 2, 3, 3, 2]


def test_an_unknown_object_or_type_is_false_as_in_the_released_code() -> None:
    answer = '[{"type": "remove", "category": "dog"}, {"type": "remove", "category": "lamp"}, {"type": "add", "category": "cat"}]'
    labels = PairLabels(ONE, list_claims=tuple(parse_claims(answer)), list_asked=True)
    metrics = compute_metrics([labels])
    assert metrics["cf1_precision"].value == metrics["tf1_micro_precision"].value == pytest.approx(1 / 3)
    assert metrics["tf1_remove_precision"].value == 1 / 2 and metrics["cf1_recall"].value == 1


def test_listings_not_understood_are_dropped_and_counted_as_empty() -> None:
    metrics = compute_metrics([with_list(ONE, ("remove", "dog")), PairLabels(ONE, list_asked=True)])
    read = metrics["cf1[read]"]
    assert (read.value, read.n, read.coverage) == (1, 1, 0.5)
    assert metrics["cf1"].value == pytest.approx(2 / 3)  # 1 matched, 1 claimed, 2 true
    assert metrics["cf1"].bounds == (pytest.approx(2 / 3), 1)


def test_equal_images_of_which_nothing_is_claimed_leave_f1_undefined() -> None:
    metrics = compute_metrics([with_list(NONE), with_list(NONE)])
    assert metrics["tf1_micro"].value is metrics["tf1_macro"].value is metrics["cf1"].value is None
    assert compute_metrics([with_list(NONE, ("color", "car"))])["cf1"].value == 0


def test_contradictions_of_the_single_difference_split() -> None:
    labels = [
        with_yes_no(ONE, "yes", "yes"),
        with_yes_no(ONE, "no", "no"),
        with_yes_no(ONE, "no", "yes"),
        with_yes_no(ONE, "no", "yes"),
        with_yes_no(ONE, "unknown", "yes"),
        with_yes_no(TWO, "yes", "yes"),  # not of this split
        with_yes_no(NONE, "yes", "yes"),
    ]
    metrics = compute_metrics(labels)
    rate = metrics["contradiction_rate[read]"]
    assert (rate.value, rate.n, rate.coverage, rate.direction) == (0.25, 4, 0.8, "lower")
    rate = metrics["contradiction_rate"]
    assert (rate.value, rate.n, rate.unread) == (pytest.approx(0.2), 5, 1) and rate.bounds == pytest.approx(
        (0.2, 0.4)
    )
    assert metrics["contradiction_rate_no_no"].value == pytest.approx(0.2), "its yes alone rules out two noes"
    assert metrics["contradiction_rate_no_no"].unread == 0
    assert metrics["yes_ratio"].value == pytest.approx(0.2) and metrics["yes_ratio[read]"].value == 0.25


def test_one_binary_question_alone_contradicts_nothing() -> None:
    metrics = compute_metrics([PairLabels(ONE, same="yes")])
    assert "contradiction_rate" not in metrics and "consistency_ratio" not in metrics
    assert metrics["yes_ratio"].value == 1


def test_consistency_weighs_its_labels_and_no_claims_are_undefined() -> None:
    labels = [
        with_yes_no(ONE, "no", "yes", "consistent", "contradictory", "ambiguous"),
        with_yes_no(ONE, "no", "yes", "contradictory"),
        with_yes_no(ONE, "yes", "no"),
    ]
    ratio = compute_metrics(labels)["consistency_ratio"]
    assert compute_scores(labels[0])["consistency_ratio"] == pytest.approx(0.5 / 3)
    assert compute_scores(labels[2])["consistency_ratio"] is None
    assert ratio.value == pytest.approx((1 / 6 - 1) / 2)
    assert (ratio.n, ratio.coverage, ratio.direction, ratio.range) == (
        2,
        pytest.approx(2 / 3),
        "higher",
        (-1, 1),
    )
    assert "consistency_ratio[read]" not in compute_metrics(labels)


def test_drf_is_the_mean_over_samples_and_its_errors_are_shares_of_claims() -> None:
    wrong: tuple[ClaimError, ...] = ("type_confusion", "attribute_error", "fabrication", "fabrication")
    labels = [
        with_errors(TWO, None, "quantity_error"),
        with_errors(FOUR, *wrong),
        with_errors(TWO),
        PairLabels(TWO, find_asked=True),
    ]
    metrics = compute_metrics(labels)
    drf = metrics["drf[read]"]
    assert (drf.value, drf.n, drf.coverage) == (0.25, 2, 0.5)  # not 1 of 6 claims; no claims made: undefined
    assert (metrics["drf"].value, metrics["drf"].n) == (pytest.approx(1 / 6), 3)
    assert metrics["drf"].bounds == pytest.approx((1 / 6, 1 / 2))
    shares = {"quantity_error": 1, "type_confusion": 1, "attribute_error": 1, "fabrication": 2}
    for name, number in shares.items():
        assert metrics[f"drf_{name}"].value == pytest.approx(number / 6)
    assert metrics["drf_type_category_mismatch"].value == 0


def test_none_faithful_of_two_is_0_and_the_number_stated_is_the_other_denominator() -> None:
    two: tuple[ClaimError, ...] = ("fabrication", "fabrication")
    assert compute_scores(with_errors(TWO, *two))["drf"] == 0
    stated = PairLabels(TWO, count=4, count_asked=True, find_errors=(None, "fabrication"), find_asked=True)
    assert (compute_scores(stated)["drf"], compute_scores(stated)["drf_of_count"]) == (0.5, 0.25)
    none = PairLabels(TWO, count=0, count_asked=True, find_errors=(None,), find_asked=True)
    assert compute_scores(none)["drf_of_count"] is None


def test_groups_hold_their_own_pairs() -> None:
    easy = make_pair(("remove", "dog"), difficulty="easy")
    hard = make_pair(("color", "car"), difficulty="hard")
    metrics = compute_metrics(
        [with_yes_no(easy, "yes", "no"), with_yes_no(hard, "no", "yes"), with_count(TWO, 2)]
    )
    assert metrics["yes_ratio[difficulty=easy]"].value == 1
    assert metrics["yes_ratio[difficulty=hard]"].value == 0
    assert metrics["yes_ratio[type=remove]"].value == 1
    assert metrics["dqr_exact[type=mixed]"].n == metrics["dqr_exact[differences=2]"].n == 1
    assert "yes_ratio[differences=2]" not in metrics


def test_intervals_hold_the_value_and_are_repeated() -> None:
    labels = [with_count(TWO, k % 4) for k in range(40)]
    labels += [with_list(TWO, ("remove", "dog" if k % 2 else "bus")) for k in range(20)]
    first, again = compute_metrics(labels), compute_metrics(labels)
    assert first == again
    for name in ("dqr_ratio", "ds_tolerance", "cf1"):
        metric = first[name]
        assert metric.low < metric.value < metric.high, name  # type: ignore[operator]


def test_every_headline_metric_exists() -> None:
    everything = PairLabels(ONE, "no", "yes", 1, True, make_claims(("remove", "dog")), True, (None,), True, (None,), True, ("consistent",))  # fmt: skip
    metrics = compute_metrics([everything])
    for names in PROFILES.values():
        assert set(names) <= set(metrics)
    assert metrics["drf_steps"].value == 1


def test_unread_sentences_beside_claims_are_counted_and_bound_what_they_could_say() -> None:
    pair = Pair("7", (Difference("remove", "dog"), Difference("color", "car")))
    said = "The dog was removed. The cat moved. The mood is calmer."
    answers = {
        "find": said,
        "same": "No. The dog was removed. It feels calmer.",
        "different": "Yes. The dog was removed.",
    }
    lines = [{"id": "7", "question_type": kind, "response": text} for kind, text in answers.items()]
    metrics, (record,) = score_by_rules([pair], lines)
    assert record["answers"]["find"]["unread"] == 1 and metrics["unread"].value == 0
    assert (metrics["drf"].value, metrics["drf"].unread) == (0.5, 1)
    assert metrics["drf"].bounds == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert metrics["drf_fabrication"].bounds == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert metrics["consistency_ratio"].value == 1 and metrics["consistency_ratio"].bounds == (-1, 1)
    assert metrics["cf1"].value == pytest.approx(2 * 1 / 4)
    assert metrics["cf1"].bounds == (pytest.approx(2 * 1 / 5), pytest.approx(2 * 2 / 5))
    assert metrics["tf1_remove"].bounds == (pytest.approx(2 * 1 / 3), 1), "the sentence may be of any type"
    truth = [{**line, "response": line["response"].replace(" It feels calmer.", "")} for line in lines]
    assert score_by_rules([pair], truth)[0]["consistency_ratio"].bounds is None
