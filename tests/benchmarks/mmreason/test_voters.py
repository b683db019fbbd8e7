"""Voters and the filtered set: sampled answers, killed filters, and a hand-computed result."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections import Counter

import pytest

from mmprobe.benchmarks.core.api_models import api_answerer
from mmprobe.benchmarks.mmreason.benchmark import MMReason
from mmprobe.benchmarks.mmreason.voting import TEMPERATURE, ask_voters, check_voters, filter_questions
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.settings import AskSettings

SETTINGS = AskSettings(max_new_tokens=8, temperature=TEMPERATURE)

PAIRS, SEED = 3, 6


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    return MMReason().read(make_pairs(tmp_path_factory.mktemp("voters") / "pairs", PAIRS, SEED))


def voter(texts):
    """Return a voter whose answers depend on the question's id and on whether it has images."""

    def answer(samples, settings):
        for sample in samples:
            yield sample.id, texts(sample.id.removesuffix("--text"), bool(sample.images))

    return answer


def test_a_filter_by_hand(truth, tmp_path):
    """One voter knows all answers with images, and numbers without. The other knows one, without images."""
    answers = {question.id: question.answer for question in truth.questions}
    kinds = {question.id: question.metadata["type"] for question in truth.questions}
    numbers = [name for name, kind in kinds.items() if kind == "count"]
    star = next(name for name, kind in kinds.items() if kind == "colour")
    answerers = {
        "knows": voter(
            lambda name, has_images: answers[name] if has_images or name in numbers else "I cannot tell."
        ),
        "star": voter(
            lambda name, has_images: answers[name] if name == star and not has_images else "No idea."
        ),
    }
    ask = ask_voters(truth, SETTINGS, sources=answerers)
    metrics, result = filter_questions(truth, list(answerers), ask, tmp_path / "out", {"seed": 0})
    total = len(truth.questions)
    assert set(result.removed) == {*numbers, star}
    assert metrics["kept"].value == pytest.approx((total - 4) / total) and metrics["kept"].n == total
    assert metrics["kept[discipline=math]"].value == 0
    science = Counter(question.discipline for question in truth.questions)["science"]
    assert metrics["kept[discipline=science]"].value == pytest.approx(1 - 1 / science)
    assert (metrics["removed[round=1]"].value, metrics["removed[round=2]"].value) == (
        pytest.approx(4 / total),
        0,
    )
    assert metrics["relevance_rate_before[voter=knows]"].value == pytest.approx(1 - 3 / total)
    assert metrics["relevance_rate_after[voter=knows]"].value == 1
    assert metrics["accuracy_text_before[voter=star]"].value == pytest.approx(1 / total)
    assert metrics["relevance_rate_before[voter=star]"].value is None, "it is never right with the images"
    assert metrics["without_verdict"].value == 0

    kept, removed = (MMReason().read(tmp_path / "out" / f"{name}.jsonl") for name in ("kept", "removed"))
    assert [question.id for question in kept.questions] == result.kept
    by_id = {question.id: question for question in truth.questions}
    for question in kept.questions:
        assert question.images[0].samefile(by_id[question.id].images[0])
        assert question.model_copy(update={"images": []}) == by_id[question.id].model_copy(
            update={"images": []}
        )
    fates = {question.id: question.metadata["removed"] for question in removed.questions}
    assert fates == dict.fromkeys(numbers, {"round": 1, "voters": ["knows"]}) | {
        star: {"round": 1, "voters": ["star"]}
    }
    records = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert Counter(record["fate"] for record in records) == {"kept": total - 4, "removed": 4}


def test_kept_questions_are_asked_again_after_the_filter(truth, tmp_path):
    """A voter is right without images from its third answer on. That is too late for the filter."""
    text_counts: Counter[str] = Counter()

    def texts(name, has_images):
        text_counts[name] += not has_images
        return answers[name] if has_images or text_counts[name] > 2 else "I cannot tell."

    answers = {question.id: question.answer for question in truth.questions}
    metrics, result = filter_questions(
        truth, ["late"], ask_voters(truth, SETTINGS, sources={"late": voter(texts)}), tmp_path / "out", {}
    )
    assert len(result.kept) == len(truth.questions)
    assert metrics["relevance_rate_before[voter=late]"].value == 1
    assert metrics["relevance_rate_after[voter=late]"].value == 0


