"""Answers that are cut off are counted, and questions have the lengths that their types need."""

from __future__ import annotations

import json

import pytest
from helpers.asking import ask
from inspect_ai.model import ModelOutput, ModelUsage, get_model

import mmprobe as mp
from mmprobe.benchmarks.core.api_models import api_answerer
from mmprobe.benchmarks.core.benchmark import BENCHMARKS, answer_lengths
from mmprobe.benchmarks.mmreason.benchmark import MMReason, MMReasonTruth
from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.benchmarks.spd_faith.benchmark import SpdFaith
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.samples import length_of, load_samples


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_pairs(tmp_path_factory.mktemp("pairs"), 3, 5)


def test_long_questions_have_long_answers():
    benchmark = BENCHMARKS["spd-faith"]()
    lengths = answer_lengths(benchmark)
    samples = {kind: mp.Sample(id=kind, question="?", metadata={"type": kind}) for kind in ("same", "steps")}
    assert [length_of(sample, lengths) for sample in samples.values()] == [128, 512]
    assert answer_lengths(benchmark, 9) == 9 and answer_lengths(BENCHMARKS["mme"]()) == 32


def test_questions_that_ask_for_steps_have_long_answers():
    fields = {"id": "1", "question": "2 + 2?", "answer": "4", "discipline": "math", "source": "own"}
    truth = MMReasonTruth(
        [ReasonQuestion(**fields), ReasonQuestion(**fields | {"id": "2", "system": "Be brief."})], []
    )
    lengths = answer_lengths(BENCHMARKS["mmreason"]())
    assert [length_of(sample, lengths) for sample in MMReason().ask(truth)] == [512, 128]
    assert answer_lengths(BENCHMARKS["mirage"]()) == answer_lengths(BENCHMARKS["magic"]()) == 512


@pytest.mark.slow
def test_each_answer_knows_whether_it_was_cut_off(tiny_spd, data):
    """The same answers of one batch at two lengths: cut off exactly where the longer answer continues."""
    samples = [sample for sample in load_samples(data) if len(sample.images) == 2]
    whole, part = (ask(tiny_spd, samples, length, 8) for length in (96, 9))
    assert not any(text.truncated for text in whole.values())
    for name, text in part.items():
        n_tokens = len(tiny_spd.tokenizer(str(whole[name]))["input_ids"]) + 1  # and the end token
        assert text.truncated == (n_tokens > 9) == (text != whole[name]), name
    assert {text.truncated for text in part.values()} == {True, False}


@pytest.mark.slow
def test_lengths_by_type_reach_the_model(tiny_spd, data):
    samples = [sample for sample in load_samples(data) if sample.metadata["type"] in ("same", "steps")]
    answers = ask(tiny_spd, samples, {"steps": 96, "other": 2}, 8)
    for sample in samples:
        assert answers[sample.id].truncated == (sample.metadata["type"] == "same")


def test_traced_answers_have_the_lengths_of_untraced_ones(tiny_spd, data, tmp_path, monkeypatch):
    """Statements of yes and no stop at 2 tokens, steps at 12: the same with and without a trace, as recorded."""
    monkeypatch.setattr(SpdFaith, "max_new_tokens", 2)
    monkeypatch.setattr(SpdFaith, "long_answers", {"steps": 12})
    answers = {}
    for trace in (False, True):
        out = tmp_path / str(trace)
        mp.benchmarks.evaluate("spd-faith", tiny_spd, out, data=data, limit=2, batch_size=8, trace=trace)
        lines = (out / "responses.jsonl").read_text().splitlines()
        answers[trace] = {line["id"]: line for line in map(json.loads, lines)}
        used = json.loads((out / "results.json").read_text())["max_new_tokens"]
        assert used == {"steps": 12, "other": 2}
    assert answers[True] == answers[False]
    run = mp.open_run(tmp_path / "True" / "run")
    assert run.config["generate"]["max_new_tokens"] == used
    for trace in run:
        assert len(trace.steps["id"]) <= (12 if run.sample(trace.id).metadata["type"] == "steps" else 2)


def test_the_share_is_beside_the_metrics(tiny_spd, data, tmp_path):
    out = tmp_path / "bench"
    for trace in (False, True):
        folder = out / str(trace)
        made = mp.benchmarks.evaluate(
            "spd-faith", tiny_spd, folder, data=data, limit=1, max_new_tokens=9, batch_size=8, trace=trace
        )
        lines = [json.loads(line) for line in (folder / "responses.jsonl").read_text().splitlines()]
        share = made.metrics["truncated"]
        assert share.n == len(lines) and share.direction == "lower"
        assert share.value == sum(line["truncated"] for line in lines) / len(lines) > 0
        again = mp.benchmarks.score("spd-faith", data, folder / "responses.jsonl", tmp_path / f"{trace}")
        assert again.metrics["truncated"].value == share.value
    given = {line["id"]: line["response"] for line in lines}
    told = mp.benchmarks.score("spd-faith", data, given, tmp_path / "given")
    assert "truncated" not in told.metrics, "nobody knows"


def test_an_api_says_why_an_answer_stopped_and_gets_the_length(data):
    seen = {}

    def outputs(input, tools, tool_choice, config):
        seen[input[-1].id] = config.max_tokens
        output = ModelOutput.from_content("mockllm/model", "The first", stop_reason="max_tokens")
        output.choices[0].stop_reason = "max_tokens" if input[-1].id.endswith("steps") else "stop"
        output.usage = ModelUsage()
        return output

    samples = [sample for sample in load_samples(data) if sample.metadata["type"] in ("same", "steps")]
    client = get_model("mockllm/model", custom_outputs=outputs, memoize=False)
    answers = ask(api_answerer(client), samples, {"steps": 512, "other": 128})
    for sample in samples:
        is_steps = sample.metadata["type"] == "steps"
        assert answers[sample.id].truncated == is_steps
        assert seen[sample.id] == (512 if is_steps else 128)
