"""Files of MIRAGE questions: valid lines, and invalid lines named by line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from mmprobe.benchmarks.mirage.data import MirageQuestion, is_correct, load_questions
from mmprobe.errors import InputError

GOOD = {"id": "q1", "question": "How long?", "topic": "geometry", "type": "free_form", "answer": "3 cm"}
CHOICE = {"type": "multiple_choice", "choices": {"A": "2 cm", "B": "3 cm"}, "answer": "B"}


def write_questions(folder: Path, *lines: object) -> Path:
    file = folder / "questions.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return file


def test_a_file_is_read_and_its_images_found(tmp_path):
    Image.new("RGB", (8, 4)).save(tmp_path / "a.png")
    steps = [f"step {number}" for number in range(10)]
    full = GOOD | {"id": "q2", "images": ["a.png"], "steps": steps, "claims": ["x"], "references": ["r", "s"]}
    questions = load_questions(write_questions(tmp_path, GOOD, "", full | CHOICE))
    assert [question.id for question in questions] == ["q1", "q2"]
    assert questions[1].images == [tmp_path / "a.png"]
    assert questions[1].answer == "B" and questions[1].steps == steps


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: "),
        ('{"id": NaN}', "line 2: not JSON that can be read"),
        (GOOD | {"topic": "cooking"}, "line 2: field 'topic'"),
        (GOOD, "line 2: field 'id': 'q1' was used in line 1"),
        (GOOD | {"id": "../x"}, "line 2: field 'id'"),
        (GOOD | {"id": "q2", "questoin": "?"}, "line 2: field 'questoin'"),
        (GOOD | {"id": "q2", "steps": ["s"] * 11}, "line 2: field 'steps'"),
        (
            GOOD | {"id": "q2", "images": ["gone.png"]},
            "line 2: field 'images': image .*gone.png: no such file",
        ),
        (GOOD | {"id": "q2", "type": "approximate", "answer": "many"}, "line 2: 'answer' is 'many'"),
        (GOOD | CHOICE | {"id": "q2", "answer": "C"}, "line 2: 'answer' is 'C'"),
        (GOOD | CHOICE | {"id": "q2", "choices": {"A": "x", "b": "y"}}, "line 2: 'choices'"),
        (GOOD | {"id": "q2", "choices": {"A": "x"}}, "line 2: 'choices'"),
        ({key: value for key, value in GOOD.items() if key != "answer"}, "line 2: field 'answer'"),
    ],
)
def test_errors_name_line_and_field(tmp_path, line, message):
    with pytest.raises(InputError, match=message) as caught:
        load_questions(write_questions(tmp_path, GOOD, line))
    assert "\n" not in str(caught.value)


def test_empty_files(tmp_path):
    for file, message in [
        (tmp_path / "none.jsonl", "no such file"),
        (write_questions(tmp_path, ""), "contains no lines"),
    ]:
        with pytest.raises(InputError, match=message):
            load_questions(file)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="UTF-8"):
        load_questions(tmp_path / "binary.jsonl")


def question(**fields: object) -> MirageQuestion:
    return MirageQuestion.model_validate(GOOD | fields)


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("So <answer>(B)</answer>", True),
        ("The answer is 3 cm.", True),
        ("The answer is A", False),
        ("The answer is 7 cm.", None),
        ("Hm.", None),
    ],
)
def test_multiple_choice(response, right):
    assert is_correct(question(**CHOICE), response) is right


def test_approximate_and_free_form():
    approximate = question(type="approximate", answer="about 200 people")
    assert is_correct(approximate, "The answer is 209.") is True
    assert is_correct(approximate, "The answer is 210.") is False
    assert is_correct(approximate, "The answer is 210.", threshold=0.06) is True
    assert is_correct(approximate, "Many.") is None
    assert is_correct(question(), "We halve 6. The answer is 3 cm.") is True
    assert is_correct(question(), "5 cm") is False and is_correct(question(), "3 m") is False
    assert is_correct(approximate, "24 out of 200") is False
    assert is_correct(approximate, "I cannot tell.") is False
    assert is_correct(question(), " ") is None
