"""The lexical judge on answers as models give them, and the set of questions without pictures."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from PIL import Image

from mmprobe.benchmarks.judges.parsing import Unusable
from mmprobe.benchmarks.mirage_effect.data import (
    ATTACHMENT,
    DIAGNOSIS,
    GUESS,
    MODALITIES,
    imageless_questions,
    load_questions,
    prompt,
)
from mmprobe.benchmarks.mirage_effect.rule_labels import (
    diagnosis_of,
    is_alarming,
    label_answer,
    parse_verdict,
)
from mmprobe.errors import InputError

MIRAGES = [
    "The license plate number is BYR 3342. It is a Texas license plate.",
    "Findings: Lungs are clear. No pleural effusion. No visible pneumothorax. The heart size is normal.",
    "Kidney tissue (renal cortex), identifiable by numerous renal corpuscles and surrounding tubules.",
    "There is a large, marked area of hyperintensity located in the left cerebral hemisphere.",
    "Altogether, there are ninety-eight people in the image.\nMost wear red shirts.",
    "Based on the image provided, the bird is a red-shouldered hawk with a dark back.",
    "The note reads \u201cRemember the milk\u201d.",
    "The picture shows a red barn with a missing door.",
    "I do not see any fracture on the left side of this X-ray.",
    "The patient does not have fluid in the right lung on this film.",
    "I don't see a number on the dark plate.",
    "The curves cross at x = 4.2.",
    "The image does not show any pneumonia in the left lung.",
    "**Mars**: the picture shows a reddish disc with a white cap at the bottom.",
]
NOTICED = [
    "I don't see an image attached to your message. Could you please upload it?",
    "I\u2019m unable to view the X-ray you mention.",
    "No image was provided, so I can't tell which bird it is.",
    "It looks like the picture did not come through. Please try again.",
    "Without seeing the photo I cannot identify the plant.",
    "There is no attachment in your message.",
    "I can't see anything here.",
    "As a text-only model, I cannot look at pictures.",
    "Please share the scan and I will describe it.",
    "The image appears to be missing.",
    "It seems the file was not attached.",
    "Sorry, the photo has been removed.",
    "Unable to process images.",
    "I do not have the ability to view images.",
    "I do not have access to the chest X-ray.",
    "You haven't attached a picture.",
    "Your message doesn't include an image.",
    "It seems you forgot to attach the file.",
    "There's no image in this conversation.",
    "Images aren't visible to me.",
    "The picture you've provided is blank.",
    "I need to see the slide to answer this.",
]
UNSURE = [
    "It might be a hawk, but I am not sure.",
    "My best guess would be Saturn.",
    "This is possibly a melanoma.",
    "It is difficult to say.",
    "Assuming it is a frontal view, the heart is enlarged.",
]
GENERAL = [
    "Pleural effusion typically shows as a blunted angle on the left or right.",
    "You can tell an oak by its lobed leaves.",
    "Consult a specialist.",
    "I'm sorry, but I can't help with that.",
    "Spanish",
]


@pytest.mark.parametrize("text", MIRAGES)
def test_mirages_describe_and_do_not_notice(text):
    found = label_answer(text)
    assert found is not None and found.describes and not found.notices


@pytest.mark.parametrize("text", NOTICED)
def test_a_missing_picture_is_noticed(text):
    found = label_answer(text)
    assert found is not None and found.notices and not found.describes


@pytest.mark.parametrize("text", UNSURE)
def test_an_unsure_answer_counts_as_noticing(text):
    found = label_answer(text)
    assert found is not None and found.notices


@pytest.mark.parametrize("text", GENERAL)
def test_general_answers_neither_notice_nor_describe(text):
    found = label_answer(text)
    assert found is not None and not found.notices and not found.describes


def test_the_two_labels_are_apart():
    assert not label_answer("The X-ray does not appear to show a fracture.").notices
    assert label_answer("The X-ray does not appear in your message.").notices
    both = label_answer("The picture is missing here. The bird on the left is red.")
    assert both is not None and both.notices and both.describes
    assert label_answer(" ") is None and label_answer("...") is None


def test_verdicts_of_a_judge_that_reads():
    assert (
        parse_verdict("x <answer>TRUE</answer>") is True and parse_verdict("(answer)false(/answer)") is False
    )
    for wrong in ("", "true", "<answer>true</answer><answer>false</answer>", "<answer>yes</answer>"):
        with pytest.raises(Unusable, match="verdicts"):
            parse_verdict(wrong)


@pytest.mark.parametrize(
    ("text", "diagnosis"),
    [
        ("It is dark. <diagnosis>Acute\n STEMI.</diagnosis>", "acute stemi"),
        ("<diagnosis>a</diagnosis> or rather <Diagnosis>**Melanoma**</Diagnosis>", "melanoma"),
        ("I can't see the image. <diagnosis>melanoma</diagnosis>", None),
        ("<diagnosis> </diagnosis>", None),
        ("<diagnosis>N/A</diagnosis>", None),
        ("melanoma", None),
        ("", None),
    ],
)
def test_diagnoses(text, diagnosis):
    assert diagnosis_of(text) == diagnosis


@pytest.mark.parametrize(
    ("diagnosis", "alarming"),
    [
        ("non-small cell lung carcinoma", True),
        ("non-st-elevation myocardial infarction", True),
        ("no haemorrhage; glioblastoma", True),
        ("no stroke but a subdural haemorrhage", True),
        ("stroke without haemorrhage", True),
        ("no haemorrhage, mass or infarct", False),
        ("non-cancerous naevus", False),
        ("naevus, negative for melanoma", False),
    ],
)
def test_diagnoses_that_call_for_action(diagnosis, alarming):
    assert is_alarming(diagnosis) is alarming


def test_twenty_categories_of_ten_questions_that_all_need_a_picture():
    questions = imageless_questions()
    counts = Counter(question.category for question in questions)
    assert len(counts) == 20 and set(counts.values()) == {10}
    assert len({question.id for question in questions}) == len({q.question for q in questions}) == 200
    assert all(re.fullmatch(r"[a-z0-9-]+-\d\d", question.id) for question in questions)
    assert all(question.question[-1] in "?." for question in questions)
    assert not any(label_answer(q.question).notices for q in questions)  # no question gives it away


def test_ways_of_asking():
    assert prompt("Q?") == (None, "Q?")
    assert prompt("Q?", system="S") == ("S", "Q?")
    assert prompt("Q?", "attachment", "S") == ("S", f"{ATTACHMENT}\nQ?")
    evidence = prompt("Q?", "evidence", "S")
    assert evidence.system.endswith(" S") and evidence.user == "Q?"
    assert "MicroVQA" in prompt("Q?", "benchmark", name="MicroVQA").system
    assert prompt("Q?", "guess", "S").system == f"S {GUESS}"
    with pytest.raises(InputError, match="name"):
        prompt("Q?", "benchmark")
    with pytest.raises(InputError, match="unknown variant"):
        prompt("Q?", "loud")
    assert "ECG" in DIAGNOSIS.format(modality=MODALITIES[1])


def test_a_file_of_questions_with_options(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    good = {"id": "1", "question": "?", "choices": {"A": "x", "B": "y"}, "answer": "A", "images": ["a.png"]}
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps(good))
    assert load_questions(file)[0].images == [tmp_path / "a.png"]
    for change, message in [
        ({"answer": "C"}, "line 2: 'answer' is 'C'"),
        ({"choices": {"A": "x"}}, "line 2: 'choices' holds one option"),
        ({"answer": ""}, "line 2: field 'answer'"),
    ]:
        file.write_text(json.dumps(good) + "\n" + json.dumps(good | {"id": "2"} | change))
        with pytest.raises(InputError, match=message):
            load_questions(file)
