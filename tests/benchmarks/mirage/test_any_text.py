"""Whatever a model or a judge says: an answer, none, or a refusal to read it, and never a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmprobe.benchmarks.answers.final_answers import choice_of, final_answer, number_of, same_text
from mmprobe.benchmarks.judges.parsing import Unusable
from mmprobe.benchmarks.magic.steps import cited_regions, split_steps
from mmprobe.benchmarks.mirage.hints import topic_by_rules, topic_of
from mmprobe.benchmarks.mirage.prompts import (
    parse_correct,
    parse_extraction,
    parse_hallucinations,
    parse_matches,
    parse_scores,
)
from mmprobe.benchmarks.mirage.rule_labels import extract_by_rules, match_by_rules
from mmprobe.benchmarks.mirage_effect.rule_labels import diagnosis_of, label_answer, parse_verdict
from mmprobe.benchmarks.mmreason.choice_removal import remove_choices
from mmprobe.benchmarks.mmreason.model_labels import read_pieces
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
    "answer": final_answer,
    "choice": lambda text: choice_of(text, "ABC"),
    "number": number_of,
    "same": lambda text: same_text(text, "1/2 cm"),
    "format": follows_format,
    "topic": topic_of,
    "topic by rules": topic_by_rules,
    "sentences": lambda text: match_by_rules(extract_by_rules(text, ["1/2 cm"], [text]).steps, [text, ""]),
    "label": label_answer,
    "diagnosis": diagnosis_of,
    "options": remove_choices,
    "regions": lambda text: cited_regions(split_steps(text), 4),
}
PARSERS: dict[str, Callable[[str], object]] = {
    "extraction": lambda text: parse_extraction(json.dumps({"marked": text})),
    "correct": parse_correct,
    "hallucinations": parse_hallucinations,
    "matches": lambda text: parse_matches(text, 1, 1),
    "scores": parse_scores,
    "verdict": parse_verdict,
    "steps": lambda text: read_pieces(text, 1),
}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=TEXT)
def test_answers_of_any_kind_are_read(name, text):
    READERS[name](text)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=TEXT)
def test_replies_of_any_kind_are_parsed_or_unusable(name, text):
    with suppress(Unusable):
        PARSERS[name](text)
