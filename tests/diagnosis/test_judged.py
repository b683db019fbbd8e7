"""What a judge reads in answers where rules cannot: what it is asked, what its labels do, and what a second call asks."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.openai_server import serve_openai
from PIL import Image

from mmprobe.benchmarks.judges.ensemble import EnsembleJudge
from mmprobe.benchmarks.judges.judge import Judgement
from mmprobe.benchmarks.judges.requests import UnusableReply
from mmprobe.diagnosis.diagnose import diagnosis_ledger
from mmprobe.diagnosis.effects import AnswerRecord
from mmprobe.diagnosis.judged import (
    JUDGED,
    NAMED,
    RIGHT,
    add_labels,
    ask_judge,
    count_labels,
    list_known,
    objects_request,
    plan_requests,
    read_labels,
)
from mmprobe.diagnosis.run import read_text
from mmprobe.samples import Sample

WORDS = {"truck": "truck|lorry|lorries", "forklift": "fork-?lift", "pallet": "pallet", "shelf": "shelf"}


def read(text: str) -> list[str]:
    """Return the objects that a text names by any of their words, unless it denies them."""
    said = re.sub(r"\bno [\w-]+", "", text.lower())
    return [name for name, words in WORDS.items() if re.search(words, said)]


def reply(data: dict[str, Any]) -> str:
    """Return what the scripted judge replies to data: by picture one sentence; nothing usable of an answer that mumbles."""
    text = data.get("answer") or data["response"]
    if "mumble" in text:
        return "Well, who knows?"
    if "true" in data:
        return json.dumps({"correct": set(read(text)) == set(read(data["true"]))})
    sentences = text.split(". ") if len(data["shown"]) > 1 else [text]
    return json.dumps(
        {"labels": [[name for name in read(each) if name in data["objects"]] for each in sentences]}
    )


class Scripted:
    """A judge that replies as `reply`, and keeps the data that it is shown."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []

    async def ask(self, requests):
        return [self.judge(request) for request in requests]

    def judge(self, request):
        self.shown.append(request.data)
        try:
            return Judgement(request.read(reply(request.data)), calls=1)
        except UnusableReply:
            return Judgement(None, "garbage", 1)


def sample(name: str, *objects: list[str], answer: str | None = None) -> Sample:
    images = [f"{name}{number}.png" for number in range(len(objects))]
    return Sample(
        id=name,
        images=images,
        question="What do you see?",
        answer=answer,
        metadata={"objects": list(objects)},
    )


def records(samples, texts):
    return [AnswerRecord(line) for line in lines(samples, texts)]


def lines(samples, texts):
    return [{"id": each.id, "answer": texts[each.id], **read_text(each, texts[each.id])} for each in samples]


def judged(samples, texts, folder, judge):
    """Return what is known of each answer after a judge was asked, by id."""
    ledger = diagnosis_ledger(folder)
    ask_judge(judge, samples, records(samples, texts), ledger)
    labels = read_labels(ledger)
    return {
        each.id: add_labels(each, read_text(each, texts[each.id]), labels.get(each.id, {}))
        for each in samples
    }


def test_words_synonyms_and_denials_of_free_sentences_are_read_by_picture(tmp_path):
    samples = [
        sample("a", ["truck", "pallet"], answer="a pallet and a truck"),
        sample("b", ["truck"], answer="a truck"),
        sample("c", ["truck"], ["forklift"], answer="a truck, then a forklift"),
    ]
    texts = {
        "a": "A lorry waits and a fork-lift turns.",
        "b": "A lorry, and no forklift.",
        "c": "First a forklift stands there. Then a lorry and a pallet stand there",
    }
    assert all(each["right"] is None and not each["listed"] for each in lines(samples, texts)), "by rules"
    found = judged(samples, texts, tmp_path, Scripted())
    assert found["a"]["listed"] == [{"image": 0, "cues": ["pallet", "truck"], "false": ["forklift"]}]
    assert found["b"]["listed"] == [{"image": 0, "cues": ["truck"], "false": []}]
    assert found["c"]["listed"] == [
        {"image": 0, "cues": ["truck"], "false": ["forklift"]},
        {"image": 1, "cues": ["forklift"], "false": ["pallet", "truck"]},
    ], "each picture has its own"
    assert [found[name]["right"] for name in "abc"] == [False, True, False]


