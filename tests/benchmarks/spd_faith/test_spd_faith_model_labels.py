"""SPD-Faith Bench with a model as judge."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from PIL import Image

from mmprobe.benchmarks.core.api_models import ModelClient
from mmprobe.benchmarks.core.benchmark import BENCHMARKS, make_benchmark
from mmprobe.benchmarks.judges.judge import open_judging
from mmprobe.benchmarks.spd_faith.benchmark import build_published_truth
from mmprobe.benchmarks.spd_faith.data import Difference, Pair, parse_row, to_row

pytestmark = pytest.mark.usefixtures("shown")

PAIR = Pair(
    "7",
    (
        Difference("remove", "dog", "The dog was removed."),
        Difference("color", "car", "The car changed from red to blue.", before="red", after="blue"),
    ),
)
ANSWERS = {
    "same": "No. The dog was removed.",
    "different": "Yes. The dog was removed.",
    "count": "There are 3 differences.",
    "find": "The puppy was removed. The car changed from red to green. The chair moved.",
    "list": "The dog was removed.",
    "steps": "I cannot say.",
}


def score_by(name, answers=ANSWERS, pair=PAIR):
    truth = build_published_truth([pair])
    benchmark = BENCHMARKS["spd-faith"]()
    judging = open_judging(benchmark, f"model:judging/{name}")
    metrics, records = judging.score(benchmark, truth, {f"7-{kind}": text for kind, text in answers.items()})
    return metrics, records[0], judging.counts, benchmark.label(truth, records)


def test_metrics_are_computed_from_a_judges_labels(shown):
    metrics, record, counts, faithful = score_by("honest")
    assert record["answers"]["find"]["errors"] == (None, "attribute_error", "fabrication")
    expected = {
        "drf": 1 / 3,
        "drf_attribute_error": 1 / 3,
        "consistency_ratio": 1,
        "dqr_ratio": 1.5,
        "tf1_micro": 2 / 3,
    }
    assert {name: metrics[name].value for name in expected} == pytest.approx(expected)
    assert metrics["drf_steps[read]"].value is None and metrics["drf_steps"].value == 0
    assert "judging/honest" in counts.pop("card")
    assert counts == {"judged": 5 + 5 + 1, "calls": len(shown), "cut": 0, "unscored": {}}
    assert faithful == {
        "7-same": True,
        "7-different": True,
        "7-count": False,
        "7-find": False,
        "7-list": True,
    }


def test_claims_are_extracted_without_the_truth_in_sight(shown):
    score_by("honest")
    extractions = [data for data in shown if "answer" in data]
    assert {data["answer"] for data in extractions} == {
        text for kind, text in ANSWERS.items() if kind != "count"
    }
    assert all(data.keys() == {"answer"} for data in extractions)


def test_a_true_difference_counts_once():
    """Two claims of the one dog that is gone: the lexical judge calls the second a quantity error, too."""
    answers = {"find": "The dog was removed. Another dog was removed."}
    assert score_by("honest", answers)[1]["answers"]["find"]["errors"] == (None, "quantity_error")


def test_what_a_judge_fails_at_is_counted_and_scores_nothing():
    metrics, record, counts, faithful = score_by("garbage")
    assert counts["unscored"] == {"garbage": 5}
    assert {answer.get("unscored") for kind, answer in record["answers"].items() if kind != "count"} == {
        "garbage"
    }
    for name in (
        "drf",
        "drf[read]",
        "drf_of_count",
        "tf1_micro",
        "tf1_micro[read]",
        "drf_steps",
    ):
        assert (metrics[name].value, metrics[name].n, metrics[name].coverage) == (None, 0, 0), name
    assert metrics["dqr_exact"].n == 1, "numbers are read by rules"
    assert faithful == {"7-count": False}


def test_a_claim_that_cannot_be_matched_is_still_one():
    metrics, record, _, faithful = score_by("deaf")
    assert record["answers"]["list"]["understood"] and record["answers"]["list"]["unscored"] == "garbage"
    assert metrics["tf1_micro"].value == pytest.approx(2 / 3) and metrics["drf"].value is None
    assert "7-list" not in faithful


def test_odd_answers_are_all_judged():
    """Empty, endless, in another language, full of markup: each is counted where it belongs."""
    odd = {
        "same": "",
        "different": "椅子变红了。" * 9,
        "find": "The dog was removed. " * 20_000,
        "list": "**<b>[x](y)</b>**\n# |a|",
        "steps": "\x00\ud800",
    }
    metrics, record, counts, _ = score_by("honest", odd)
    assert counts["cut"] == 1 and not counts["unscored"]
    assert [record["answers"][kind]["understood"] for kind in odd] == [False, False, True, False, False]
    assert metrics["drf"].value == 1


def test_what_rules_cannot_read_is_read_by_the_judge(shown):
    """Rules read the answer to `same`; the judge reads a word and a number, but not a word that is not there."""
    answers = {
        "same": "No.",
        "different": "They do differ, I would say.",
        "count": "Three at a quick glance, give or take.",
    }
    _, record, _, _ = score_by("honest", answers)
    asked = [data for data in shown if "reply" in data]
    assert [data["reply"] for data in asked] == [answers["different"], answers["count"]]
    read = record["answers"]
    assert (read["same"]["yes_no"], read["different"]["yes_no"], read["count"]["count"]) == ("no", "yes", 3)
    metrics, record, _, _ = score_by("honest", answers | {"different": "Who knows?"})
    assert record["answers"]["different"]["yes_no"] == "unknown" and metrics["unread"].value > 0


def test_orders_in_an_answer_change_no_metric(injection):
    plain = score_by("honest", {"find": "The dog was removed. The chair moved."})
    ordered = score_by("honest", {"find": f"The dog was removed. The chair moved. {injection}"})
    assert ordered[0]["drf"].value == plain[0]["drf"].value == 0.5
    assert not ordered[2]["unscored"]


def test_a_judge_works_within_an_event_loop():
    async def inside():
        return score_by("honest")[0]["drf"].value

    assert asyncio.run(inside()) == pytest.approx(1 / 3)


CAPTION = "The dog is gone and the car turned from red to blue."
ROW = {
    "image_id": "7",
    "num_differences": 2,
    "differences": [
        {"type": "remove", "category": "dog", "description": CAPTION, "bbox": [2, 2, 10, 10]},
        {"type": "color", "category": "car", "description": "", "bbox": [80, 50, 10, 10]},
    ],
}


@pytest.fixture
def published(tmp_path):
    """Return a published pair of two differences, whose caption is in the first description."""
    images = (tmp_path / "7_original.png", tmp_path / "7_modified_final.png")
    for number, path in enumerate(images):
        Image.new("RGB", (90, 60), (number, 0, 0)).save(path)
    return replace(parse_row(ROW), images=images)


def test_each_published_difference_is_a_truth_of_its_own(shown, published):
    answers = {"find": "The dog was removed. The car changed from red to blue.", "count": "2 differences."}
    metrics, record, _, _ = score_by("honest", answers, published)
    (truths,) = [data["truths"] for data in shown if "truths" in data]
    assert [truth["text"] for truth in truths] == [
        "dog (remove, top left in the first picture): The dog was removed.",
        "car (color, bottom right in the first picture): The car changed from red to blue.",
    ]
    assert record["answers"]["find"]["errors"] == (None, None)
    assert metrics["drf"].value == 1 and metrics["drf_quantity_error"].value == 0


def test_the_caption_of_a_pair_is_context_for_the_judge(shown):
    """Its sentence is in no listed form, so no difference holds its colours: without it, black for white is no error."""
    caption = (
        "Where a white kettle stood there is now a bright orange one; moreover, somebody took the dog away."
    )
    rows = [
        {"type": "color", "category": "kettle", "description": caption},
        {"type": "remove", "category": "dog", "description": ""},
    ]
    pair = parse_row({"image_id": "7", "num_differences": 2, "differences": rows})
    assert pair.caption == caption and pair.differences[0].before is None
    assert parse_row(to_row(pair)) == pair
    score_by("honest", {"find": "The dog was removed."}, pair)
    (data,) = [data for data in shown if "truths" in data]
    assert data["caption"] == caption
    assert caption not in [truth["text"] for truth in data["truths"]], "it is one of the differences nowhere"
    assert parse_row(ROW | {"differences": [rows[1]], "num_differences": 1}).caption == ""


def test_a_judge_that_fails_at_images_is_asked_in_words(shown, published, caplog):
    answers = {"find": "The dog was removed.", "list": "The car changed from red to blue."}
    metrics, _, counts, _ = score_by("blind", answers, published)
    assert metrics["drf"].value == 1 and not counts["unscored"]["error"] > 1
    assert "fails at images" in caplog.text


def test_a_judge_sees_the_images_where_it_can_and_unless_told_otherwise(
    shown, published, monkeypatch, tmp_path
):
    seen, call = [], ModelClient.call

    async def spy(self, messages):
        seen.append(messages[1])
        return await call(self, messages)

    monkeypatch.setattr(ModelClient, "call", spy)
    answers = {"7-find": "The dog was removed.", "7-list": "The car changed from red to blue."}
    truth, cache = build_published_truth([published]), tmp_path / "judge.sqlite"
    for options, n_shown in (({"judge_images": "false"}, 0), ({}, 2), ({"judge_images": "true"}, 0)):
        seen.clear()
        benchmark = make_benchmark("spd-faith", options)
        metrics, _ = open_judging(benchmark, "model:judging/honest", cache).score(benchmark, truth, answers)
        assert metrics["drf"].value == 1
        assert [message.images for message in seen if message.images is not None] == [
            published.images
        ] * n_shown
    assert not seen, "replies about the same images come from the cache"
    Image.new("RGB", (90, 60), (9, 9, 9)).save(published.images[1])
    open_judging(benchmark, "model:judging/honest", cache).score(benchmark, truth, answers)
    assert len(seen) == 2, "another image is another question"
