"""One's own questions: what real answers to them are read as, and what a samples file may hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.runs import PROMPT, write_run
from PIL import Image

import mmprobe as mp
from mmprobe.benchmarks import BENCHMARKS
from mmprobe.benchmarks.core.questions import make_question, read_answer
from mmprobe.benchmarks.judges.model import ModelJudge
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.benchmarks.vqa.benchmark import Vqa, VqaTruth, label_answers
from mmprobe.errors import InputError
from mmprobe.samples import Sample


def question(answer: str, **metadata):
    made = make_question(Sample(id="1", question="Which?", answer=answer, metadata=metadata))
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("truth", "kind", "readings"),
    [
        ("yes", "yes-no", {"Yes, there is.": True, "No.": False, "**Yes**": True, "Maybe.": None, "": None}),
        (
            "No.",
            "yes-no",
            {"No, the heart appears normal.": True, "Yes": False, "I can't see an image.": False},
        ),
        (
            "3",
            "number",
            {
                "There are 3 apples on the table.": True,
                "There are two apples.": False,
                "The answer is **4**.": False,
                "Several.": None,
            },
        ),
        ("circle", "words", {"It is a circle.": True, "<answer>circle</answer>": True, "A disc.": False}),
        ("red", "words", {"The answer is red.": True, "It is blue.": False}),
    ],
)
def test_an_answer_is_read_by_the_kind_of_its_truth(truth, kind, readings):
    made = question(truth)
    assert made.kind == kind
    assert {text: read_answer(made, text) for text in readings} == readings


@pytest.mark.parametrize("options", [["a dog", "a cat", "a cow"], {"A": "a dog", "B": "a cat", "C": "a cow"}])
@pytest.mark.parametrize("answer", ["B", "a cat", "A cat."])
def test_options_are_a_list_or_by_letter_and_the_answer_is_a_letter_or_a_text(options, answer):
    made = question(answer, options=options)
    assert made.kind == "options" and made.accepted == ("B",)
    readings = {"B": True, "(b) a cat": True, "The answer is **C**.": False, "A cat.": True, "Not A.": None}
    assert {text: read_answer(made, text) for text in readings} == readings
    assert Vqa().ask(VqaTruth([made]))[0].question == "Which?\nA. a dog\nB. a cat\nC. a cow"


def test_several_answers_may_be_right():
    made = question("sofa", answers=["couch", "settee"])
    assert [read_answer(made, text) for text in ("A couch.", "It is a settee.", "A bench.")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("answer", "metadata", "message"),
    [
        ("a pig", {"options": ["a dog", "a cat"]}, "'a pig' is none of its options"),
        ("A", {"options": ["a dog"]}, "two to 26 texts"),
        ("A", {"options": "a dog, a cat"}, "two to 26 texts"),
        ("A", {"answers": "a dog"}, "metadata.answers must be a list of texts"),
    ],
)
def test_other_forms_are_refused_by_name(answer, metadata, message):
    with pytest.raises(InputError, match=f"sample 1: .*{message}"):
        question(answer, **metadata)


def write_data(folder: Path) -> Path:
    lines = []
    for number in range(8):
        Image.new("RGB", (56, 56), (30 * number, 0, 0)).save(folder / f"{number}.png")
        truth = {"answer": "yes"} if number < 6 else {"answer": "square"} if number == 6 else {}
        lines.append({"id": f"q{number}", "images": [f"{number}.png"], "question": "Is it red?", **truth})
    file = folder / "mine.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_answers_are_scored_by_kind_with_intervals_and_what_is_unread(tmp_path):
    data = write_data(tmp_path)
    answers = {f"q{number}": "Yes." if number < 3 else "No." for number in range(5)} | {"q6": "A box."}
    responses = tmp_path / "answers.jsonl"
    responses.write_text("".join(json.dumps({"id": k, "response": v}) + "\n" for k, v in answers.items()))
    done = run_in_process("score", "vqa", "--data", data, "--responses", responses, "--out", tmp_path / "out")
    assert done.code == 0, done.stderr
    metrics = json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]
    accuracy = metrics["accuracy"]
    assert (accuracy["value"], accuracy["n"], round(accuracy["coverage"], 3)) == (0.5, 6, round(6 / 7, 3))
    assert 0 < accuracy["low"] < 0.5 < accuracy["high"] < 1
    assert metrics["unread"]["value"] == 0 and metrics["unread"]["n"] == 6
    assert metrics["accuracy[kind=yes-no]"]["value"] == 0.6 and metrics["accuracy[kind=words]"]["value"] == 0
    lines = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    records = {record["id"]: record for record in map(json.loads, lines)}
    assert set(records) == {f"q{number}" for number in range(7)}  # q7 has no answer
    assert (metrics["left_out"]["value"], metrics["left_out"]["n"]) == (1 / 8, 8)
    assert "1 of 8" in done.stderr and "q7" in done.stderr and "left_out" in done.stdout
    assert records["q3"]["correct"] is False and records["q6"]["correct"] is False


def test_drawn_questions_whose_answer_is_a_sentence_are_counted_as_left_out(tmp_path):
    truth = BENCHMARKS["vqa"]().read(make_pairs(tmp_path, 2, 3))
    metrics, records = BENCHMARKS["vqa"]().score(truth, {})
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert truth.left_out and len(truth.left_out) + len(truth.questions) == len(lines)
    assert metrics["left_out"].value == len(truth.left_out) / len(lines) and len(records) == len(
        truth.questions
    )


def test_data_without_answers_are_refused_before_a_model_is_loaded(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"id": "a", "question": "Why?"}\n')
    done = run_in_process("bench", "vqa", "--model", "tiny-spd", "--data", file, "--out", tmp_path / "out")
    assert_fails(done, "no line has an `answer`, so nothing can be scored")


def test_a_judge_decides_what_rules_cannot(tmp_path):
    inspect_model = pytest.importorskip("inspect_ai.model", reason="the extra eval is not installed")
    asked = []

    def reply(messages, tools, tool_choice, config):
        asked.append(messages[-1].text)
        output = inspect_model.ModelOutput.from_content("mockllm/model", '{"correct": true}')
        output.usage = inspect_model.ModelUsage()  # else tokens are counted with tables from the network
        return output

    model = inspect_model.get_model("mockllm/model", custom_outputs=reply, memoize=False)
    benchmark = BENCHMARKS["vqa"]()
    questions = benchmark.read(write_data(tmp_path))
    answers = {"q0": "Yes.", "q1": "No.", "q6": "A box."}
    metrics, records = benchmark.score(questions, answers, ModelJudge(model, None))
    assert len(asked) == 1 and "A box." in asked[0] and "square" in asked[0]
    by_id = {record["id"]: record for record in records}
    assert [(by_id[name]["correct"], by_id[name]["by"]) for name in answers] == [
        (True, "rules"),
        (False, "rules"),
        (True, "judge"),
    ]
    assert metrics["unscored"].value == 0 and metrics["unread"].value == 0


def test_a_run_is_labelled_right_and_wrong(tmp_path):
    traces = {
        "right": {"answer": "yes"},
        "wrong": {"answer": "yes"},
        "unread": {"answer": "yes"},
        "known": {"answer": "yes", "faithful": False},
        "open": {},
    }
    said = {"right": "Yes.", "wrong": "No.", "unread": "Well.", "known": "Yes.", "open": "Yes."}
    run = write_run(
        tmp_path / "run", {k: v | PROMPT | {"steps/entropy": [1.0]} for k, v in traces.items()}, answer=said
    )
    assert label_answers(run) == 3
    labels = {name: mp.open_run(run.path).faithful(name) for name in run.ids}
    assert labels == {"right": True, "wrong": False, "unread": None, "known": False, "open": None}
    before = (run.path / "labels.jsonl").read_bytes()
    assert label_answers(mp.open_run(run.path)) == 0 and (run.path / "labels.jsonl").read_bytes() == before


@pytest.mark.slow
def test_the_command_labels_what_it_traced(tmp_path):
    """Samples of one's own by their answers, also after --resume; drawn ones against their scenes."""
    data, out = write_data(tmp_path), tmp_path / "run"
    options = ("--model", "tiny-spd", "--data", data, "--out", out, "--max-new-tokens", 4)
    assert run_in_process("trace", *options, "--limit", 8).code == 0
    run = mp.open_run(out)
    assert set(run.labels) == {f"q{number}" for number in range(7)}
    lines = (out / "labels.jsonl").read_text().splitlines()
    (out / "labels.jsonl").write_text("".join(line + "\n" for line in lines[:3]))
    assert run_in_process("trace", *options, "--resume").code == 0
    assert (out / "labels.jsonl").read_text().splitlines() == lines
    pairs = make_pairs(tmp_path / "pairs", 1, 0)
    done = run_in_process("trace", "--model", "tiny-spd", "--data", pairs, "--out", tmp_path / "drawn")
    assert done.code == 0
    run = mp.open_run(tmp_path / "drawn")
    assert set(run.labels) == set(run.ids) and None not in run.labels.values()
