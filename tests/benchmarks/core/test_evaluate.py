"""evaluate, score and compare in Python, and the first part of a benchmark's data."""

from __future__ import annotations

import json

import pytest
from helpers.slow import first_fast

import mmprobe as mp
from mmprobe.benchmarks.core.evaluate import load_truth
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.settings import DataSettings

UNITS = {"spd-faith": "pairs", "pope": "images", "chair": "images", "mme": "images"}  # the others: questions


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_pairs(tmp_path_factory.mktemp("pairs"), 6, 5)


def test_every_benchmark_says_what_a_limit_counts():
    units = {name: benchmark.unit for name, benchmark in mp.benchmarks.BENCHMARKS.items()}
    assert set(units.values()) == {"pairs", "images", "questions"}
    assert {name: unit for name, unit in units.items() if name in UNITS} == UNITS


@pytest.mark.parametrize("name", first_fast(mp.benchmarks.BENCHMARKS, 4))
def test_a_limit_takes_the_first_of_the_data(name, tmp_path):
    benchmark = mp.benchmarks.BENCHMARKS[name]()
    whole = load_truth(benchmark, DataSettings(n=6), tmp_path / "drawn", seed=5)
    part = load_truth(benchmark, DataSettings(n=6, limit=2), tmp_path / "drawn", seed=5)
    asked, limited = benchmark.ask(whole), benchmark.ask(part)
    assert 0 < len(limited) < len(asked)
    assert limited == [sample for sample in asked if sample in limited], "in the order of the data"
    if benchmark.unit == "images":
        assert len({tuple(sample.images) for sample in limited}) == 2
    if benchmark.unit == "pairs":
        assert len({tuple(sample.images) for sample in limited if len(sample.images) == 2}) == 2
    answers = {sample.id: sample.answer or "There is a dog." for sample in limited}
    # two questions may be about one image, which has no other one
    first = {"spd-faith": "dqr_exact", "swap": "changed_same"}.get(name, benchmark.headline[0])
    assert benchmark.score(part, answers)[0][first].coverage == 1, "of the part, nothing is missing"
    assert benchmark.score(whole, answers)[0][first].coverage < 1 or name == "spd-faith"


@pytest.mark.parametrize("name", first_fast(mp.benchmarks.BENCHMARKS, 4))
def test_where_no_question_was_answered_metrics_are_undefined(name, tmp_path):
    benchmark = mp.benchmarks.BENCHMARKS[name]()
    metrics, _ = benchmark.score(benchmark.read(benchmark.draw(tmp_path / "data", 12, 7)), {})
    values = [metric.value for metric in metrics.values() if metric.n == 0]
    assert values and set(values) == {None}


def test_a_model_is_evaluated_and_its_answers_are_scored_again(tiny_spd, data, tmp_path):
    evaluation = mp.benchmarks.evaluate(
        "spd-faith", tiny_spd, tmp_path / "first", data=data, limit=1, trace=True, batch_size=8
    )
    assert evaluation.metrics["dqr_exact"].n == 1
    run = mp.open_run(tmp_path / "first" / "run")
    assert len(run) == len(evaluation.folder.joinpath("responses.jsonl").read_text().splitlines())
    assert (tmp_path / "first" / "run" / "labels.jsonl").exists()
    results = json.loads((tmp_path / "first" / "results.json").read_text())
    assert results["limit"] == 1 and results["model"] == "tiny-spd"
    responses = {
        line["id"]: line["response"]
        for line in map(json.loads, (tmp_path / "first" / "responses.jsonl").read_text().splitlines())
    }
    by_file = mp.benchmarks.score(
        "spd-faith", data, tmp_path / "first" / "responses.jsonl", tmp_path / "by-file"
    )
    by_id = mp.benchmarks.score("spd-faith", data, responses, tmp_path / "by-id")
    assert by_file.metrics == {**by_id.metrics, "truncated": evaluation.metrics["truncated"]}
    assert by_file.metrics["drf"].value == evaluation.metrics["drf"].value
    with pytest.raises(InputError, match="already contains answers"):
        mp.benchmarks.evaluate("spd-faith", tiny_spd, tmp_path / "first", data=data)


@pytest.mark.slow
def test_methods_are_compared(tiny_spd, data, tmp_path):
    ds = mp.benchmarks.compare(
        tiny_spd,
        tmp_path / "out",
        methods=["self-refine"],
        benchmarks=["pope"],
        data=data,
        limit=2,
        batch_size=8,
        progress=lambda line: None,
    )
    assert ds["contender"].values.tolist() == ["plain", "self-refine"]
    assert int(ds["n_paired"].sel(metric="pope accuracy", contender="self-refine")) > 2


@pytest.mark.parametrize(
    ("name", "model", "options", "message"),
    [
        ("pop", "tiny-spd", {}, "did you mean pope"),
        ("pope", "tiny-sdp", {}, "tiny-sdp"),
        ("pope", "tiny-spd", {"method": "sgae"}, "sage"),
        ("pope", "tiny-spd", {"method": "sage", "alhpa": 1}, "alpha"),
        ("pope", "tiny-spd", {"limt": 3}, "limt"),
        ("pope", "tiny-spd", {"perturbation": "mask"}, "mask-25"),
        ("pope", "tiny-spd", {"judge": "model:x/y"}, "needs no judge"),
        ("pope", "openai/gpt-4o", {"trace": True}, "cannot be traced"),
    ],
)
def test_bad_calls_leave_nothing(name, model, options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        mp.benchmarks.evaluate(name, model, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_comparison_has_a_judge_and_a_length(tiny_spd, data, shown, tmp_path):
    """MME needs no judge, so its rules decide beside the judge of the other benchmark."""
    call = {
        "benchmarks": ["spd-faith", "mme"],
        "data": data,
        "limit": 1,
        "max_new_tokens": 7,
        "batch_size": 8,
    }
    call |= {"judge": "model:judging/honest", "repetition_penalty": 1.1, "progress": lambda line: None}
    ds = mp.benchmarks.compare(tiny_spd, tmp_path / "out", **call)
    assert shown, "the judge was asked"
    assert "spd-faith truncated" in ds["metric"].values
    for name, judge in (("spd-faith", "model:judging/honest"), ("mme", "lexical")):
        results = json.loads((tmp_path / "out" / "plain" / name / "results.json").read_text())
        assert (results["judge"], results["max_new_tokens"]) == (judge, 7)
        assert results["generation"]["repetition_penalty"] == 1.1
    with pytest.raises(InputError, match="needs no judge"):
        mp.benchmarks.compare(tiny_spd, tmp_path / "mme", **(call | {"benchmarks": ["mme"]}))
