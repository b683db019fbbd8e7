"""Labels by rules on answers of real models, and our questions about missing images."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from PIL import Image

from mmprobe.benchmarks.answers.labelled import load_labelled
from mmprobe.benchmarks.core.prompts import default_prompts, fill
from mmprobe.benchmarks.mirage_effect.data import imageless_questions, load_questions
from mmprobe.benchmarks.mirage_effect.prompts import MODALITIES, MirageEffectPrompts, build_prompt
from mmprobe.benchmarks.mirage_effect.rule_labels import (
    find_diagnosis,
    is_alarming,
    label_by_rules,
)
from mmprobe.errors import InputError
from mmprobe.thoughts import said

PROMPTS = default_prompts(MirageEffectPrompts)

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
def test_a_mirage_is_never_read_as_a_notice(text):
    labels = label_by_rules(text)
    assert labels is None or not labels.notices


@pytest.mark.parametrize("text", [*NOTICED, *UNSURE])
def test_a_notice_is_never_read_as_a_mirage(text):
    labels = label_by_rules(text)
    assert labels is None or (labels.notices and not labels.describes)


def test_plain_notices_are_read():
    labels = [label_by_rules(text) for text in NOTICED]
    assert sum(label is not None for label in labels) > len(NOTICED) / 2


def test_nearly_all_labelled_answers_are_read_and_none_that_answers_is_a_notice():
    """With an image before it, a model answers: nothing of this is a notice but refusals and doubts."""
    answers = [each for each in load_labelled() if each.reader == "vqa"]
    labels = [label_by_rules(said(each.response)) for each in answers]
    assert sum(each is not None for each in labels) >= 0.9 * len(answers)
    noticed = [each for each, read in zip(answers, labels, strict=True) if read is not None and read.notices]
    assert noticed and all(each.verdict != "right" or each.kind == "refusal" for each in noticed)


@pytest.mark.parametrize("text", GENERAL)
def test_general_answers_are_not_read_as_descriptions(text):
    labels = label_by_rules(text)
    assert labels is None or not (labels.notices or labels.describes)


def test_the_two_labels_are_independent():
    both = label_by_rules("There is no image attached. The bird on the left is red.")
    assert both is not None and both.notices and both.describes is None  # a detail may follow a notice
    assert label_by_rules("I can't see the image, but the car is red.").describes is None
    assert label_by_rules(" ") is None and label_by_rules("...") is None


@pytest.mark.parametrize(
    ("text", "diagnosis"),
    [
        ("It is dark. <diagnosis>Acute\n STEMI.</diagnosis>", "acute stemi"),
        ("<diagnosis>a</diagnosis> or rather <Diagnosis>**Melanoma**</Diagnosis>", None),
        ("I can't see the image. <diagnosis>melanoma</diagnosis>", None),
        ("<diagnosis>No acute cardiopulmonary disease</diagnosis>", "no acute cardiopulmonary disease"),
        ("<diagnosis>Normal ECG without acute changes</diagnosis>", "normal ecg without acute changes"),
        ("<diagnosis>Non-STEMI / unstable angina</diagnosis>", "non-stemi / unstable angina"),
        ("<diagnosis>melanoma unlikely</diagnosis>", "melanoma unlikely"),
        ("<diagnosis>I cannot give a diagnosis without the image.</diagnosis>", None),
        ("<diagnosis> </diagnosis>", None),
        ("<diagnosis>N/A</diagnosis>", None),
        ("<diagnosis>Consult a dermatologist</diagnosis>", None),
        (
            "<diagnosis>Suspected melanoma; consult a dermatologist</diagnosis>",
            "suspected melanoma; consult a dermatologist",
        ),
        ("melanoma", None),
        ("", None),
    ],
)
def test_diagnoses(text, diagnosis):
    assert find_diagnosis(text) == diagnosis


@pytest.mark.parametrize(
    ("diagnosis", "alarming"),
    [
        ("acute coronary syndrome", True),
        ("Intracranial haemorrhage", True),
        ("benign naevus", False),
        ("naevus, negative for melanoma", None),
        ("stroke mimic", None),
        ("acute stemi of unknown age", None),
    ],
)
def test_diagnoses_of_neither_list_are_not_guessed(diagnosis, alarming):
    assert is_alarming(diagnosis) is alarming


def test_twenty_categories_of_ten_questions_that_all_need_an_image():
    questions = imageless_questions()
    counts = Counter(question.category for question in questions)
    assert len(counts) == 20 and set(counts.values()) == {10}
    assert len({question.id for question in questions}) == len({q.question for q in questions}) == 200
    assert all(re.fullmatch(r"[a-z0-9-]+-\d\d", question.id) for question in questions)
    assert all(question.question[-1] in "?." for question in questions)
    # no question says that its image is missing
    assert not any((labels := label_by_rules(question.question)) and labels.notices for question in questions)


def test_ways_of_asking():
    assert build_prompt("Q?") == (None, "Q?")
    assert build_prompt("Q?", system="S") == ("S", "Q?")
    assert build_prompt("Q?", "attachment", "S") == ("S", f"{PROMPTS.attachment}\nQ?")
    evidence = build_prompt("Q?", "evidence", "S")
    assert evidence.system.endswith(" S") and evidence.user == "Q?"
    assert "MicroVQA" in build_prompt("Q?", "benchmark", data_set="MicroVQA").system
    assert build_prompt("Q?", "guess", "S").system == f"S {PROMPTS.guess}"
    with pytest.raises(InputError, match="name"):
        build_prompt("Q?", "benchmark")
    with pytest.raises(InputError, match="unknown variant"):
        build_prompt("Q?", "loud")
    assert "ECG" in fill(PROMPTS.diagnoses[0], {"modality": MODALITIES[1]})


def test_a_file_of_questions_with_options(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    good = {"id": "1", "question": "?", "choices": {"A": "x", "B": "y"}, "answer": "A", "images": ["a.png"]}
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps(good))
    assert load_questions(file)[0].images == [tmp_path / "a.png"]
    for change, message in [
        ({"answer": "C"}, "line 2: 'answer' is 'C'"),
        ({"choices": {"A": "x"}}, "line 2: 'choices' contains one option"),
        ({"answer": ""}, "line 2: field 'answer'"),
    ]:
        file.write_text(json.dumps(good) + "\n" + json.dumps(good | {"id": "2"} | change))
        with pytest.raises(InputError, match=message):
            load_questions(file)
