"""Benchmarks from the command line: asking, resuming, labelling and bad input."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import torch
from helpers.asking import ask, make_settings
from helpers.command_line import run_in_process
from helpers.slow import first_fast
from typer.testing import CliRunner

from mmprobe.benchmarks.core.benchmark import BENCHMARKS, read_responses
from mmprobe.benchmarks.core.evaluate import Evaluation
from mmprobe.benchmarks.core.results import accuracy_metrics, group_by_images
from mmprobe.benchmarks.core.runner import run_benchmark
from mmprobe.benchmarks.spd_faith.benchmark import build_published_truth
from mmprobe.benchmarks.spd_faith.data import Difference, Pair
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import open_run
from mmprobe.cli import app
from mmprobe.errors import InputError
from mmprobe.traces import asking
from mmprobe.traces.run import Recording

FIELDS = {"value", "n", "coverage", "low", "high", "direction", "range", "n_groups"}
COUNTED = FIELDS | {"unread", "bounds"}  # where an answer that is not read counts as wrong


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def read_metrics(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("name", first_fast(BENCHMARKS, 3))
def test_the_embedded_model_is_asked_and_scored(name, tmp_path):
    out = tmp_path / name
    options = ["--n", 6, "--batch-size", 32]
    if name == "mirage-effect":  # it asks 200 questions for each of n
        options = ["--n", 1, "--batch-size", 32, "--max-new-tokens", 16]
    if name == "mmreason":  # answers without images end only at the limit
        options += ["--max-new-tokens", 16]
    printed = json.loads(invoke("bench", name, "--model", "tiny-spd", *options, "--out", out, "--json"))
    metrics = read_metrics(out)
    assert printed["metrics"] == {metric: fields["value"] for metric, fields in metrics.items()}
    assert set(BENCHMARKS[name]().headline) & set(metrics)
    for fields in metrics.values():
        assert set(fields) in (FIELDS, COUNTED)
    records = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert records and all("id" in record for record in records)
    data, rescored = out / "data" / "samples.jsonl", tmp_path / "rescored"
    invoke("score", name, "--data", data, "--responses", out / "responses.jsonl", "--out", rescored)
    assert read_metrics(rescored) == metrics, "the same answers score the same, whoever gave them"


def test_answers_that_repeat_themselves_are_counted_first(tmp_path, capsys):
    from mmprobe.cli.options import print_evaluation

    texts = {
        "a": "Yes. The triangle" + " at triangle" * 12,
        "b": "Yes.",
        "c": "No, the triangle is at the top left.",
    }
    lines = (json.dumps({"id": name, "response": text}) + "\n" for name, text in texts.items())
    (tmp_path / "responses.jsonl").write_text("".join(lines))
    found = Evaluation(
        "vqa", accuracy_metrics("accuracy", [True, False, None]), [], tmp_path, {}, {}, ("accuracy",)
    )
    print_evaluation(found, as_json=False)
    first, second, third, *_ = capsys.readouterr().out.splitlines()
    assert (
        first.startswith("1 of 3 answers") and second.startswith("1 right") and third.startswith("accuracy")
    )
    (tmp_path / "responses.jsonl").unlink()
    print_evaluation(found, as_json=False)
    assert capsys.readouterr().out.startswith("1 right"), "of answers that `score` was given, none are here"


def test_spd_faith_asks_for_as_many_differences_as_the_model_counted(tmp_path):
    benchmark = BENCHMARKS["spd-faith"]()
    truth = benchmark.read(benchmark.draw(tmp_path / "pairs", 3, 5))
    asked: list[str] = []

    def answer(samples, settings):
        for sample in samples:
            asked.append(sample.question)
            kind = sample.metadata["type"]
            pair = truth.questions[sample.id][0]
            counted = {"0000": "There are 7 differences.", "0001": "There are no differences.", "0002": "Hm."}
            yield sample.id, {"count": counted[pair], "find": "The dog is gone."}.get(kind, "Yes.")

    metrics, records = run_benchmark(benchmark, truth, answer, tmp_path / "out", {})
    assert [text for text in asked if "Find" in text] == ["There are 7 differences. Find them."]
    assert [record["answers"]["count"]["count"] for record in records] == [7, 0, None]
    assert metrics["dqr_exact"].unread == 1 and metrics["dqr_exact[read]"].coverage == pytest.approx(2 / 3)


@pytest.mark.slow
def test_traces_have_the_ids_of_their_questions(tmp_path):
    out = tmp_path / "out"
    invoke("bench", "spd-faith", "--model", "tiny-spd", "--n", 1, "--trace", "--out", out)
    responses = read_responses(out / "responses.jsonl")
    run = open_run(out / "run")
    traced = {trace.id: trace.answer for trace in run}
    assert traced == responses
    assert sum(name.endswith("-find") for name in traced) == 1
    assert run.ids[-1].endswith("-find"), "the follow-up question is added to the run"
    labels = {trace.id: run.faithful(trace.id) for trace in run}
    assert labels == dict.fromkeys(traced, True), "the embedded model makes no mistake here"
    plain = tmp_path / "plain"
    invoke(
        "bench", "spd-faith", "--model", "tiny-spd", "--data", out / "data" / "samples.jsonl", "--out", plain
    )
    assert read_responses(plain / "responses.jsonl") == {
        name: text.strip() for name, text in responses.items()
    }


def test_answers_are_faithful_or_not():
    """The answers are of all kinds, about one pair that differs in one object."""
    benchmark = BENCHMARKS["spd-faith"]()
    pair = Pair("7", (Difference("remove", "dog"),))
    truth = build_published_truth([pair])
    answers = {
        "same": "Yes, they are the same.",
        "different": "Yes, the dog was removed.",
        "count": "There are 2 differences.",
        "list": "The dog was removed. The cat turned red.",
        "steps": "The dog was removed.",
        "find": "I would rather not say.",
    }
    _, records = benchmark.score(truth, {f"7-{kind}": text for kind, text in answers.items()})
    assert benchmark.label(truth, records) == {
        "7-same": False,
        "7-different": True,
        "7-count": False,
        "7-list": False,
        "7-steps": True,
    }


@pytest.mark.parametrize("differ", [False, True])
def test_an_answer_without_differences_is_faithful_if_there_are_none(differ):
    benchmark = BENCHMARKS["spd-faith"]()
    truth = build_published_truth([Pair("7", (Difference("remove", "dog"),) if differ else ())])
    answers = dict.fromkeys(("list", "steps"), "I see no differences.") | {"same": "No."}
    _, records = benchmark.score(truth, {f"7-{kind}": text for kind, text in answers.items()})
    faithful = benchmark.label(truth, records)
    assert faithful == {"7-list": not differ, "7-steps": not differ, "7-same": differ}


def test_hinted_questions_are_labelled_too():
    records = [
        {"id": "1", "correct": True, "correct_hinted": False},
        {"id": "2", "correct": None, "correct_hinted": None},
    ]
    assert BENCHMARKS["mirage"]().label(None, records) == {"1": True, "1--hinted": False}


def test_kept_answers_are_not_asked_again(tmp_path):
    """The run ends after some answers, in the middle of writing one."""
    benchmark = BENCHMARKS["mme"]()
    truth = benchmark.read(benchmark.draw(tmp_path / "pairs", 2, 5))
    asked: list[str] = []

    def answer(samples, settings, most=10**9):
        for sample in samples[:most]:
            asked.append(sample.id)
            yield sample.id, "Yes."

    with pytest.raises(RuntimeError):
        run_benchmark(benchmark, truth, lambda *asked: interrupted(answer(*asked, 5)), tmp_path / "out", {})
    file = tmp_path / "out" / "responses.jsonl"
    file.write_text(file.read_text() + '{"id": "cut o')
    with pytest.raises(InputError, match="resume the call"):
        run_benchmark(benchmark, truth, answer, tmp_path / "out", {})
    metrics, _ = run_benchmark(benchmark, truth, answer, tmp_path / "out", {}, resume=True)
    assert sorted(asked) == sorted(sample.id for sample in truth)
    expected, _ = benchmark.score(truth, {sample.id: "Yes." for sample in truth})
    assert metrics == group_by_images(expected, truth)


def test_a_folder_is_resumed_only_by_the_same_call(tmp_path):
    benchmark, out = BENCHMARKS["mme"](), tmp_path / "out"
    truth, other = (benchmark.read(benchmark.draw(tmp_path / str(seed), 2, seed)) for seed in (5, 6))

    def answer(samples, settings):
        return ((sample.id, "Yes.") for sample in samples)

    def ask(truth, **about):
        return run_benchmark(benchmark, truth, answer, out, {"model": "a"} | about, resume=True)

    with pytest.raises(RuntimeError):
        run_benchmark(
            benchmark,
            truth,
            lambda samples, settings: interrupted(answer(samples[:3], settings)),
            out,
            {"model": "a"},
        )
    for call, message in [
        (lambda: ask(truth, model="b"), "another call, by its model"),
        (lambda: ask(truth, method="sage"), "another call, by its method"),
        (lambda: ask(truth, parameters={"alpha": 0.2}), "another call, by its parameters"),
        (lambda: ask(other), "another call, by its questions"),
    ]:
        with pytest.raises(InputError, match=message):
            call()
    description = (out / "asked.json").read_text()
    (out / "asked.json").write_text("torn")
    with pytest.raises(InputError, match="does not say whose"):
        ask(truth)
    (out / "asked.json").write_text(description)
    ask(truth)
    assert len(read_responses(out / "responses.jsonl")) == len(truth)


def test_data_are_not_overwritten(tmp_path):
    pairs = tmp_path / "pairs"
    invoke("make-pairs", "--source", "synthetic", "--out", pairs, "--n", 1)
    data = pairs / "samples.jsonl"
    before = data.read_bytes()
    for arguments in (
        ("bench", "mme", "--model", "tiny-spd"),
        ("score", "mme", "--responses", data),
        ("data", "filter", "--voters", "tiny-spd"),
    ):
        with pytest.raises(InputError, match="would be overwritten"):
            invoke(*arguments, "--data", data, "--out", pairs)
    assert data.read_bytes() == before


def test_a_failed_draw_is_neither_used_for_another_size_nor_in_its_way(tmp_path):
    bench = ["bench", "pope", "--model", "tiny-spd", "--out", str(tmp_path), "--max-new-tokens", 1]
    bench += ["--limit", 1, "--n"]
    with pytest.raises(InputError, match=r"no image shows 3 objects and lacks 3 others; give more images$"):
        invoke(*bench, 2)
    invoke(*bench, 6)
    assert json.loads((tmp_path / "data" / "drawn.json").read_text())["n"] == 6
    with pytest.raises(InputError, match="was drawn with n 6 and seed"):
        invoke(*bench, 7, "--resume")
    invoke(*bench, 7, "--overwrite")
    assert json.loads((tmp_path / "data" / "drawn.json").read_text())["n"] == 7


@pytest.mark.parametrize("command", ["bench", "compare"])
def test_a_refused_model_leaves_nothing_in_the_way(tmp_path, command):
    """The data are drawn before the model is loaded, since their images are checked first."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    name = ["mme"] if command == "bench" else ["--benchmarks", "mme"]
    call = [command, *name, "--out", tmp_path / "out", "--max-new-tokens", 1]
    with pytest.raises(InputError, match="could not be loaded"):
        invoke(*call, "--model", tmp_path / "broken", "--n", 2)
    invoke(*call, "--model", "tiny-spd", "--n", 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["components", "features", "steer"])
