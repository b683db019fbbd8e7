"""Answers of the real model: `bench vqa` against verdicts that a person gave, and answers to edited images."""

from __future__ import annotations

import json

import pytest
from helpers.command_line import run_in_process

SAME = ("No, the two images are not the same. ", "Yes, the two images are different. ")
# Pair, type of question, the answer as this model writes it, and whether it is right, which a person read off images and answers.
READ = [
    ("0000-same", SAME[0] + "The balloon moved from the top right to the top left.", True),
    ("0000-different", SAME[1] + "The balloon moved from the top right to the top left.", True),
    ("0000-exist", "Yes, there is a balloon in the image.", True),
    ("0000-color", "The balloon is orange.", True),
    ("0000-colorof", "No, the balloon is orange.", True),
    ("0000-where", "The balloon is in the top right.", True),
    ("0000-count", "There are two objects in the image.", True),
    ("0000-choice", "A", False),
    ("0001-same", SAME[0] + "The helicopter moved from the middle left to the center.", False),
    ("0001-different", SAME[1] + "The helicopter moved from the center to the middle right.", False),
    ("0001-exist", "Yes, there is a hat in the image.", True),
    ("0001-color", "The hat is yellow.", True),
    ("0001-colorof", "Yes, the hat is yellow.", True),
    ("0001-where", "The hat is in the top left.", False),
    ("0001-count", "There are three objects in the image.", True),
    ("0001-choice", "A", False),
    ("0002-same", SAME[0] + "The hammer was removed.", True),
    ("0002-different", SAME[1] + "The hammer was removed.", True),
    ("0002-exist", "Yes, there is a carrot in the image.", True),
    ("0002-color", "The carrot is red.", True),
    ("0002-colorof", "Yes, the carrot is red.", True),
    ("0002-where", "The carrot is in the middle left.", False),
    ("0002-count", "There are three objects in the image.", True),
    ("0002-choice", "B", False),
    ("0003-same", SAME[0] + "The tree moved from the top right to the top center.", False),
    (
        "0003-different",
        "Yes, there is a difference between the two images. The tree moved from the top right to the top center.",
        False,
    ),
    ("0003-exist", "No, there is no strawberry in the image.", True),
    ("0003-color", "The tree is green.", True),
    ("0003-colorof", "Yes, the tree is green.", True),
    ("0003-where", "The tree is in the top right.", True),
    ("0003-count", "There are two objects in the image.", True),
    ("0003-choice", "A", False),
    ("0004-same", SAME[0] + "The cactus changed from blue to purple.", True),
    ("0004-different", SAME[1] + "The cactus moved from the top left to the top center.", True),
    ("0004-exist", "Yes, there is a cactus in the image.", True),
    ("0004-color", "The cactus is blue.", True),
    ("0004-colorof", "No, the cactus is blue.", True),
    ("0004-where", "The cactus is in the top left.", True),
    ("0004-count", "There are three objects in the image.", True),
    ("0004-choice", "A", True),
    ("0005-same", SAME[0] + "The shoe moved from the middle left to the middle right.", False),
    ("0005-different", SAME[1] + "The tractor moved from the bottom right to the bottom left.", False),
    ("0005-exist", "Yes, there is a shoe in the image.", True),
    ("0005-color", "The shoe is yellow.", True),
    ("0005-colorof", "Yes, the shoe is yellow.", True),
    ("0005-where", "The shoe is in the middle left.", True),
    ("0005-count", "There are three objects in the image.", False),
    ("0005-choice", "A", False),
]


@pytest.fixture(scope="module")
def results(checkpoint, things, tmp_path_factory):
    """Line by id of what `bench vqa` says of questions with a short answer, and its metrics."""
    folder = tmp_path_factory.mktemp("vqa")
    lines = [json.loads(line) for line in things.read_text().splitlines()]
    short = [line for line in lines if line["metadata"]["type"] not in ("list", "describe")]
    for line in short:
        line["images"] = [str(things.parent / name) for name in line["images"]]
    data = folder / "samples.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in short))
    out = folder / "out"
    call = ["--model", checkpoint, "--data", data, "--out", out, "--dtype", "float32", "--batch-size", "8"]
    finished = run_in_process("bench", "vqa", *call, "--max-new-tokens", "48")
    assert finished.code == 0, finished.stderr
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    metrics = json.loads((out / "results.json").read_text())["metrics"]
    return {line["id"]: line for line in lines}, metrics


def test_bench_vqa_judges_as_a_person_did(results):
    lines, _ = results
    assert set(lines) == {name for name, _, _ in READ}
    as_before = [(name, right) for name, text, right in READ if lines[name]["response"].strip() == text]
    assert len(as_before) >= 44, "rounding may change an answer or two, no more"
    wrongly = [name for name, right in as_before if bool(lines[name]["correct"]) != right]
    assert wrongly == []


def test_accuracy_is_the_share_of_right_answers_among_all_questions(results):
    lines, metrics = results
    right = sum(bool(line["correct"]) for line in lines.values())
    assert metrics["accuracy"]["n"] == len(lines) == len(READ)
    assert metrics["accuracy"]["value"] == pytest.approx(right / len(READ))
