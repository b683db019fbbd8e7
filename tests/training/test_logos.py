"""The arithmetic of Logos, compared with hand-computed values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mmprobe.errors import InputError
from mmprobe.samples import Sample
from mmprobe.training.evaluation import collect_metrics, judge_response
from mmprobe.training.logos import (
    compute_advantages,
    follows_format,
    reward_response,
    select_for_stage,
)

OBJECTS = [["red star B2", "blue ring A1"], ["red star B2"]]
CHANGES = [{"sentence": "The ring was removed."}]
LISTS = "Picture one: red star B2, blue ring A1.\nPicture two: red star B2."


def make_sample(kind, answer, name="a"):
    facts = {"type": kind, "objects": OBJECTS, "differences": CHANGES}
    return Sample(id=name, question="?", answer=answer, metadata=facts)


def test_advantages_of_a_group_of_eight():
    rewards = np.array([2.0, 2, 1, 1, 0, 0, 1, 1])
    values = compute_advantages(rewards)
    spread = math.sqrt((1 + 1 + 1 + 1) / 8)
    assert values.tolist() == pytest.approx([1 / spread, 1 / spread, 0, 0, -1 / spread, -1 / spread, 0, 0])
    both = compute_advantages(np.stack([rewards, np.full(8, 0.1)]))
    assert both[0].tolist() == values.tolist() and (both[1] == 0).all()
    with pytest.raises(InputError):
        compute_advantages(np.array([1.0, np.nan]))


def test_selection_of_questions_for_logos():
    means = {"always": 1.0, "half": 0.5, "rare": 0.25, "never": 0.0}
    assert select_for_stage(means, 0) == ["always", "half", "rare"]
    assert select_for_stage(means, 1) == ["rare", "never"]


def test_format():
    good = "<think>\n2 + 2\n</think>\n<answer>4</answer>\n"
    assert follows_format(good)
    for bad in ("4", good + "!", good * 2, "<think></think><answer>4</answer>", good.replace("</think>", "")):
        assert not follows_format(bad)


@pytest.mark.parametrize(
    ("kind", "truth", "answer", "right"),
    [
        ("count", "There is 1 difference.", "There is 1 difference.", 1),
        ("count", "There is 1 difference.", "There are 2 differences.", 0),
        ("steps", "Therefore: The ring was removed.", "The ring was removed.", 1),
        ("steps", "Therefore: The ring was removed.", "The star was removed.", 0),
        (None, "four", "4", 1),
        (None, "four", "5", 0),
    ],
)
def test_rewards_of_answers(kind, truth, answer, right):
    sample = make_sample(kind, truth) if kind else Sample(id="a", question="?", answer=truth)
    assert reward_response(sample, f"<think>so</think><answer>{answer}</answer>") == (1, right)
    assert reward_response(sample, f"<answer>{answer}</answer>") == (0, right)
    assert reward_response(sample, answer) == (0, 0), "an answer needs a block"
    assert reward_response(sample, f"<answer>{answer}</answer>" * 2) == (0, 0)


OPTIONS = "How long is AB? (A) 10 cm (B) 12 cm (C) 24 cm"


@pytest.mark.parametrize(
    ("question", "truth", "answer", "right"),
    [
        ("x?", "24", r"\boxed{24}", 1),
        ("x?", "24", "24 cm", 1),
        ("x?", "24", "x = 24", 1),
        ("x?", "24", r"\boxed{25}", 0),
        ("x?", "B", r"$\boxed{B}$", 1),
        ("x?", "B", "B. 12 cm", 1),
        ("x?", "B", "The answer is B", 1),
        ("x?", "B", r"$\boxed{C}$", 0),
        ("x?", "B", "A or B", 0),
        (OPTIONS, "B", "B. 12 cm", 1),
        (OPTIONS, "B", "12 cm", 1),
        (OPTIONS, "B", "C. 12 cm", 0),
        (OPTIONS, "12 cm", "(B)", 1),
        (OPTIONS, "12 cm", "C", 0),
    ],
)
def test_what_a_tag_holds_is_read_once_as_any_answer(question, truth, answer, right):
    sample = Sample(id="a", question=question, answer=truth)
    assert reward_response(sample, f"<think>so</think><answer>{answer}</answer>") == (1, right)


def test_reasoning_is_judged_by_what_it_lists():
    sample = make_sample("count", "There is 1 difference.")
    answer = "</think><answer>There is 1 difference.</answer>"
    cases = {
        LISTS: True,
        LISTS.replace("Picture two: red", "Picture two: green"): False,
        LISTS.partition("\n")[0]: False,  # one picture only
        "so": False,
    }
    samples = [make_sample("count", "There is 1 difference.", f"a{number}") for number in range(len(cases))]
    records = [judge_response(sample, f"<think>{lists}{answer}") for lists in cases]
    assert [record["faithful"] for record in records] == list(cases.values())
    metrics = collect_metrics(samples, records)
    assert metrics["accuracy"].value == 1 and metrics["faithful_when_right"].value == 0.25
    assert metrics["reasoning_faithful"].n == 4
