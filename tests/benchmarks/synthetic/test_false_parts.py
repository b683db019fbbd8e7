"""Where an answer says something false: by the check of the drawn world, and by a record's claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmprobe.benchmarks.core.results import add_truth, find_false_claims
from mmprobe.benchmarks.synthetic.check import check_answer
from mmprobe.samples import Sample

OBJECTS = [["red star B2", "blue ring A1"], ["red star C2", "blue ring A1"]]
CHANGE = {"sentence": "The star moved from B2 to C2."}
CASES = {
    "same": ("Yes. The ring was removed. The star moved from B2 to C2.", "No.", ["Yes", "The ring was removed"]),
    "count": ("There are 2 differences.", "There is 1 difference.", ["There are 2 differences."]),
    "exists": ("Yes, the star is at A1.", "Yes, the star is at B2.", ["the star is at A1"]),
    "colour": ("The star is blue.", "The star is red.", ["The star is blue"]),
    "describe": ("A red star at B2, a green ring at A1.", "", ["green ring at A1"]),
    "steps": (
        "Picture one: red star B2, blue ring A1.\nPicture two: red star B2, blue ring A1.\nTherefore: The star moved from B2 to C2.",
        "",
        ["red star B2"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_the_parts_are_the_words_of_the_errors(kind: str) -> None:
    answer, truth, expected = CASES[kind]
    metadata = {"type": kind, "objects": OBJECTS, "differences": [CHANGE]}
    parts = check_answer(answer, truth, metadata).spans
    assert [answer[first:last] for first, last in parts] == expected
    if kind == "steps":
        assert parts[0][0] > answer.index("Picture two"), "in the picture that lacks it"


def test_what_an_answer_does_not_say_has_no_part() -> None:
    metadata = {"type": "describe", "objects": OBJECTS, "differences": [CHANGE]}
    verdict = check_answer("Hm.", "", metadata)
    assert verdict.errors == ("names nothing",) and verdict.spans == ()


def test_records_get_truth_and_images(tmp_path: Path) -> None:
    samples = [
        Sample(id=name, question="?", answer=name.upper(), images=[tmp_path / "a.png"]) for name in "ab"
    ]
    records = [
        {"id": "p", "answers": {"same": {"id": "a"}, "other": {"id": "x"}}},
        {"id": "b", "truth": "kept"},
    ]
    add_truth(records, samples, tmp_path / "out")
    assert records[0]["answers"] == {
        "same": {"id": "a", "truth": "A", "images": ["../a.png"]},
        "other": {"id": "x"},
    }
    assert records[1] == {"id": "b", "truth": "kept", "images": ["../a.png"]}


def test_claims_without_an_error_have_no_part() -> None:
    claims = {"claims": [{"text": "It moved."}, {"text": "It turned."}], "errors": [None, "fabrication"]}
    record = {"answers": {"same": {"id": "a", "response": "It moved. It turned.", **claims}, "none": None}}
    assert find_false_claims(record) == {"a": [(10, 20)]}
    assert find_false_claims({"answers": [{"id": "a"}]}) == find_false_claims({"id": "a"}) == {}
