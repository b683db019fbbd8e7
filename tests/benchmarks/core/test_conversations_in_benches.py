"""Conversations in benchmarks: shown in their order where the questions are one's own, else refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import assert_fails, run_in_process

from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import open_run
from mmprobe.diagnosis.battery.co_occurrence import ask
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples
from mmprobe.training.policy import build_row


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """Return drawn questions as conversations: a turn of greetings, then the question with its images between texts."""
    file = make_pairs(tmp_path / "pairs", n=1, seed=3)
    lines = []
    for sample in load_samples(file):
        parts = [
            part
            for number, image in enumerate(sample.images, 1)
            for part in (
                {"type": "text", "text": f"Image {number}:"},
                {"type": "image", "image": f"images/{image.name}"},
            )
        ]
        turns = [
            {"role": "system", "content": sample.system},
            {"role": "user", "content": "Are you ready?"},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": [*parts, {"type": "text", "text": sample.question}]},
        ]
        line = json.loads(sample.model_dump_json(exclude={"images", "question", "system"}))
        lines.append(json.dumps(line | {"messages": turns}))
    (file.parent / "talk.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return file.parent / "talk.jsonl"


@pytest.mark.parametrize("name", ["spd-faith", "pope", "chair", "mme", "mirage", "mirage-effect", "mmreason"])
def test_a_benchmark_with_prompts_of_its_own_refuses_them(talk, name, tmp_path):
    done = run_in_process("bench", name, "--model", "tiny-spd", "--data", talk, "--out", tmp_path / "out")
    assert_fails(done, f"field 'messages': {name} makes its own prompts and does not show it")
    assert "sample 0000-0-same" in done.stderr


def test_voters_refuse_them(talk, tmp_path):
    done = run_in_process("data", "filter", "--data", talk, "--voters", "tiny-spd", "--out", tmp_path / "out")
    assert_fails(done, "field 'messages'")


def test_training_refuses_them(talk):
    with pytest.raises(InputError, match="^sample 0000-0-same: field 'messages': train"):
        build_row(load_samples(talk)[0], "")


def test_questions_of_ones_own_are_asked_in_their_turns(talk, tmp_path):
    out = tmp_path / "out"
    options = ("--model", "tiny-spd", "--data", talk, "--limit", 2, "--trace", "--max-new-tokens", 8)
    done = run_in_process("bench", "vqa", *options, "--out", out)
    assert done.code == 0, done.stderr
    given = {sample.id: sample for sample in load_samples(talk)}
    for trace in open_run(out / "run"):
        assert trace.sample.transcript == given[trace.id].transcript
        assert "user: Image 1: [image 1] Is there" in trace.sample.transcript
    # the questions of a result folder are the conversations again
    again = run_in_process("trace", "--model", "tiny-spd", "--answers", out, "--out", tmp_path / "again")
    assert again.code == 0, again.stderr
    assert [trace.sample.transcript for trace in open_run(tmp_path / "again")] == [
        trace.sample.transcript for trace in open_run(out / "run")
    ]
    other = talk.with_name("moved.jsonl")
    other.write_text(talk.read_text().replace("Image 1:", "Image A:"), encoding="utf-8")
    resumed = run_in_process(
        "bench", "vqa", *("--model", "tiny-spd", "--data", other, "--limit", 2, "--trace", "--max-new-tokens", 8),
        "--resume", "--out", out,
    )  # fmt: skip
    assert resumed.code == 2 and "contains answers of another call" in resumed.stderr


def test_a_question_of_the_diagnosis_about_one_image_leaves_the_conversation(talk):
    sample = load_samples(talk)[0]
    asked = ask(sample, sample.images[1], "star")
    assert asked.images == sample.images[1:2] and not asked.messages
    assert (asked.system, asked.question.count("star")) == (sample.messages[0].text, 1)
    short = Sample(id="a", images=sample.images, question="?", system="Be brief.")
    assert ask(short, sample.images[0], "star").system == "Be brief."
