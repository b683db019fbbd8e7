"""Answers of models that think: what a thought says is not the answer."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.answers.numbers import read_number
from mmprobe.benchmarks.answers.options import read_choice
from mmprobe.benchmarks.answers.yes_no import read_yes_no

OPTIONS = {"A": "a cat", "B": "a dog"}
MARKS = {
    "Qwen3-VL": ("<think>\n", "\n</think>\n\n"),
    "in capitals": ("<THINK>", "</THINK>"),
    "Magistral": ("[THINK]", "[/THINK]"),
    "Kimi-VL": ("◁think▷", "◁/think▷"),
    "Gemma 4": ("<|channel>thought\n", "<channel|>"),
}
READERS = [
    (lambda text: read_choice(text, OPTIONS)[0], "The answer is A.", "The answer is B.", "B"),
    (read_yes_no, "No, it has no hat.", "Yes.", "yes"),
    (read_number, "The answer is 12.", "The answer is 24.", 24.0),
]


@pytest.mark.parametrize(("opening", "closing"), MARKS.values(), ids=MARKS)
@pytest.mark.parametrize(
    ("read", "thought", "answer", "value"), READERS, ids=["option", "yes or no", "number"]
)
def test_what_a_thought_says_is_not_the_answer(read, thought, answer, value, opening, closing):
    assert read(f"{opening}{thought}{closing}{answer}") == value
    assert read(f"{thought}{closing}{answer}") == value  # the chat template opened the thought
    assert read(f"{opening}{thought}") is None  # it was cut off
