"""Declared forms: every line of the table, and answers as real models write them."""

from __future__ import annotations

import string
import time

import pytest

from mmprobe.benchmarks.answers.forms import FORMS, decide, find_answer
from mmprobe.benchmarks.answers.numbers import read_number
from mmprobe.benchmarks.answers.options import read_choice
from mmprobe.benchmarks.answers.texts import judge_text
from mmprobe.benchmarks.answers.yes_no import read_yes_no

ANGLES = {"A": "30°", "B": "60°", "C": "120°", "D": "150°"}
LETTERS = dict.fromkeys(string.ascii_uppercase[:4], "")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.kind}: {form.example}")
def test_each_form_of_the_table_declares_what_its_example_says(form):
    if form.kind in ("mark", "braces", "lead"):
        assert find_answer(form.example).text == form.declares
    elif form.kind in ("option", "line"):
        assert read_choice(form.example, LETTERS) == (form.declares.strip("()"), False)
    elif form.kind == "number":
        assert read_number(form.example) == float(form.declares)
    else:
        assert judge_text(form.example, form.declares) == "right"


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
     ("The width is 3 cm and the length is 5 cm.", None), ("There are 5 of 7 cars.", None), ("It is 3 to 5.", None),
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
    ["\n" * 20_000 + "x" * 300, "\\boxed{" * 3000, "answer: " * 3000, "{" * 20_000, "is 1 " * 4000, "1 " * 10_000,
     "option A " * 2500, "<answer>" * 3000, '{"a":' * 5000, "C (" * 7000, "there are " * 2500],
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
    assert decide(text, lambda words: words or None, "option", "line", "number") is not None
    assert time.process_time() - start < 5
