"""Answers as models of 2025 and 2026 write them are read as a careful person reads them, and headline numbers as the field counts."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from mmprobe.benchmarks.answers.labelled import WrittenAnswer, load_labelled
from mmprobe.benchmarks.chair.benchmark import Chair
from mmprobe.benchmarks.core.benchmark import make_benchmark
from mmprobe.benchmarks.core.questions import make_question
from mmprobe.benchmarks.core.results import accuracy_metrics, with_ids
from mmprobe.benchmarks.judges.card import read_by_rules
from mmprobe.benchmarks.pope.benchmark import Pope
from mmprobe.benchmarks.vqa.benchmark import Vqa, VqaTruth
from mmprobe.samples import Sample
from mmprobe.thoughts import said

UNSEEN = Path(__file__).with_name("unseen")
REAL = Path(__file__).with_name("real_model.jsonl")


def outcome(answer: WrittenAnswer) -> str:
    said = read_by_rules(answer)
    return "same" if said == answer.verdict else "unread" if said == "unread" else "against"


def test_nearly_all_are_read_as_a_careful_person_reads_them():
    answers = load_labelled()
    outcomes = {each.id: outcome(each) for each in answers}
    against = [(each.id, each.response) for each in answers if outcomes[each.id] == "against"]
    same = Counter(outcomes.values())["same"]
    assert len(answers) >= 600 and same >= 0.95 * len(answers), Counter(outcomes.values())
    assert len(against) <= 0.01 * len(answers), against


# What is read as a person reads it, and against her, now; docs/readers.md says what each list gave first. No rule was made from list 16.
FLOORS = {
    "6": (0.96, 0.03),
    "7": (0.99, 0.0),
    "8": (0.97, 0.01),
    "9": (0.91, 0.03),
    "10": (0.96, 0.016),
    "11": (0.96, 0.016),
    "12": (0.97, 0.01),
    "13": (0.97, 0.015),
    "14": (0.98, 0.011),
    "15": (0.96, 0.016),
    "16": (0.96, 0.005),
}


@pytest.mark.parametrize("name", FLOORS)
def test_lists_that_stay_out_of_the_shipped_file_are_read_no_worse(name):
    answers = load_labelled(UNSEEN / f"{name}.jsonl")
    outcomes = Counter(map(outcome, answers))
    same, against = FLOORS[name]
    assert outcomes["same"] >= same * len(answers) and outcomes["against"] <= against * len(answers), outcomes


def test_every_list_has_a_floor():
    assert {file.stem for file in UNSEEN.glob("*.jsonl")} == set(FLOORS)


def test_no_kind_of_answer_is_left_out():
    kinds: dict[str, list[bool]] = {}
    for each in load_labelled():
        kinds.setdefault(each.kind, []).append(outcome(each) == "same")
    for kind, same in kinds.items():
        assert sum(same) >= 0.9 * len(same), kind


def test_the_accuracy_of_a_real_model_is_what_reading_its_answers_by_hand_gives():
    """140 answers of a trained language model, each read by a person."""
    lines = [json.loads(line) for line in REAL.read_text(encoding="utf-8").splitlines()]
    questions = [
        make_question(Sample(id=line["id"], question=line["question"], answer=line["truth"]))
        for line in lines
    ]
    metrics, records = Vqa().score(VqaTruth(questions), {line["id"]: line["response"] for line in lines})
    by_hand = [line["right"] for line in lines]
    assert [record["correct"] for record in records] == by_hand
    assert metrics["accuracy"].value == sum(by_hand) / 140 and metrics["accuracy"].n == 140


def read_as_vlmevalkit(text: str) -> str:
    """VLMEvalKit's rule for yes and no (`YOrN_Extraction`): the words of the answer hold one of them and not the other."""
    words = re.sub(r"[^\w\s]", " ", text.lower()).split()
    return (
        "Yes"
        if "yes" in words and "no" not in words
        else "No"
        if "no" in words and "yes" not in words
        else "Unknown"
    )


