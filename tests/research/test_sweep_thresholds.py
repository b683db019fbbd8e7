"""How far thresholds could move: decisions are counted as the rules make them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import sweep_thresholds as sweeping
from page import ROOT, fill

from mmprobe.diagnosis.bench.run import Subject
from mmprobe.diagnosis.causal_test import CauseScore
from mmprobe.diagnosis.causes import CAUSES, load_tests
from mmprobe.diagnosis.effects import LIMITS, AnswerRecord, Effect
from mmprobe.diagnosis.table import Table


def scored(value: float, needs: str = "", **changes: str) -> CauseScore:
    effect = Effect(name="x", value=value, low=value - 0.05, high=value + 0.05, n=24, sets=12, needs=needs)
    return CauseScore(effect, [], **changes)


@pytest.fixture
def asked(monkeypatch):
    """Models whose scores of `co-occurrence` (threshold 60 %) and `order` (30 %) are given; of the other causes no test ran."""
    scores = {
        "cued-0": {"co-occurrence": 0.7, "order": 0.1},
        "sorted-0": {"co-occurrence": 0.4, "order": 0.25},
        "plain-0": {"co-occurrence": 0.5, "order": 0.0},
        "accepted-0": {"quantity": 0.9, "co-occurrence": 0.0},
    }
    planted = {"cued-0": ("co-occurrence",), "sorted-0": ("order",)}
    accepted = {"accepted-0": ("quantity", "unknown")}
    monkeypatch.setattr(sweeping, "measure_gaps", lambda asked, limits: ([0.3, 0.002, 0.4], [0.5, 1.25]))
    monkeypatch.setattr(sweeping, "Table", lambda records, samples, limits, tests: records)
    monkeypatch.setattr(
        sweeping,
        "measure_causes",
        lambda name: {
            cause: scored(scores[name].get(cause, 0.0), "" if cause in scores[name] else "data")
            for cause in CAUSES
        },
    )
    return [
        sweeping.DiagnosedModel(
            Subject(
                name,
                name,
                planted.get(name, ("control",)),
                "development",
                accepts=accepted.get(name, ()),
            ),
            [],
            name,
            "a kind",
        )
        for name in scores
    ]


def test_wrong_decisions_are_counted_at_each_multiple_of_a_threshold(asked):
    assert CAUSES["co-occurrence"].threshold == 0.6 and CAUSES["order"].threshold == 0.3
    assert LIMITS.least_low == 0.5
    wrong = sweeping.sweep(asked)
    # as it is, sorted-0 is missed at 25 %; at 42 % (x 0.7) plain-0 is accused, too, and at 72 % (x 1.2) cued-0 is missed
    assert wrong["co-occurrence"] == {0.5: 3, 0.7: 2, 0.85: 1, 1.0: 1, 1.2: 2, 1.5: 2}
    assert wrong["order"] == {0.5: 0, 0.7: 0, 0.85: 1, 1.0: 1, 1.2: 1, 1.5: 1, 2.0: 1}
    assert set(wrong["usual_share"]) == {0.5, 0.7, 0.85, 1.0, 1.2}, "a share is 1 at most"
    assert set(wrong["wrong_times"]) == set(sweeping.FACTORS)
    assert wrong["least_low"][2.0] == 1, "the low end of cued-0, 65 %, reaches all of 60 %"


def test_the_record_names_wrong_decisions_and_leaves_out_what_a_card_accepts(asked):
    parts = sweeping.page_parts(asked)
    assert fill((ROOT / sweeping.PAGE).read_text(encoding="utf-8"), parts), "each part has its marks"
    assert (parts["thresholds-decisions"], parts["thresholds-wrong"]) == (7, 1)
    assert "| a kind | 4 | 7 | 1 | `sorted-0` order |" in parts["thresholds-kinds"]
    assert "| `co-occurrence` | 0.6 | 0.51 to 0.6 | 50% | 70% | 3 | 1 | – |" in parts["thresholds-table"]
    assert "| `wrong_share` | 0.2 | 0.1 to 0.4 | | | 1 |" in parts["thresholds-table"]
    gaps = [parts[f"gaps-{name}"] for name in ("blind", "still", "below", "above", "ratio")]
    assert gaps == [3, 1, "0.002", "0.30", "1.2"]


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({0.5: 2, 1.0: 2, 2.0: 2}, (0.5, 2.0)),
        ({0.5: 1, 0.7: 3, 1.0: 2, 1.2: 2, 2.0: 3}, (1.0, 1.2)),
    ],
)
def test_a_range_is_in_one_piece(wrong, found):
    assert sweeping.find_range(wrong) == found


def test_gaps_are_measured_on_models_that_use_no_image_and_on_those_that_err(monkeypatch):
    """Of four answers to other questions two are false; of two that could change with places one does."""
    records = [
        AnswerRecord(
            {
                "id": str(n),
                "answer": "",
                "places": {"kind": "images", "moved": n < 1} if n < 2 else None,
                "right": n % 2 > 0,
            }
        )
        for n in range(6)
    ]

    class Shown:
        sets = n_images = np.arange(6)
        mean, share, share_false, of = Table.mean, Table.share, Table.share_false, Table.of
        limits, tests = LIMITS, load_tests()

        def __init__(self, looks, *_):
            self.records, self.effects = records, {"looks": Effect(name="looks", value=looks)}

    monkeypatch.setattr(sweeping, "Table", Shown)
    subjects = [Subject(name, name, (name,), "development") for name in ("blind", "control", "order")]
    asked = [
        sweeping.DiagnosedModel(subject, [], looks, "a kind")
        for subject, looks in zip(subjects, (0.2, 0.4, 0.4), strict=True)
    ]
    assert sweeping.measure_gaps(asked, LIMITS) == ([0.2], [2.0, 2.0])


@pytest.mark.parametrize(("word", "right"), [("hindrance", False), ("doubt", False), ("detail", True)])
def test_a_cause_with_a_hindrance_or_in_doubt_is_not_named(word, right):
    one = sweeping.ScoredCause("a", "kind", "co-occurrence", scored(0.9, **{word: "words"}), planted=True)
    assert one.is_right(LIMITS) is right


def test_without_a_development_model_there_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "scores.jsonl").write_text(json.dumps({"model": "else", "n": 4, "note": ""}) + "\n")
    monkeypatch.setattr("sys.argv", ["sweep", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        sweeping.main()
    assert "no development model" in capsys.readouterr().err
