"""The benchmarks as inspect-ai tasks, and a provider that answers with a model loaded here.

    inspect eval mmprobe/spd_faith --model openai/gpt-4o
    inspect eval mmprobe/pope --model mmprobe/tiny-spd -M trace_to=runs/pope
    inspect eval mmprobe/spd_faith --model openai/gpt-4o -T judge=model:anthropic/claude-sonnet-4-5
    inspect eval mmprobe/magic --model openai/gpt-4o -T wording=paper

inspect-ai finds this module by mmprobe's entry point.
"""

from __future__ import annotations

import base64
import json
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset
from inspect_ai.dataset import Sample as InspectSample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ContentImage,
    ContentReasoning,
    ContentText,
    ContentVideo,
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

from mmprobe.benchmarks.core.api_models import inspect_message, is_cut_off, messages_of
from mmprobe.benchmarks.core.benchmark import (
    BENCHMARKS,
    Answer,
    Benchmark,
    answer_lengths,
    load_truth,
    make_benchmark,
    truncated_share,
    wording_of,
)
from mmprobe.benchmarks.core.runner import check_questions
from mmprobe.benchmarks.judges.judge import LEXICAL, Judging, open_judging
from mmprobe.benchmarks.synthetic import SEED
from mmprobe.errors import InputError
from mmprobe.files import make_folders, make_subfolder, write_atomic, write_whole
from mmprobe.ledger import FINGERPRINT, Ledger, lock_folder
from mmprobe.samples import SAFE_ID, Sample, longest
from mmprobe.settings import AskSettings, DataSettings

_log = logging.getLogger(__name__)


def _register(name: str) -> Callable[..., Task]:
    def make(
        data: str | None = None,
        n: int | None = None,
        seed: int = SEED,
        judge: str = LEXICAL,
        **options: Any,
    ) -> Task:
        return _make_task(
            make_benchmark(name, options), DataSettings(data=Path(data) if data else None, n=n), seed, judge
        )

    make.__name__ = make.__qualname__ = name.replace("-", "_")
    make.__doc__ = (
        f"""Return the task of {name}, on your data or on a drawn set, with the options of `mmprobe bench`."""
    )
    return task(make)


for _name in BENCHMARKS:
    globals()[_name.replace("-", "_")] = _register(_name)


def _make_task(benchmark: Benchmark, data: DataSettings, seed: int, judge: str) -> Task:
    judging = open_judging(benchmark, judge)
    with tempfile.TemporaryDirectory() as folder:  # the images go into the messages
        truth = load_truth(benchmark, data, Path(folder), seed)
        check_questions(benchmark, truth)
        questions = benchmark.ask(truth)
        dataset = [
            InspectSample(id=sample.id, input=_messages(benchmark, sample), target=sample.answer or "")
            for sample in questions
        ]
        images: dict[str, Any] = {
            sample.id: [
                part
                for part in _question(_messages(benchmark, sample)).content
                if isinstance(part, ContentImage)
            ]
            for sample in questions
        }
    running: list[str] = []
    return Task(
        dataset=MemoryDataset(dataset, name=benchmark.name),
        metadata={"wording": wording_of(benchmark)},
        solver=ask_all(benchmark, truth, images, running),
        scorer=_whole_benchmark(benchmark, truth, running, judging),
        config=GenerateConfig(
            max_tokens=longest(answer_lengths(benchmark)),
            temperature=AskSettings().temperature,
            max_retries=5,
            timeout=600,
        ),
    )


def _messages(benchmark: Benchmark, sample: Sample) -> list[ChatMessage]:
    """Return a sample's messages. The question names the benchmark, for the folder of its traces."""
    messages = [inspect_message(message) for message in messages_of(sample)]
    _question(messages).metadata = {"benchmark": benchmark.name}
    return messages


def _question(messages: list[ChatMessage]) -> ChatMessage:
    """Return the user's last message, whose content is a list of parts."""
    return [message for message in messages if message.role == "user"][-1]


