"""Answers of models that think: what a thought says is not the answer."""

from __future__ import annotations

import copy
import json
from importlib import import_module
from typing import Any

import pytest
from helpers.tiny_models import load_tiny_model
from transformers import AddedToken

import mmprobe as mp
from mmprobe.benchmarks import evaluate, score
from mmprobe.benchmarks.answers.forms import find_answer
from mmprobe.benchmarks.answers.numbers import read_number
from mmprobe.benchmarks.answers.options import read_choice
from mmprobe.benchmarks.answers.yes_no import read_yes_no
from mmprobe.benchmarks.vqa.benchmark import label_answers
from mmprobe.diagnosis.answers import make_answer
from mmprobe.models import Model
from mmprobe.models.prompt import decode_answer
from mmprobe.samples import Sample, with_template
from mmprobe.thoughts import SPAN_NAMES
from mmprobe.traces.asking import read_given_answers

OPTIONS = {"A": "a cat", "B": "a dog"}
MARKS = {
    "Qwen3-VL": ("<think>\n", "\n</think>\n\n"),
    "in capitals": ("<THINK>", "</THINK>"),
    "Magistral": ("[THINK]", "[/THINK]"),
    "Kimi-VL": ("◁think▷", "◁/think▷"),
    "Gemma 4": ("<|channel>thought\n", "<channel|>"),
}
READERS = [
    (lambda text: read_choice(text, OPTIONS)[0], "The answer is A.", "The answer is B.", "B"),
    (read_yes_no, "No, it has no hat.", "Yes.", "yes"),
    (read_number, "The answer is 12.", "The answer is 24.", 24.0),
]


@pytest.mark.parametrize(("opening", "closing"), MARKS.values(), ids=MARKS)
@pytest.mark.parametrize(
    ("read", "thought", "answer", "value"), READERS, ids=["option", "yes or no", "number"]
)
def test_what_a_thought_says_is_not_the_answer(read, thought, answer, value, opening, closing):
    assert read(f"{opening}{thought}{closing}{answer}") == value
    assert read(f"{thought}{closing}{answer}") == value  # the chat template opened the thought
    assert read(f"{opening}{thought}") is None  # it was cut off
    assert not find_answer(f"{opening}{thought}").refused  # nor did it refuse
    assert find_answer(f"{opening}{thought}{closing}").refused  # it said nothing


@pytest.mark.parametrize("mark", ["<think>", "[THINK]"])
def test_the_marks_of_a_thought_may_be_control_tokens(mark):
    """As Magistral's are. Without them in the text, the thought would be read as the answer."""
    closing = mark.replace("<", "</").replace("[", "[/")
    tokenizer = copy.deepcopy(load_tiny_model("qwen2_5_vl").tokenizer)
    tokenizer.add_tokens([AddedToken(each, special=True) for each in (mark, closing)])
    ids = tokenizer(f"{mark}The answer is A.{closing}The answer is B.<|im_end|>")["input_ids"]
    assert mark not in tokenizer.decode(ids, skip_special_tokens=True)
    text = decode_answer(tokenizer, ids)
    assert text == f"{mark}The answer is A.{closing}The answer is B."
    assert read_choice(text, OPTIONS)[0] == "B"
    plain = tokenizer("Yes, it is.<|im_end|>")["input_ids"]
    assert decode_answer(tokenizer, plain) == tokenizer.decode(plain, skip_special_tokens=True)


@pytest.fixture(scope="module")
def thinking_model() -> Model:
    """A tiny model whose template opens a thought where `enable_thinking` says so."""
    return load_tiny_model("qwen2_5_vl")


def say(model: Model, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let a model answer everything with a text, without an end token."""
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]

    def generate(model: Model, compiled: bool, batch: Any, options: Any, shared: Any) -> list[list[int]]:
        return [list(ids) for _ in batch.prompts]

    monkeypatch.setattr(import_module("mmprobe.interventions.generate"), "_generate", generate)


@pytest.mark.parametrize(
    ("said", "thinks", "right"),
    [
        ("No, it has no hat.", True, None),  # cut off, and only the template opened the thought
        ("No, it has no hat.", False, False),
        ("No, wait.</think>Yes.", True, True),
    ],
)
def test_a_thought_that_only_the_template_opened_is_not_the_answer(
    said, thinks, right, thinking_model, monkeypatch, tmp_path
):
    say(thinking_model, monkeypatch, said)
    sample = Sample(id="a", question="Is there a star?", answer="yes")
    data = tmp_path / "samples.jsonl"
    data.write_text(sample.model_dump_json() + "\n", encoding="utf-8")
    arguments = {"enable_thinking": thinks}
    found = evaluate("vqa", thinking_model, tmp_path / "out", data=data, template=arguments)
    assert found.records[0]["correct"] is right
    (line,) = [json.loads(line) for line in (tmp_path / "out/responses.jsonl").read_text().splitlines()]
    opened = "<think>" if right is None else ""
    assert (line["response"], line.get("opened", "")) == (opened + said, opened)
    again = score("vqa", data, tmp_path / "out/responses.jsonl", tmp_path / "again")
    assert again.records[0]["correct"] is right
    # the answer is read as the model gave it: the prompt opens the thought again
    assert read_given_answers(tmp_path / "out", [sample])["a"].text == said
    assert mp.generate(thinking_model, with_template([sample], arguments)[0], max_new_tokens=8).text == said


def test_traces_say_that_only_a_thought_came(thinking_model, tmp_path):
    asked = Sample(id="a", question="Is there a star?", answer="yes", template={"enable_thinking": True})
    run = mp.trace(thinking_model, [asked], tmp_path / "run", answers={"a": "No, it has no hat."})
    trace = run["a"]
    assert (trace.answer, trace.opened) == ("No, it has no hat.", "<think>")
    assert trace.response == "<think>No, it has no hat." and read_yes_no(trace.response) is None
    assert not (trace.spans == SPAN_NAMES.index("answer")).any()
    assert label_answers(run) == 1 and mp.open_run(run.path).labels["a"] is None


def test_a_diagnosis_reads_no_conclusion_from_a_thought(thinking_model):
    asked = Sample(id="a", question="Is there a star?", template={"enable_thinking": True})
    ids = thinking_model.tokenizer("I see a ring.\nSo: No.")["input_ids"]
    own = make_answer(thinking_model, asked, ids)
    assert own.conclusion is None and read_yes_no(own.verdict) is None
    plain = make_answer(thinking_model, asked.model_copy(update={"template": {}}), ids)
    assert plain.conclusion is not None and read_yes_no(plain.verdict) == "no"
