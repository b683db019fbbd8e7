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
from inspect_ai.dataset import Sample as InspectSample
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
from mmprobe.benchmarks.core.benchmark import Benchmark, Truth, find_benchmark
from mmprobe.benchmarks.core.evaluate import load_truth
from mmprobe.benchmarks.core.runner import check_questions, local_answerer
from mmprobe.benchmarks.judges.registry import LEXICAL, with_judge
from mmprobe.benchmarks.synthetic import PAIRS, SEED
from mmprobe.errors import InputError
from mmprobe.samples import SAFE_ID, Sample

_log = logging.getLogger(__name__)


@task
def spd_faith(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """Return the task of SPD-Faith Bench, on your data or on a drawn set."""
    return _make_task("spd-faith", data, n, seed, judge)


@task
def pope(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """Return the task of POPE, on your data or on a drawn set."""
    return _make_task("pope", data, n, seed, judge)


@task
def chair(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """Return the task of CHAIR, on your data or on a drawn set."""
    return _make_task("chair", data, n, seed, judge)


@task
def mme(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """Return the task of MME, on your data or on a drawn set."""
    return _make_task("mme", data, n, seed, judge)


@task
def mirage(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """Return the task of MIRAGE, on your data or on a drawn set."""
    return _make_task("mirage", data, n, seed, judge)


@task
def magic(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """Return the task of MagiC, on your data or on a drawn set."""
    return _make_task("magic", data, n, seed, judge)


@task
def mirage_effect(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """Return the task of the mirage effect, on your data or on a drawn set."""
    return _make_task("mirage-effect", data, n, seed, judge)


@task
def mmreason(data: str | None = None, n: int = PAIRS, seed: int = SEED, judge: str = LEXICAL) -> Task:
    """Return the task of MMReason, on your data or on a drawn set."""
    return _make_task("mmreason", data, n, seed, judge)


def _make_task(name: str, data: str | None, n: int, seed: int, judge: str) -> Task:
    benchmark, judging = with_judge(find_benchmark(name), judge)
    with tempfile.TemporaryDirectory() as folder:  # the images go into the messages
        truth = load_truth(benchmark, data, Path(folder), n, seed)
        check_questions(benchmark, truth)
        questions = benchmark.ask_questions(truth)
        dataset = [
            InspectSample(id=sample.id, input=messages_of(sample), target=sample.answer or "")
            for sample in questions
        ]
        images = {sample.id: messages_of(sample)[-1].content[:-1] for sample in questions}
    running: list[str] = []
    return Task(
        dataset=MemoryDataset(dataset, name=name),
        solver=ask_all(benchmark, truth, images, running),
        scorer=whole_benchmark(benchmark, truth, running, None if judge == LEXICAL else judging),
        config=GenerateConfig(
            max_tokens=benchmark.max_new_tokens, temperature=0.0, max_retries=5, timeout=600
        ),
    )


@solver
def ask_all(
    benchmark: Benchmark[Truth], truth: Truth, images: dict[str, list[ContentImage]], running: list[str]
) -> Solver:
    """Return a solver that asks a question and its follow-up questions, each in a conversation of its own.

    A follow-up question stays unanswered if the provider refuses its prefill.

    Args:
        benchmark, truth: what is asked.
        images: images of each question, by its id.
        running: ids of the questions under way.
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
        for sample in benchmark.follow_up(truth, answers):
            messages = messages_of(sample.model_copy(update={"images": []}))
            (question,) = (message for message in messages if message.role == "user")
            question.content = [*images[sample_id], *question.content]
            try:
                answers[sample.id] = (await get_model().generate(messages)).completion
            except Exception as error:  # each provider has its own
                if not sample.prefill or isinstance(error, LimitExceededError):
                    raise
                _log.warning("%s: unanswered (%s)", sample.id, type(error).__name__)
        state.metadata["answers"] = answers
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
                answers |= (score.score.metadata or {}).get("answers", {})
            metrics, _ = benchmark.score_answers(truth, answers)
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
            answers = state.metadata.get("answers", {})
            return Score(value=1.0, answer=state.output.completion, metadata={"answers": answers})

        return score

    return keep_answers()


@modelapi(name="mmprobe")
class LocalModel(ModelAPI):
    """A model that mmprobe loads: `mmprobe/tiny-spd`, `mmprobe/qwen2.5-vl-7b`, `mmprobe/FOLDER`.

    Model arguments: `trace_to`, a folder that gets a run for each answer under its question's id; `capture`;
    `device`; `method`, of `mmprobe.interventions`.
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
        self.n_questions = 0
        self.lock = threading.Lock()  # a model answers one question at a time

    def service_model_name(self) -> str:
        return self.model_name.removeprefix("mmprobe/")

    def max_connections(self) -> int:
        return 1

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        return await anyio.to_thread.run_sync(self._answer_in_turn, input, config.max_tokens or 256)

    def _answer_in_turn(self, messages: list[ChatMessage], max_new_tokens: int) -> ModelOutput:
        with self.lock:
            return self._answer(messages, max_new_tokens)

    def _answer(self, messages: list[ChatMessage], max_new_tokens: int) -> ModelOutput:
        self.n_questions += 1
        with tempfile.TemporaryDirectory() as folder:
            image_folder = Path(folder) if self.trace_to is None else self.trace_to / "images"
            sample = sample_of(messages, image_folder, f"question-{self.n_questions:05d}")
            text = self._generate_text(sample, max_new_tokens)
        output = ModelOutput.from_content(self.model_name, text)
        output.usage = ModelUsage()  # else tokens are counted with tables from the network
        return output

    def _generate_text(self, sample: Sample, max_new_tokens: int) -> str:
        if self.method != "plain":
            from mmprobe.interventions import generate

            return generate(self.model, sample, self.method, max_new_tokens=max_new_tokens).text
        run = None if self.trace_to is None else self.trace_to / sample.id
        answerer = local_answerer(self.model, max_new_tokens, 1, run, self.capture)
        return dict(answerer([sample]))[sample.id]


def sample_of(messages: list[ChatMessage], folder: Path, name: str) -> Sample:
    """Return the question of a conversation as a sample. Its images are written to a folder.

    A last message of the assistant is the beginning of the answer.

    Args:
        messages: the conversation.
        folder: folder for the images.
        name: id of the sample where the question has none.

    Raises:
        InputError: the conversation is more than a system prompt, one question and the beginning of an
            answer, or it holds other content than texts and images.
    """
    system = [message.text for message in messages if message.role == "system"]
    prefill = messages[-1].text if messages and messages[-1].role == "assistant" else None
    questions = [message for message in messages if message.role == "user"]
    if len(questions) != 1 or len(system) + 1 + (prefill is not None) != len(messages):
        raise InputError("mmprobe/…: answers single questions; this conversation has more turns")
    (question,) = questions
    sample_id = question.id if question.id and SAFE_ID.fullmatch(question.id) else name
    content = [] if isinstance(question.content, str) else question.content
    folder.mkdir(parents=True, exist_ok=True)
    images: list[Path] = []
    for part in content:
        if isinstance(part, ContentImage):
            head, _, data = part.image.partition(",")
            if not head.startswith("data:image/") or not head.endswith(";base64"):
                raise InputError("mmprobe/…: images must be data URIs")
            path = folder / f"{sample_id}-{len(images)}.{head[11:-7].split('+')[0]}"
            path.write_bytes(base64.b64decode(data))
            images.append(path)
    return Sample(
        id=sample_id,
        images=images,
        question=question.text,
        system="\n".join(system) or None,
        prefill=prefill,
    )
