"""Readers of answers and replies never crash, whatever the text is."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmprobe.benchmarks.answers.claims import parse_count, read_claims
from mmprobe.benchmarks.answers.colours import read_colours
from mmprobe.benchmarks.answers.drawn import judge_statement
from mmprobe.benchmarks.answers.forms import find_answer
from mmprobe.benchmarks.answers.numbers import read_number
from mmprobe.benchmarks.answers.options import read_choice, split_options
from mmprobe.benchmarks.answers.texts import same_text
from mmprobe.benchmarks.answers.yes_no import read_yes_no
from mmprobe.benchmarks.judges.requests import UnusableReply, read_correct
from mmprobe.benchmarks.magic.steps import find_cited_regions, split_steps
from mmprobe.benchmarks.mirage.hints import find_topic_by_rules, parse_topic
from mmprobe.benchmarks.mirage.model_labels import (
    read_extraction,
    read_hallucinations,
    read_matches,
    read_scores,
)
from mmprobe.benchmarks.mirage.rule_labels import extract_by_rules, match_by_rules
from mmprobe.benchmarks.mirage_effect.rule_labels import find_diagnosis, label_by_rules
from mmprobe.benchmarks.mmreason.model_labels import read_steps
from mmprobe.training.logos import follows_format

PIECES = [
    "<step>",
    "</step>",
    "<claim>",
    "</claim>",
    "<answer>",
    "</answer>",
    '{"predicted": ["MATCH"],',
    '"true": ["CONFLICT"]}',
    '{"spatial": true,',
    '{"correct": null}',
    "algebra",
    "<score>correct",
    "</score>",
    "<think>",
    "</think>",
    "<diagnosis>",
    "[[",
    "]]",
    "\\boxed{",
    "\\frac{1}{",
    "}",
    "(A)",
    "B.",
    "C:",
    "R1",
    "R12-R3",
    "region",
    "3",
    "-1,234.5e9",
    "3/0",
    "1e999",
    "answer",
    "is:",
    "answer=",
    "image",
    "missing",
    "not",
    "(",
    ")",
    ",",
    ".",
    "?",
    "٣",
    "½",
    "−",
    "_",
    "$",
    "**",
]
TEXT = st.one_of(
    st.text(max_size=60), st.lists(st.sampled_from([*PIECES, "\n", " "]), max_size=30).map(" ".join)
)
READERS: dict[str, Callable[[str], object]] = {
    "answer": find_answer,
    "choice": lambda text: read_choice(text, {"A": "a cat", "B": "1/2", "C": "not here"}),
    "number": read_number,
    "yes or no": read_yes_no,
    "verdict": lambda text: judge_statement(text, "1/2 cm", "2x+3"),
    "claims": read_claims,
    "colours": lambda text: read_colours(text, text, ("star",)),
    "count": parse_count,
    "same": lambda text: same_text(text, "1/2 cm"),
    "format": follows_format,
    "topic": parse_topic,
    "topic by rules": find_topic_by_rules,
    "sentences": lambda text: extract_by_rules(text, ["1/2 cm"], [text]),
    "matches": lambda text: match_by_rules([text, ""], ["1/2 cm", text]),
    "label": label_by_rules,
    "diagnosis": find_diagnosis,
    "options": split_options,
    "regions": lambda text: find_cited_regions(split_steps(text), 4),
}
PARSERS: dict[str, Callable[[str], object]] = {
    "extraction": lambda text: read_extraction(json.dumps({"marked": text})),
    "correct": read_correct,
    "hallucinations": read_hallucinations,
    "matches": lambda text: read_matches(text, 1, 1),
    "scores": read_scores,
    "steps": lambda text: read_steps(text, 1),
}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=TEXT)
def test_readers_take_any_text(name, text):
    READERS[name](text)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=TEXT)
def test_replies_are_read_or_unusable(name, text):
    with suppress(UnusableReply):
        PARSERS[name](text)
