"""Files as peers write them become the samples and responses that they mean."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from helpers.command_line import run_in_process
from PIL import Image

from mmprobe.benchmarks.core.benchmark import read_responses
from mmprobe.errors import InputError
from mmprobe.samples import load_samples, read_picture
from mmprobe.traces.asking import read_given_answers

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 20, 3), np.uint8)


def encode(pixels: np.ndarray = PIXELS) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(autouse=True)
def images(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("a.png", "COCO_val2014_000000000042.jpg"):
        Image.fromarray(PIXELS).save(tmp_path / "images" / name)


def test_llavas_questions_are_samples(tmp_path: Path):
    rows = [
        {"question_id": 7, "image": "a.png", "text": "Is there a dog?", "label": "no", "category": "object"},
        {"question_id": 8, "image": "a.png", "text": "What is it?"},
    ]
    first, second = load_samples(write_lines(tmp_path / "questions.jsonl", rows))
    assert (first.id, first.question, first.answer, first.metadata) == (
        "7",
        "Is there a dog?",
        "no",
        {"category": "object"},
    )
    assert first.images == [tmp_path / "images" / "a.png"] and second.answer is None


def test_an_image_that_is_not_there_is_named_with_its_line(tmp_path: Path):
    rows = [{"question_id": 7, "image": "none.png", "text": "?"}]
    with pytest.raises(InputError, match=r"line 1: image none\.png: no such file"):
        load_samples(write_lines(tmp_path / "questions.jsonl", rows))


def test_llavas_answers_are_responses_and_no_questions(tmp_path: Path):
    """As `model_vqa.py` writes them."""
    row = {
        "question_id": 7,
        "prompt": "Is there a dog?",
        "text": "No.",
        "answer_id": "x",
        "model_id": "llava",
        "metadata": {},
    }
    path = write_lines(tmp_path / "answers.jsonl", [row])
    assert read_responses(path) == {"7": "No."}
    with pytest.raises(InputError, match="answers"):
        load_samples(path)


def test_operas_captions_are_responses(tmp_path: Path):
    """As `chair_eval.py` writes them."""
    path = write_lines(
        tmp_path / "ours.jsonl",
        [{"image_id": 42, "caption": "A dog."}, {"image_id": 43, "caption": "A cat."}],
    )
    assert read_responses(path) == {"42": "A dog.", "43": "A cat."}
    with pytest.raises(InputError, match="answers"):
        load_samples(path)


def test_lmms_evals_samples_are_both(tmp_path: Path):
    """As `--log_samples` writes them."""
    row = {"doc_id": 0, "doc": {"question": "What is it?", "image_path": "a.png"}, "target": "a dog", "arguments": [],
           "resps": [["A dog. "]], "filtered_resps": ["A dog."], "doc_hash": "1"}  # fmt: skip
    path = write_lines(tmp_path / "20260101_samples_vqa.jsonl", [row])
    assert read_responses(path) == {"0": "A dog."}
    (sample,) = load_samples(path)
    assert (sample.id, sample.question, sample.answer) == ("0", "What is it?", "a dog")
    (given,) = read_given_answers(path, [sample]).values()
    assert given.text == "A dog."
    write_lines(path, [row | {"doc": {}}])
    with pytest.raises(InputError, match="line 1: .*question"):
        load_samples(path)


def test_vlmevalkits_table_is_samples_with_its_images(tmp_path: Path):
    head = ["index", "image", "question", "hint", "A", "B", "answer", "category"]
    rows = [
        ["0", encode(), "What is it?", "Look.", "a dog", "a cat", "B", "animals"],
        ["1", "0", "Is it red?", "", "", "", "Yes", ""],
    ]
    (tmp_path / "MMBench.tsv").write_text("\n".join("\t".join(row) for row in [head, *rows]) + "\n")
    first, second = load_samples(tmp_path / "MMBench.tsv")
    assert (first.question, first.answer) == ("Look.\nWhat is it?", "B")
    assert first.metadata == {"options": {"A": "a dog", "B": "a cat"}, "category": "animals"}
    assert first.images == second.images  # the second names the first's
    np.testing.assert_array_equal(np.asarray(read_picture(first.images[0])), PIXELS)
    assert (second.id, second.question, second.answer) == ("1", "Is it red?", "Yes")


@pytest.mark.parametrize("form", ["xlsx", "tsv"])
def test_vlmevalkits_results_are_responses(tmp_path: Path, form: str):
    rows = [
        ["index", "question", "answer", "prediction"],
        [0, "What?", "B", "B. a cat"],
        [1, "Is it?", "Yes", None],
    ]
    path = tmp_path / f"model_MMBench.{form}"
    if form == "xlsx":
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        book.save(path)
    else:
        path.write_text(
            "\n".join("\t".join("" if cell is None else str(cell) for cell in row) for row in rows)
        )
    assert read_responses(path) == {"0": "B. a cat", "1": ""}


def test_vqas_questions_find_their_annotations(tmp_path: Path):
    """Ten people answered: the most frequent is right, and others that three gave."""
    questions = {
        "data_subtype": "val2014",
        "questions": [{"question_id": 420, "image_id": 42, "question": "How many?"}],
    }
    given = [
        {"answer": text, "answer_id": number} for number, text in enumerate(["2"] * 6 + ["3"] * 3 + ["4"])
    ]
    annotation = {
        "question_id": 420,
        "multiple_choice_answer": "2",
        "answers": given,
        "answer_type": "number",
    }
    path = tmp_path / "v2_OpenEnded_mscoco_val2014_questions.json"
    path.write_text(json.dumps(questions))
    assert load_samples(path)[0].answer is None
    beside = tmp_path / "v2_mscoco_val2014_annotations.json"
    beside.write_text(json.dumps({"annotations": [annotation]}))
    (sample,) = load_samples(path)
    assert (sample.id, sample.answer, sample.metadata) == (
        "420",
        "2",
        {"answers": ["3"], "answer_type": "number", "annotators": ["2"] * 6 + ["3"] * 3 + ["4"]},
    )
    assert sample.images[0].name == "COCO_val2014_000000000042.jpg"
    with pytest.raises(InputError, match="annotations"):
        load_samples(beside)
    results = tmp_path / "results.json"
    results.write_text(json.dumps([{"question_id": 420, "answer": "2"}]))
    assert read_responses(results) == {"420": "2"}


def test_a_peers_files_are_scored(tmp_path: Path):
    questions = [
        {"question_id": number, "image": "a.png", "text": "Is there a dog?", "label": "no"}
        for number in range(2)
    ]
    answers = [
        {"question_id": number, "prompt": "?", "text": text} for number, text in enumerate(["No.", "Yes."])
    ]
    result = run_in_process(
        "score", "vqa", "--data", write_lines(tmp_path / "q.jsonl", questions),
        "--responses", write_lines(tmp_path / "a.jsonl", answers), "--out", tmp_path / "out",
    )  # fmt: skip
    assert result.code == 0, result.stderr
    metrics = json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]
    assert metrics["accuracy"]["value"] == 0.5


@pytest.mark.parametrize(
    "content", ["", "{", "[", "[]", "[1]", "{}", '{"questions": 3}', '{"question_id": 1}']
)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.tsv", "a.xlsx"])
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, name: str, content: str):
    (tmp_path / name).write_text(content)
    for read in (load_samples, read_responses):
        with pytest.raises(InputError) as error:
            read(tmp_path / name)
        assert "\n" not in str(error.value)