@solver
def ask_all(
    benchmark: Benchmark, truth: Any, images: dict[str, list[ContentImage]], running: list[str]
) -> Solver:
    """Return a solver that asks a question and its follow-up questions, each in its own conversation.

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


def _whole_metric(benchmark: Benchmark, truth: Any, running: list[str], judging: Judging) -> Metric:
    @metric(name=benchmark.name)
    def whole() -> Metric:
        def compute(scores: list[SampleScore]) -> dict[str, Any]:
            if judging.judge is not None and running:
                return {}  # inspect-ai shows numbers meanwhile; the judge would be asked between questions
            answers: dict[str, str] = {}
            for score in scores:
                kept = score.score.metadata or {}
                cut_off = kept.get("truncated", {})
                answers |= {name: Answer(text, cut_off.get(name)) for name, text in kept["answers"].items()}
            metrics, _ = judging.score(benchmark, truth, answers)
            metrics |= truncated_share(answers)
            values = {name: metric.value for name, metric in metrics.items() if metric.value is not None}
            counts = judging.counts
            if counts.get("judged"):
                values["unscored_by_judge"] = sum(counts["unscored"].values()) / counts["judged"]
            return values

        return compute

    return whole()


def _whole_benchmark(benchmark: Benchmark, truth: Any, running: list[str], judging: Judging) -> Scorer:
    """Return a scorer that keeps each answer. The metrics are those of all answers, as in `mmprobe bench`.

    A judge labels the answers at the end, when `running` is empty. `judging` then has its
    counts.
    """

    @scorer(metrics=[_whole_metric(benchmark, truth, running, judging)], name=benchmark.name)
    def keep_answers() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            kept = {name: state.metadata.get(name, {}) for name in ("answers", "truncated")}
            return Score(value=1.0, answer=state.output.completion, metadata=kept)

        return score

    return keep_answers()


@modelapi(name="mmprobe")
class LocalModelAPI(ModelAPI):
    """A model that mmprobe loads: `mmprobe/tiny-spd`, `mmprobe/qwen2.5-vl-7b`, `mmprobe/FOLDER`.

    The caller's temperature, seed and max_tokens hold. Without them answers are greedy, with 256 tokens. Other settings of the
    answer, tools, and content that is neither text nor an image are refused by name.

    Model arguments: `trace_to`, a folder that gets one run a benchmark, with the answers under the ids of their
    questions, and the images beside it; `capture`; `device`; `method`, of `mmprobe.interventions`, whose traces show it at work.
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
        from mmprobe.interventions import load_methods
        from mmprobe.models import load_model

        self.methods = load_methods(str(model_args.get("method", "plain")))
        self.model = load_model(self.service_model_name(), device=str(model_args.get("device", "auto")))
        self.trace_to = Path(model_args["trace_to"]) if model_args.get("trace_to") else None
        self.capture = str(model_args.get("capture", "default"))
        self.n_questions = 0
        self.lock = threading.Lock()  # a model answers one question at a time

    def service_model_name(self) -> str:
        return self.model_name.removeprefix("mmprobe/")

    def max_connections(self) -> int:
        return 1

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        check_settings(tools, config)
        return await anyio.to_thread.run_sync(self._answer_in_turn, input, config)

    def _answer_in_turn(self, messages: list[ChatMessage], config: GenerateConfig) -> ModelOutput:
        with self.lock:
            return self._answer(messages, config)

    def _answer(self, messages: list[ChatMessage], config: GenerateConfig) -> ModelOutput:
        self.n_questions += 1
        named = {
            "max_new_tokens": config.max_tokens,
            "temperature": config.temperature,
            "seed": config.seed,
        }
        settings = {name: value for name, value in named.items() if value is not None}
        name = f"question-{self.n_questions:05d}"
        if self.trace_to is None:
            with tempfile.TemporaryDirectory() as folder:
                text, ids = self._generate(sample_of(messages, Path(folder), name), settings)
        else:
            benchmark = next((each.metadata["benchmark"] for each in messages if each.metadata), "")
            run = self.trace_to / benchmark
            images = run.with_name(f"{run.name}-images")
            text, ids = self._trace(sample_of(messages, images, name), run, settings)
        cut_off = bool(ids) and ids[-1] not in self.model.eos_token_ids
        output = ModelOutput.from_content(self.model_name, text, "max_tokens" if cut_off else "stop")
        output.usage = ModelUsage()  # else tokens are counted with tables from the network
        return output

    def _generate(self, sample: Sample, settings: dict[str, Any]) -> tuple[str, list[int]]:
        from mmprobe.interventions import generate

        answer = generate(self.model, sample, self.methods, **settings)
        return answer.response.strip(), answer.token_ids

    def _trace(self, sample: Sample, run: Path, settings: dict[str, Any]) -> tuple[str, list[int]]:
        """Trace one answer in its own run, and move it into the run of its benchmark."""
        from mmprobe.traces import trace

        part = run.with_name(f"{run.name}-part")
        made = trace(
            self.model, [sample], part, capture=self.capture, method=self.methods, overwrite=True, **settings
        )
        if made.failures:
            raise InputError(f"{sample.id}: {made.failures[0]['message']}")
        answer = made[sample.id].response, made[sample.id].steps["id"].values.tolist()
        with lock_folder(run, "tracing into it"):
            _move_into_run(part, run)
        return answer


def _move_into_run(part: Path, run: Path) -> None:
    """Move traces into another run, in place of those of the same id. Raises InputError for other settings."""
    added = json.loads((part / "run.json").read_text(encoding="utf-8"))
    file = run / "run.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {**added, "order": []}
    settings = {name: value for name, value in added.items() if name not in ("order", FINGERPRINT)}
    ledger = Ledger(run, "run.json", "a run", "holds a run with other settings", "choose another trace_to")
    ledger.check_same(config, settings, added.get(FINGERPRINT))
    make_folders(run)
    make_subfolder(run / "samples")
    for name in added["order"]:
        (part / "samples" / f"{name}.h5").replace(run / "samples" / f"{name}.h5")
    config["order"] = list(dict.fromkeys([*config["order"], *added["order"]]))
    write_atomic(file, json.dumps(config, indent=1) + "\n")
    shutil.rmtree(part)


