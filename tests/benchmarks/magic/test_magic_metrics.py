"""Metrics of MagiC, compared with hand-computed values and with the averages in the paper's table."""

from __future__ import annotations

import numpy as np
import pytest

from mmprobe.benchmarks.magic.metrics import (
    answer_accuracy,
    citation_rates,
    magiscore,
    self_heal,
    step_sense,
)
from mmprobe.benchmarks.magic.steps import (
    StepSpan,
    find_cited_regions,
    find_wrong_spans,
    injected_steps,
    split_steps,
)


@pytest.mark.parametrize(
    ("step", "regions", "missing"),
    [
        ("In R1 there is a man.", {1}, 0),
        ("`R2` and (R3), **R4**.", {2, 3, 4}, 0),
        ("r2, R 3", {2, 3}, 0),
        ("R1/R4", {1, 4}, 0),
        ("Region 2 and bounding box 3", {2, 3}, 0),
        ("Regions 1 and 3 show it.", {1, 3}, 0),
        ("bounding boxes 1, 2, and 9", {1, 2}, 1),
        (r"$R_1$ or $R_{3}$, and region #4", {1, 3, 4}, 0),
        ("two boxes, 3 cats", set(), 0),
        ("R0, R5 and R12", set(), 3),
        ("R1's edge; R1 again", {1}, 0),
        ("PR1, R1a, XR2 and 4 boxes", set(), 0),
        ("nothing", set(), 0),
    ],
)
def test_regions_that_a_step_cites(step, regions, missing):
    assert find_cited_regions([step], 4) == (regions, missing)


@pytest.mark.parametrize(
    "step", ["R1-R3 matter", "The distance from R1 to R3", "regions 2-4; 3 dogs", "all boxes"]
)
def test_a_range_of_regions_is_unread(step):
    assert find_cited_regions(["R2.", step], 4) is None


def test_regions_of_all_steps_together():
    assert find_cited_regions(["R1.", "No, R2.", "R1 and R9."], 3) == ({1, 2}, 1)
    assert find_cited_regions([], 3) == (set(), 0)


def test_steps_are_sentences():
    text = 'The room is dark. In R1, a cat sits.\n\n1. It is 3.5 m away! "Yes." So R2 is it.'
    assert split_steps(text) == [
        "The room is dark.",
        "In R1, a cat sits.",
        "1. It is 3.5 m away!",
        '"Yes."',
        "So R2 is it.",
    ]
    assert split_steps(" \n ") == []


def test_magiscore_by_hand():
    # P 1/2, R 1/1 · P 2/2, R 2/3 · nothing named, R 0 · no answer
    metrics = magiscore([{1, 2}, {1, 3}, set(), None], [{1}, {1, 2, 3}, {2}, {1}])
    assert metrics["magiscore_micro_precision"].value == pytest.approx(3 / 4)
    assert metrics["magiscore_micro_recall"].value == pytest.approx(3 / 5)
    assert metrics["magiscore_micro_f1"].value == pytest.approx(2 * 3 / (4 + 5))
    assert metrics["magiscore_micro_f1"].n == 3 and metrics["magiscore_micro_f1"].coverage == 0.75
    # the mean over questions counts the answer without a box as 0; the answers with a box have their own mean
    assert metrics["magiscore_macro_precision"].value == pytest.approx((0.5 + 1 + 0) / 3)
    assert metrics["magiscore_macro_recall"].value == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert metrics["magiscore_macro_f1"].value == pytest.approx((2 / 3 + 4 / 5 + 0) / 3)
    assert metrics["magiscore_macro_f1"].n == 3 and metrics["magiscore_macro_f1"].coverage == 0.75
    assert metrics["magiscore_macro_precision_cited"].value == pytest.approx((0.5 + 1) / 2)
    assert metrics["magiscore_macro_f1_cited"].value == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert metrics["magiscore_macro_f1_cited"].n == 2


def test_magiscore_of_answers_without_citations():
    metrics = magiscore([set(), set()], [{1}, {2}], "attention")
    assert metrics["attention_micro_precision"].value is None
    assert metrics["attention_macro_f1_cited"].value is None and metrics["attention_macro_f1_cited"].n == 0
    assert metrics["attention_micro_recall"].value == 0 and metrics["attention_macro_f1"].value == 0
    assert all(metric.value is None for metric in magiscore([], []).values())


