"""Rows as pandas, parquet and `datasets` give them become the samples that plain rows make."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples, samples_from

ROWS = [
    {"question": "How many?", "answer": 3, "image": None, "metadata": {"options": ["2", "3"], "score": 0.5}},
    {"question": "Is it red?", "answer": 1, "image": None, "metadata": {"options": ["yes"], "score": None}},
]


def make(rows, tmp_path: Path, **columns) -> list[Sample]:
    return samples_from(rows, tmp_path / "new", **columns)


def test_tables_are_read_as_plain_rows(tmp_path: Path):
    """A parquet file gives pandas arrays in place of lists and NaN in place of what is missing."""
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    expected = make(ROWS, tmp_path, answer="answer", metadata="metadata")
    assert [sample.answer for sample in expected] == ["3", "1"]
    frame = pd.read_parquet(tmp_path / "rows.parquet")
    assert isinstance(frame["metadata"][0]["options"], np.ndarray)
    for rows in (frame, pq.read_table(tmp_path / "rows.parquet"), datasets.Dataset.from_list(ROWS)):
        assert make(rows, tmp_path, answer="answer", metadata="metadata") == expected


@pytest.mark.parametrize("missing", [None, float("nan"), np.nan, pd.NA, pd.NaT])
def test_what_is_missing_is_left_out(tmp_path: Path, missing):
    row = {
        "question": "?",
        "image": missing,
        "answer": missing,
        "system": missing,
        "metadata": {"a": [missing]},
    }
    (sample,) = make([row], tmp_path, answer="answer", system="system", metadata="metadata")
    assert (sample.images, sample.answer, sample.system, sample.metadata) == ([], None, None, {"a": [None]})


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_row_without_its_question_is_refused(tmp_path: Path, missing):
    with pytest.raises(InputError, match="row 0: .*question"):
        make([{"question": missing}], tmp_path)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (3, "3"),
        (np.int64(3), "3"),
        (3.0, "3"),
        (np.float32(0.5), "0.5"),
        (True, "yes"),
        (np.False_, "no"),
        ("a", "a"),
    ],
)
def test_answers_may_be_numbers(tmp_path: Path, answer, text):
    assert make([{"question": "?", "answer": answer}], tmp_path, answer="answer")[0].answer == text
    if not isinstance(answer, np.generic):
        (tmp_path / "s.jsonl").write_text(json.dumps({"id": "a", "question": "?", "answer": answer}))
        assert load_samples(tmp_path / "s.jsonl")[0].answer == text


def test_names_of_class_labels_are_taken(tmp_path: Path):
    features = datasets.Features(
        {"question": datasets.Value("string"), "label": datasets.ClassLabel(names=["cat", "dog"]),
         "labels": datasets.List(datasets.ClassLabel(names=["cat", "dog"]))}
    )  # fmt: skip
    data = datasets.Dataset.from_list([{"question": "?", "label": 1, "labels": [1, 0]}], features=features)
    (sample,) = make(data, tmp_path, answer="label")
    assert sample.answer == "dog"
    (sample,) = make(data, tmp_path, answer="labels")
    assert (sample.answer, sample.metadata) == ("dog", {"answers": ["cat"]})


def test_pixels_in_arrays_are_images_and_numpy_in_metadata_is_plain(tmp_path: Path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    images = np.empty(2, object)
    images[:] = [pixels, Image.fromarray(pixels[::-1])]
    row = {
        "question": "?",
        "images": images,
        "metadata": {"n": np.int32(2), "ids": np.arange(2), "at": pd.Timestamp(0)},
    }
    (sample,) = make([row], tmp_path, metadata="metadata")
    for file, expected in zip(sample.images, (pixels, pixels[::-1]), strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(file)), expected)
    assert sample.metadata["n"] == 2 and sample.metadata["ids"] == [0, 1]


def test_conversations_in_arrays_are_read(tmp_path: Path):
    """As pandas reads LLaVA's rows from parquet."""
    turns = np.array(
        [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A cat."}], object
    )
    row = {"image": Image.new("RGB", (4, 4)), "conversations": turns}
    (sample,) = make([row], tmp_path)
    assert (sample.question, sample.answer, len(sample.images)) == ("What?", "A cat.", 1)


@pytest.mark.parametrize(
    "wrap", [str, lambda text: {"answer": text, "answer_confidence": "yes", "answer_id": 1}]
)
def test_of_ten_peoples_answers_those_of_three_are_right(tmp_path: Path, wrap):
    answers = [wrap(text) for text in ["2"] * 5 + ["3"] * 3 + ["4"] * 2]
    (sample,) = make([{"question": "?", "answers": np.array(answers)}], tmp_path, answer="answers")
    annotators = ["2"] * 5 + ["3"] * 3 + ["4"] * 2
    assert (sample.answer, sample.metadata) == ("2", {"answers": ["3"], "annotators": annotators})


def test_the_message_about_what_cannot_be_stored_is_true(tmp_path: Path):
    with pytest.raises(InputError, match="row 0: contains") as error:
        make([{"question": "?", "metadata": {"a": object()}}], tmp_path, metadata="metadata")
    assert "surrogate" not in str(error.value) and "\n" not in str(error.value)
