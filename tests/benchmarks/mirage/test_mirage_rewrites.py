"""`mmprobe data rewrite` with a mock model: references, hints, topics, and how it resumes."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from helpers.command_line import assert_fails, read_result, run_in_process
from helpers.prompts import system_prompt
from PIL import Image

from mmprobe.benchmarks.core.prompts import default_prompts
from mmprobe.benchmarks.judges.requests import UnusableReply
from mmprobe.benchmarks.mirage.benchmark import Mirage
from mmprobe.benchmarks.mirage.data import load_questions
from mmprobe.benchmarks.mirage.prompts import MiragePrompts
from mmprobe.benchmarks.mirage.rewrites import (
    read_hint,
    read_rewrites,
    read_topic,
)

inspect_model = pytest.importorskip("inspect_ai.model", reason="the extra eval is not installed")
FENCED = re.compile(r"<data (\w{8})>\n(.*)\n</data \1>")
HINTS = default_prompts(MiragePrompts).topic_hints
TASKS = {
    system_prompt(MiragePrompts, name): part
    for name, part in (("rewrite", "references"), ("hint", "hints"), ("classify", "topics"))
}


@pytest.fixture
def scribe():
    """A provider `scribe` whose model writes, but not the parts in `broken`. It lists what it was asked."""

    class Scribe(inspect_model.ModelAPI):
        asked: list = []
        broken: set = set()

        async def generate(self, input, tools, tool_choice, config):
            part, data = TASKS[input[0].text], json.loads(FENCED.search(input[1].text)[2])
            Scribe.asked.append((part, data))
            reply = {
                "references": {
                    "rewrites": [f"Way {n}: {data.get('reasoning')}" for n in range(data.get("count", 0))]
                },
                "hints": {"hint": f"About {data['question']}"},
                "topics": {"topic": "geometry"},
            }[part]
            text = "Sorry." if part in Scribe.broken else json.dumps(reply)
            output = inspect_model.ModelOutput.from_content("scribe", text)
            output.usage = inspect_model.ModelUsage()
            return output

    Scribe.asked.clear()
    inspect_model.modelapi(name="scribe")(Scribe)
    return Scribe


@pytest.fixture
def data(tmp_path):
    """Three questions: with a chain and two references, with steps only, and with all but a chain."""
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    base = {"topic": "spatial", "type": "free_form", "answer": "7 cm", "images": ["a.png"]}
    lines = [
        base | {"id": "1", "question": "How long is AB?", "references": ["14 / 2 = 7.", "Half of 14 is 7."]},
        base | {"id": "2", "question": "How wide?", "steps": ["Halve 14.", "That is 7."]},
        base | {"id": "3", "question": "How high?", "question_hint": "Look up.", "named_topic": "logical"},
    ]
    file = tmp_path / "data" / "questions.jsonl"
    file.parent.mkdir()
    (tmp_path / "a.png").rename(file.parent / "a.png")
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def rewrite(data, out, *options):
    return run_in_process("data", "rewrite", "--data", data, "--model", "scribe/one", "--out", out, *options)


def test_what_questions_lack_is_written_and_what_they_have_is_kept(scribe, data, tmp_path):
    out = tmp_path / "deep" / "out"
    result = read_result(rewrite(data, out, "--json"))
    assert result["written"] == {"references": 2, "hints": 2, "topics": 2} and result["failures"] == {}
    before, after = load_questions(data), load_questions(out / "questions.jsonl")
    assert [q.references for q in after] == [
        ["14 / 2 = 7.", "Half of 14 is 7.", "Way 0: 14 / 2 = 7."],
        ["Halve 14.\nThat is 7.", "Way 0: Halve 14.\nThat is 7.", "Way 1: Halve 14.\nThat is 7."],
        [],
    ]
    assert [q.question_hint for q in after] == ["About How long is AB?", "About How wide?", "Look up."]
    assert [q.named_topic for q in after] == ["geometry", "geometry", "logical"]
    assert [q.images for q in after] != [[]] * 3 and all(
        q.images[0].samefile(data.parent / "a.png") for q in after
    )
    kept = {"references", "question_hint", "named_topic", "images"}
    assert [q.model_dump(exclude=kept) for q in after] == [q.model_dump(exclude=kept) for q in before]
    assert not any({"answer", "true", "topic"} & set(data) for _, data in scribe.asked), "no truth for hints"


def test_named_topics_are_used_and_not_asked_for(scribe, data, tmp_path):
    rewrite(data, tmp_path / "out")
    truth = Mirage().read(tmp_path / "out" / "questions.jsonl")
    assert [sample.id for sample in Mirage().ask(truth)] == ["1", "2", "3"], "another model named the topics"
    hinted = {sample.id: sample.question for sample in Mirage().follow_up(truth, {"1": "7", "3": "7"})}
    assert hinted["1--hinted"].startswith(HINTS.geometry) and "2--hinted" not in hinted
    assert hinted["3--hinted"].startswith(HINTS.logical)
    metrics, records = Mirage().score(truth, {"1": "7 cm", "1--hinted": "7 cm"})
    assert metrics["topic_accuracy"].value == 0 and metrics["topic_accuracy"].n == 3
    assert records[0]["topic_told"] == "geometry"


def test_an_interrupted_call_goes_on_without_asking_twice(scribe, data, tmp_path):
    out = tmp_path / "out"
    scribe.broken = {"hints"}
    first = rewrite(data, out, "--json")
    assert first.code == 0 and "hints: garbage 2" in first.stderr and "--resume" in first.stderr
    assert json.loads(first.stdout)["written"] == {"references": 2, "hints": 0, "topics": 2}
    assert_fails(rewrite(data, out), "already contains questions; use --resume")
    scribe.broken = set()
    scribe.asked.clear()
    assert rewrite(data, out, "--resume", "--no-retry-unscored").code == 0 and not scribe.asked
    result = read_result(rewrite(data, out, "--resume", "--json"))
    assert [part for part, _ in scribe.asked] == ["hints", "hints"]
    assert result["written"] == {"references": 2, "hints": 2, "topics": 2}
    (out / "questions.jsonl").unlink()  # as after a kill: the replies are kept
    scribe.asked.clear()
    assert rewrite(data, out).code == 0 and not scribe.asked
    assert load_questions(out / "questions.jsonl")[0].question_hint == "About How long is AB?"


def test_parts_and_numbers_can_be_chosen(scribe, data, tmp_path):
    options = ("--parts", "references", "--references", 5, "--limit", 1, "--json")
    assert read_result(rewrite(data, tmp_path / "out", *options))["written"] == {"references": 1}
    (question,) = load_questions(tmp_path / "out" / "questions.jsonl")
    assert len(question.references) == 5 and question.named_topic is None and question.question_hint is None


def test_bad_calls_are_one_line(scribe, data, tmp_path):
    assert_fails(
        rewrite(data, tmp_path / "out", "--parts", "jokes"), "'jokes' is none of references, hints, topics"
    )
    assert_fails(rewrite(data, data.parent), "is read, too")
    assert_fails(rewrite(tmp_path / "no.jsonl", tmp_path / "out"), "no such file")
    assert not (tmp_path / "out").exists()
    wrong = run_in_process(
        "data", "rewrite", "--data", data, "--model", "nobody/x", "--out", tmp_path / "out"
    )
    assert_fails(wrong, "nobody/x")


@pytest.mark.parametrize(
    ("read", "reply"),
    [
        (lambda reply: read_rewrites(reply, ["One is two."], 2), '{"rewrites": ["a"]}'),
        (lambda reply: read_rewrites(reply, ["One is two."], 2), '{"rewrites": ["a", "A "]}'),
        (lambda reply: read_rewrites(reply, ["One is two."], 1), '{"rewrites": ["one  is two."]}'),
        (lambda reply: read_rewrites(reply, ["One is two."], 1), '{"rewrites": [" "]}'),
        (read_hint, '{"hint": " "}'),
        (read_topic, '{"topic": "history"}'),
    ],
)
def test_useless_replies(read, reply):
    with pytest.raises(UnusableReply):
        read(reply)