_UNHEEDED = (  # settings that would change the answer, and that this provider does not have
    *("top_p", "top_k", "stop_seqs", "best_of", "frequency_penalty", "presence_penalty", "logit_bias"),
    *("num_choices", "logprobs", "prompt_logprobs", "response_schema", "modalities", "reasoning_tokens"),
)


def check_settings(tools: Sequence[ToolInfo], config: GenerateConfig) -> None:
    """Raise InputError for tools, and for a setting of the answer that this provider would not heed.

    Example:
        >>> check_settings([], GenerateConfig(temperature=0.5))
    """
    if tools:
        names = ", ".join(tool.name for tool in tools)
        raise InputError(f"mmprobe/…: calls no tools, and {names} came with the question; leave them out")
    for name in _UNHEEDED:
        value = getattr(config, name, None)
        if value not in (None, False) and not (name in ("num_choices", "best_of") and value == 1):
            raise InputError(
                f"mmprobe/…: does not have {name} ({value!r}); temperature, seed and max_tokens hold"
            )


_READ = {
    "user": ("text", "image", "video"),
    "tool": ("text", "image", "video"),
    "assistant": ("text", "reasoning"),
    "system": ("text",),
}


def _check_content(messages: Sequence[ChatMessage]) -> None:
    """Raise InputError for content that no sample contains: it must not be left out without a word."""
    for message in messages:
        for part in () if isinstance(message.content, str) else message.content:
            if part.type not in _READ[message.role]:
                raise InputError(
                    f"mmprobe/…: reads texts, and images and videos of the user and of tools; the {message.role}'s message contains "
                    f"{part.type} content"
                )


def sample_of(messages: list[ChatMessage], folder: Path, name: str) -> Sample:
    """Return a conversation as a sample. Its images and videos are written to a folder.

    A last message of the assistant is the beginning of the answer. A system prompt, images and a question, in this
    order, are a sample of the short form.

    Raises:
        InputError: nobody asks, or the conversation contains other content than texts, images and videos.
    """
    _check_content(messages)
    prefill = messages[-1].text if messages and messages[-1].role == "assistant" else None
    shown = list(messages if prefill is None else messages[:-1])
    questions = [message for message in shown if message.role == "user"]
    if not questions or shown[-1].role not in ("user", "tool"):
        raise InputError("mmprobe/…: answers a user or a tool; this conversation ends with neither")
    asked = questions[-1].id
    sample_id = asked if asked and SAFE_ID.fullmatch(asked) else name
    make_folders(folder)
    files: dict[str, list[Path]] = {"image": [], "video": []}
    turns = [_turn_of(message, files, folder, sample_id) for message in shown]
    images = files["image"]
    fields: dict[str, Any] = {"id": sample_id, "images": images, "videos": files["video"], "prefill": prefill}
    system = [turn["content"][0]["text"] for turn in turns if turn["role"] == "system"]
    kinds = [part["type"] for part in turns[-1]["content"]]
    is_short = len(turns) == len(system) + 1 and kinds == ["image"] * len(images) + ["text"]
    if is_short and all(turn["role"] == "system" for turn in turns[:-1]):
        text = turns[-1]["content"][-1]["text"]
        return Sample(**fields, question=text, system="\n".join(system) or None)
    return Sample.model_validate({**fields, "messages": turns})


def _turn_of(
    message: ChatMessage, files: dict[str, list[Path]], folder: Path, sample_id: str
) -> dict[str, Any]:
    """Return a message as a turn of a sample. Its images and videos are written, and added to `files`."""
    content = [ContentText(text=message.content)] if isinstance(message.content, str) else message.content
    turn: dict[str, Any] = {"role": message.role, "content": []}
    for part in content:
        if isinstance(part, ContentImage):
            files["image"].append(
                _write_file(part.image, "image", folder / f"{sample_id}-{len(files['image'])}")
            )
            turn["content"].append({"type": "image"})
        elif isinstance(part, ContentVideo):
            name = f"{sample_id}-video-{len(files['video'])}"
            files["video"].append(_write_file(part.video, "video", folder / name))
            turn["content"].append({"type": "video"})
        elif isinstance(part, ContentReasoning):
            turn["reasoning_content"] = part.reasoning
        elif isinstance(part, ContentText):
            turn["content"].append({"type": "text", "text": part.text})
    if isinstance(message, ChatMessageAssistant) and message.tool_calls:
        turn["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.function, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if isinstance(message, ChatMessageTool):
        turn |= {"tool_call_id": message.tool_call_id, "name": message.function}
    return turn


def _write_file(uri: str, kind: str, path: Path) -> Path:
    """Write an image or a video, and return its file, whose ending is that of its data URI."""
    head, _, data = uri.partition(",")
    if not head.startswith(f"data:{kind}/") or not head.endswith(";base64"):
        raise InputError(f"mmprobe/…: {kind}s must be data URIs")
    file = path.with_name(f"{path.name}.{head[11:-7].split('+')[0]}")
    write_whole({file: base64.b64decode(data)})
    return file
