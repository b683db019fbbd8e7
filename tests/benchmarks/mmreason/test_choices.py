"""Questions of real benchmarks without and with their options, and files of questions."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from mmprobe.benchmarks.answers.options import split_options
from mmprobe.benchmarks.core.benchmark import make_benchmark
from mmprobe.benchmarks.mmreason.benchmark import MMReason
from mmprobe.benchmarks.mmreason.choices import is_open_without_choices, to_choice_question, to_open_question
from mmprobe.benchmarks.mmreason.data import ReasonQuestion, is_correct, load_questions
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
    split = split_options(question)
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


@pytest.mark.parametrize(
    ("text", "answer", "true"),
    [
        ("What is x? (a) 5 (b) 7", "b", "7"),
        ("What is x? (a) 5 (b) 7", "(B)", "7"),
        ("What is x?\n1) five\n2) seven", "2", "seven"),
        ("What is x? [A] 5 [B] 7 [C] 8", "B", "7"),
        ("What is x? ① 5 ② 7", "②", "7"),
        ("What is x? ① 5 ② 7", "2", "7"),
        ("What is x? (A) 5 (B) 7", "7", "7"),  # the truth in words
        ("What is x? 1) 2 2) 7 3) 5", "2", None),  # the mark of one option and the text of another
        ("What is x? a- 5 b- 7", "b", None),  # options that are not recognised
        ("What is x? A 5 B 7", "(B)", None),
        ("Which numeral is right?", "②", None),
        ("(a) Find x. (b) Find y.", "x = 2, y = 3", "x = 2, y = 3"),  # parts of a question
        ("How many cats are there?", "3", "3"),
    ],
)
def test_options_in_every_form_are_recognised_or_the_question_is_left_out(text, answer, true, tmp_path):
    opened = to_open_question(question(question=text, answer=answer))
    assert (None if opened is None else opened.answer) == true
    lines = [question(question=text, answer=answer), question(id="plain")]
    file = tmp_path / "q.jsonl"
    file.write_text("".join(line.model_dump_json() + "\n" for line in lines))
    truth = MMReason().read(file)
    assert truth.left_out == ([] if true else ["q"])


def test_questions_with_their_options_are_lettered_anew():
    form = to_choice_question(question(question="What is x?\n1) five\n2) seven", answer="2"))
    assert (form.question, form.answer) == ("What is x?\nA. five\nB. seven", "B")
    from_field = to_choice_question(question(choices={"x": "5", "y": "7"}, answer="y"))
    assert (from_field.question, from_field.answer) == ("What is x?\nA. 5\nB. 7", "B")
    assert to_choice_question(question()) is None


def test_table_2_compares_the_same_questions_with_and_without_options(tmp_path):
    lines = [
        question(id="gain", question="What is x? (A) 5 (B) 7", answer="B"),
        question(id="same", question="What is y? (a) 5 (b) 8", answer="b"),
        question(id="unread", question="What is z? (A) 5 (B) 9", answer="B"),
        question(id="stuck", question="Which of the following is x? (A) 5 (B) 7", answer="B"),
        question(id="open"),
    ]
    file = tmp_path / "q.jsonl"
    file.write_text("".join(line.model_dump_json() + "\n" for line in lines))
    benchmark = make_benchmark("mmreason", {"with_choices": "true"})
    truth = benchmark.read(file)
    ids = [sample.id for sample in benchmark.ask(truth)]
    assert ids == ["gain", "same", "unread", "open", "gain--choices", "same--choices", "unread--choices"]
    asked = {sample.id: sample.question for sample in benchmark.ask(truth)}
    assert asked["same--choices"].startswith("What is y?\nA. 5\nB. 8\n\n")
    assert asked["same--choices"].endswith("and then the letter of one option.")
    assert asked["same"].startswith("What is y?\n\n") and asked["same"].endswith("the answer alone.")
    answers = {"gain": "The answer is 6", "gain--choices": "The answer is B", "open": "The answer is 7"}
    answers |= {"same": "The answer is 8", "same--choices": "(B)", "unread": "The answer is 9"}
    answers |= {"unread--choices": "A and B are both fine by me."}
    metrics, records = benchmark.score(truth, answers)
    assert metrics["s_final"].value == pytest.approx(3 / 4) and metrics["left_out"].value == 1 / 5
    assert (metrics["s_final_open"].value, metrics["s_final_open"].n) == (pytest.approx(2 / 3), 3)
    assert (metrics["s_final_choices"].value, metrics["s_final_choices"].n) == (pytest.approx(2 / 3), 3)
    assert (metrics["choices_gain"].value, metrics["choices_gain"].n) == (0.0, 3)
    assert (metrics["unread_choices"].value, metrics["unread_choices"].n) == (pytest.approx(1 / 3), 3)
    by_id = {record["id"]: record for record in records}
    assert by_id["gain"]["correct_choices"] is True and by_id["unread"]["correct_choices"] is None
    assert "choices" not in by_id["open"] and len(benchmark.take(truth, 1).choices) == 1
    plain, _ = MMReason().score(MMReason().read(file), {"gain": "The answer is 7"})
    assert "choices_gain" not in plain
    file.write_text(question().model_dump_json())
    with pytest.raises(InputError, match="open question"):
        benchmark.read(file)


@pytest.mark.parametrize(
    ("answer", "response", "right"),
    [
        ("12", "So the answer is 12.", True),
        ("12", "The answer is 13.", False),
        ("12", r"\boxed{12.0}", True),
        ("12 cm", "3 x 4\nThe answer is 12 cm", True),
        ("12", "So the answer is 12 cm.", True),
        ("12 cm", "The answer is 12 m", False),
        ("1/2", "Answer: 0.5", True),
        ("2x+3", "The answer is 3+2x.", True),
        ("2x+3", "The answer is 3x+2.", False),
        ("benzene", "It has six carbons.\nAnswer: Benzene.", True),
        ("benzene", "Answer: toluene", False),  # as "benzol" would be, which only a judge knows
        ("red", "Answer: blue", False),
        ("benzene", "It is toluene.", False),
        ("12", " ", False),
        ("12", "...", False),
        ("red", "The star is red.", True),
        ("red", "The star is not red.", False),
        ("12", "24 out of 60", False),
        ("The star is red.", "Picture one: red star B2.\nTherefore: The star is red.", True),
        ("Paris", "The answer is London. Paris", False),
        ("No", "There is no image attached, so I cannot answer.", False),
        ("2", "Please provide 2 images.", False),
    ],
)
def test_answers_by_rules(answer, response, right):
    assert is_correct(question(answer=answer), response) is right


def test_a_file_of_questions(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    good = question(solution=["one", "two"]).model_dump(mode="json") | {"images": ["a.png"]}
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps(good))
    assert load_questions(file)[0].solution == ["one", "two"]
    for change, message in [
        ({"discipline": ""}, "line 2: field 'discipline'"),
        ({"source": ""}, "line 2: field 'source'"),
        ({"choices": {"A": "x", "B": "y"}}, "line 2: 'answer' is '7'"),
        ({"solution": "one"}, "line 2: field 'solution'"),
    ]:
        file.write_text(json.dumps(good) + "\n" + json.dumps(good | {"id": "2"} | change))
        with pytest.raises(InputError, match=message):
            load_questions(file)


@pytest.mark.parametrize(
    ("text", "truth", "answer"),
    [
        ("How long is AB? (i) 2 cm (ii) 3 cm (iii) 4 cm", "ii", "3 cm"),
        ("How long is AB?\ni. 2 cm\nii. 3 cm", "(ii)", "3 cm"),
        ("How long is AB? (I) 2 cm (II) 3 cm", "II", "3 cm"),
        ("How long is AB? 1. 2 cm 2. 3 cm 3. 4 cm", "2", "3 cm"),
        ("AB is (1) long and (2) straight. How long? (i) 2 cm (ii) 3 cm", "ii", "3 cm"),
        ("1. Draw a line. 2. Halve it. How many halves are there?", "2", "2"),  # steps of a task
        ("How long is the side in (3)?", "ii", None),  # its options are nowhere: not asked
        ("How long is AB?", "(iv)", None),
        ("What is the square root of -1?", "2i", "2i"),
    ],
)
def test_roman_and_listed_options(text, truth, answer):
    asked = to_open_question(question(question=text, answer=truth))
    assert (asked and asked.answer) == answer
