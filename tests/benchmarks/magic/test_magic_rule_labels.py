"""Labels of MagiC by rules: true answers, steps, and cited boxes."""

from __future__ import annotations

import time

import pytest
from helpers.slow import first_fast

from mmprobe.benchmarks.magic.rule_labels import is_correct
from mmprobe.benchmarks.magic.steps import find_cited_regions, reasoning_steps


@pytest.mark.parametrize(
    ("response", "true_answer", "expected"),
    [
        ("R1 is red. R2 is blue.", "red", None),  # prose
        ("R1 is not really red.", "red", False),
        ("R1 is bright.\nAnswer: red\n", "red", True),
        ("R1 is bright.\nAnswer: It is red.\n", "red", True),
        ("R1 is bright.\nAnswer: The car is red.\n", "red", True),  # the full true answer
        ("It is red.\n**Answer**: **Blue.**", "red", False),
        ("It is red.\n**Answer**: a couch", "sofa", False),  # figure 16: the same, as only a judge knows
        ("The furniture is brown.", "tan", None),
        ("It is a couch.", "couch", True),
        ("The star is red.", "red", True),  # the drawn world's own sentence
        ("Yes. The cup stands on the table.", "yes", True),
        ("No cat is in R1. So yes, it is a dog.", "Yes", True),
        ("Yes, at first. In the end, no.", "yes", None),
        ("Answer: Yes, there is a dog.", "yes", True),
        ("Answer: No, the dog is asleep.", "yes", False),
        (r"Answer: $\boxed{\text{Red}}$", "red", True),
        ("I cannot tell.", "no", False),
        ("There is no image attached, so I cannot answer.", "no", False),
        ("", "no", False),
        ("", "red", False),
    ],
)
def test_is_correct(response, true_answer, expected):
    assert is_correct(response, true_answer, "The car is red.") is expected


def test_the_line_with_the_answer_is_no_step():
    response = "I look at R1. It is a cat.\n**Final Answer:** A cat, as in R3."
    assert reasoning_steps(response) == ["I look at R1.", "It is a cat."]
    assert reasoning_steps("Answer: R3 is a cat.") == ["Answer: R3 is a cat."]
    assert reasoning_steps("The answer lies in R1: a cat.") == ["The answer lies in R1: a cat."]
    assert reasoning_steps("") == []


def test_boxes_are_cited_by_their_names_too():
    names = [["B2"], [], ["the clock", "C3"], ["+"]]
    assert find_cited_regions(["At b2, I think.", "AB2 and B25 are none."], 4, names) == ({1}, 0)
    assert find_cited_regions(["The Clock, R2 and R7."], 4, names) == ({2, 3}, 1)
    assert find_cited_regions(["A + B"], 4, names) == ({4}, 0)
    assert find_cited_regions(["the clockwork"], 4, names) == (frozenset(), 0)


@pytest.mark.parametrize(
    "text",
    first_fast(
        ["Answer: ", "R1 to ", "the ", "\n", "*", " ", "answer", "answer\n", ". ", "R1-", "not ", "A.", "the answer is "],
        3,
    ),
)  # fmt: skip
@pytest.mark.slow
def test_long_texts_are_read_quickly(text):
    start = time.process_time()
    steps = reasoning_steps(text * 50_000)
    find_cited_regions(steps, 3, [["B2"]] * 3)
    is_correct(text * 50_000, "red")
    is_correct(text * 50_000, "yes")
    assert time.process_time() - start < 10
