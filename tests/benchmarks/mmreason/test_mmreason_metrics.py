"""Metrics of MMReason, compared with hand-computed values and with table 5 of the paper."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.benchmarks.mmreason.labels import ERROR_TYPES, ReasonLabels
from mmprobe.benchmarks.mmreason.metrics import (
    accuracy_tables,
    compute_metrics,
    error_tally,
    relevance_rate,
    step_score,
    step_scores,
)
from mmprobe.errors import InputError

TABLE_5 = [
    (6.51, 15.0, 56.6),
    (7.23, 17.9, 59.6),
    (9.36, 23.8, 60.7),
    (13.4, 30.8, 56.5),
    (0.65, 11.7, 94.5),
    (0.69, 12.4, 94.5),
    (0.73, 18.3, 96.1),
    (0.78, 25.7, 97.0),
]


@pytest.mark.parametrize(("text", "full", "printed"), TABLE_5)
def test_the_papers_relevance_rates(text, full, printed):
    # within one unit of the last printed digit, because the printed accuracies are rounded
    correct_text, correct_full = (
        [number < 100 * share for number in range(10_000)] for share in (text, full)
    )
    assert 100 * relevance_rate(correct_text, correct_full).value == pytest.approx(printed, abs=0.1)


def test_a_relevance_rate_of_single_answers():
    text = [True, False, True, False, None, True]
    full = [True, True, False, True, True, None]
    rate = relevance_rate(text, full)
    assert rate.value == pytest.approx(1 - 3 / 4) and rate.n == 6, "unread answers are wrong"
    assert rate.bounds == pytest.approx((1 - 4 / 4, 1 - 3 / 5)) and rate.low <= rate.value <= rate.high


def test_relevance_is_undefined_without_right_answers_and_negative_if_images_harm():
    nothing = relevance_rate([True, False], [False, False])
    assert nothing.value is None and nothing.n == 2
    assert relevance_rate([True, True], [True, False]).value == -1


def test_steps_by_hand():
    labels = [
        ["correct", "correct", "unverifiable", "incorrect"],
        ["incorrect"],
        [],
        None,
    ]
    metrics = step_scores(labels)
    assert metrics["s_inter"].value == pytest.approx((2.5 / 4 + 0) / 2)
    assert metrics["s_inter"].n == 2 and metrics["s_inter"].coverage == 0.5
    assert metrics["s_inter_micro"].value == pytest.approx(2.5 / 5)
    shares = [metrics[f"{kind}_steps"].value for kind in ("correct", "unverifiable", "incorrect")]
    assert shares == pytest.approx([2 / 5, 1 / 5, 2 / 5])
    assert step_score([]) is None and step_scores([[]])["s_inter_micro"].value is None


def make_question(number: int, **fields: object) -> ReasonQuestion:
    base = {"id": f"q{number}", "question": "?", "answer": "1", "discipline": "math", "source": "own"}
    return ReasonQuestion.model_validate(base | fields)


def test_tables_by_discipline_source_and_level():
    questions = [
        make_question(1, level="school"),
        make_question(2, discipline="health"),
        make_question(3, source="MMMU", level="school"),
        make_question(4),
    ]
    values = {
        name: (metric.value, metric.n)
        for name, metric in accuracy_tables(questions, [True, None, False, True]).items()
    }
    assert values == {
        "s_final[discipline=health]": (0, 1),
        "s_final[discipline=math]": (pytest.approx(2 / 3), 3),
        "s_final[source=MMMU]": (0, 1),
        "s_final[source=own]": (pytest.approx(2 / 3), 3),
        "s_final[level=school]": (0.5, 2),
    }


def test_every_metric_of_labels_made_by_hand():
    """Five questions: one without an image, one without a response, one with an empty response."""
    questions = [
        make_question(1, images=["a.png"], solution=["x"]),
        make_question(2, images=["a.png"], solution=["x"]),
        make_question(3, images=["a.png"]),
        make_question(4, solution=["x"]),
        make_question(5, images=["a.png"], solution=["x"]),
    ]
    labels = [
        ReasonLabels(True, "1", True, False, (("a", "correct"), ("b", "unverifiable"))),
        ReasonLabels(True, "1", True, True, (("a", "incorrect"),)),
        ReasonLabels(True, "2", False, False, error="reasoning"),
        ReasonLabels(True, None, False, None, ()),
        ReasonLabels(False, correct_text=True),
    ]
    metrics = compute_metrics(questions, labels)
    assert {
        name: (metrics[name].value, metrics[name].n, metrics[name].coverage) for name in MEASURED
    } == MEASURED
    assert metrics["perception_share"].value == 0 and "s_final[discipline=math]" in metrics
    nothing = compute_metrics(questions[3:4], [ReasonLabels(False)])
    assert {metric.value for metric in nothing.values()} == {None} and "relevance_rate" not in nothing


MEASURED = {
    "s_final": (0.5, 4, 0.8),
    "s_final_text": (0.5, 4, 1.0),
    "relevance_rate": (0.5, 3, 0.75),  # of 3 questions, 2 are right with images and 1 without
    "no_answer": (0.25, 4, 0.8),
    "s_inter": (0.375, 2, 0.5),  # of 0.75 and 0; the third has no steps
    "no_steps": (pytest.approx(1 / 3), 3, 0.75),
    "reasoning_share": (1.0, 1, 0.5),  # of the two wrong answers, one has a label
}


def test_a_tally_of_errors():
    metrics = error_tally(["reasoning", "reasoning", "perception", "refusal", None])
    assert [metrics[f"{kind}_share"].value for kind in ERROR_TYPES] == [0, 0.25, 0, 0, 0.5, 0.25]
    assert metrics["reasoning_share"].n == 4 and metrics["reasoning_share"].coverage == 0.8
    assert error_tally([])["reasoning_share"].value is None
    with pytest.raises(InputError, match="laziness"):
        error_tally(["laziness"])