def test_a_method_without_its_file_ends_the_call(method, tmp_path):
    """It is one line before any question is asked, and not a failure of each question."""
    pairs = make_pairs(tmp_path / "pairs", 1, 0)
    call = ["vqa", "--model", "tiny-spd", "--data", pairs, "--limit", 2, "--out", tmp_path / "out"]
    done = run_in_process("bench", *call, "--max-new-tokens", 1, "--method", method)
    said = [line for line in done.stderr.splitlines() if "left out" not in line]
    assert done.code == 2 and len(said) == 1, done.stderr
    assert not (tmp_path / "out" / "failures.jsonl").exists()
    assert (
        run_in_process("bench", *call, "--max-new-tokens", 1).code == 0
    )  # it is not in the way of the next call


def test_a_set_is_drawn_once(tmp_path):
    arguments = ("bench", "mme", "--model", "tiny-spd", "--limit", 1, "--resume", "--out", tmp_path / "out")
    invoke(*arguments, "--n", 2)
    with pytest.raises(InputError, match="was drawn with n 2 and seed"):
        invoke(*arguments, "--n", 3)


def test_missing_images_are_reported_before_a_model_is_loaded(tmp_path):
    line = {"question_id": 1, "image": "COCO_1.jpg", "text": "Is there a dog in the image?", "label": "yes"}
    data = tmp_path / "coco_pope_random.json"
    data.write_text(json.dumps(line) + "\n")
    arguments = ("bench", "pope", "--model", "qwen2.5-vl-7b", "--data", data, "--out", tmp_path / "out")
    with pytest.raises(InputError, match="has no image"):
        invoke(*arguments)
    pairs = tmp_path / "easy.jsonl"
    difference = {"type": "remove", "category": "dog"}
    row = {
        "image_id": 7,
        "num_differences": 1,
        "differences": [difference],
        "image1": "a.jpg",
        "image2": "/etc/hosts",
    }
    pairs.write_text(json.dumps(row) + "\n")
    arguments = ("bench", "spd-faith", "--model", "openai/gpt-4o", "--data", pairs, "--out", tmp_path / "out")
    with pytest.raises(InputError, match="no such file"):
        invoke(*arguments)


