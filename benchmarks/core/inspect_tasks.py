"""The benchmarks as inspect-ai tasks, and a provider that answers with a model loaded here.

    inspect eval mmprobe/spd_faith --model openai/gpt-4o
    inspect eval mmprobe/pope --model mmprobe/tiny-spd -M trace_to=runs/pope
    inspect eval mmprobe/spd_faith --model openai/gpt-4o -T judge=model:anthropic/claude-sonnet-4-5

inspect-ai finds this module by mmprobe's entry point.
"""

from __future__ import annotations

import base64
import logging
import tempfile
import threading
from pathlib import Path
from typing import Any

import anyio
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset
from inspect_ai.dataset import Sample as JudgeRequest
from inspect_ai.model import (
    ChatMessage,
    ContentImage,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    get_model,
    modelapi,
)
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, metric, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolChoice, ToolInfo
from inspect_ai.util import LimitExceededError

from mmprobe.benchmarks.core.api_models import messages_of
from mmprobe.benchmarks.core.benchmark import Benchmark, find_benchmark
from mmprobe.benchmarks.core.runner import check_questions
from mmprobe.benchmarks.judges.registry import LEXICAL, with_judge
from mmprobe.errors import InputError
from mmprobe.samples import SAFE_ID, Sample

_log = logging.getLogger(__name__)
PAIRS, SEED = 24, 1_000_001  # of a set that is drawn; beyond the seeds that the embedded model was trained on


