"""`mmprobe make-pairs --source coco` on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("cv2", reason="the extra photos is not installed")


def mmprobe(folder, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-m", "mmprobe", "make-pairs", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_pairs_are_made_reviewed_and_told(coco, tmp_path):
    coco(2)
    coco_options = ("--source", "coco", "--images", "coco", "--annotations", "instances.json", "--out", "out")
    done = mmprobe(tmp_path, *coco_options, "--n", 2, "--differences", "1-2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "pairs": 2,
        "rejected": 0,
        "samples": "out/samples.jsonl",
        "review": "out/review.html",
    }
    review = {"id": "000000000001", "decision": "reject", "descriptions": [], "reason": "odd"}
    (tmp_path / "reviews.json").write_text(json.dumps({"format": 1, "reviews": [review]}))
    done = mmprobe(tmp_path, "--source", "coco", "--out", "out", "--n", 2, "--reviews", "reviews.json")
    assert done.stdout == "0 pairs accepted, 1 rejected, 1 not reviewed: out\n", done.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--source", "coco"), "needs --images and --annotations"),
        (("--images", "coco"), "--images: goes with --source coco"),
        (("--planner", "rules"), "--planner: goes with --source coco"),
        (("--reviews", "x.json"), "--reviews: goes with --source coco"),
        (("--source", "coco", "--reviews", "x.json"), "holds no pairs of photographs"),
        (("--source", "coco", "--images", ".", "--annotations", "none.json"), "none.json: no such file"),
    ],
)
def test_bad_calls_are_one_line(tmp_path, options, why):
    done = mmprobe(tmp_path, "--out", "out", "--n", 2, *options)
    assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