@pytest.mark.slow
def test_samples_that_failed_are_asked_again(tiny_spd, tmp_path):
    benchmark, out = BENCHMARKS["mme"](), tmp_path / "out"
    truth = benchmark.read(benchmark.draw(tmp_path / "pairs", 2, 5))
    image = truth[0].images[0]
    whole = image.read_bytes()
    image.write_bytes(whole[: len(whole) // 2])

    def ask():
        settings = make_settings(8, 4)
        return run_benchmark(benchmark, truth, tiny_spd, out, {}, settings, Recording(), resume=True)

    ask()
    failed = {failure["id"] for failure in open_run(out / "run").failures}
    assert failed and failed.isdisjoint(read_responses(out / "responses.jsonl"))
    image.write_bytes(whole)
    ask()
    assert set(read_responses(out / "responses.jsonl")) == {sample.id for sample in truth}
    assert not open_run(out / "run").failures


def interrupted(answers):
    yield from answers
    raise RuntimeError("killed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["bench", "popes", "--model", "tiny-spd"],
            "benchmark 'popes': there is none; did you mean pope",
        ),
        (["bench", "pope", "--model", "openai/gpt-4o", "--trace"], "cannot be traced"),
        (["bench", "pope", "--model", "tiny-spd", "--method", "sagee"], "sage"),
        (["bench", "pope", "--model", "tiny-spd", "--method", "vcd", "--set", "alhpa=1"], "alpha"),
        (["bench", "pope", "--model", "tiny-spd", "--set", "x"], "write NAME=VALUE"),
        (["compare", "--model", "tiny-spd", "--methods", "vdc"], "vcd"),
        (["compare", "--model", "tiny-spd", "--benchmarks", "pop"], "pope"),
        (
            ["bench", "pope", "--model", "tiny-spd", "--device-map", "even"],
            "device_map even: choose auto, balanced",
        ),
        (["compare", "--model", "tiny-spd", "--device-map", "auto", "--device", "cpu"], "choose one"),
    ],
)
def test_bad_requests_fail_before_a_model_is_loaded(arguments, message, tmp_path):
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(
            app, [*arguments, "--out", str(tmp_path / "out")], catch_exceptions=False, standalone_mode=False
        )
    assert not (tmp_path / "out").exists()


