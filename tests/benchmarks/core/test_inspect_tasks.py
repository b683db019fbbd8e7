"""The tasks of inspect-ai, and models behind an API, with a mock model and with the embedded one."""

from __future__ import annotations

import asyncio
import base64
import json
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from inspect_ai import eval as inspect_eval
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentAudio,
    ContentDocument,
    ContentImage,
    ContentReasoning,
    ContentText,
    ContentVideo,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.tool import ToolCall, ToolInfo
from PIL import Image

from mmprobe.benchmarks.core import inspect_tasks
from mmprobe.benchmarks.core.api_models import CONCURRENCY, api_answerer, inspect_message, is_api, messages_of
from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.core.runner import run_benchmark
from mmprobe.cache import open_run
from mmprobe.errors import InputError
from mmprobe.interventions import generate
from mmprobe.samples import Sample as InputSample

SEED = 5


def mock_model(answer, asked: list[str]):
    """Return a model that answers with a function of the question, and appends the question's id to `asked`."""

    def outputs(input, tools, tool_choice, config):
        asked.append(input[-1].id)
        output = ModelOutput.from_content("mockllm/model", answer(input[-1]))
        output.usage = ModelUsage()  # else tokens are counted with tables from the network
        return output

    return get_model("mockllm/model", custom_outputs=outputs, memoize=False)


def read_values(log) -> dict[str, float]:
    assert log.status == "success", log.error
    return {name: metric.value for score in log.results.scores for name, metric in score.metrics.items()}


@pytest.mark.slow
def test_a_task_scores_as_the_command_does(tmp_path):
    asked: list[str] = []
    (log,) = inspect_eval(
        inspect_tasks.pope(n=3, seed=SEED),
        model=mock_model(lambda message: "Yes." if "circle" in message.text else "No.", asked),
        log_dir=str(tmp_path / "logs"),
        display="none",
    )
    benchmark = BENCHMARKS["pope"]()
    truth = benchmark.read(benchmark.draw(tmp_path / "pairs", 3, SEED))
    assert sorted(asked) == sorted(sample.id for sample in truth)
    answers = {sample.id: "Yes." if "circle" in sample.question else "No." for sample in truth}
    expected = {name: metric.value for name, metric in benchmark.score(truth, answers)[0].items()}
    values = read_values(log)
    assert values.pop("truncated") == 0
    assert values and all(values[name] == pytest.approx(expected[name]) for name in values)


@pytest.mark.slow
def test_questions_that_depend_on_answers_are_asked(tmp_path):
    asked: list[str] = []

    def answer(message: ChatMessageUser) -> str:
        return "There are 2 differences." if message.id.endswith("count") else "The star was removed."

    (log,) = inspect_eval(
        inspect_tasks.spd_faith(n=1, seed=SEED),
        model=mock_model(answer, asked),
        log_dir=str(tmp_path / "logs"),
        display="none",
    )
    assert asked.count("0000-find") == 1
    assert "drf" in read_values(log)


@pytest.mark.slow
def test_the_embedded_model_answers_and_is_traced_under_the_questions_ids(tmp_path):
    (log,) = inspect_eval(
        inspect_tasks.chair(n=2, seed=SEED),
        model="mmprobe/tiny-spd",
        model_args={"trace_to": str(tmp_path / "runs"), "device": "cpu"},
        log_dir=str(tmp_path / "logs"),
        display="none",
    )
    assert read_values(log)["chair_i"] < 0.2
    run = open_run(tmp_path / "runs" / "chair")
    assert sorted(run.ids) == sorted(str(sample.id) for sample in log.samples) and len(run.ids) == 2
    for sample in log.samples:
        assert run[sample.id].answer == sample.output.completion
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"chair", "chair-images"}


def ask_local(tmp_path, sample, *configs, **model_args):
    """Return the answers of the embedded model, as a provider, to one question with each configuration."""
    args = {"device": "cpu", "trace_to": str(tmp_path / "runs"), **model_args}
    client = get_model("mmprobe/tiny-spd", memoize=False, **args)

    async def ask():
        messages = [inspect_message(message) for message in messages_of(sample)]
        return [await client.generate(messages, config=config) for config in configs]

    return asyncio.run(ask())


@pytest.mark.slow
def test_the_provider_honours_temperature_seed_and_length(tmp_path, tiny_spd):
    truth = BENCHMARKS["spd-faith"]().read(BENCHMARKS["spd-faith"]().draw(tmp_path / "pairs", 1, SEED))
    sample = next(sample for sample in truth.samples if sample.metadata["type"] == "steps")
    hot = {"temperature": 50.0, "max_tokens": 12}
    configs = [GenerateConfig(max_tokens=12), *(GenerateConfig(seed=seed, **hot) for seed in (1, 1, 2))]
    outputs = ask_local(tmp_path, sample, *configs, trace_to=None)
    expected = [
        generate(tiny_spd, sample, max_new_tokens=12, temperature=temperature, seed=seed).text.strip()
        for temperature, seed in ((0.0, 0), (50.0, 1), (50.0, 1), (50.0, 2))
    ]
    assert [output.completion for output in outputs] == expected and len(set(expected)) == 3
    assert [output.stop_reason for output in outputs] == ["max_tokens"] * 4


