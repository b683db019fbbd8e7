"""Several answers to a question: numbers counted by hand, and folders of a model that is drawn from."""

from __future__ import annotations

import json

import pytest
from helpers.command_line import assert_fails, run_in_process

import mmprobe as mp
from mmprobe.benchmarks.core.stability import find_parting, measure_stability
from mmprobe.benchmarks.synthetic.pairs import make_pairs


def test_the_numbers_by_hand():
    labels = [
        {"a": True, "b": True, "c": False},
        {"a": True, "b": False, "c": False},
        {"a": True, "c": False},
    ]
    texts = [{name: f"{name} {number if name == 'b' else ''}" for name in "abc"} for number in range(3)]
    metrics, records = measure_stability("abcd", labels, texts)
    assert metrics["pass@1"].value == pytest.approx((1 + 1 / 3 + 0) / 3) and metrics["pass@1"].n == 3
    assert metrics["pass@3"].value == pytest.approx(2 / 3) and metrics["flip_rate"].value == pytest.approx(
        1 / 3
    )
    assert records[1]["shares"] == {"right": 1 / 3, "wrong": 1 / 3, "unread": 1 / 3}
    assert records[1]["parting"]["says"] == {"0": 1, "1": 1, "2": 1} and records[0]["parting"] is None
    assert records[3]["shares"] == {}, "nobody answered"


def test_one_answer_may_end_where_another_goes_on():
    assert find_parting(["It is red.", "It is red. I think"]) == ("It is red.", {"": 1, "I": 1})


def test_each_answer_has_a_folder_and_they_differ(tmp_path):
    data = make_pairs(tmp_path / "pairs", n=2, seed=3)
    settings = {"temperature": 3.0, "data": data, "seed": 5, "batch_size": 8}
    out = mp.benchmarks.evaluate("vqa", "tiny-spd", tmp_path / "out", samples=3, limit=3, **settings)
    texts = [(tmp_path / "out" / f"sample-{number}" / "responses.jsonl").read_text() for number in (1, 2, 3)]
    assert len(set(texts)) > 1
    alone = mp.benchmarks.evaluate("vqa", "tiny-spd", tmp_path / "one", limit=3, **settings | {"seed": 6})
    answers = {record["id"]: record["answers"][1]["response"] for record in out.records}
    assert answers == {record["id"]: record["response"] for record in alone.records}, (
        "the second has the next seed"
    )
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert content["samples"] == 3 and content["metrics"]["pass@1"]["n"] == 3


def test_greedy_answers_have_no_spread(tmp_path):
    arguments = ("bench", "vqa", "--model", "tiny-spd", "--samples", "3", "--out", tmp_path / "out")
    assert_fails(
        run_in_process(*arguments), "--samples 3: greedy answers are all the same; give --temperature"
    )
