"""Declared forms: every line of the table, and answers as real models write them."""

from __future__ import annotations

import time

import pytest
from helpers.slow import first_fast

from mmprobe.benchmarks.answers.claims import parse_count, read_claims
from mmprobe.benchmarks.answers.forms import FORMS, decide, find_answer
from mmprobe.benchmarks.answers.numbers import read_number
from mmprobe.benchmarks.answers.options import read_choice
from mmprobe.benchmarks.answers.verdicts import judge_text
from mmprobe.benchmarks.answers.yes_no import read_yes_no

ANGLES = {"A": "30°", "B": "60°", "C": "120°", "D": "150°"}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.kind}: {form.example}")
def test_each_form_of_the_table_declares_what_its_example_says(form):
    assert find_answer(form.example).text == form.declares


@pytest.mark.parametrize(
    "text",
    ["There's no change: the dog is missing in both.",
     "The two images appear to be identical except for the dog.",
     "In the first image, the chair is brown, while in the second image, the table is white.",
     "In the first image, there is a clock, but in the second image, the cat is missing."],
)  # fmt: skip
def test_differences_that_nobody_stated_are_unread(text):
    reading = read_claims(text)
    assert not reading.claims and not reading.nothing and parse_count(text) is None


@pytest.mark.parametrize(
    "text",
    ["The tree next to the oak is a pine.", "The tree is not a pine.", "The tree could be a pine.", "It is a pine or a birch.",
     "C. Pine. B. Maple.", "B. Pine", "B: the pine is tall", "The least likely option is C.",
     "The most likely distractor is C.", "The wrong option is C.", "C is the least likely.", "The second best option is C.",
     "C is less likely than D.", "C is unlikely.", "C would be a mistake.", "Point C is on the line.",
     "选项C是错误的。", "<CONCLUSION> It is not option C. </CONCLUSION>",
     "The best option is: A. Oak or C. Pine", "C. The pine is not shown."],
)  # fmt: skip
def test_options_beside_the_new_forms_are_unread(text):
    assert read_choice(text, {"A": "Oak", "B": "Maple", "C": "Pine", "D": "Birch"})[0] is None


@pytest.mark.parametrize(
    ("text", "question", "letter"),
    [("C. Pine is incorrect, so it must be D.", "", "D"), ("The best known tree is C.", "Which tree is best known?", "C"),
     ("The most plausible option is C.", "", "C"), ("There is no doubt that it is C.", "", "C"),
     ("The least common tree is C.", "Which of them is the least common tree?", "C")],
)  # fmt: skip
def test_what_the_question_asks_for_is_chosen(text, question, letter):
    options = {"A": "Oak", "B": "Maple", "C": "Pine", "D": "Birch"}
    assert read_choice(text, options, question=question)[0] == letter


@pytest.mark.parametrize(
    "text",
    ["(C) because the angles add up to 180°.", "C\n\nThe two angles lie on a line, so they add up to 180°.", "答案：C",
     "<CONCLUSION> C", "<answer>\\boxed{C}</answer>", "So the answer is **C** (120°).", "It is 120°, which corresponds to choice **C**.",
     "So the answer is 120 degrees. The answer is C.", 'Sure! {"answer": "C", "why": "180 - 60"} Is that fine?',
     "First I took the answer to be D. But I missed the second angle at the top. The answer is C.",
     "Answer: D\nWait, I read the wrong label in the figure, so I start again.\nAnswer: C"],
)  # fmt: skip
def test_choices_of_real_models_are_read(text):
    assert read_choice(text, ANGLES) == ("C", False)


@pytest.mark.parametrize(
    "text",
    ["Answer: A\nAnswer: C", "The answer is A. The answer is C.", "Option C is not correct.", "I doubt that option C is correct.",
     "A or C", "Option A or option C is correct.", "C is for circle.", "The answer is (A) 120°.", "I choose C. Wait, no.",
     '{"answer": "A"} or {"answer": "C"}', "A\n\nB\n\nC", "选项C不正确。"],
)  # fmt: skip
def test_choices_that_nobody_declared_are_unread(text):
    assert read_choice(text, ANGLES) == (None, False)


@pytest.mark.parametrize(
    ("text", "number"),
    [("Therefore, x = 24.", 24), ("<answer>\\boxed{24}</answer>", 24), ("<answer>24 cm</answer>", 24), ("x = 3, y = 4", None),
     ("The width is 3 cm and the length is 5 cm.", None), ("There are 5 of 7 cars.", 5), ("It is 3 to 5.", None),
     ("The area could be 24.", None), ("So the length of AB is 12 cm.", 12), ("There are at least 3 dogs.", None)],
)  # fmt: skip
def test_numbers_in_a_last_sentence(text, number):
    assert read_number(text) == number


@pytest.mark.parametrize(
    ("text", "word"),
    [("Yes, the heart appears enlarged.", "yes"), ("No, the lungs appear clear.", "no"), ("Yes, if it is a dog.", None),
     ("From the X-ray, no, there is no fracture.", "no"), ("Yes, there is no dog.", None), ("没有，图中没有狗。", "no"),
     ("Yes, I think so.", None), ("No, I can't see any image here.", None), ("没有图片", None)],
)  # fmt: skip
def test_a_leading_yes_or_no_decides(text, word):
    assert read_yes_no(text) == word


@pytest.mark.parametrize(
    "text",
    first_fast(["\n" * 20_000 + "x" * 300, "\\boxed{" * 3000, "answer: " * 3000, "{" * 20_000, "is 1 " * 4000, "1 " * 10_000,
     "option A " * 2500, "<answer>" * 3000, '{"a":' * 5000, "C (" * 7000, "there are " * 2500, "<box" * 20_000, "C " * 8000, "1 in 4 " * 1500], 6),
)  # fmt: skip
def test_reading_ends_soon(text):
    start = time.process_time()
    (
        read_choice(text, ANGLES),
        read_number(text),
        read_yes_no(text),
        judge_text(text, "a dog"),
        find_answer(text),
    )
    assert decide(text, lambda words: words or None) is not None
    assert time.process_time() - start < 5


def test_roots_are_mathematics_however_they_are_written():
    assert judge_text(r"$2\sqrt{3}$", "sqrt(12)") == judge_text("sqrt(12)", r"2\sqrt{3}") == "right"
    assert judge_text(r"$3\sqrt{2}$", "sqrt(12)") == "wrong"