def test_a_judge_is_asked_only_about_what_rules_cannot_read():
    samples = [
        sample("known-answer", ["forklift"], answer="a forklift"),
        sample("no-answer", ["forklift"]),
        sample("closed", ["forklift"]),
        sample("no-word", ["forklift"], answer="a forklift"),
        sample("only-thoughts", ["forklift"], answer="a forklift"),
        sample("drawn", ["red star B2"]),
        Sample(id="no-list", images=["a.png"], question="What?", answer="a truck"),
    ]
    texts = {
        "known-answer": "It is a forklift.",
        "no-answer": "Something on wheels.",
        "closed": "Yes, with a forklift.",
        "no-word": "…",
        "only-thoughts": "<think>Perhaps it is a lorry",
        "drawn": "A star on wheels.",
        "no-list": "A lorry.",
    }
    plan = plan_requests(samples, records(samples, texts), list_known(samples))
    assert set(plan) == {("known-answer", NAMED), ("no-answer", NAMED), ("no-list", RIGHT)}
    assert plan["no-list", RIGHT].data["true"] == "a truck"
    coco = [sample("a", ["dog"]), sample("b", ["cat"]), sample("c", ["dog"], ["cat"])]
    said = dict.fromkeys("abc", "A puppy on a mat.")
    known = list_known(coco)
    assert set(plan_requests(coco, records(coco, said), known)) == {("c", NAMED)}, "rules read one image"
    mixed = [*coco, sample("d", ["forklift"])]
    asked = plan_requests(mixed, records(mixed, said | {"d": "A mat."}), list_known(mixed))
    assert set(asked) == {(name, NAMED) for name in "abcd"}, "rules know no word for a forklift"


def test_what_a_judge_leaves_unscored_is_unread_and_asked_again(tmp_path):
    samples = [sample("a", ["pallet"], answer="a truck"), sample("b", ["forklift"], answer="a truck")]
    texts = {"a": "Mumble, a lorry; mumble.".lower(), "b": "A fork-lift, a pallet."}
    judge, ledger = Scripted(), diagnosis_ledger(tmp_path)
    found = judged(samples, texts, tmp_path, judge)
    assert (found["a"]["right"], found["a"]["listed"]) == (None, [])
    assert (found["b"]["right"], found["b"]["listed"][0]["false"]) == (False, ["pallet"])
    assert count_labels(ledger) == {"answers": 2, "judged": 4, "unscored": {"garbage": 2}}
    assert len(judge.shown) == 4
    judged(samples, texts, tmp_path, judge)
    assert [data.get("answer") or data["response"] for data in judge.shown[4:]] == [texts["a"]] * 2
    (tmp_path / JUDGED).write_text((tmp_path / JUDGED).read_text() + '{"id": "a", "ta')  # a killed call
    clear = Scripted()
    again = judged(samples, texts | {"a": "A lorry."}, tmp_path, clear)
    assert len(clear.shown) == 2 and again["a"]["right"] is True
    assert count_labels(ledger) == {"answers": 2, "judged": 4, "unscored": {}}


def test_names_that_the_data_lack_are_no_labels():
    request = objects_request("What?", "A lorry.", [[], []], ["forklift", "truck"])
    assert request.read('{"labels": [["Truck "], []]}') == (False, True, False, False)
    for useless in ('{"labels": [["lorry"], []]}', '{"labels": [["truck"]]}', '{"labels": ["truck", ""]}'):
        with pytest.raises(UnusableReply):
            request.read(useless)


def test_an_object_counts_if_most_judges_of_an_ensemble_read_it():
    class Says:
        def __init__(self, *names):
            self.reply = json.dumps({"labels": [list(names)]})

        async def ask(self, requests):
            return [Judgement(each.read(self.reply)) for each in requests]

    request = objects_request("What?", "A lorry.", [[]], ["forklift", "shelf", "truck"])

    def vote(*judges):
        return asyncio.run(EnsembleJudge(judges).ask([request]))[0].items

    assert vote(Says("truck"), Says("truck", "shelf"), Says("shelf", "truck")) == (False, True, True)
    assert vote(Says("truck"), Says("truck", "shelf")) == (False, False, True), "one of two is no majority"


@pytest.fixture
def served(monkeypatch):
    """Return the data that a served judge was shown; inspect-ai's provider finds the server."""
    pytest.importorskip("inspect_ai", reason="the extra eval is not installed")
    pytest.importorskip("openai", reason="the provider's package is not installed")
    shown: list[dict[str, Any]] = []

    def answer(text: str, n_images: int) -> str:
        assert n_images == 0
        shown.append(json.loads(re.search(r"<data (\w{8})>\n(.*)\n</data \1>", text)[2]))
        return reply(shown[-1])

    with serve_openai(answer) as address:
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield shown


