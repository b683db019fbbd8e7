"""Removal of options from questions of real benchmarks, and files of questions."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from mmprobe.benchmarks.answers.final_answers import find_answer
from mmprobe.benchmarks.mmreason.choice_removal import is_open_without_choices, option_text, remove_choices
from mmprobe.benchmarks.mmreason.data import ReasonQuestion, is_correct, load_questions, to_open_question
from mmprobe.errors import InputError


@pytest.mark.parametrize(
    ("question", "text", "choices"),
    [
        (
            "Find the perimeter of trapezoid PQRS. Choices: A: 38, B: 38+6; C: 40 D: 41",
            "Find the perimeter of trapezoid PQRS.",
            {"A": "38", "B": "38+6", "C": "40", "D": "41"},
        ),
        (
            "The degree of \u2220CAB is ( )\nChoices:\n(A) 26\u00b0 (B) 74\u00b0\n(C) 64\u00b0 (D) 54\u00b0",
            "The degree of \u2220CAB is",
            {"A": "26\u00b0", "B": "74\u00b0", "C": "64\u00b0", "D": "54\u00b0"},
        ),
        (
            "What is x?\nA. 1\nB. 2\n\nPlease answer with the option's letter.",
            "What is x?",
            {"A": "1", "B": "2"},
        ),
        ("What is x? A) 1 B) 2 Please choose the correct option.", "What is x?", {"A": "1", "B": "2"}),
        (
            "What is x?\nA. a cat\nB. a dog.\nAnswer with the option's letter from the given choices directly.",
            "What is x?",
            {"A": "a cat", "B": "a dog."},
        ),
        ("In triangle ABC, how long is A B?", "In triangle ABC, how long is A B?", {}),
        ("Point (A) lies left of (C). What is d? (A) 1 (B) 2", "Point (A) lies left of (C). What is d?", {"A": "1", "B": "2"}),
        ("Select the correct option. What is d? A) 1 B) 2 C) 3", "What is d?", {"A": "1", "B": "2", "C": "3"}),
        ("The sum is ____. Options: A. 5 B. 6", "The sum is", {"A": "5", "B": "6"}),
        ("Give the value of the put option. A. 5 B. 6", "Give the value of the put option.", {"A": "5", "B": "6"}),
        ("Name it. (A) only", "Name it. (A) only", {}),
        ("", "", {}),
    ],
)  # fmt: skip
def test_options_are_removed(question, text, choices):
    split = remove_choices(question)
    assert split.question == text and split.choices == choices


@pytest.mark.parametrize(
    ("question", "choices", "is_open"),
    [
        ("How long is AB?", {"A": "2 cm", "B": "3 cm"}, True),
        ("Which of the following is true?", {"A": "x", "B": "y"}, False),
        ("Which statement is correct?", {"A": "x", "B": "y"}, False),
        ("What is it?", {"A": "a cat", "B": "None of the above"}, False),
        ("What is it?", {"A": "Cat", "B": "cat "}, False),
        ("What is it?", {"A": "cat", "B": ""}, False),
        ("What is it?", {"B": "cat", "C": "dog"}, False),
    ],
)
def test_questions_that_are_open_without_choices(question, choices, is_open):
    assert is_open_without_choices(question, choices, "A") is is_open


def question(**fields: object) -> ReasonQuestion:
    base = {"id": "q", "question": "What is x?", "answer": "7", "discipline": "math", "source": "own"}
    return ReasonQuestion.model_validate(base | fields)


def test_questions_become_open():
    plain = question()
    assert to_open_question(plain) is plain
    with_choices = to_open_question(question(choices={"A": "5", "B": "7"}, answer="B"))
    assert (with_choices.question, with_choices.answer, with_choices.choices) == ("What is x?", "7", {})
    with_choices_in_text = to_open_question(question(question="What is x? (A) 5 (B) 7", answer="A"))
    assert (with_choices_in_text.question, with_choices_in_text.answer) == ("What is x?", "5")
    assert (
        to_open_question(
            question(question="Which of these is right?", choices={"A": "5", "B": "7"}, answer="B")
        )
        is None
    )
    assert option_text({"A": "x"}, "7") == "7"


@pytest.mark.parametrize(
    ("answer", "response", "right"),
    [
        ("12", "So the answer is 12 cm.", True),
        ("12", "The answer is 13.", False),
        ("12", r"\boxed{12.0}", True),
        ("12 cm", "3 x 4\nThe answer is 12 cm", True),
        ("12 cm", "The answer is 12 m", False),
        ("1/2", "Answer: 0.5", True),
        ("benzene", "It has six carbons.\nBenzene.", True),
        ("benzene", "It is toluene.", False),
        ("12", " ", False),
        ("12", "...", False),
        ("red", "I look.\nThe star is red.", True),
        ("red", "The star is not red.", False),
        ("12 cm", "Therefore: 12 cm", True),
        ("12 cm", "2 cm + 10 cm = 12 cm", True),
        ("The star is red.", "I look. It is bright.\n**So**, the star is red", True),
        ("Paris", "The answer is London. Paris", False),
        ("2:3", "The ratio is 2:3.", True),
        ("3", "Total:3", True),
    ],
)
def test_answers_by_rules(answer, response, right):
    assert is_correct(question(answer=answer), response) is right


def test_responses_without_an_answer():
    assert find_answer(" \n...\n") is None and find_answer("I cannot tell") == "I cannot tell"


def test_a_file_of_questions(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    good = question(solution=["one", "two"]).model_dump(mode="json") | {"images": ["a.png"]}
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps(good))
    assert load_questions(file)[0].solution == ["one", "two"]
    for change, message in [
        ({"discipline": "cooking"}, "line 2: field 'discipline'"),
        ({"source": ""}, "line 2: field 'source'"),
        ({"choices": {"A": "x", "B": "y"}}, "line 2: 'answer' is '7'"),
        ({"solution": "one"}, "line 2: field 'solution'"),
    ]:
        file.write_text(json.dumps(good) + "\n" + json.dumps(good | {"id": "2"} | change))
        with pytest.raises(InputError, match=message):
            load_questions(file)