def test_a_method_that_needs_images_answers_questions_without_images_plainly(tiny_spd, tmp_path):
    samples = BENCHMARKS["spd-faith"]().ask(
        BENCHMARKS["spd-faith"]().read(BENCHMARKS["spd-faith"]().draw(tmp_path / "data", 1, 5))
    )[:2]
    blind = [sample.model_copy(update={"id": f"{sample.id}--text", "images": []}) for sample in samples]
    answers = ask(tiny_spd, [*samples, *blind], 6, 4, method="vcd")
    plain = ask(tiny_spd, blind, 6, 4)
    assert set(answers) == {sample.id for sample in [*samples, *blind]}
    assert {name: answers[name] for name in plain} == plain


@pytest.mark.parametrize("command", ["generate", "trace", "data filter"])
@pytest.mark.parametrize("seed", ["100000000000000000000", "-1"])
def test_seeds_out_of_range_are_refused(command, seed, tmp_path):
    arguments = {
        "generate": ["--model", "tiny-spd", "--prompt", "?"],
        "trace": ["--model", "tiny-spd", "--data", "none.jsonl", "--out", str(tmp_path / "out")],
        "data filter": ["--voters", "tiny-spd", "--data", "none.jsonl", "--out", str(tmp_path / "out")],
    }
    done = CliRunner().invoke(app, [*command.split(), *arguments[command], "--seed", seed])
    assert done.exit_code == 2 and "Invalid value for '--seed'" in done.output


