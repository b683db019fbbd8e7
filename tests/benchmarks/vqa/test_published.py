"""Metrics of VQA as published, on cases worked out by hand from the papers and the rules of the evaluation code."""

from __future__ import annotations

import json
import random

import pytest
from helpers.command_line import assert_fails, run_in_process

from mmprobe.benchmarks.vqa.published import (
    CONTRACTIONS,
    edit_distance,
    score_anls,
    score_chartqa,
    score_vqav2,
)


@pytest.mark.parametrize(
    ("said", "given", "score"),
    [
        ("dog", ["dog"] * 10, 1),
        ("dog", ["dog"] * 4 + ["cat"] * 6, 1),
        ("dog", ["dog"] * 3 + ["cat"] * 7, (3 * 2 / 3 + 7) / 10),  # each of the three leaves out itself
        ("dog", ["dog"] + ["cat"] * 9, (0 + 9 / 3) / 10),
        ("The dog.", ["dog"] * 10, 1),
        ("two", ["2"] * 10, 1),
        ("2", ["two"] * 10, 0),  # words of numbers are read in the response alone
        ("DONT", ["don't"] * 10, 1),
        ("t-shirt", ["t shirt"] * 10, 1),
        ("t shirt", ["t-shirt"] * 10, 0),  # punctuation of the annotators stays where all agree
        ("t shirt", ["t-shirt"] * 9 + ["top"], 1),
        ("1,000", ["1000"] * 10, 1),
        ("3.5", ["3.5"] * 10, 1),
        ("", ["dog"] * 10, 0),
    ],
)
def test_ten_annotators(said, given, score):
    assert score_vqav2(said, given) == pytest.approx(score)


def test_contractions_of_the_evaluation_code():
    for wrong, right in {
        "couldnt've": "couldn't've",
        "yalld've": None,
        "wont": "won't",
        "'ow'sat": "'ow's'at",
    }.items():
        assert CONTRACTIONS.get(wrong) == right
    assert not {"shed", "hell", "well", "wed", "id", "im"} & CONTRACTIONS.keys()


@pytest.mark.parametrize(
    ("said", "given", "score"),
    [
        ("105", ["100"], 1),
        ("94.9", ["100"], 0),
        ("-95", ["-100"], 1),
        ("45%", ["0.46"], 1),
        ("0", ["0"], 1),
        ("0.0", ["0"], 0),
        ("about 100", ["100"], 0),
        ("Yes", ["yes"], 1),
        ("no", ["yes", "No"], 1),
    ],
)
def test_five_per_cent(said, given, score):
    assert score_chartqa(said, given) == score


@pytest.mark.parametrize(
    ("said", "given", "score"),
    [
        ("8", ["9"], 0),
        ("Hello  World", ["hello world"], 1),
        ("helo", ["hello", "x"], 0.8),
        ("ab", ["abcd"], 0),
    ],
)
def test_letters_of_documents(said, given, score):
    assert score_anls(said, given) == pytest.approx(score)


def test_the_edit_distance_is_that_of_its_recursive_definition():
    def slow(first, second):
        if not first or not second:
            return len(first) + len(second)
        same = slow(first[1:], second[1:]) + (first[0] != second[0])
        return min(same, slow(first[1:], second) + 1, slow(first, second[1:]) + 1)

    draw = random.Random(0)
    for _ in range(60):
        first, second = ("".join(draw.choices("ab", k=draw.randrange(6))) for _ in range(2))
        assert edit_distance(first, second) == slow(first, second)


def test_a_metric_by_name(tmp_path):
    given = ["blue"] * 3 + ["teal"] * 7
    lines = [
        {"id": "1", "question": "Which colour?", "answer": given},
        {"id": "2", "question": "How many?", "answer": "4"},
    ]
    data, answers = tmp_path / "data.jsonl", tmp_path / "answers.jsonl"
    data.write_text(json.dumps(lines[0]) + "\n")
    answers.write_text('{"id": "1", "response": "Blue."}\n')
    arguments = ("score", "vqa", "--data", data, "--responses", answers, "--metric", "vqav2")
    assert run_in_process(*arguments, "--out", tmp_path / "out").code == 0
    metric = json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]["vqav2"]
    assert metric["value"] == pytest.approx(0.9) and metric["n"] == 1
    data.write_text(json.dumps(lines[1]) + "\n")
    answers.write_text('{"id": "2", "response": "4"}\n')
    assert_fails(
        run_in_process(*arguments, "--out", tmp_path / "b"),
        "sample 2: --metric vqav2 needs the answers of ten",
    )
