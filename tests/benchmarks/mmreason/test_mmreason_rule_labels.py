"""Labels of steps by rules: in the true solution, contradicted by it, or neither."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.answers.texts import split_sentences
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
        ("The star changed from orange to green.", "incorrect"),
        ("The star was removed.", "unverifiable"),
        ("There are no differences.", "incorrect"),
        ("There are 3 differences.", "incorrect"),
        ("The angle ABC is 0.5 of 60.0 degrees.", "correct"),
    ],
)
def test_labels_of_steps(step, label):
    assert label_steps(step, SOLUTION) == [(step, label)]


@pytest.mark.parametrize(
    "step",
    [
        "The star did not change.",
        "There isn't 1 difference.",
        "The angle ABC is 61 degrees.",
        "3 x 4 = 12",
        "Well!",
    ],
)
def test_a_response_with_other_prose_is_unread(step):
    assert label_steps(f"Picture one: red circle B2, orange star C3.\n{step}", SOLUTION) is None


def test_the_steps_of_a_response_in_order():
    response = "Picture one: red circle B2, orange star C3.\n\nTherefore: The star changed from red to blue."
    assert [label for _, label in label_steps(response, SOLUTION)] == [
        "correct",
        "incorrect",
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
        assert label_steps(text, SOLUTION) in (None, [])
