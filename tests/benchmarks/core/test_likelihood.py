"""Closed questions by likelihood: which are closed, what a record says, calibration by hand, and whole calls."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from helpers.command_line import assert_fails, run_in_process

import mmprobe as mp
from mmprobe.benchmarks import BENCHMARKS, evaluate
from mmprobe.benchmarks.core.benchmark import load_truth
from mmprobe.benchmarks.core.likelihood import (
    calibration,
    describe,
    find_closed,
    likelihood_metrics,
)
from mmprobe.errors import InputError
from mmprobe.samples import Sample
from mmprobe.settings import DataSettings

PRINTED = (
    "What color is the bread?\nA. yellow\nB. green\nC. orange\nD. blue\nAnswer with the letter of the option."
)


@pytest.mark.parametrize(
    ("question", "answer", "metadata", "expected"),
    [
        ("Is it red?", "no", {}, ("yes-no", ["yes", "no"], False, {"no"})),
        ("Is it red?", "Yes, it is.", {}, ("yes-no", ["yes", "no"], False, {"yes"})),
        (PRINTED, "D", {}, ("options", list("ABCD"), True, {"D"})),
        (PRINTED, "orange", {}, ("options", list("ABCD"), True, {"C"})),
        ("Which?", "a cat", {"options": ["a dog", "a cat"]}, ("options", ["A", "B"], False, {"B"})),
        (
            "Which?\nA. a dog\nB. a cat",
            "B",
            {"options": ["a dog", "a cat"]},
            ("options", ["A", "B"], True, {"B"}),
        ),
        (
            "What color?",
            "Blue",
            {"candidates": ["red", "blue"]},
            ("candidates", ["red", "blue"], False, {"blue"}),
        ),
        ("What color?", "blue", {}, None),
        ("Prove that (a) x > 0 and (b) y > 0.", "By induction.", {}, None),
    ],
)
def test_closed_questions(question, answer, metadata, expected):
    found = find_closed(Sample(id="1", question=question, answer=answer, metadata=metadata))
    told = None if found is None else (found.kind, list(found.answers), found.lettered, set(found.right))
    assert told == expected


@pytest.mark.parametrize("name", ["pope", "mme", "spd-faith", "mirage", "mirage-effect", "mmreason", "vqa"])
def test_every_benchmark_with_closed_questions_has_them_found(name, tmp_path):
    benchmark = BENCHMARKS[name]()
    questions = benchmark.ask(load_truth(benchmark, DataSettings(n=6), tmp_path, seed=0))
    found = [closed for each in questions if (closed := find_closed(each))]
    if name in ("pope", "mme"):
        assert len(found) == len(questions)
    assert found and all(closed.right < set(closed.answers) for closed in found)


@pytest.mark.parametrize("metadata", [{"candidates": "red"}, {"candidates": ["red", "green"]}])
def test_candidates_that_cannot_be_used_name_the_sample(metadata):
    with pytest.raises(InputError, match="sample 1"):
        find_closed(Sample(id="1", question="What color?", answer="blue", metadata=metadata))


def test_a_record_by_hand():
    sample = Sample(id="1", question="Which? (A) red (B) blue (C) a cat", answer="B")
    line = {
        "logprob": {"A": math.log(0.2), "B": math.log(0.1), "C": math.log(0.1)},
        "letter": {"A": -3.0, "B": -2.0, "C": -4.0},
        "text": {"A": -3.0, "B": -3.6, "C": -3.5},  # per character: -1, -0.9, -0.7
    }
    told = describe(sample, line, "The answer is (B).")
    assert told["probability"] == pytest.approx({"A": 0.5, "B": 0.25, "C": 0.25})
    assert told["mass"] == pytest.approx(0.4) and told["entropy"] == pytest.approx(1.5 * math.log(2))
    assert told["margin"] == pytest.approx(math.log(0.5)) and told["chosen"] == "A"
    assert told["correct"] is False and told["agrees"] is False
    assert told["by"] == {"letter": "B", "text": "A", "text_per_character": "C"}
    assert describe(sample, line, "Hm.")["agrees"] is None


def told_by(rights: str, confidence: list[float]) -> dict[str, dict]:
    return {
        str(number): {
            "kind": "yes-no",
            "correct": right == "+",
            "agrees": None if number % 2 else right == "+",
            "probability": {"yes": sure, "no": 1 - sure},
            "mass": 0.5,
            "by": {"text": "yes"},
            "right": ["yes" if right == "+" else "no"],
        }
        for number, (right, sure) in enumerate(zip(rights, confidence, strict=True))
    }


def test_calibration_by_hand():
    told = told_by("+-+++-++", [0.55, 0.55, 0.95, 0.95, 0.95, 0.95, 0.75, 1.0])
    metrics = likelihood_metrics(told)
    # bins: two of 0.55 with 1 right; four of 0.95 and one of 1.0 with 4 right; one of 0.75, right
    expected = (2 * abs(0.55 - 0.5) + 5 * abs((4 * 0.95 + 1) / 5 - 4 / 5) + abs(0.75 - 1)) / 8
    assert metrics["likelihood_ece"].value == pytest.approx(expected)
    assert metrics["likelihood_accuracy"].value == 6 / 8 and metrics["likelihood_accuracy"].coverage == 1
    assert metrics["likelihood_accuracy[kept=50%]"].value == 1  # 1.0 and the first three of 0.95
    assert metrics["likelihood_accuracy[kept=50%]"].coverage == 1 / 2
    assert metrics["likelihood_agreement"].n == 4
    samples = [Sample(id=name, question="?", pair_id=str(int(name) // 2)) for name in told]
    ds = calibration(told, samples)
    assert ds["n"].values.tolist() == [0] * 5 + [2, 0, 1, 0, 5] and ds.attrs["sets"] == 4
    assert ds["accuracy"].values[[5, 7, 9]].tolist() == [0.5, 1.0, 0.8] and np.isnan(ds["accuracy"].values[0])
    assert ds["confidence"].values[9] == pytest.approx(0.96)
    assert ds["kept_accuracy"].sel(coverage=[0.5, 1.0]).values.tolist() == [1.0, 0.75]
    (panel,) = mp.viz.figures(ds)
    drawn = panel.figure.data[0]
    np.testing.assert_allclose(drawn.x, [0.55, 0.75, 0.96])
    np.testing.assert_allclose(drawn.y, [0.5, 1.0, 0.8])


@pytest.fixture(scope="module")
def evaluation(tiny_spd, tmp_path_factory):
    out = tmp_path_factory.mktemp("likelihood") / "out"
    return evaluate("spd-faith", tiny_spd, out, n=2, read="likelihood", trace=True, batch_size=4)


def test_a_bench_stores_probabilities_beside_answers(evaluation, tiny_spd):
    lines = [json.loads(line) for line in (evaluation.folder / "samples.jsonl").read_text().splitlines()]
    asked = {each.id: each for each in mp.load_samples(evaluation.folder / "questions.jsonl")}
    answers = [answer for line in lines for answer in line["answers"].values() if "likelihood" in answer]
    assert len(answers) == 4
    yes, no = ([ids for word in words for ids in tiny_spd.tokenizer([word])["input_ids"]]
               for words in (("yes", "Yes", " yes", " Yes"), ("no", "No", " no", " No")))  # fmt: skip
    for answer in answers:
        with torch.no_grad():
            logits = tiny_spd.hf(**tiny_spd.prepare(asked[answer["id"]])).logits[0, -1]
        p = logits.double().softmax(-1)
        singles = [{ids[0] for ids in words if len(ids) == 1} for words in (yes, no)]
        p_yes, p_no = (sum(p[number].item() for number in own) for own in singles)
        told = answer["likelihood"]
        assert told["probability"]["yes"] == pytest.approx(p_yes / (p_yes + p_no), abs=1e-4)
        assert told["mass"] == pytest.approx(p_yes + p_no, abs=1e-3)
        assert told["agrees"] is True  # greedy, and the first word is the likeliest
    assert evaluation.metrics["likelihood_accuracy"].n == 4
    assert evaluation.metrics["likelihood_accuracy"].sets == 2
    assert (evaluation.folder / "calibration.nc").exists()
    run = mp.open_run(evaluation.folder / "run")
    assert run.margins == pytest.approx({answer["id"]: answer["likelihood"]["margin"] for answer in answers})


def test_reading_is_added_to_answers_and_continued(tiny_spd, tmp_path):
    first = evaluate("pope", tiny_spd, tmp_path, n=4, limit=2)
    assert "likelihood_accuracy" not in first.metrics
    again = evaluate("pope", tiny_spd, tmp_path, n=4, limit=2, read="likelihood", resume=True)
    assert again.metrics["accuracy"].value == first.metrics["accuracy"].value
    file = tmp_path / "likelihoods.jsonl"
    lines = file.read_text().splitlines()
    assert len(lines) == again.metrics["likelihood_accuracy"].n == len(again.records)
    file.write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])  # killed while it wrote
    evaluate("pope", tiny_spd, tmp_path, n=4, limit=2, read="likelihood", resume=True)
    assert sorted(file.read_text().splitlines()) == sorted(lines)


def test_traces_are_labelled_by_likelihood(tiny_spd, tmp_path, image_paths):
    questions = [
        ("Is there a star?", "yes"),
        ("Are the two pictures the same?", "no"),
        ("Describe the picture.", "A star."),
    ]
    data = tmp_path / "mine.jsonl"
    data.write_text("".join(
        json.dumps({"id": str(number), "images": [str(path) for path in image_paths[:2]], "question": question, "answer": answer}) + "\n"
        for number, (question, answer) in enumerate(questions)
    ))  # fmt: skip
    run_in_process(
        "trace",
        "--model",
        "tiny-spd",
        "--data",
        data,
        "--out",
        tmp_path / "run",
        "--read",
        "likelihood",
        "--max-new-tokens",
        "8",
    )
    run = mp.open_run(tmp_path / "run")
    assert set(run.margins) == {"0", "1"}
    assert all(run.faithful(name) == (margin > 0) == run.right[name] for name, margin in run.margins.items())
    assert run.to_dataframe()["margin"].notna().tolist() == [True, True, False]
    mp.pack(tmp_path / "run", tmp_path / "run.h5")
    assert mp.open_run(tmp_path / "run.h5").margins == run.margins


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--model", "openai/gpt-4o", "--read", "likelihood"], "openai/gpt-4o"),
        (["--model", "tiny-spd", "--read", "likelihoods"], "likelihoods"),
        (["--model", "tiny-spd", "--read", "likelihood", "--method", "vcd"], "vcd"),
        (["--model", "tiny-spd", "--read", "likelihood", "--workers", "2"], "workers"),
    ],
)
def test_what_likelihood_does_not_go_with(options, named, tmp_path):
    assert_fails(run_in_process("bench", "pope", *options, "--out", tmp_path / "out"), named)


def test_no_closed_question_is_said_before_anything_is_asked(tmp_path, tiny_spd):
    with pytest.raises(InputError, match="read likelihood"):
        evaluate("chair", tiny_spd, tmp_path / "out", n=2, read="likelihood")
    assert not (tmp_path / "out" / "responses.jsonl").exists()
