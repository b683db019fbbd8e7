"""Judges' replies as models write them."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from mmprobe.benchmarks.judges.requests import UnusableReply, list_reader, reader, word_reader
from mmprobe.benchmarks.mirage.labels import KINDS, Matches
from mmprobe.benchmarks.mirage.model_labels import (
    read_extraction,
    read_hallucinations,
    read_matches,
    read_scores,
)
from mmprobe.benchmarks.spd_faith.prompts import read_claims


@pytest.mark.parametrize(
    "reply",
    ['{"score": 4, "label": "consistent"}', '{"score": "4", "label": "Consistent"}', '{"Score": 4.0, "LABEL": "CONSISTENT"}',
     '{"score": 4, "label": "consistent",}', "{'score': 4, 'label': 'consistent'}", '```json\n{"score": "4.0", "label": " consistent "}\n```'],
)  # fmt: skip
def test_a_reply_is_read_however_its_json_is_written(reply):
    assert reader(score=int, label=Literal["consistent", "other"])(reply) == (4, "consistent")


PAPER_SCORES = (  # figure 11
    "Factual Accuracy", "Logical Consistency", "Reasoning Completeness", "Conceptual Reasoning Accuracy", "Strategy Appropriateness",
)  # fmt: skip


def test_the_forms_of_the_papers_are_read_in_any_case():
    kinds = {kind.capitalize(): {"result": "confirm"} for kind in KINDS}
    scores = {title: {"score": "4"} for title in PAPER_SCORES}
    assert not any(read_hallucinations(json.dumps(kinds)))
    assert set(read_scores(json.dumps(scores))) == {4}
    labels = read_matches("<pred_match>[match, Conflict]</pred_match><gt_match>MATCH,</gt_match>", 2, 1)
    assert labels == Matches(("MATCH", "CONFLICT"), ("MATCH",))


def test_a_number_may_be_a_text_and_labels_may_have_any_case():
    assert reader(answer=str)('{"answer": 15}') == ("15",)
    assert list_reader(Literal["MATCH", "CONFLICT"], 2, "items")('{"labels": ["match", "Conflict",]}') == (
        "MATCH",
        "CONFLICT",
    )


@pytest.mark.parametrize(
    "reply",
    ['First {"correct": false}. Wait: {"correct": true}', "{'correct': __import__('os')}", "Well ..."],
)
def test_two_verdicts_that_differ_and_no_verdict_are_refused(reply):
    with pytest.raises(UnusableReply):
        reader(correct=bool)(reply)


def test_two_words_that_differ_are_refused():
    read = word_reader("answer", {"true": True, "false": False})
    assert read("<answer>true</answer> So <answer>True</answer>") == (True,)
    with pytest.raises(UnusableReply):
        read("<answer>true</answer> Wait, <answer>false</answer>")


def test_a_quote_needs_no_markdown():
    answer = "1. **Car**: The car is **red** in the first image and blue in the second"
    reply = '{"claims": [{"type": "color", "category": "car", "quote": "Car: The car is red in the first image and blue in the second."}]}'
    assert read_claims(reply, answer)[0].category == "car"
    with pytest.raises(UnusableReply):
        read_claims(reply.replace("red", "green"), answer)


def test_an_extraction_that_repeats_its_form_has_no_step_of_dots():
    reply = "I mark as <step>...</step> and <claim>...</claim>. <step>Halve 6.</step> <claim>It is 3.</claim>"
    extraction = read_extraction(reply, tagged=True)
    assert (extraction.steps, extraction.claims) == (("Halve 6.",), ("It is 3.",))