@pytest.mark.slow
def test_the_command_takes_a_judge_whose_labels_a_second_call_does_not_ask_for(tmp_path, served):
    lines, answers = [], []
    for number in range(8):
        Image.new("RGB", (56, 56), (30 * number, 90, 0)).save(tmp_path / f"{number}.png")
        objects = (
            ["pallet", "truck"] if number % 2 else ["shelf", "truck"] if number else ["forklift", "shelf"]
        )
        asked = {"id": f"q{number}", "images": [f"{number}.png"], "question": "What is in the picture?"}
        lines.append(asked | {"answer": " and ".join(objects), "metadata": {"objects": objects}})
        text = "A fork-lift next to a lorry" if number % 2 else "A lorry, no forklift, and a shelf"
        text = f"{text}, seen {number} times." if number < 7 else "I mumble of a lorry."
        answers.append({"id": f"q{number}", "response": text})
    data, given, out = tmp_path / "mine.jsonl", tmp_path / "answers.jsonl", tmp_path / "out"
    for file, content in ((data, lines), (given, answers)):
        file.write_text("".join(json.dumps(line) + "\n" for line in content))
    call = ["diagnose", "--model", "tiny-spd", "--data", data, "--answers", given, "--device", "cpu"]
    plain = run_in_process(*call, "--out", tmp_path / "plain")
    assert plain.code == 0 and not served
    judge = ("--judge", "model:openai/gpt-4o", "--out", out)
    done = run_in_process(*call, *judge)
    assert done.code == 0, done.stderr
    unscored = "the judge left 2 of 16 unscored: garbage 2"
    assert f"mmprobe: {unscored}; --resume asks again\n" in done.stderr
    found, by_rules = (
        json.loads((folder / "diagnosis.json").read_text()) for folder in (out, tmp_path / "plain")
    )
    assert found["judge"] == "model:openai/gpt-4o" and found["why"].endswith(unscored)
    assert found["judging"] == {"answers": 8, "judged": 16, "unscored": {"garbage": 2}}
    assert not {"judge", "judging"} & set(by_rules)
    assert any(line.startswith("answers that say something false: 57 %") for line in found["tests"]), "4 of 7"
    assert any(line.startswith("answers that say something false: not run") for line in by_rules["tests"])
    claims = "forklift is claimed in images with pallet"
    assert claims in found["causes"]["co-occurrence"]["evidence"]
    assert found["causes"]["co-occurrence"]["score"] > by_rules["causes"]["co-occurrence"]["score"] + 0.2
    assert len(served) == 14 + 2 * 4, "a useless reply is sent back three times"

    text, before = (out / "diagnosis.json").read_bytes(), len(served)
    resumed = run_in_process(*call, *judge, "--resume", "--no-retry-unscored")
    assert resumed.code == 0 and len(served) == before
    assert (out / "diagnosis.json").read_bytes() == text
    (out / JUDGED).unlink()  # a call that was killed while it judged
    assert run_in_process(*call, *judge, "--resume", "--no-retry-unscored").code == 0
    assert len(served) == before and (out / "diagnosis.json").read_bytes() == text
    assert run_in_process(*call, *judge, "--resume").code == 0
    assert len(served) == before + 2 * 4, "what is unscored alone is asked again"
    for other in (["--judge", "model:openai/gpt-4o-mini"], []):
        refused = run_in_process(*call, *other, "--out", out, "--resume")
        assert_fails(refused, "contains a diagnosis of another call, by its judge; use --overwrite")
    assert_fails(
        run_in_process(*call, *judge[:2], "--out", tmp_path / "plain", "--resume"),
        "another call, by its judge",
    )


def test_a_wrong_judge_is_one_line_and_leaves_nothing(tmp_path):
    for judge, message in (
        ("nobody", "judge 'nobody': use lexical, model:PROVIDER/MODEL"),
        ("model:local/nowhere", "model 'nowhere': neither an alias, a folder, nor a hub id"),
        ("ensemble:openai/a", "an ensemble needs two models or more"),
        ("model:nobody/model", "judge nobody/model: "),
    ):
        call = ["diagnose", "--model", "tiny-spd", "--n", 1, "--device", "cpu", "--judge", judge]
        assert_fails(run_in_process(*call, "--out", tmp_path / "out"), message)
        assert not (tmp_path / "out" / "settings.json").exists()