@pytest.mark.parametrize("command", ["bench", "compare", "bench --shard"])
def test_a_question_that_fails_is_exit_1(tmp_path, monkeypatch, command):
    make_pairs(tmp_path / "pairs", 1, 0)
    original = asking.build_chat

    def build_chat(sample, *others):
        if "exists" in sample.id:
            raise InputError("its image is broken")
        return original(sample, *others)

    monkeypatch.setattr(asking, "build_chat", build_chat)
    name = ["--benchmarks", "vqa"] if command == "compare" else ["vqa"]
    call = [command.split()[0], *name, "--model", "tiny-spd", "--data", tmp_path / "pairs" / "samples.jsonl"]
    call += ["--out", tmp_path / "out", "--max-new-tokens", 1]
    call += ["--shard", "1/2"] if "shard" in command else []
    done = run_in_process(*call)
    assert done.code == 1 and "questions failed, see" in done.stderr
    monkeypatch.undo()
    invoke(*call, "--resume")


def test_memory_that_runs_out_and_failures_are_the_same_without_a_trace(
    tiny_spd, tmp_path, monkeypatch, caplog
):
    """A model that reads two rows at most, and one question that it cannot read at all."""
    benchmark, forward = BENCHMARKS["mme"](), tiny_spd.hf.forward
    truth = benchmark.read(benchmark.draw(tmp_path / "pairs", 2, 5))
    spoiled = benchmark.ask(truth)[1]

    def scarce(*arguments, **options):
        if len(options["input_ids"]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return forward(*arguments, **options)

    def build_chat(sample, *others):
        if sample.id == spoiled.id and broken:
            raise InputError("its image is broken")
        return original(sample, *others)

    original, broken = asking.build_chat, True
    scarce.__signature__ = inspect.signature(forward)
    monkeypatch.setattr(tiny_spd.hf, "forward", scarce)
    monkeypatch.setattr(asking, "build_chat", build_chat)
    settings, out = make_settings(4, 8, shared_prefix=False), tmp_path / "out"
    run_benchmark(benchmark, truth, tiny_spd, out, {}, settings)
    warned = [record.message for record in caplog.records if "out of memory" in record.message]
    assert [message.rpartition(" ")[2] for message in warned] == ["4", "2"], "the next batches begin with 2"
    answers = read_responses(out / "responses.jsonl")
    assert set(answers) == {sample.id for sample in truth} - {spoiled.id}
    failure = {"id": spoiled.id, "error": "InputError", "message": "its image is broken"}
    assert json.loads((out / "failures.jsonl").read_text()) == failure
    broken = False
    run_benchmark(benchmark, truth, tiny_spd, out, {}, settings, resume=True)
    again = read_responses(out / "responses.jsonl")
    assert set(again) == {sample.id for sample in truth} and again.items() >= answers.items()
    assert not (out / "failures.jsonl").exists()