@pytest.mark.parametrize(
    ("precision", "recall", "f1"),
    [
        (77.78, 32.72, 46.06),
        (66.61, 50.90, 57.71),
        (89.02, 43.83, 58.74),
        (73.03, 64.45, 68.47),
        (83.35, 33.49, 47.78),
        (53.51, 88.46, 66.69),
        (61.62, 74.01, 67.25),
    ],
)
def test_the_papers_micro_f1_follows_from_pooled_counts(precision, recall, f1):
    named, true = 100_000, round(100_000 * precision / recall)
    hits = round(named * precision / 100)
    metrics = magiscore([range(named)], [range(named - hits, named - hits + true)])
    assert 100 * metrics["magiscore_micro_f1"].value == pytest.approx(f1, abs=0.011)


def test_macro_precision_below_micro_needs_questions_that_count_as_zero():
    # as in the paper's rows with a macro precision of 46 or 48 beside a micro one of 83 or 78
    named = [{1, 2, 3, 4, 5}] * 10 + [set()] * 8
    metrics = magiscore(named, [{1, 2, 3, 4, 9}] * 18)
    assert metrics["magiscore_macro_precision_cited"].value == pytest.approx(0.8)
    assert metrics["magiscore_micro_precision"].value == pytest.approx(0.8)
    assert metrics["magiscore_macro_precision"].value == pytest.approx(0.8 * 10 / 18)


def test_citations_and_accuracies():
    metrics = citation_rates([{1}, set(), set(), None], [0, 2, 0, 0], [2, 2, 2, 2])
    assert metrics["cites_none_rate"].value == pytest.approx(2 / 3)
    assert metrics["cites_missing_box_rate"].value == pytest.approx(1 / 3)
    every = citation_rates([{1, 2}, {1}, {1, 2, 3}, set()], [0, 1, 0, 0], [2, 2, 3, 2])
    assert every["cites_all_rate"].value == 0.5 and every["cites_missing_box_rate"].value == 0.25
    both = answer_accuracy([True, False, None], [False, False, True])
    assert both["accuracy_short"].value == both["accuracy_full"].value == pytest.approx(1 / 3)
    assert both["accuracy_short[read]"].value == 0.5 and both["accuracy_short"].bounds[1] == pytest.approx(
        2 / 3
    )


def test_step_sense_by_hand():
    metrics = step_sense([[True, True, False, True], [False, False], [], None])
    assert metrics["stepsense"].value == pytest.approx(3 / 6)
    assert metrics["stepsense_macro"].value == pytest.approx((0.75 + 0) / 2)
    assert metrics["stepsense"].n == 2 and metrics["stepsense"].coverage == 0.5
    assert step_sense([[]])["stepsense"].value is None
    assert metrics["stepsense_labelled"].value == 1
    part = step_sense([[True, None, None], [None], [False, None]])
    assert part["stepsense"].value == part["stepsense_macro"].value == 1 / 2
    assert (part["stepsense_labelled"].value, part["stepsense"].n) == (2 / 6, 2)


def slow_spans(correct: list[bool]) -> list[StepSpan]:
    n = len(correct)
    spans = []
    for i in range(1, n + 1):
        for j in range(i, n + 1):
            wrong = not any(correct[i - 1 : j])
            maximal = (i == 1 or correct[i - 2]) and (j == n or correct[j])
            if wrong and maximal and i >= 2 and j <= n - 2:
                spans.append(StepSpan(i, j))
    return spans


def test_spans_of_wrong_steps_agree_with_their_definition():
    rng = np.random.default_rng(0)
    seen = 0
    for length in range(12):
        for _ in range(30):
            correct = [bool(v) for v in rng.integers(0, 2, length)]
            assert find_wrong_spans(correct) == slow_spans(correct)
            seen += len(find_wrong_spans(correct))
    assert seen > 100


def test_spans_at_their_bounds():
    assert find_wrong_spans([True, False, True, True]) == [(2, 2)]
    assert find_wrong_spans([False, True, True, True]) == []  # the first step
    assert find_wrong_spans([False, False, True, True]) == []  # begins with the first step
    assert find_wrong_spans([True, True, False, True]) == []  # ends with the last step but one
    assert find_wrong_spans([]) == []
    assert injected_steps(list("abcdef"), StepSpan(2, 3)) == ["a", "b", "c"]


def test_self_heal_by_hand():
    metrics = self_heal([[True, False, None], [], [True], [None]])
    assert metrics["self_heal"].value == pytest.approx(2 / 3) and metrics["self_heal"].n == 2
    assert metrics["self_heal_judged"].value == pytest.approx(3 / 5)
    assert self_heal([[]])["self_heal"].value is None
