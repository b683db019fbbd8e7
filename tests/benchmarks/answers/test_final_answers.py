"""Final answers in the forms in which models write them."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.answers.final_answers import (
    find_final_answer,
    is_near,
    parse_choice,
    parse_number,
    same_text,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>7</think> <answer>x = 3</answer>", "x = 3"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("So it is [[yes]].", "yes"),
        (r"Thus $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"Thus \boxed{4", None),
        ("The final answer is: 12.5 cm. Done.", "12.5 cm"),
        ("**Answer:** Paris\nIt is in France.", "Paris"),
        ("The answer is 3. But no: the answer is 4.", "4"),
        ("I have no idea", None),
        ("<answer> </answer>", None),
    ],
)
def test_final_answer(text, answer):
    assert find_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        (" (c). ", "C"),
        ("**D**", "D"),
        ("The answer is (A) 3 cm.", "A"),
        ("The answer is A, because the angle is right.", "A"),
        ("Answer: d", "D"),
        ("[[B]]", "B"),
        ("<answer>C</answer>, not B", "C"),
        ("A triangle has three sides. I choose C", "C"),
        ("A triangle has three sides.", None),
        ("Either B or C.", None),
        ("Either A or C.", None),
        ("So it must be A.", "A"),
        ("It is A", "A"),
        ("Option A is right.", "A"),
        ("Options A and B are wrong, so the correct option is C.", "C"),
        ("The best choice is A because the others are smaller.", "A"),
        ("The correct answer is 'B'.", "B"),
        ("The answer is \u201cB\u201d, not C.", "B"),
        ("Answer\uff1aB\u3002C is wrong.", "B"),
        ("\u9009B", "B"),
        ("E", None),
        ("The answer is a cat.", None),
        ("", None),
    ],
)
def test_choice(text, letter):
    assert parse_choice(text, "ABCD") == letter


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3", 3.0),
        ("about -1,250.5 km", -1250.5),
        ("\u22127", -7.0),
        ("12 of 100 people: 12%", 12.0),
        (r"\boxed{\frac{3}{4}}", 0.75),
        ("6.0e-3 m", 0.006),
        ("2 + 2 = 4. The answer is 4 apples", 4.0),
        ("The answer is 12 cm^2.", 12.0),
        (r"\boxed{4\text{ m}^{2}}", 4.0),
        ("9.81 m s^-2", 9.81),
        (r"The answer is $3 \times 10^{5}$.", 300000.0),
        ("3.0\u00d710\u2078 m/s", 3e8),
        ("1.5x10^-3", 0.0015),
        ("10^4", 10000.0),
        (r"\boxed{1{,}250}", 1250.0),
        (r"1\,250\,000", 1250000.0),
        ("12\u202f500 km", 12500.0),
        ("2 1/2 cups", 2.5),
        (r"-2\frac{1}{4}", -2.25),
        ("The answer is 12.5 cm (rounded to 1 decimal place).", 12.5),
        ("It weighs (in kg) (12)", 12.0),
        ("f = (3)", 3.0),
        ("1/0", None),
        ("R2D2", None),
        ("none", None),
    ],
)
def test_number(text, number):
    assert parse_number(text) == number


def test_near_is_below_the_threshold():
    assert is_near(95.1, 100) and is_near(104.9, 100)
    assert not is_near(105, 100) and not is_near(95, 100)
    assert is_near(105, 100, threshold=0.051)
    assert is_near(-96, -100) and not is_near(96, -100)
    assert is_near(0, 0) and not is_near(1e-9, 0)


def test_the_same_text_in_different_notation():
    assert same_text("  the  Eiffel Tower. ", "Eiffel tower")
    assert (
        same_text("$1,000$", "1000")
        and same_text("0.50", "1/2")
        and same_text(".5", "0.5")
        and same_text(r"\frac{1}{2}", "0.5")
    )
    assert same_text(r"\text{Red}", "red") and same_text("\u201cred\u201d", "red") and same_text("A.", "a")
    assert (
        same_text("12 cm\u00b2", "12 cm^2")
        and same_text(r"3 \times 10^5", "300000")
        and same_text(r"50\%", "50%")
    )
    assert not same_text("10\u00b2", "102") and not same_text("A", "the")
    assert not same_text("5 cm", "5 m") and not same_text("not red", "red") and not same_text("", "")
