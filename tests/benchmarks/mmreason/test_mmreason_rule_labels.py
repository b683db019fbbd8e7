"""Labels of steps by rules: in the true solution, contradicted by it, or neither."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.answers.facts import split_sentences
from mmprobe.benchmarks.mmreason.rule_labels import label_steps

SOLUTION = [
    "Picture one: red circle B2, orange star C3.",
    "Picture two: red circle B2, blue star C3.",
    "The star changed from orange to blue.",
    "There is 1 difference. The angle ABC is 1/2 of 60 degrees.",
]


@pytest.mark.parametrize(
    ("step", "label"),
    [
        ("Picture one: red circle B2, orange star C3.", "correct"),
        ("picture one: orange star C3", "correct"),  # only a part, but all of it is true
        ("Picture one: red circle B2, blue star C3.", "incorrect"),  # this is picture two
        ("Picture one: red circle B2, green heart A1.", "unverifiable"),
        ("Picture one: red circle D4, green heart A1.", "incorrect"),
        ("Therefore: The star changed from orange to blue.", "correct"),
        ("2. **So** the star changed from orange to green.", "incorrect"),
        ("The star did not change.", "unverifiable"),
        ("The star was removed.", "unverifiable"),
        ("There is one difference.", "correct"),
        ("There are no differences.", "incorrect"),
        ("There are 3 differences.", "incorrect"),
        ("There isn't 1 difference.", "unverifiable"),
        ("The angle ABC is 0.5 of 60.0 degrees.", "correct"),
        ("The angle ABC is not 1/2 of 60 degrees.", "incorrect"),
        ("3 x 4 = 12", "unverifiable"),
    ],
)
def test_labels_of_steps(step, label):
    assert label_steps(step, SOLUTION) == [(step, label)]


def test_formulas_alone_contradict_nothing():
    assert label_steps("2 x 5 = 10", ["3 x 4 = 12"]) == [("2 x 5 = 10", "unverifiable")]
    assert label_steps("3 x 4 = 12", ["3 x 4 = 12"]) == [("3 x 4 = 12", "correct")]


def test_the_steps_of_a_response_in_order():
    response = "Picture one: red circle B2, orange star C3.\nWell!\n\nTherefore: The star changed from red to blue. Done"
    assert [label for _, label in label_steps(response, SOLUTION)] == [
        "correct",
        "unverifiable",
        "incorrect",
        "unverifiable",
    ]
    assert [text for text, _ in label_steps(response, SOLUTION)] == split_sentences(response)


@pytest.mark.parametrize("response", ["", "...", "\n \n", "!?", ". : , ;"])
def test_texts_without_words_have_no_steps(response):
    assert label_steps(response, SOLUTION) == []


def test_long_answers_are_labelled_quickly():
    for text in (
        "no " * 20_000,
        "Picture two:" + ":.:" * 20_000,
        "a, " * 20_000,
        "-" * 50_000,
        "Picture one: " * 9_000,
    ):
        assert isinstance(label_steps(text, SOLUTION), list)
