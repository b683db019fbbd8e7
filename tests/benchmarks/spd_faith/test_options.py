"""The benchmark's own options: wording, profile, and the two readings of the consistency ratio."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from mmprobe.benchmarks.core.benchmark import BENCHMARKS, make_benchmark
from mmprobe.benchmarks.spd_faith.benchmark import build_published_truth
from mmprobe.benchmarks.spd_faith.data import parse_row
from mmprobe.benchmarks.spd_faith.metrics import PROFILES
from mmprobe.cli import app
from mmprobe.errors import InputError
from mmprobe.viz.report.results import metric_groups, read_results, result_facts


@pytest.fixture
def rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"image_id": "1", "differences": []}\n{"image_id": "2", "differences": []}\n')
    return file


def test_the_papers_wording_is_verbatim(rows):
    plain = BENCHMARKS["spd-faith"]()
    paper = make_benchmark("spd-faith", {"wording": "paper"})
    truth = paper.take(paper.read(rows), 2)
    texts = {sample.id: sample.question for sample in paper.ask(truth)}
    assert texts["1-same"] == "Are the two pictures the same?"
    assert texts["2-different"] == "Are the two pictures different?"
    answers = {"1-count": "There are 2 differences.", "2-count": "There is 1 difference."}
    assert [sample.question for sample in paper.follow_up(truth, answers)] == [
        "There are two differences in the picture. Can you find them?",
        "There is one difference in the picture. Can you find it?",
    ]
    ours = {sample.id: sample.question for sample in plain.ask(plain.read(rows))}
    assert {name for name in ours if ours[name] != texts[name]} == {
        "1-same",
        "1-different",
        "2-same",
        "2-different",
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_chooses_the_headline(profile):
    assert make_benchmark("spd-faith", {"profile": profile}).headline == PROFILES[profile]


@pytest.mark.parametrize("profile", PROFILES)
def test_commands_and_reports_show_the_headline_of_the_profile(profile, rows, tmp_path):
    answers = tmp_path / "answers.jsonl"
    lines = [{"id": "1-same", "response": "Yes."}, {"id": "1-count", "response": "0"}]
    lines += [{"id": "1-find", "response": "The dog was removed."}]
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ["--data", rows, "--responses", answers, "--out", tmp_path / "out", "--profile", profile]
    said = CliRunner().invoke(app, ["score", "spd-faith", *map(str, options)], catch_exceptions=False)
    results = read_results(tmp_path / "out")
    known = [name for name in PROFILES[profile] if name in results.metrics]
    assert known and results.headline == list(PROFILES[profile])
    shown = [line.split()[0] for line in said.output.splitlines()]
    assert shown[: len(known)] == known
    page = metric_groups("spd-faith", results.metrics, results.headline)
    assert [row["name"] for row in page["headline"]] == known
    assert profile in result_facts(results)["Options"]


def test_the_profile_of_the_released_code_has_what_that_code_computes():
    assert "tf1_micro" in PROFILES["code"] and "ds_tolerance" in PROFILES["code"]
    assert not {"ds_exist", "tf1_macro", "contradiction_rate"} & set(PROFILES["code"])


def test_unknown_options_are_one_line():
    for options in ({"profile": "mine"}, {"wording": "other"}, {"words": "paper"}):
        with pytest.raises(InputError, match="spd-faith"):
            make_benchmark("spd-faith", options)


def test_all_pairs_of_claims_are_a_reading_of_their_own():
    """Two equal answers with two claims: paired one to one they agree; two of all four pairs are about two things."""
    differences = [{"type": "remove", "category": "dog"}, {"type": "remove", "category": "cat"}]
    pair = parse_row({"image_id": "7", "differences": differences})
    text = "The dog was removed. The cat was removed."
    answers = {"7-same": f"No. {text}", "7-different": f"Yes. {text}"}
    metrics, _ = BENCHMARKS["spd-faith"]().score(build_published_truth([pair]), answers)
    assert metrics["consistency_ratio"].value == 1
    assert metrics["consistency_ratio_all_pairs"].value == (1 + 0.5 + 0.5 + 1) / 4
    assert "consistency_ratio_all_pairs[read]" not in metrics