@pytest.mark.slow
def test_a_method_is_traced_where_a_trace_is_asked_for(tmp_path, tiny_spd):
    truth = BENCHMARKS["spd-faith"]().read(BENCHMARKS["spd-faith"]().draw(tmp_path / "pairs", 1, SEED))
    sample = next(sample for sample in truth.samples if sample.metadata["type"] == "same")
    (output,) = ask_local(tmp_path, sample, GenerateConfig(max_tokens=8), method="sage")
    run = open_run(tmp_path / "runs")
    assert run.config["generate"]["methods"].keys() == {"sage"} and run[sample.id].method_reports
    assert output.completion == run[sample.id].answer
    with pytest.raises(InputError, match="other settings"):
        ask_local(tmp_path, sample, GenerateConfig(max_tokens=9), method="sage")


def test_inspect_finds_the_tasks():
    (entry_point,) = entry_points(group="inspect_ai", name="mmprobe")
    assert entry_point.load() is inspect_tasks


def test_an_interrupted_run_asks_an_api_no_question_twice(tmp_path):
    benchmark = BENCHMARKS["mme"]()
    truth = benchmark.read(benchmark.draw(tmp_path / "pairs", 3, SEED))
    asked: list[str] = []

    def cut_off(samples, settings):
        source = api_answerer(mock_model(lambda message: "Yes.", asked))
        for number, answer in enumerate(source(samples, settings)):
            yield answer
            if number == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_benchmark(benchmark, truth, cut_off, tmp_path / "out", {})
    kept = {
        json.loads(line)["id"] for line in (tmp_path / "out" / "responses.jsonl").read_text().splitlines()
    }
    assert len(kept) == 5
    asked_later: list[str] = []
    later = api_answerer(mock_model(lambda message: "Yes.", asked_later))
    metrics, _ = run_benchmark(benchmark, truth, later, tmp_path / "out", {}, resume=True)
    assert sorted(asked_later) == sorted({sample.id for sample in truth} - kept)
    assert len(asked) <= 5 + 2 * CONCURRENCY, "an interrupted run stops asking"
    assert metrics["unknown"].coverage == 1


def test_failed_requests_lower_the_coverage(tmp_path):
    benchmark = BENCHMARKS["pope"]()
    truth = benchmark.read(benchmark.draw(tmp_path / "pairs", 2, SEED))
    failing = truth[0].id

    def answer(message: ChatMessageUser) -> str:
        if message.id == failing:
            raise RuntimeError("500")
        return "Yes."

    metrics, _ = run_benchmark(benchmark, truth, api_answerer(mock_model(answer, [])), tmp_path / "out", {})
    assert metrics["accuracy"].n == len(truth) - 1
    assert metrics["accuracy"].coverage == pytest.approx(1 - 1 / len(truth))


def test_a_missing_key_is_one_line(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="^model openai/gpt-4o: ") as raised:
        api_answerer("openai/gpt-4o")
    assert "\n" not in str(raised.value)
    assert is_api("openai/gpt-4o")


def data_uri(folder: Path, colour: str, size: tuple[int, int]) -> str:
    Image.new("RGB", size, colour).save(folder / f"{colour}.png")
    return f"data:image/png;base64,{base64.b64encode((folder / f'{colour}.png').read_bytes()).decode()}"


def test_a_conversation_keeps_its_turns_and_the_places_of_its_images(tmp_path):
    """Few-shot examples, images between texts, a call of a tool with its result, and the beginning of the answer."""
    red, blue = data_uri(tmp_path, "red", (40, 20)), data_uri(tmp_path, "blue", (20, 60))
    call = ToolCall(id="1", function="look", arguments={"where": "left"})
    turns = [
        ChatMessageSystem(content="Be brief."),
        ChatMessageUser(
            content=[ContentText(text="Image 1:"), ContentImage(image=red), ContentText(text="Colour?")]
        ),
        ChatMessageAssistant(content=[ContentReasoning(reasoning="Hm."), ContentText(text="Red.")]),
        ChatMessageUser(content=[ContentImage(image=blue), ContentText(text="And this?")], id="last"),
        ChatMessageAssistant(content="I look.", tool_calls=[call]),
        ChatMessageTool(content="blue", tool_call_id="1", function="look"),
        ChatMessageAssistant(content="It is"),
    ]
    sample = inspect_tasks.sample_of(turns, Path(tmp_path) / "images", "q")
    assert sample.transcript.splitlines() == [
        "system: Be brief.",
        "user: Image 1: [image 1] Colour?",
        "assistant: Red.",
        "user: [image 2] And this?",
        'assistant: I look. {"type": "function", "id": "1", "function": {"name": "look", "arguments": {"where": "left"}}}',
        "tool: blue",
    ]
    assert (sample.id, sample.question, sample.prefill) == ("last", "And this?", "It is")
    assert [Image.open(path).size for path in sample.images] == [(40, 20), (20, 60)]
    assert sample.messages[2].reasoning_content == "Hm."
    assert sample.messages[5].tool_call_id == "1"


