"""Metrics of MMReason against numbers made by hand and the paper's table 5."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.benchmarks.mmreason.labels import ReasonLabels
from mmprobe.benchmarks.mmreason.metrics import (
    ERROR_TYPES,
    error_tally,
    final_accuracy,
    relevance,
    relevance_rate,
    step_score,
    step_scores,
    tables,
)
from mmprobe.benchmarks.mmreason.scoring import metrics_of
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
    # within one unit of the last printed digit: the printed accuracies are rounded themselves
    assert 100 * relevance(text, full) == pytest.approx(printed, abs=0.1)


def test_a_relevance_rate_of_single_answers():
    text = [True, False, True, False, None, True]
    full = [True, True, False, True, True, None]
    found = relevance_rate(text, full)
    assert found.value == pytest.approx(1 - 2 / 3) and found.n == 4
    assert found.coverage == pytest.approx(4 / 6) and found.low <= found.value <= found.high
    one, two = ([number < right for number in range(1000)] for right in (134, 308))
    assert relevance_rate(one, two).value == pytest.approx(relevance(13.4, 30.8))


def test_relevance_is_undefined_where_nothing_is_right_and_below_zero_where_pictures_harm():
    assert relevance(0.5, 0) is None
    nothing = relevance_rate([True, False], [False, False])
    assert nothing.value is None and nothing.n == 2
    assert relevance_rate([True, True], [True, False]).value == -1


def test_steps_by_hand():
    judged = [
        ["correct", "correct", "unverifiable", "incorrect"],
        ["incorrect"],
        [],
        None,
    ]
    found = step_scores(judged)
    assert found["s_inter"].value == pytest.approx((2.5 / 4 + 0) / 2)
    assert found["s_inter"].n == 2 and found["s_inter"].coverage == 0.5
    assert found["s_inter_micro"].value == pytest.approx(2.5 / 5)
    shares = [found[f"{kind}_steps"].value for kind in ("correct", "unverifiable", "incorrect")]
    assert shares == pytest.approx([2 / 5, 1 / 5, 2 / 5])
    assert step_score([]) is None and step_scores([[]])["s_inter_micro"].value is None


def test_final_accuracy_by_hand():
    found = final_accuracy([True, None, False, True, None])
    assert found.value == pytest.approx(2 / 3) and found.n == 3 and found.coverage == pytest.approx(3 / 5)
    assert found.low <= found.value <= found.high
    assert final_accuracy([None]).value is None


def made(number: int, **fields: object) -> ReasonQuestion:
    base = {"id": f"q{number}", "question": "?", "answer": "1", "discipline": "math", "source": "own"}
    return ReasonQuestion.model_validate(base | fields)


def test_tables_by_discipline_source_and_level():
    questions = [
        made(1, level="school"),
        made(2, discipline="health"),
        made(3, source="MMMU", level="school"),
        made(4),
    ]
    found = {
        name: (metric.value, metric.n)
        for name, metric in tables(questions, [True, None, False, True]).items()
    }
    assert found == {
        "s_final[discipline=health]": (None, 0),
        "s_final[discipline=math]": (pytest.approx(2 / 3), 3),
        "s_final[source=MMMU]": (0, 1),
        "s_final[source=own]": (1, 2),
        "s_final[level=school]": (0.5, 2),
    }


def test_every_metric_of_labels_made_by_hand():
    """Five questions, one of them without a picture; one was not answered, one was answered by nothing."""
    questions = [
        made(1, images=["a.png"], solution=["x"]),
        made(2, images=["a.png"], solution=["x"]),
        made(3, images=["a.png"]),
        made(4, solution=["x"]),
        made(5, images=["a.png"], solution=["x"]),
    ]
    labels = [
        ReasonLabels(True, "1", True, False, (("a", "correct"), ("b", "unverifiable"))),
        ReasonLabels(True, "1", True, True, (("a", "incorrect"),)),
        ReasonLabels(True, "2", False, False, error="reasoning"),
        ReasonLabels(True, None, False, None, ()),
        ReasonLabels(False, right_text=True),
    ]
    found = metrics_of(questions, labels)
    assert {name: (found[name].value, found[name].n, found[name].coverage) for name in MEASURED} == MEASURED
    assert found["perception_share"].value == 0 and "s_final[discipline=math]" in found
    nothing = metrics_of(questions[3:4], [ReasonLabels(False)])
    assert {metric.value for metric in nothing.values()} == {None} and "relevance_rate" not in nothing


MEASURED = {
    "s_final": (0.5, 4, 0.8),
    "s_final_text": (0.5, 4, 1.0),
    "relevance_rate": (0.5, 3, 0.75),  # right on 2 with pictures, on 1 of the same 3 without
    "no_answer": (0.25, 4, 0.8),
    "s_inter": (0.375, 2, 0.5),  # of 0.75 and 0; the third has no steps
    "no_steps": (pytest.approx(1 / 3), 3, 0.75),
    "reasoning_share": (1.0, 1, 0.5),  # of the two wrong answers, one has a label
}


def test_a_tally_of_errors():
    found = error_tally(["reasoning", "reasoning", "perception", "refusal", None])
    assert [found[f"{kind}_share"].value for kind in ERROR_TYPES] == [0, 0.25, 0, 0, 0.5, 0.25]
    assert found["reasoning_share"].n == 4 and found["reasoning_share"].coverage == 0.8
    assert error_tally([])["reasoning_share"].value is None
    with pytest.raises(InputError, match="laziness"):
        error_tally(["laziness"])
