"""MagiC as a task of inspect-ai: metrics, prefilled answers, and providers that refuse them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("inspect_ai", reason="the extra eval is not installed")
from helpers.asking import ask
from inspect_ai import eval as inspect_eval
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelOutput, ModelUsage, get_model

from mmprobe.benchmarks.core import inspect_tasks
from mmprobe.benchmarks.core.api_models import api_answerer, inspect_message, messages_of
from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.samples import Sample

SEED = 5


def mock(seen: list, refuses: bool = False):
    """Return a mock model that says that every star is red, or refuses prefilled answers."""

    def outputs(input, tools, tool_choice, config):
        seen.append([(message.role, message.text) for message in input])
        if refuses and input[-1].role == "assistant":
            raise RuntimeError("prefill is not supported")
        output = ModelOutput.from_content("mockllm/model", "R1 is the star.\nAnswer: Yes, it is red.")
        output.usage = ModelUsage()  # else tokens are counted with tables from the network
        return output

    return get_model("mockllm/model", custom_outputs=outputs, memoize=False)


def values(log) -> dict[str, float]:
    assert log.status == "success", log.error
    return {name: metric.value for score in log.results.scores for name, metric in score.metrics.items()}


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.slow
def test_the_task_scores_as_the_command_does(tmp_path, refuses):
    seen: list = []
    (log,) = inspect_eval(
        inspect_tasks.magic(n=2, seed=SEED),
        model=mock(seen, refuses),
        log_dir=str(tmp_path / "l"),
        display="none",
    )
    benchmark = BENCHMARKS["magic"]()
    truth = benchmark.read(benchmark.draw(tmp_path / "data", 2, SEED))
    text = "R1 is the star.\nAnswer: Yes, it is red."
    answers = {sample.id: text for sample in benchmark.ask(truth)}
    prefilled = benchmark.follow_up(truth, answers)
    if not refuses:
        answers |= {sample.id: text for sample in prefilled}
    expected = {
        name: metric.value
        for name, metric in benchmark.score(truth, answers)[0].items()
        if metric.value is not None
    }
    assert values(log) == pytest.approx(expected | {"truncated": 0.0})
    assert ("self_heal_answer" in expected) is not refuses
    last = [messages[-1] for messages in seen if messages[-1][0] == "assistant"]
    assert sorted(text for _, text in last) == sorted(sample.prefill for sample in prefilled)
    assert all(messages[-2][0] == "user" for messages in seen if messages[-1][0] == "assistant")


@pytest.mark.slow
def test_the_embedded_model_continues_a_prefilled_answer(tmp_path):
    (log,) = inspect_eval(
        inspect_tasks.magic(n=1, seed=SEED),
        model="mmprobe/tiny-spd",
        model_args={"device": "cpu"},
        log_dir=str(tmp_path / "logs"),
        display="none",
    )
    assert values(log)["self_heal_answer_judged"] == 1


def test_requests_that_an_api_refuses_are_unanswered(tmp_path):
    benchmark = BENCHMARKS["magic"]()
    truth = benchmark.read(benchmark.draw(tmp_path / "data", 1, SEED))
    prefilled = benchmark.follow_up(truth, {question.id: "" for question in truth.questions})
    assert ask(api_answerer(mock([], refuses=True)), prefilled, 8) == {}
    assert set(ask(api_answerer(mock([])), prefilled, 8)) == {sample.id for sample in prefilled}


def test_a_prefill_is_the_last_message_and_comes_back(tmp_path):
    asked = messages_of(Sample(id="a", question="Why?", system="Speak.", prefill="So \n"))
    messages = [inspect_message(message) for message in asked]
    assert [(message.role, message.text) for message in messages] == [
        ("system", "Speak."),
        ("user", "Why?"),
        ("assistant", "So"),
    ]
    sample = inspect_tasks.sample_of(messages, Path(tmp_path), "q")
    assert (sample.id, sample.prefill, sample.system, sample.question) == ("a", "So", "Speak.", "Why?")
    assert inspect_tasks.sample_of(messages[:2], Path(tmp_path), "q").prefill is None
    two = [ChatMessageAssistant(content="So"), ChatMessageUser(content="Why?")]
    assert inspect_tasks.sample_of(two, Path(tmp_path), "q").transcript == "assistant: So\nuser: Why?"