@task
def spd_faith(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """SPD-Faith Bench, on the data that is given or on pairs that are drawn."""
    return _task("spd-faith", data, n, seed, judge)


@task
def pope(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """POPE, on the data that is given or on pictures that are drawn."""
    return _task("pope", data, n, seed, judge)


@task
def chair(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """CHAIR, on the data that is given or on pictures that are drawn."""
    return _task("chair", data, n, seed, judge)


@task
def mme(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """MME, on the data that is given or on pictures that are drawn."""
    return _task("mme", data, n, seed, judge)


@task
def mirage(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """MIRAGE, on the data that is given or on questions of the synthetic world."""
    return _task("mirage", data, n, seed, judge)


@task
def magic(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """MagiC, on the data that is given or on questions of the synthetic world."""
    return _task("magic", data, n, seed, judge)


@task
def mirage_effect(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """The mirage effect, on the data that is given or on questions of the synthetic world."""
    return _task("mirage-effect", data, n, seed, judge)


@task
def mmreason(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """MMReason, on the data that is given or on questions of the synthetic world."""
    return _task("mmreason", data, n, seed, judge)


def _task(name: str, data: str | None, n: int, seed: int, judge: str) -> Task:
    benchmark, judging = with_judge(find_benchmark(name), judge)
    with tempfile.TemporaryDirectory() as folder:  # pictures go into the messages
        truth = benchmark.read(Path(data)) if data else benchmark.draw(Path(folder), n, seed)
        check_questions(benchmark, truth)
        asked = [
            JudgeRequest(id=sample.id, input=messages_of(sample), target=sample.answer or "")
            for sample in benchmark.ask(truth)
        ]
        pictures = {sample.id: messages_of(sample)[-1].content[:-1] for sample in benchmark.ask(truth)}
    running: list[str] = []
    return Task(
        dataset=MemoryDataset(asked, name=name),
        solver=ask_all(benchmark, truth, pictures, running),
        scorer=whole_benchmark(benchmark, truth, running, None if judge == LEXICAL else judging),
        config=GenerateConfig(
            max_tokens=benchmark.max_new_tokens, temperature=0.0, max_retries=5, timeout=600
        ),
    )


@solver
def ask_all(
    benchmark: Benchmark, truth: Any, pictures: dict[str, list[ContentImage]], running: list[str]
) -> Solver:
    """Ask the question, and those that depend on its answer, each in a conversation of its own.

    One with a prefill that the provider refuses stays unanswered. `running` holds what is being asked.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        name = str(state.sample_id)
        running.append(name)
        try:
            return await ask(state, generate, name)
        finally:
            running.remove(name)

    async def ask(state: TaskState, generate: Generate, name: str) -> TaskState:
        state = await generate(state)
        answers = {name: state.output.completion}
        for sample in benchmark.follow_up(truth, answers):
            messages = messages_of(sample.model_copy(update={"images": []}))
            (question,) = (message for message in messages if message.role == "user")
            question.content = [*pictures[name], *question.content]
            try:
                answers[sample.id] = (await get_model().generate(messages)).completion
            except Exception as error:  # each provider has its own
                if not sample.prefill or isinstance(error, LimitExceededError):
                    raise
                _log.warning("%s: unanswered (%s)", sample.id, type(error).__name__)
        state.metadata["answers"] = answers
        return state

    return solve


def _metrics(benchmark: Benchmark, truth: Any, running: list[str], judging: dict[str, Any] | None) -> Metric:
    @metric(name=benchmark.name)
    def whole() -> Metric:
        def of(scores: list[SampleScore]) -> dict[str, Any]:
            if judging is not None and running:
                return {}  # inspect-ai wants to show numbers meanwhile; a judge would be asked between questions
            answers: dict[str, str] = {}
            for each in scores:
                answers |= (each.score.metadata or {}).get("answers", {})
            metrics, _ = benchmark.score(truth, answers)
            values = {name: found.value for name, found in metrics.items() if found.value is not None}
            if judging is not None and judging["judged"]:
                values["unscored_by_judge"] = sum(judging["unscored"].values()) / judging["judged"]
            return values

        return of

    return whole()


def whole_benchmark(
    benchmark: Benchmark, truth: Any, running: list[str], judging: dict[str, Any] | None
) -> Scorer:
    """Keeps each answer; the metrics are those of all answers together, as `mmprobe bench` has them.

    A judge labels them at the end, when nothing is `running` any more; `judging` is what it then says of itself.
    """

    @scorer(metrics=[_metrics(benchmark, truth, running, judging)], name=benchmark.name)
    def made() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            answers = state.metadata.get("answers", {})
            return Score(value=1.0, answer=state.output.completion, metadata={"answers": answers})

        return score

    return made()


@modelapi(name="mmprobe")
class Local(ModelAPI):
    """A model that mmprobe loads: `mmprobe/tiny-spd`, `mmprobe/qwen2.5-vl-7b`, `mmprobe/FOLDER`.

    Model arguments: `trace_to`, a folder for a run of each answer under its question's id; `capture`; `device`;
    `method`, of `mmprobe.interventions`.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        from mmprobe.models import load_model

        self.model = load_model(self.service_model_name(), device=str(model_args.get("device", "auto")))
        self.trace_to = Path(model_args["trace_to"]) if model_args.get("trace_to") else None
        self.capture = str(model_args.get("capture", "default"))
        self.method = str(model_args.get("method", "plain"))
        self.asked = 0
        self.turn = threading.Lock()  # a model answers one question at a time

    def service_model_name(self) -> str:
        return self.model_name.removeprefix("mmprobe/")

    def max_connections(self) -> int:
        return 1

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        return await anyio.to_thread.run_sync(self._answer, input, config.max_tokens or 256)

    def _answer(self, messages: list[ChatMessage], max_new_tokens: int) -> ModelOutput:
        with self.turn:
            return self._answer_alone(messages, max_new_tokens)

    def _answer_alone(self, messages: list[ChatMessage], max_new_tokens: int) -> ModelOutput:
        self.asked += 1
        with tempfile.TemporaryDirectory() as folder:
            keep = Path(folder) if self.trace_to is None else self.trace_to / "images"
            sample = sample_of(messages, keep, f"question-{self.asked:05d}")
            text = self._text(sample, max_new_tokens)
        output = ModelOutput.from_content(self.model_name, text)
        output.usage = ModelUsage()  # else tokens are counted with tables from the network
        return output

    def _text(self, sample: Sample, max_new_tokens: int) -> str:
        if self.method != "plain":
            from mmprobe.interventions import generate

            return generate(self.model, sample, self.method, max_new_tokens=max_new_tokens).text
        from mmprobe.benchmarks.core.runner import local

        run = None if self.trace_to is None else self.trace_to / sample.id
        return dict(local(self.model, max_new_tokens, 1, run, self.capture)([sample]))[sample.id]


def sample_of(messages: list[ChatMessage], folder: Path, name: str) -> Sample:
    """The question of a conversation as a sample, its pictures written to a folder.

    A last message of the assistant's is what the answer begins with.

    Raises:
        InputError: the conversation is more than a system prompt, one question and the answer's beginning, or
            holds what is neither text nor a picture.
    """
    system = [message.text for message in messages if message.role == "system"]
    begun = messages[-1].text if messages and messages[-1].role == "assistant" else None
    asked = [message for message in messages if message.role == "user"]
    if len(asked) != 1 or len(system) + 1 + (begun is not None) != len(messages):
        raise InputError("mmprobe/…: answers single questions; this conversation has more turns")
    (question,) = asked
    name = question.id if question.id and SAFE_ID.fullmatch(question.id) else name
    parts = [] if isinstance(question.content, str) else question.content
    folder.mkdir(parents=True, exist_ok=True)
    images: list[Path] = []
    for part in parts:
        if isinstance(part, ContentImage):
            head, _, data = part.image.partition(",")
            if not head.startswith("data:image/") or not head.endswith(";base64"):
                raise InputError("mmprobe/…: pictures must be data URIs")
            images.append(folder / f"{name}-{len(images)}.{head[11:-7].split('+')[0]}")
            images[-1].write_bytes(base64.b64decode(data))
    return Sample(
        id=name, images=images, question=question.text, system="\n".join(system) or None, prefill=begun
    )
