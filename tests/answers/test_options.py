"""Options in the text of a question, in every usual kind of marks."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.answers.options import find_mark, split_options


@pytest.mark.parametrize(
    ("question", "stem", "choices"),
    [
        ("What is x?\n(a) 5\n(b) 7", "What is x?", {"a": "5", "b": "7"}),
        ("What is x? 1) 5 2) 7 3) 9", "What is x?", {"1": "5", "2": "7", "3": "9"}),
        ("What is x? [A] 5 [B] 7", "What is x?", {"A": "5", "B": "7"}),
        ("x = ( ) \u2460 5 \u2461 7 \u2462 9", "x =", {"1": "5", "2": "7", "3": "9"}),
        ("What is x?\nOptions:\na) 5\nb) 7", "What is x?", {"a": "5", "b": "7"}),
        (
            "Given (1) p and (2) q, which holds? A. (1) only B. (2) only C. (1) and (2)",
            "Given (1) p and (2) q, which holds?",
            {"A": "(1) only", "B": "(2) only", "C": "(1) and (2)"},
        ),
        ("Point (A) lies left of (C). What is d? (A) 1 (B) 2", "Point (A) lies left of (C). What is d?", {"A": "1", "B": "2"}),
        ("f(a) = 2 and f(b) = 3. What is f(1)?", "f(a) = 2 and f(b) = 3. What is f(1)?", {}),
        ("In triangle ABC, how long is A B?", "In triangle ABC, how long is A B?", {}),
        ("Name it. (A) only", "Name it. (A) only", {}),
        ("", "", {}),
    ],
)  # fmt: skip
def test_options_of_every_kind_are_found(question, stem, choices):
    assert split_options(question) == (stem, choices)


@pytest.mark.parametrize(
    ("answer", "choices", "mark"),
    [("b", "ab", "b"), ("(B)", "ab", "b"), ("\u2461", "123", "2"), ("2)", "123", "2"), ("40", "ab", None), ("", "ab", None)],
)  # fmt: skip
def test_the_true_answer_names_a_mark(answer, choices, mark):
    assert find_mark(answer, dict.fromkeys(choices, "x")) == mark


@pytest.mark.parametrize(
    "form",
    ["({}) ", "[{}] ", "{}. ", "{}) ", "{}: ", "（{}）", "{}、", "**{}.** ", "**{}** ", "**({})** ", "\\textbf{{({})}} ", "{} - ", "<{}> ", "- {}. ",
     "* {}) ", "Option {}: ", "- **{}.** ", "- ({}) ", "{}．"],
)  # fmt: skip
@pytest.mark.parametrize("letters", ["ABC", "abc"])
def test_options_are_found_however_they_are_printed(form, letters):
    texts = ["40 cm", "50 cm", "60 cm"]
    listed = "\n".join(form.format(letter) + text for letter, text in zip(letters, texts, strict=True))
    split = split_options(f"How long is AB?\n{listed}", letters[1])
    assert split == ("How long is AB?", dict(zip(letters, texts, strict=True)))


TEXTS = ["40 cm", "50 cm", "60 cm"]


@pytest.mark.parametrize("form", ["{{{}}} ", "$({})$ ", "{} "])
def test_capitals_in_braces_in_tex_and_alone_at_the_begin_of_a_line_are_marks(form):
    listed = "\n".join(form.format(letter) + text for letter, text in zip("ABC", TEXTS, strict=True))
    split = split_options(f"How long is AB?\n{listed}", "B")
    assert split == ("How long is AB?", dict(zip("ABC", TEXTS, strict=True)))


@pytest.mark.parametrize(
    "listed",
    ["Choices: ['40 cm', '50 cm', '60 cm']", '{"A": "40 cm",\n "B": "50 cm",\n "C": "60 cm"}', "- 40 cm\n- 50 cm\n- 60 cm",
     "\\item 40 cm\n\\item 50 cm\n\\item 60 cm"],
)  # fmt: skip
def test_a_list_of_texts_is_options(listed):
    split = split_options(f"How long is AB?\n{listed}", "50 cm")
    assert split == ("How long is AB?", dict(zip("ABC", TEXTS, strict=True)))


def test_a_list_of_lines_without_the_true_answer_is_no_options():
    question = "What moved?\n- Look at the left.\n- Look at the right."
    assert split_options(question, "the dog") == (question, {})
