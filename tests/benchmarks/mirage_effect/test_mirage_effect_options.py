"""The mirage effect's own options: a named data set, examples, seeds; and mean mirage scores."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.asking import ask as ask_all
from helpers.command_line import assert_fails, read_result, run_in_process
from PIL import Image

from mmprobe.benchmarks.core.benchmark import BENCHMARKS, make_benchmark
from mmprobe.benchmarks.core.results import mean_metric, write_results
from mmprobe.benchmarks.mirage_effect.metrics import mean_mirage_scores
from mmprobe.benchmarks.mirage_effect.prompts import MODALITIES
from mmprobe.errors import InputError
from mmprobe.samples import sampling_of

BENCHMARK = BENCHMARKS["mirage-effect"]()


@pytest.fixture
def data(tmp_path):
    """Four questions with options, and three examples, of which one is a question of the data."""
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    line = {"choices": {"A": "cat", "B": "dog"}, "answer": "A", "images": ["a.png"], "system": "Be brief."}
    lines = [line | {"id": f"q{i}", "question": f"Which animal is at {i}?"} for i in range(4)]
    examples = [
        line | {"id": "e1", "question": "Which animal barks?", "answer": "B"},
        {"id": "e2", "question": "How many?", "answer": "three", "images": ["a.png"]},
        lines[2] | {"id": "e3"},
    ]
    for name, rows in (("data.jsonl", lines), ("examples.jsonl", examples)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def ask(data, **options):
    benchmark = make_benchmark("mirage-effect", options)
    truth = benchmark.read(data / "data.jsonl")
    return benchmark, truth, {sample.id: sample for sample in benchmark.ask(truth)}


def test_a_named_data_set_asks_with_and_without_images(data):
    _, _, samples = ask(data, data_set="MicroVQA")
    named, absent = samples["q1--named"], samples["q1--absent-named"]
    assert named.system == absent.system and "MicroVQA" in named.system and named.system.endswith("Be brief.")
    assert named.question == absent.question == samples["q1"].question
    assert named.images == samples["q1"].images and absent.images == []
    assert "MicroVQA" in next(s for name, s in samples.items() if name.endswith("--benchmark")).system
    assert not any("named" in name for name in ask(data)[2])


def test_gains_by_the_name_are_paired(data):
    benchmark, truth, _ = ask(data, data_set="MicroVQA")
    right = {"": "0111", "--named": "1111", "--absent": "0011", "--absent-named": "110"}
    responses = {
        f"q{i}{suffix}": "[[A]]" if digit == "1" else "[[B]]"
        for suffix, digits in right.items()
        for i, digit in enumerate(digits)
    }
    metrics, records = benchmark.score(truth, responses)
    values = {name: (metric.value, metric.n) for name, metric in metrics.items()}
    assert values["name_gain_with"] == (0.25, 4)
    # only the questions with both answers count: 1 - 0, 1 - 0, 0 - 1
    assert values["name_gain_without"] == (pytest.approx(1 / 3), 3)
    assert values["accuracy_with_named"] == (1.0, 3)
    assert values["accuracy_without_named"] == (pytest.approx(2 / 3), 3)
    assert values["mirage_score_named"] == (pytest.approx(2 / 3), 3)
    assert values["mirage_score"] == (pytest.approx(2 / 3), 4), "the plain score is as before"
    assert metrics["name_gain_with"].parts.ids == ("q0", "q1", "q2", "q3")
    record = next(record for record in records if record["id"] == "q0")
    assert record["answers"]["named"]["correct"] and not record["answers"]["present"]["correct"]
    assert benchmark.label(truth, records)["q0--named"] is True


def test_an_unread_answer_does_not_remove_the_other(data):
    """Four questions are asked both ways; of the answers without images one is unread."""
    benchmark, truth, _ = ask(data)
    unread = "Both A and B have their merits."
    texts = {"": ["[[A]]", "[[A]]", "[[B]]", "[[A]]"], "--absent": ["[[A]]", unread, "[[B]]", "[[B]]"]}
    responses = {f"q{i}{suffix}": text for suffix, rows in texts.items() for i, text in enumerate(rows)}
    values = {name: (m.value, m.n) for name, m in benchmark.score(truth, responses)[0].items()}
    assert values["accuracy_with"] == (0.75, 4) and values["accuracy_without"] == (0.25, 4)
    assert values["accuracy_without[read]"] == (pytest.approx(1 / 3), 3)
    assert values["mirage_score"] == (pytest.approx(1 / 3), 4), "an unread answer is wrong"


def test_few_shot_prompts_without_images(data):
    options = {"examples": data / "examples.jsonl", "shots": 3}
    benchmark, truth, samples = ask(data, **options)
    prompt = samples["q1--few-shot"]
    assert prompt.images == [] and prompt.system == "Be brief."
    assert prompt.question.endswith(samples["q1"].question)
    assert "Which animal barks?\nA. cat\nB. dog\n[[B]]" in prompt.question
    assert "How many?\n[[three]]" in prompt.question and "at 2?" in prompt.question
    assert prompt.question.count("at 1?") == 1
    assert samples["q2--few-shot"].question.count("at 2?") == 1, "a question is not an example of itself"
    one_shot = ask(data, **options | {"shots": 1})[2]
    assert one_shot["q1--few-shot"].question.count("[[A]]") < 3
    responses = {"q0": "[[A]]", "q1": "[[A]]", "q0--absent": "[[B]]", "q1--absent": "[[A]]"}
    responses |= {"q0--few-shot": "[[A]]", "q1--few-shot": "[[A]]", "q2--few-shot": "[[B]]"}
    metrics, _ = benchmark.score(truth, responses)
    assert metrics["accuracy_few_shot"].value == pytest.approx(2 / 3)
    assert metrics["few_shot_gain"].value == 0.5 and metrics["few_shot_gain"].n == 2
    assert metrics["few_shot_score"].value == 1.0
    assert "accuracy_few_shot" not in benchmark.score(truth, {"q0": "A"})[0]


def test_diagnoses_with_seeds(data):
    _, truth, samples = ask(data, seeds="3", temperature="0.7")
    diagnoses = [sample for sample in samples.values() if sample.metadata["kind"] == "diagnosis"]
    assert len(diagnoses) == 3 * len(MODALITIES) and len({sample.question for sample in diagnoses}) == 5
    assert [sampling_of(sample) for sample in diagnoses[:3]] == [(0.7, 0), (0.7, 1), (0.7, 2)]
    assert sum(sampling_of(sample) is not None for sample in samples.values()) == len(diagnoses)
    responses = {name: f"<diagnosis>{name[-1]}</diagnosis>" for name in samples if "seed" in name}
    metrics, _ = BENCHMARK.score(truth, responses)
    assert metrics["diagnosis_entropy[modality=ECG]"].value == pytest.approx(np.log2(3))
    assert metrics["diagnosis_rate[modality=ECG]"].n == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shots": 3}, "'shots' has no effect without 'examples'"),
        ({"temperature": 0.5}, "'temperature' has no effect without 'seeds'"),
        ({"seeds": -1}, "option 'seeds'"),
        ({"seeds": 2, "temperature": 0}, "option 'temperature'"),
        ({"words": "paper"}, "has no option 'words'; its own are data_set, examples"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(InputError, match=message) as caught:
        make_benchmark("mirage-effect", options)
    assert "\n" not in str(caught.value)


def test_the_embedded_model_samples_each_seed_alike_and_traces_none(tmp_path, tiny_spd):

    from mmprobe.benchmarks.core.runner import run_benchmark
    from mmprobe.traces.run import Recording

    benchmark = make_benchmark("mirage-effect", {"seeds": 3, "temperature": 5.0})
    truth = benchmark.read(benchmark.draw(tmp_path / "data", 1, 3))
    diagnoses = [sample for sample in benchmark.ask(truth) if "ecg" in sample.id]
    first, again = (ask_all(tiny_spd, samples, 6, 2) for samples in (diagnoses, diagnoses[::-1]))
    assert first == again and len(set(first.values())) == 3
    with pytest.raises(InputError, match="seed.* greedy"):
        run_benchmark(benchmark, truth, tiny_spd, tmp_path / "out", {}, recording=Recording())


def folder(path, model, data, score, above, benchmark="mirage-effect"):
    metrics = {"mirage_score": score, "mirage_score_above_chance": above}
    written = {
        name: mean_metric([] if value is None else [value], "lower") for name, value in metrics.items()
    }
    write_results(path, benchmark, written, [], {"model": model, "data": data})
    return path


def test_mean_scores_of_models_and_of_data_sets(tmp_path):
    """Two models on three data sets, one pair missing, one score undefined."""
    scores = {("m", "a"): 0.9, ("m", "b"): 0.7, ("m", "c"): 0.5, ("n", "a"): 0.5, ("n", "b"): None}
    folders = [
        folder(tmp_path / f"{model}-{data}", model, data, score, None if score is None else score / 2)
        for (model, data), score in scores.items()
    ]
    result = read_result(
        run_in_process("data", "mirage-score", *folders, "--out", tmp_path / "out", "--json")
    )
    values = result["metrics"]
    assert values["mirage_score[model=m]"] == pytest.approx(0.7)
    assert values["mirage_score[model=n]"] == 0.5 and values["mirage_score[data=b]"] == 0.7
    assert values["mirage_score[data=a]"] == pytest.approx(0.7)
    assert values["mirage_score"] == pytest.approx((0.9 + 0.7 + 0.5 + 0.5) / 4)
    assert values["mirage_score_above_chance[data=a]"] == pytest.approx(0.35)
    metrics = mean_mirage_scores(folders).metrics
    assert metrics["mirage_score[model=n]"].n == 1 and metrics["mirage_score[model=n]"].coverage == 0.5
    lines = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["model"] for line in lines] == ["m", "m", "m", "n", "n"]


def test_folders_that_cannot_be_averaged(tmp_path):
    first, again = (folder(tmp_path / name, "m", "a", 0.5, 0.5) for name in "xy")
    out = tmp_path / "out"
    assert_fails(run_in_process("data", "mirage-score", first, again, "--out", out), "both hold m on a")
    other = folder(tmp_path / "pope", "m", "a", 0.5, 0.5, "pope")
    assert_fails(run_in_process("data", "mirage-score", other, "--out", out), "contains no mirage score")
    assert_fails(
        run_in_process("data", "mirage-score", tmp_path / "no", "--out", out), "contains no results.json"
    )
    assert_fails(run_in_process("data", "mirage-score", first, "--out", first), "is read, too")
    assert not out.exists()


def test_a_model_behind_an_api_gets_each_seed(data):
    inspect_model = pytest.importorskip("inspect_ai.model", reason="the extra eval is not installed")
    from mmprobe.benchmarks.core.api_models import api_answerer

    seen = []

    def outputs(messages, tools, tool_choice, config):
        seen.append((config.temperature, config.seed))
        output = inspect_model.ModelOutput.from_content("mockllm/model", "Yes.")
        output.usage = inspect_model.ModelUsage()
        return output

    settings = inspect_model.GenerateConfig(temperature=0.0)
    mock = inspect_model.get_model("mockllm/model", custom_outputs=outputs, config=settings, memoize=False)
    samples = ask(data, seeds=2, temperature=0.7)[2]
    chosen = [samples[name] for name in ("q1", "diagnosis-ecg-1--seed-0", "diagnosis-ecg-1--seed-1")]
    assert len(ask_all(api_answerer(mock), chosen, 8)) == 3
    assert sorted(seen, key=str) == [(0.0, None), (0.7, 0), (0.7, 1)]


@pytest.mark.parametrize("form", ["{}", "[[{}]]", "{}.", "The answer is {}."])
def test_a_coin_flip_on_closed_questions_is_at_chance(tmp_path, form):
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    lines = [
        {"id": str(i), "images": ["a.png"], "question": f"Is it at {i}?", "answer": "Yes" if i % 2 else "No"}
        for i in range(8)
    ]
    lines.append({"id": "open", "images": ["a.png"], "question": "How many?", "answer": "3"})
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    benchmark, truth, samples = ask(tmp_path, closed=True)
    assert len(truth.choices) == 8 and "A. yes\nB. no" in samples["0"].question
    with pytest.raises(InputError, match="yes or no"):
        (tmp_path / "open.jsonl").write_text(json.dumps(lines[-1]))
        benchmark.read(tmp_path / "open.jsonl")
    words = ["No", "No", "Yes", "Yes"]
    responses = {f"{i}{way}": form.format(words[i % 4]) for i in range(8) for way in ("", "--absent")}
    metrics, records = benchmark.score(truth, responses)
    assert (metrics["accuracy_with"].value, metrics["accuracy_with"].n) == (0.5, 8)
    assert metrics["mirage_score_above_chance"].value is None, "the accuracy with images is at chance"
    assert {record["options"] for record in records if record["kind"] == "choice"} == {2}
    always_right = {name: "Yes" if int(name[0]) % 2 else "No" for name in responses}
    assert benchmark.score(truth, always_right)[0]["mirage_score_above_chance"].value == 1.0