@pytest.mark.slow
def test_a_local_voter_samples_anew_in_each_round_and_reproducibly(truth, tiny_spd, monkeypatch):
    loaded: list[str] = []
    monkeypatch.setattr(
        "mmprobe.benchmarks.mmreason.voting.load_model",
        lambda name, **_: loaded.append(name) or tiny_spd,
    )
    names = [question.id for question in truth.questions if question.metadata["type"] == "colour"]
    ask = ask_voters(truth, AskSettings(max_new_tokens=8, temperature=1.5, seed=1))
    rounds = [dict(ask("tiny-spd", names, round_number)) for round_number in (1, 2, 3, 1)]
    assert loaded == ["tiny-spd"]
    assert rounds[0] == rounds[3] and rounds[0] != rounds[1] != rounds[2]
    greedy = ask_voters(truth, AskSettings(max_new_tokens=8))
    with_images = dict(greedy("tiny-spd", names, 0))
    answers = {question.id: question.answer for question in truth.questions}
    assert with_images == {name: answers[name] for name in names}
    assert dict(greedy("tiny-spd", names, 1)) == dict(greedy("tiny-spd", names, 2)) != with_images


def test_unknown_voters_are_reported_before_any_is_asked(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for names in (["tiny-spd", "./nowhere"], ["openai/gpt-4o"], ["nobody"]):
        with pytest.raises(InputError, match="^model "):
            check_voters(names)


def mock(name, calls, seconds=0.0):
    """Return a voter on a mock model, which records every call in a file before it answers."""
    inspect_model = pytest.importorskip("inspect_ai.model", reason="the extra eval is not installed")

    def outputs(messages, tools, tool_choice, config):
        with open(calls, "a") as file:
            file.write(f"{name} {messages[-1].id}\n")
        time.sleep(seconds)
        output = inspect_model.ModelOutput.from_content("mockllm/model", "There is 1 difference.")
        output.usage = inspect_model.ModelUsage()  # else tokens are counted with tables from the network
        return output

    return api_answerer(inspect_model.get_model("mockllm/model", custom_outputs=outputs, memoize=False))


def run(truth, out, calls, seconds=0.0):
    ask = ask_voters(truth, SETTINGS, sources={name: mock(name, calls, seconds) for name in ("one", "two")})
    return filter_questions(truth, ["one", "two"], ask, out, {"seed": 0})[0]


def votes(out):
    file = out / "votes.jsonl"
    lines = file.read_bytes().split(b"\n")[1:-1] if file.exists() else []
    return [(vote["round"], vote["voter"], vote["id"]) for vote in map(json.loads, lines)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a process")
@pytest.mark.slow
def test_a_killed_filter_resumes_and_asks_no_model_twice(truth, tmp_path):
    out = tmp_path / "out"
    first = multiprocessing.get_context("fork").Process(
        target=run, args=(truth, out, tmp_path / "first", 0.05)
    )
    first.start()
    deadline = time.monotonic() + 60
    while len(votes(out)) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    kept = votes(out)
    assert len(kept) >= 8 and not (out / "results.json").exists()
    resumed, whole = run(truth, out, tmp_path / "second"), run(truth, tmp_path / "whole", tmp_path / "all")
    all_calls = Counter((tmp_path / "all").read_text().splitlines())
    later_calls = Counter((tmp_path / "second").read_text().splitlines())
    # The recorded calls have no round: a call must occur as often as without the kill, minus the kept votes.
    kept_calls = Counter(
        f"{name} {question_id}{'--text' if round_number else ''}" for round_number, name, question_id in kept
    )
    assert (
        later_calls == all_calls - kept_calls
        and all_calls.total() - kept_calls.total() == later_calls.total()
    )
    assert sorted(votes(out)) == sorted(votes(tmp_path / "whole")) and len(set(votes(out))) == len(votes(out))
    assert resumed == whole and 0 < resumed["kept"].value < 1
