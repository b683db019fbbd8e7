"""`mmprobe make-pairs --source coco` on the command line."""

from __future__ import annotations

import json

import pytest
from helpers.command_line import assert_fails, read_result, run_in_process

from mmprobe.ledger import lock_folder

pytest.importorskip("cv2", reason="the extra photos is not installed")


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_pairs_are_made_and_reviewed(coco, tmp_path):
    coco(2)
    options = ("--source", "coco", "--images", "coco", "--annotations", "instances.json", "--out", "out")
    finished = run_in_process("make-pairs", *options, "--n", 2, "--differences", "1-2", "--json")
    assert read_result(finished) == {
        "pairs": 2,
        "rejected": 0,
        "samples": "out/samples.jsonl",
        "review": "out/review.html",
    }
    review = {"id": "000000000001", "decision": "reject", "descriptions": [], "reason": "odd"}
    (tmp_path / "reviews.json").write_text(json.dumps({"format": 1, "reviews": [review]}))
    options = ("--source", "coco", "--out", "out", "--n", 2, "--reviews", "reviews.json")
    finished = run_in_process("make-pairs", *options)
    assert finished.stdout == "0 pairs accepted, 1 rejected, 1 not reviewed: out\n", finished.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--source", "coco"), "needs --images and --annotations"),
        (("--images", "coco"), "--images: goes with --source coco"),
        (("--planner", "rules"), "--planner: goes with --source coco"),
        (("--reviews", "x.json"), "--reviews: goes with --source coco"),
        (("--source", "coco", "--reviews", "x.json"), "contains no pairs of photographs"),
        (("--source", "coco", "--images", ".", "--annotations", "none.json"), "none.json: no such file"),
    ],
)
def test_bad_calls_are_one_line(tmp_path, options, message):
    assert_fails(run_in_process("make-pairs", "--out", "out", "--n", 2, *options), message)
    assert not (tmp_path / "out").exists()


def test_one_process_makes_pairs_in_a_folder(coco, tmp_path):
    coco(1)
    options = ("--source", "coco", "--images", "coco", "--annotations", "instances.json", "--out", "out")
    with lock_folder(tmp_path / "out", "making pairs in it"):
        assert_fails(run_in_process("make-pairs", *options, "--n", 1), "out: process")
    assert run_in_process("make-pairs", *options, "--n", 1).code == 0
    assert not list((tmp_path / "out").glob(".lock*"))