def test_a_conversation_goes_to_an_api_in_its_order(tmp_path):
    for colour, size in (("red", (40, 20)), ("blue", (20, 60))):
        data_uri(tmp_path, colour, size)
    parts = [
        *({"type": "text", "text": "Image 1:"}, {"type": "image", "image": str(tmp_path / "red.png")}),
        *({"type": "text", "text": "Image 2:"}, {"type": "image", "image": str(tmp_path / "blue.png")}),
    ]
    turns = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": "Same?"},
    ]
    sample = InputSample(id="a", messages=turns)
    sent = [inspect_message(message) for message in messages_of(sample)]
    assert [part.type for part in sent[0].content] == ["text", "image", "text", "image"]
    assert [message.role for message in sent] == ["user", "assistant", "user"]
    back = inspect_tasks.sample_of(sent, Path(tmp_path) / "images", "q")
    assert (back.id, back.messages) == ("a", sample.messages)
    assert [path.read_bytes() for path in back.images] == [path.read_bytes() for path in sample.images]
    with pytest.raises(InputError, match="^sample a: template"):
        messages_of(sample.model_copy(update={"template": {"enable_thinking": False}}))
    tool = InputSample(id="a", messages=[*turns[:2], {"role": "tool", "content": "yes"}])
    with pytest.raises(InputError, match="^sample a: messages with tools"):
        messages_of(tool)


def test_a_conversation_that_nobody_ends_with_a_question_is_refused(tmp_path):
    for turns in (
        [ChatMessageSystem(content="Be brief.")],
        [ChatMessageUser(content="?"), ChatMessageSystem(content="!")],
    ):
        with pytest.raises(InputError, match="ends with neither"):
            inspect_tasks.sample_of(turns, Path(tmp_path), "q")


def test_nothing_of_a_question_is_dropped(tmp_path):
    """A question about a sound must not become a question without one."""
    picture = ContentImage(image="data:image/png;base64,AAAA")
    question = ContentText(text="What happens?")
    unread = {
        "audio": ContentAudio(audio="data:audio/wav;base64,AAAA", format="wav"),
        "document": ContentDocument(document="data:application/pdf;base64,AAAA"),
    }
    for kind, part in unread.items():
        with pytest.raises(InputError, match=f"the user's message contains {kind} content"):
            inspect_tasks.sample_of([ChatMessageUser(content=[part, question])], Path(tmp_path), "q")
    with pytest.raises(InputError, match="image content"):
        system = ChatMessageSystem(content=[picture])
        inspect_tasks.sample_of([system, ChatMessageUser(content=[question])], Path(tmp_path), "q")


def test_videos_are_handed_on(tmp_path):
    """To mmprobe's provider as files; to those of others as inspect-ai's own content."""
    video = ContentVideo(video="data:video/mp4;base64,AAAA", format="mp4")
    question = ContentText(text="What happens?")
    sample = inspect_tasks.sample_of(
        [ChatMessageUser(content=[video, question], id="q")], Path(tmp_path), "q"
    )
    (file,) = sample.files
    assert file.read_bytes() == b"\0\0\0" and file.suffix == ".mp4"
    assert sample.transcript == "user: [video 1] What happens?"
    for shown in (sample, InputSample(id="q", question="What happens?", videos=[file])):
        (turn,) = messages_of(shown)
        assert [part.type for part in inspect_message(turn).content] == ["video", "text"]
        assert inspect_message(turn).content[0].video == video.video
    with pytest.raises(InputError, match="sample q: .* video"):
        messages_of(InputSample(id="q", question="?", videos=[["0.png"]]))
    with pytest.raises(InputError, match="data URIs"):
        remote = ContentVideo(video="https://example.org/a.mp4", format="mp4")
        inspect_tasks.sample_of([ChatMessageUser(content=[remote, question])], Path(tmp_path), "q")


def test_settings_that_would_not_be_heeded_are_refused():
    inspect_tasks.check_settings(
        [], GenerateConfig(temperature=0.5, seed=1, max_tokens=9, num_choices=1, max_retries=5)
    )
    for settings in ({"top_p": 0.9}, {"stop_seqs": ["."]}, {"num_choices": 2}):
        with pytest.raises(InputError, match=f"does not have {next(iter(settings))}"):
            inspect_tasks.check_settings([], GenerateConfig(**settings))
    with pytest.raises(InputError, match="search"):
        inspect_tasks.check_settings([ToolInfo(name="search", description="")], GenerateConfig())
