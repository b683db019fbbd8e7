"""The benchmarks as inspect-ai tasks, and a provider that answers with a model loaded here.

    inspect eval mmprobe/spd_faith --model openai/gpt-4o
    inspect eval mmprobe/pope --model mmprobe/tiny-spd -M trace_to=runs/pope
    inspect eval mmprobe/spd_faith --model openai/gpt-4o -T judge=model:anthropic/claude-sonnet-4-5

inspect-ai finds this module by mmprobe's entry point.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset
from inspect_ai.dataset import Sample as InspectSample
from inspect_ai.model import ChatMessage, ContentImage, GenerateConfig, get_model
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, metric, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import LimitExceededError

from mmprobe.benchmarks.core.api_models import is_cut_off, messages_of
from mmprobe.benchmarks.core.benchmark import (
    BENCHMARKS,
    Answer,
    Benchmark,
    Truth,
    answer_lengths,
    truncated_share,
)
from mmprobe.benchmarks.core.load_data import load_truth
from mmprobe.benchmarks.core.runner import check_questions
from mmprobe.benchmarks.inspect.provider import LocalModel  # noqa: F401  # registers the provider
from mmprobe.benchmarks.judges.registry import LEXICAL, with_judge
from mmprobe.benchmarks.synthetic import PAIRS, SEED
from mmprobe.samples import Sample, longest

_log = logging.getLogger(__name__)


def _register(name: str) -> Callable[..., Task]:
    def make(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
        return _make_task(name, data, n, seed, judge)

    make.__name__ = make.__qualname__ = name.replace("-", "_")
    make.__doc__ = f"""Return the task of {name}, on your data or on a drawn set."""
    return task(make)


# inspect-ai finds the tasks by these names
spd_faith, pope, chair, mme, mirage, magic, mirage_effect, mmreason = map(_register, BENCHMARKS)


def _make_task(name: str, data: str | None, n: int, seed: int, judge: str) -> Task:
    benchmark, judging = with_judge(BENCHMARKS[name], judge)
    with tempfile.TemporaryDirectory() as folder:  # the images go into the messages
        truth = load_truth(benchmark, data, Path(folder), n, seed)
        check_questions(benchmark, truth)
        questions = benchmark.ask_questions(truth)
        dataset = [
            InspectSample(id=sample.id, input=_messages(benchmark, sample), target=sample.answer or "")
            for sample in questions
        ]
        images: dict[str, Any] = {
            sample.id: _question(messages_of(sample)).content[:-1] for sample in questions
        }
    running: list[str] = []
    return Task(
        dataset=MemoryDataset(dataset, name=name),
        solver=ask_all(benchmark, truth, images, running),
        scorer=whole_benchmark(benchmark, truth, running, None if judge == LEXICAL else judging),
        config=GenerateConfig(
            max_tokens=longest(answer_lengths(benchmark)), temperature=0.0, max_retries=5, timeout=600
        ),
    )


def _messages(benchmark: Benchmark[Truth], sample: Sample) -> list[ChatMessage]:
    """Return a sample's messages. The question names the benchmark, for the folder of its traces."""
    messages = messages_of(sample)
    _question(messages).metadata = {"benchmark": benchmark.name}
    return messages


def _question(messages: list[ChatMessage]) -> ChatMessage:
    (question,) = (message for message in messages if message.role == "user")
    return question


@solver
def ask_all(
    benchmark: Benchmark[Truth], truth: Truth, images: dict[str, list[ContentImage]], running: list[str]
) -> Solver:
    """Return a solver that asks a question and its follow-up questions, each in a conversation of its own.

    A follow-up question stays unanswered if the provider refuses its prefill.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        sample_id = str(state.sample_id)
        running.append(sample_id)
        try:
            return await ask(state, generate, sample_id)
        finally:
            running.remove(sample_id)

    async def ask(state: TaskState, generate: Generate, sample_id: str) -> TaskState:
        state = await generate(state)
        answers = {sample_id: state.output.completion}
        truncated = {sample_id: is_cut_off(state.output.stop_reason)}
        for sample in benchmark.follow_up(truth, answers):
            messages = _messages(benchmark, sample.model_copy(update={"images": []}))
            question = _question(messages)
            question.content = [*images[sample_id], *question.content]
            try:
                output = await get_model().generate(messages)
                answers[sample.id] = output.completion
                truncated[sample.id] = is_cut_off(output.stop_reason)
            except Exception as error:  # each provider has its own
                if not sample.prefill or isinstance(error, LimitExceededError):
                    raise
                _log.warning("%s: unanswered (%s)", sample.id, type(error).__name__)
        state.metadata |= {"answers": answers, "truncated": truncated}
        return state

    return solve


def _whole_metric(
    benchmark: Benchmark[Truth], truth: Truth, running: list[str], judging: dict[str, Any] | None
) -> Metric:
    @metric(name=benchmark.name)
    def whole() -> Metric:
        def compute(scores: list[SampleScore]) -> dict[str, Any]:
            if judging is not None and running:
                return {}  # inspect-ai shows numbers meanwhile; the judge would be asked between questions
            answers: dict[str, str] = {}
            for score in scores:
                kept = score.score.metadata or {}
                cut_off = kept.get("truncated", {})
                answers |= {name: Answer(text, cut_off.get(name)) for name, text in kept["answers"].items()}
            metrics, _ = benchmark.score_answers(truth, answers)
            metrics |= truncated_share(answers)
            values = {name: metric.value for name, metric in metrics.items() if metric.value is not None}
            if judging is not None and judging["judged"]:
                values["unscored_by_judge"] = sum(judging["unscored"].values()) / judging["judged"]
            return values

        return compute

    return whole()


def whole_benchmark(
    benchmark: Benchmark[Truth], truth: Truth, running: list[str], judging: dict[str, Any] | None
) -> Scorer:
    """Return a scorer that keeps each answer. The metrics are those of all answers, as in `mmprobe bench`.

    A judge labels the answers at the end, when nothing is `running` any more. `judging` then holds its
    counts.
    """

    @scorer(metrics=[_whole_metric(benchmark, truth, running, judging)], name=benchmark.name)
    def keep_answers() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            kept = {name: state.metadata.get(name, {}) for name in ("answers", "truncated")}
            return Score(value=1.0, answer=state.output.completion, metadata=kept)

        return score

    return keep_answers()
