"""Metrics of MMReason against numbers made by hand and the paper's table 5."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.mirage.parsing import Malformed
from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.benchmarks.mmreason.metrics import (
    ERROR_TYPES,
    error_tally,
    final_accuracy,
    parse_steps,
    relevance,
    relevance_rate,
    step_score,
    step_scores,
    tables,
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


def test_a_judges_words_are_as_many_as_the_steps():
    assert parse_steps("Well.\n<score>\nCorrect, UNVERIFIABLE,incorrect\n</score>", 3) == [
        "correct",
        "unverifiable",
        "incorrect",
    ]
    for reply, count in [
        ("<score>correct</score>", 2),
        ("<score>correct,wrong</score>", 2),
        ("<score>correct,</score>", 1),
        ("<score></score>", 1),
        ("correct", 1),
        ("<score>correct</score><score>correct</score>", 1),
    ]:
        with pytest.raises(Malformed, match="score"):
            parse_steps(reply, count)


def test_final_accuracy_by_hand():
    found = final_accuracy([True, None, False, True, None])
    assert found["s_final"].value == pytest.approx(2 / 5) and found["s_final"].n == 5
    assert found["s_final_scored"].value == pytest.approx(2 / 3) and found["s_final_scored"].n == 3


def test_tables_by_discipline_and_source():
    def question(number: int, discipline: str, source: str, level: str | None) -> ReasonQuestion:
        fields = {
            "id": f"q{number}",
            "question": "?",
            "answer": "1",
            "discipline": discipline,
            "source": source,
        }
        return ReasonQuestion.model_validate(fields | {"level": level})

    questions = [
        question(1, "math", "own", "school"),
        question(2, "health", "own", None),
        question(3, "math", "MMMU", "school"),
    ]
    found = tables(questions, [True, None, False])
    assert found["discipline"]["math"]["s_final"].value == 0.5
    assert found["discipline"]["health"]["s_final_scored"].value is None
    assert found["source"]["own"]["s_final"].value == 0.5 and found["source"]["MMMU"]["s_final"].value == 0
    assert list(found["level"]) == ["school"] and found["level"]["school"]["s_final"].n == 2


def test_a_tally_of_errors():
    found = error_tally(["reasoning", "reasoning", "perception", "refusal", None])
    assert [found[f"{kind}_share"].value for kind in ERROR_TYPES] == [0, 0.25, 0, 0, 0.5, 0.25]
    assert found["reasoning_share"].n == 4 and found["reasoning_share"].coverage == 0.8
    assert error_tally([])["reasoning_share"].value is None
    with pytest.raises(InputError, match="laziness"):
        error_tally(["laziness"])
