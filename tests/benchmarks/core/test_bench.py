"""Benchmarks from the command line: asking, resuming, scoring what others answered, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmprobe.benchmarks.core.benchmark import NAMES, find_benchmark, read_responses
from mmprobe.benchmarks.core.runner import local_answerer, run_benchmark
from mmprobe.benchmarks.spd_faith.benchmark import build_published_truth
from mmprobe.benchmarks.spd_faith.data import Difference, Pair
from mmprobe.cache import open_run
from mmprobe.cli import app
from mmprobe.errors import InputError

FIELDS = {"value", "n", "coverage", "low", "high", "direction", "range"}


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def metrics_of(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())["metrics"]


@pytest.mark.parametrize("name", NAMES)
def test_the_embedded_model_is_asked_and_scored(name, tmp_path):
    out, n = tmp_path / name, 1 if name == "mirage-effect" else 6  # which asks its 200 questions 20 times n
    said = json.loads(
        invoke("bench", name, "--model", "tiny-spd", "--n", n, "--batch-size", 8, "--out", out, "--json")
    )
    metrics = metrics_of(out)
    assert said["metrics"] == {metric: found["value"] for metric, found in metrics.items()}
    assert set(find_benchmark(name).headline) & set(metrics)
    for found in metrics.values():
        assert set(found) == FIELDS
    records = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert records and all("id" in record for record in records)
    again = tmp_path / "again"
    data = out / "data" / "samples.jsonl"
    invoke("score", name, "--data", data, "--responses", out / "responses.jsonl", "--out", again)
    assert metrics_of(again) == metrics, "the same answers score the same, whoever gave them"


def test_spd_faith_asks_to_find_as_many_as_the_model_counted(tmp_path):
    benchmark = find_benchmark("spd-faith")
    truth = benchmark.draw_data(tmp_path / "pairs", 3, 5)
    asked: list[str] = []

    def answer(samples):
        for sample in samples:
            asked.append(sample.question)
            kind = sample.metadata["type"]
            pair = truth.questions[sample.id][0]
            counted = {"0000": "There are 7 differences.", "0001": "There are no differences.", "0002": "Hm."}
            yield sample.id, {"count": counted[pair], "find": "The dog is gone."}.get(kind, "Yes.")

    metrics, records = run_benchmark(benchmark, truth, answer, tmp_path / "out", {})
    assert [text for text in asked if "Find" in text] == ["There are 7 differences. Find them."]
    assert [record["answers"]["count"]["count"] for record in records] == [7, 0, None]
    assert metrics["dqr_exact"].coverage == pytest.approx(2 / 3)


def test_answers_are_traced_under_their_questions_ids(tmp_path):
    out = tmp_path / "out"
    invoke("bench", "spd-faith", "--model", "tiny-spd", "--n", 1, "--trace", "--out", out)
    responses = read_responses(out / "responses.jsonl")
    traced = {trace.id: trace.answer for run in ("run", "run-follow-up") for trace in open_run(out / run)}
    assert traced == responses
    assert sum(name.endswith("-find") for name in traced) == 1
    labels = {
        trace.id: run.faithful(trace.id)
        for run in map(open_run, (out / "run", out / "run-follow-up"))
        for trace in run
    }
    assert labels == dict.fromkeys(traced, True), "the embedded model makes no mistake here"
    plain = tmp_path / "plain"
    invoke(
        "bench", "spd-faith", "--model", "tiny-spd", "--data", out / "data" / "samples.jsonl", "--out", plain
    )
    assert read_responses(plain / "responses.jsonl") == {
        name: text.strip() for name, text in responses.items()
    }


def test_answers_are_faithful_or_not():
    """One pair that differs in one object; the answers are of all kinds."""
    benchmark = find_benchmark("spd-faith")
    pair = Pair("7", (Difference("remove", "dog"),))
    truth = build_published_truth([pair])
    said = {
        "same": "Yes, they are the same.",
        "different": "Yes, the dog was removed.",
        "count": "There are 2 differences.",
        "list": "The dog was removed. The cat turned red.",
        "steps": "The dog was removed.",
        "find": "I would rather not say.",
    }
    _, records = benchmark.score_answers(truth, {f"7-{kind}": text for kind, text in said.items()})
    assert benchmark.faithful_answers(truth, records) == {
        "7-same": False,
        "7-different": True,
        "7-count": False,
        "7-list": False,
        "7-steps": True,
    }


@pytest.mark.parametrize("differ", [False, True])
def test_to_see_no_differences_is_faithful_where_there_are_none(differ):
    benchmark = find_benchmark("spd-faith")
    truth = build_published_truth([Pair("7", (Difference("remove", "dog"),) if differ else ())])
    said = dict.fromkeys(("list", "steps"), "I see no differences.") | {"same": "No."}
    _, records = benchmark.score_answers(truth, {f"7-{kind}": text for kind, text in said.items()})
    found = benchmark.faithful_answers(truth, records)
    assert found == {"7-list": not differ, "7-steps": not differ, "7-same": differ}


def test_what_is_asked_once_more_is_labelled_too():
    records = [
        {"id": "1", "correct": True, "correct_hinted": False},
        {"id": "2", "correct": None, "correct_hinted": None},
    ]
    assert find_benchmark("mirage").faithful_answers(None, records) == {"1": True, "1--hinted": False}


def test_what_was_answered_is_not_asked_again(tmp_path):
    """A run is cut off after some answers, in the middle of writing one."""
    benchmark = find_benchmark("mme")
    truth = benchmark.draw_data(tmp_path / "pairs", 2, 5)
    asked: list[str] = []

    def answer(samples, most=10**9):
        for sample in samples[:most]:
            asked.append(sample.id)
            yield sample.id, "Yes."

    with pytest.raises(RuntimeError):
        run_benchmark(benchmark, truth, lambda samples: interrupted(answer(samples, 5)), tmp_path / "out", {})
    file = tmp_path / "out" / "responses.jsonl"
    file.write_text(file.read_text() + '{"id": "cut o')
    with pytest.raises(InputError, match="--resume"):
        run_benchmark(benchmark, truth, answer, tmp_path / "out", {})
    metrics, _ = run_benchmark(benchmark, truth, answer, tmp_path / "out", {}, resume=True)
    assert sorted(asked) == sorted(sample.id for sample in truth)
    assert metrics == benchmark.score_answers(truth, {sample.id: "Yes." for sample in truth})[0]


def test_an_out_goes_on_only_with_the_same(tmp_path):
    benchmark, out = find_benchmark("mme"), tmp_path / "out"
    truth, other = (benchmark.draw_data(tmp_path / str(seed), 2, seed) for seed in (5, 6))

    def answer(samples):
        return ((sample.id, "Yes.") for sample in samples)

    def ask(truth, **about):
        return run_benchmark(benchmark, truth, answer, out, {"model": "a"} | about, resume=True)

    with pytest.raises(RuntimeError):
        run_benchmark(benchmark, truth, lambda samples: interrupted(answer(samples[:3])), out, {"model": "a"})
    for call, words in [
        (lambda: ask(truth, model="b"), "another call, by its model"),
        (lambda: ask(truth, method="sage"), "another call, by its method"),
        (lambda: ask(truth, parameters={"alpha": 0.2}), "another call, by its parameters"),
        (lambda: ask(other), "another call, by its questions"),
    ]:
        with pytest.raises(InputError, match=words):
            call()
    note = (out / "asked.json").read_text()
    (out / "asked.json").write_text("torn")
    with pytest.raises(InputError, match="does not say whose"):
        ask(truth)
    (out / "asked.json").write_text(note)
    ask(truth)
    assert len(read_responses(out / "responses.jsonl")) == len(truth)


def test_data_are_not_written_over(tmp_path):
    pairs = tmp_path / "pairs"
    invoke("make-pairs", "--source", "synthetic", "--out", pairs, "--n", 1)
    data = pairs / "samples.jsonl"
    before = data.read_bytes()
    for asked in (
        ("bench", "mme", "--model", "tiny-spd"),
        ("score", "mme", "--responses", data),
        ("filter", "--voters", "tiny-spd"),
    ):
        with pytest.raises(InputError, match="would be overwritten"):
            invoke(*asked, "--data", data, "--out", pairs)
    assert data.read_bytes() == before


def test_a_set_that_nothing_can_be_asked_about_is_not_taken_for_a_larger_one(tmp_path):
    bench = ["bench", "pope", "--model", "tiny-spd", "--out", str(tmp_path), "--n"]
    with pytest.raises(InputError, match=r"lacks 3 that others show; it takes more pictures$"):
        invoke(*bench, 2)
    with pytest.raises(InputError, match="was drawn with --n 2 --seed"):
        invoke(*bench, 6)


def test_a_set_is_drawn_once(tmp_path):
    asked = ("bench", "mme", "--model", "tiny-spd", "--resume", "--out", tmp_path / "out")
    invoke(*asked, "--n", 2)
    with pytest.raises(InputError, match="was drawn with --n 2 --seed"):
        invoke(*asked, "--n", 3)


def test_pictures_are_there_before_a_model_is_loaded(tmp_path):
    line = {"question_id": 1, "image": "COCO_1.jpg", "text": "Is there a dog in the image?", "label": "yes"}
    data = tmp_path / "coco_pope_random.json"
    data.write_text(json.dumps(line) + "\n")
    asked = ("bench", "pope", "--model", "qwen2.5-vl-7b", "--data", data, "--out", tmp_path / "out")
    with pytest.raises(InputError, match="has no picture"):
        invoke(*asked)
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
    asked = ("bench", "spd-faith", "--model", "openai/gpt-4o", "--data", pairs, "--out", tmp_path / "out")
    with pytest.raises(InputError, match="no such file"):
        invoke(*asked)


def test_what_failed_while_traced_is_asked_again(tiny_spd, tmp_path):
    benchmark, out = find_benchmark("mme"), tmp_path / "out"
    truth = benchmark.draw_data(tmp_path / "pairs", 2, 5)
    picture = truth[0].images[0]
    whole = picture.read_bytes()
    picture.write_bytes(whole[: len(whole) // 2])

    def ask():
        answer = local_answerer(tiny_spd, 8, 4, out / "run")
        return run_benchmark(benchmark, truth, answer, out, {}, resume=True, traced=True)

    ask()
    failed = {failure["id"] for failure in open_run(out / "run").failures}
    assert failed and failed.isdisjoint(read_responses(out / "responses.jsonl"))
    picture.write_bytes(whole)
    ask()
    assert set(read_responses(out / "responses.jsonl")) == {sample.id for sample in truth}
    assert not open_run(out / "run").failures


def interrupted(answers):
    yield from answers
    raise RuntimeError("killed")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2: not JSON"),
        ('{"response": "Yes."}', "line 2: has no 'id'"),
        ('{"id": "b"}', "line 2: has no 'response'"),
        ('{"id": "b", "response": 3}', "line 2: has no 'response'"),
        ('{"id": "a", "response": "Yes."}', "line 2: a was answered before"),
    ],
)
def test_malformed_responses_are_named(line, message, tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_text('{"id": "a", "response": null}\n' + line + "\n")
    with pytest.raises(InputError, match=message):
        read_responses(file)


def test_a_response_that_is_null_is_an_empty_answer(tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_text('{"id": 7, "response": null}\n\n{"id": 7, "question_type": "same", "response": "No"}\n')
    assert read_responses(file) == {"7": "", "7/same": "No"}


def test_half_an_emoji_is_stored_as_a_question_mark(tmp_path):
    """An answer that was cut between the halves of a surrogate pair, asked for and read from a file."""
    benchmark = find_benchmark("pope")
    truth = benchmark.draw_data(tmp_path / "data", 8, 7)

    def answer(samples):
        for sample in samples:
            yield sample.id, "Yes \ud83d"

    run_benchmark(benchmark, truth, answer, tmp_path / "out", {})
    assert set(read_responses(tmp_path / "out" / "responses.jsonl").values()) == {"Yes ?"}
    lines = [
        json.dumps({"id": sample.id, "response": "No \udc00"}) + "\n"
        for sample in benchmark.ask_questions(truth)
    ]
    (tmp_path / "answers.jsonl").write_text("".join(lines))
    data, answers, out = tmp_path / "data" / "samples.jsonl", tmp_path / "answers.jsonl", tmp_path / "scored"
    invoke("score", "pope", "--data", data, "--responses", answers, "--out", out)
    assert '"No ?"' in (out / "samples.jsonl").read_text()


@pytest.mark.parametrize("name", ["pope", "mirage-effect"])
def test_two_answers_to_one_question_are_refused(name, tmp_path):
    """One that is told from the other by its question_type alone, which only spd-faith has."""
    benchmark = find_benchmark(name)
    truth = benchmark.draw_data(tmp_path / "data", 8, 7)
    asked = benchmark.ask_questions(truth)[0].id
    with pytest.raises(InputError, match=f"{asked}' was answered before"):
        benchmark.score_answers(truth, {f"{asked}/random": "Yes.", f"{asked}/popular": "No."})


def test_published_pairs_are_scored_by_pair_and_question_type(tmp_path):
    rows = [{"image_id": 7, "num_differences": 1, "differences": [{"type": "remove", "category": "dog"}]}]
    data = tmp_path / "easy.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [
        {"id": 7, "question_type": "same", "response": "Yes, they are."},
        {"id": 7, "question_type": "different", "response": "Yes, the dog is gone."},
        {"id": 7, "question_type": "count", "response": "There is 1 difference."},
        {"id": 7, "question_type": "find", "response": "The dog was removed. The cat turned red."},
    ]
    responses = tmp_path / "answers.jsonl"
    responses.write_text("".join(json.dumps(line) + "\n" for line in lines))
    invoke("score", "spd-faith", "--data", data, "--responses", responses, "--out", tmp_path / "out")
    metrics = metrics_of(tmp_path / "out")
    assert {name: metrics[name]["value"] for name in ("contradiction_rate", "dqr_exact", "drf")} == {
        "contradiction_rate": 1.0,
        "dqr_exact": 1.0,
        "drf": 0.5,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["bench", "popes", "--model", "tiny-spd"],
            "benchmark 'popes': no such benchmark; did you mean pope",
        ),
        (["bench", "pope", "--model", "openai/gpt-4o", "--trace"], "cannot be traced"),
        (["bench", "pope", "--model", "tiny-spd", "--method", "sagee"], "sage"),
        (["bench", "pope", "--model", "tiny-spd", "--method", "vcd", "--set", "alhpa=1"], "alpha"),
        (["bench", "pope", "--model", "tiny-spd", "--set", "x"], "write NAME=VALUE"),
        (["compare", "--model", "tiny-spd", "--methods", "vdc"], "vcd"),
        (["compare", "--model", "tiny-spd", "--benchmarks", "pop"], "pope"),
    ],
)
def test_bad_requests_are_told_before_anything_is_loaded(arguments, message, tmp_path):
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(
            app, [*arguments, "--out", str(tmp_path / "out")], catch_exceptions=False, standalone_mode=False
        )
    assert not (tmp_path / "out").exists()


def test_questions_without_pictures_are_answered_plainly_by_methods_that_need_some(tiny_spd, tmp_path):
    samples = find_benchmark("spd-faith").ask_questions(
        find_benchmark("spd-faith").draw_data(tmp_path / "data", 1, 5)
    )[:2]
    blind = [sample.model_copy(update={"id": f"{sample.id}--text", "images": []}) for sample in samples]
    found = dict(local_answerer(tiny_spd, 6, 4, method="vcd")([*samples, *blind]))
    plain = dict(local_answerer(tiny_spd, 6, 4)(blind))
    assert set(found) == {sample.id for sample in [*samples, *blind]}
    assert {name: found[name] for name in plain} == plain


@pytest.mark.parametrize("name", ["spd-faith", "pope"])
def test_files_that_are_no_text_are_named(name, tmp_path):
    (tmp_path / "data.jsonl").write_bytes(b'{"question": "\xff"}\n')
    with pytest.raises(InputError, match="data.jsonl: cannot be read as UTF-8 text"):
        find_benchmark(name).read_data(tmp_path / "data.jsonl")
    pope = find_benchmark("pope")
    (tmp_path / "answers.jsonl").write_bytes(b'{"id": "a", "response": "\xff"}\n')
    assert pope.read_answers(tmp_path / "answers.jsonl", []) is None
    with pytest.raises(InputError, match="answers.jsonl: cannot be read as UTF-8 text"):
        read_responses(tmp_path / "answers.jsonl")


@pytest.mark.parametrize("command", ["generate", "trace", "filter"])
@pytest.mark.parametrize("seed", ["100000000000000000000", "-1"])
def test_seeds_that_no_model_takes(command, seed, tmp_path):
    arguments = {
        "generate": ["--model", "tiny-spd", "--prompt", "?"],
        "trace": ["--model", "tiny-spd", "--data", "none.jsonl", "--out", str(tmp_path / "out")],
        "filter": ["--voters", "tiny-spd", "--data", "none.jsonl", "--out", str(tmp_path / "out")],
    }
    done = CliRunner().invoke(app, [command, *arguments[command], "--seed", seed])
    assert done.exit_code == 2 and "Invalid value for '--seed'" in done.output
