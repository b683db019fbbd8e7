"""MIRAGE as a task of inspect-ai: metrics, topics, and hints."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("inspect_ai", reason="the extra eval is not installed")
from inspect_ai import eval as inspect_eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from mmprobe.benchmarks.core import inspect_tasks
from mmprobe.benchmarks.core.benchmark import BENCHMARKS

SEED = 5


def mock(asked: list[str]):
    """Return a mock model that answers yes, counts 1 difference, or names the topic geometry."""

    def outputs(input, tools, tool_choice, config):
        asked.append(input[-1].id)
        output = ModelOutput.from_content("mockllm/model", answer(input[-1].text))
        output.usage = ModelUsage()  # else tokens are counted with tables from the network
        return output

    return get_model("mockllm/model", custom_outputs=outputs, memoize=False)


def answer(text: str) -> str:
    if text.startswith("To which topic"):
        return "geometry"
    return "There is 1 difference." if "How many" in text else "The answer is 7 cm."


def values(log) -> dict[str, float]:
    assert log.status == "success", log.error
    return {name: metric.value for score in log.results.scores for name, metric in score.metrics.items()}


@pytest.mark.slow
def test_the_task_scores_as_the_command_does(tmp_path):
    asked: list[str] = []
    (log,) = inspect_eval(
        inspect_tasks.mirage(n=2, seed=SEED), model=mock(asked), log_dir=str(tmp_path / "l"), display="none"
    )
    benchmark = BENCHMARKS["mirage"]()
    truth = benchmark.read(benchmark.draw(tmp_path / "data", 2, SEED))
    samples = benchmark.ask(truth)
    samples += benchmark.follow_up(truth, {sample.id: "" for sample in samples})
    assert len(samples) == 20
    answers = {sample.id: answer(sample.question) for sample in samples}
    expected = {
        name: metric.value
        for name, metric in benchmark.score(truth, answers)[0].items()
        if metric.value is not None
    }
    assert values(log) == pytest.approx(expected | {"truncated": 0.0})
    assert {name for name in asked if name and "hinted" not in name} >= {
        question.id for question in truth.questions
    }


def test_topics_are_asked_of_the_model_and_their_hints_given(tmp_path):
    line = {
        "id": "1",
        "question": "How long is AB?",
        "topic": "geometry",
        "type": "approximate",
        "answer": "7",
    }
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps(line | {"question_hint": "Mind the scale."}) + "\n")
    (log,) = inspect_eval(
        inspect_tasks.mirage(data=str(file)), model=mock([]), log_dir=str(tmp_path / "l"), display="none"
    )
    metrics = values(log)
    assert metrics["topic_accuracy"] == 1 and metrics["accuracy"] == 1 and metrics["accuracy_hinted"] == 1
    assert metrics["hint_gain"] == 0
    answers = {name: text for sample in log.samples for name, text in sample.metadata["answers"].items()}
    assert set(answers) == {"1", "1--topic", "1--hinted"} and answers["1--topic"] == "geometry"
