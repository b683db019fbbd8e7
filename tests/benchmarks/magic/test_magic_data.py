"""Files of MagiC questions: valid lines, and invalid lines named by line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from mmprobe.benchmarks.magic.data import HealCase, MagicQuestion, load_questions, make_heal_cases
from mmprobe.errors import InputError

BOXES = [{"box": [0, 0, 5, 5], "relevant": False}, {"box": [5, 5, 5, 5], "relevant": True}]
STEPS = [{"text": "It is red.", "correct": True}, {"text": "R1.", "correct": False, "correction": "R2."}]
GOOD = {"id": "q1", "image": "a.png", "question": "Which?", "answer": "cat", "boxes": BOXES, "steps": STEPS}


def write_questions(folder: Path, *lines: object) -> Path:
    Image.new("RGB", (20, 10)).save(folder / "a.png")
    file = folder / "questions.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines))
    return file


def test_a_file_is_read(tmp_path):
    bare = {key: value for key, value in GOOD.items() if key not in ("boxes", "steps")}
    made = bare | {"id": "q2", "objects": [[0, 0, 20, 10]], "saliency": ["a.png"]}
    first, second = load_questions(write_questions(tmp_path, GOOD, made))
    assert first.relevant() == {2} and first.boxes[1].box == (5, 5, 5, 5)
    assert first.image == tmp_path / "a.png" and [step.correct for step in first.steps] == [True, False]
    assert second.relevant() == frozenset() and second.saliency == [tmp_path / "a.png"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": []}, "line 2: needs 'boxes'"),
        ({"boxes": BOXES[:1]}, "line 2: 'boxes' contains none that is relevant"),
        (
            {"boxes": [BOXES[1], {"box": [18, 0, 5, 5], "relevant": True}]},
            "line 2: field 'boxes': box .18, 0",
        ),
        ({"boxes": [{"box": [0, 0, 5], "relevant": True}]}, "line 2: field 'boxes.0.box"),
        ({"boxes": [BOXES[1] | {"names": [""]}]}, "line 2: field 'boxes.0.names.0'"),
        ({"prompt": ""}, "line 2: field 'prompt'"),
        ({"distractors": [[0, 0, 21, 5]]}, "line 2: field 'distractors'"),
        ({"objects": [[0, 0, 0, 5]]}, "line 2: field 'objects'"),
        ({"image": "b.png"}, "line 2: field 'image': image .*b.png: no such file"),
        ({"saliency": ["b.png"]}, "line 2: field 'saliency'"),
        ({"steps": [{"text": "x", "correct": False}]}, "line 2: field 'steps.0': .*'correction'"),
    ],
)
def test_errors_name_line_and_field(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        load_questions(write_questions(tmp_path, GOOD, GOOD | {"id": "q2"} | change))


def test_cases_of_self_heal():
    def step(number: int, correct: bool) -> dict[str, object]:
        return {"text": f"s{number}", "correct": correct, "correction": None if correct else f"c{number}"}

    right = [True, False, False, True, False, True, True, False]
    steps = [step(number, correct) for number, correct in enumerate(right, 1)]
    cases = make_heal_cases(MagicQuestion.model_validate(GOOD | {"steps": steps}))
    assert cases == [
        HealCase(["s1", "s2", "s3"], ["c2", "c3"]),
        HealCase(["s1", "s2", "s3", "s4", "s5"], ["c5"]),
    ]
    assert make_heal_cases(MagicQuestion.model_validate(GOOD | {"steps": []})) == []