def test_pope_equals_vlmevalkit_where_all_answers_are_read_and_where_not():
    answers = [
        "Yes, there is a dog.",
        "No.",
        "Yes",
        "No, there is not.",
        "yes",
        "I am not sure.",
        "No",
        "Yes, two.",
    ]
    labels = ["yes", "no", "no", "yes", "yes", "yes", "no", "yes"]
    samples = [Sample(id=str(i), question="Is there a dog?", answer=label) for i, label in enumerate(labels)]
    metrics, _ = Pope().score(samples, {str(i): answer for i, answer in enumerate(answers)})
    theirs = [read_as_vlmevalkit(answer).lower() for answer in answers]
    assert metrics["accuracy"].value == sum(map(str.__eq__, theirs, labels)) / len(labels)
    known = [(one, other) for one, other in zip(theirs, labels, strict=True) if one != "unknown"]
    assert metrics["accuracy[read]"].value == sum(one == other for one, other in known) / len(known)


@pytest.mark.parametrize("profile", ["own", "code"])
def test_thoughts_are_no_part_of_an_answer_in_any_profile(profile):
    texts = ["<think>Is there no dog?</think>Yes", "No, wait. There is.</think>\nYes.", "<answer>Yes</answer>",
             "<|begin_of_box|>Yes<|end_of_box|>"]  # fmt: skip
    samples = [Sample(id=str(i), question="Is there a dog?", answer="yes") for i in range(len(texts))]
    pope = make_benchmark("pope", {"profile": profile})
    metrics, _ = pope.score(samples, {str(i): text for i, text in enumerate(texts)})
    assert metrics["accuracy"].value == 1 and metrics["unread"].value == 0


def test_a_thought_names_no_objects_in_chair(tmp_path):
    truth = Chair().read(Chair().draw(tmp_path, 2, 0))
    plain = {sample.id: "A dog." for sample in Chair().ask(truth)}
    thinking = {name: f"<think>A cat? A car? A bus?</think>{text}" for name, text in plain.items()}
    ours, theirs = (Chair().score(truth, answers)[0] for answers in (plain, thinking))
    assert {name: each.value for name, each in ours.items()} == {
        name: each.value for name, each in theirs.items()
    }


def test_nothing_is_said_where_a_thought_was_cut_off():
    question = make_question(Sample(id="a", question="Is there a dog?", answer="yes"))
    metrics, (record,) = Vqa().score(VqaTruth([question]), {"a": "<think>Yes, there is"})
    assert said("<think>Yes, there is") == "" and record["correct"] is None
    assert (metrics["accuracy"].value, metrics["accuracy"].bounds) == (0, (0, 1))


def test_two_methods_are_compared_on_the_same_questions():
    """The second method reads better and is worse: by what was read alone, it would seem better."""
    from mmprobe.benchmarks.core.compare import make_dataset, markdown

    plain = with_ids(accuracy_metrics("accuracy", [True, True, None, False]), "abcd")
    other = with_ids(accuracy_metrics("accuracy", [True, None, None, None]), "abcd")
    ds = make_dataset({("plain", "vqa"): plain, ("sage", "vqa"): other}, ["plain", "sage"], ["vqa"])
    row = ds.sel(metric="vqa accuracy", contender="sage")
    assert (float(row.value), float(row.difference), int(row.n_paired), int(row.n_unread)) == (
        0.25,
        -0.25,
        4,
        3,
    )
    assert "0.500 (n = 4, 1 unread)" in markdown(ds) and "n = 4, 3 unread" in markdown(ds)
    read_alone = ds.sel(metric="vqa accuracy[read]", contender="sage")
    assert (float(read_alone.value_paired), float(read_alone.baseline_paired), int(read_alone.n_paired)) == (
        1,
        1,
        1,
    )
