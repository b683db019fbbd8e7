"""MIRAGE as a task of inspect-ai: the same metrics as the command's, topics asked, hints given."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("inspect_ai", reason="the extra eval is not installed")
from inspect_ai import eval as inspect_eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from mmprobe.benchmarks.core import inspect_tasks
from mmprobe.benchmarks.core.benchmark import find_benchmark

SEED = 5


def mock(asked: list[str]):
    """A mock model that answers yes, that there is 1 difference, or that a question is geometry's."""

    def outputs(input, tools, tool_choice, config):
        asked.append(input[-1].id)
        output = ModelOutput.from_content("mockllm/model", answer(input[-1].text))
        output.usage = ModelUsage()  # else tokens are counted with tables from the network
        return output

    return get_model("mockllm/model", custom_outputs=outputs, memoize=False)


def answer(text: str) -> str:
    if text.startswith("To which topic"):
        return "geometry"
    return "There is 1 difference." if "How many" in text else "Yes, 7 cm."


def values(log) -> dict[str, float]:
    assert log.status == "success", log.error
    return {name: found.value for score in log.results.scores for name, found in score.metrics.items()}


def test_the_task_scores_as_the_command_does(tmp_path):
    asked: list[str] = []
    (log,) = inspect_eval(
        inspect_tasks.mirage(n=2, seed=SEED), model=mock(asked), log_dir=str(tmp_path / "l"), display="none"
    )
    benchmark = find_benchmark("mirage")
    truth = benchmark.draw(tmp_path / "data", 2, SEED)
    samples = benchmark.ask(truth)
    samples += benchmark.follow_up(truth, {sample.id: "" for sample in samples})
    assert len(samples) == 20
    answers = {sample.id: answer(sample.question) for sample in samples}
    expected = {
        name: found.value
        for name, found in benchmark.score(truth, answers)[0].items()
        if found.value is not None
    }
    assert values(log) == pytest.approx(expected)
    assert {name for name in asked if name and "hinted" not in name} >= {one.id for one in truth.questions}


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
    found = values(log)
    assert found["topic_accuracy"] == 1 and found["accuracy"] == 1 and found["accuracy_hinted"] == 1
    assert found["hint_gain"] == 0
    answers = {name: text for sample in log.samples for name, text in sample.metadata["answers"].items()}
    assert set(answers) == {"1", "1--topic", "1--hinted"} and answers["1--topic"] == "geometry"
