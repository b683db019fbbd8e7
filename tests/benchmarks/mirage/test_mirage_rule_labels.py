"""Steps, claims and topics by rules."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.core.prompts import default_prompts, fill
from mmprobe.benchmarks.mirage.data import TOPICS, MirageQuestion, is_correct
from mmprobe.benchmarks.mirage.hints import (
    add_hints,
    find_topic_by_rules,
    has_hints,
    parse_topic,
)
from mmprobe.benchmarks.mirage.metrics import factuality
from mmprobe.benchmarks.mirage.prompts import MiragePrompts
from mmprobe.benchmarks.mirage.rule_labels import extract_by_rules, match_by_rules

PROMPTS = default_prompts(MiragePrompts)
HINTS = PROMPTS.topic_hints


def question(**fields: object) -> MirageQuestion:
    base = {"id": "1", "question": "Where is it?", "topic": "spatial", "type": "free_form", "answer": "left"}
    return MirageQuestion.model_validate(base | fields)


def test_sentences_with_a_true_step_are_no_wrong_claims():
    response = "I read the red bar.\nIt is at 30.\nThe star is red. Therefore: It is at 30"
    extraction = extract_by_rules(response, ["I read the red bar."], ["It is at 30."])
    assert extraction.steps == ("I read the red bar.", "The star is red.")
    assert extraction.claims == ("It is at 30.", "The star is red.", "Therefore: It is at 30")


def test_a_sentence_in_prose_leaves_the_steps_unread():
    assert extract_by_rules("I read the red bar. The title is bold.", ["I read the red bar."], []) is None


def test_f_of_matches_by_hand():
    # predicted: 2 of 3 are in the truth; true: 1 of 2 is stated; F = 2 * 2/3 * 1/2 / (2/3 + 1/2) = 4/7
    matches = match_by_rules(
        ["The area is 12.", "Therefore: the area is 12.0", "It is big."], ["Area is 12.", "Width is 3."]
    )
    assert matches.predicted == ("MATCH", "MATCH", "CONFLICT")
    assert matches.true == ("MATCH", "CONFLICT")
    assert factuality([matches])["f_step"].value == pytest.approx(4 / 7)


@pytest.mark.parametrize(
    ("stated", "true"),
    [
        ("The area is 13.", "The area is 12."),
        ("The star is not red.", "The star is red."),
        ("The star is blue.", "The star is red."),
        ("...", "The star is red."),
    ],
)
def test_different_statements_conflict(stated, true):
    assert match_by_rules([stated], [true]).predicted == ("CONFLICT",)


def test_empty_texts_match_nothing():
    assert match_by_rules([], ["a b"]).true == ("CONFLICT",)
    assert extract_by_rules(" \n", ["a"], []).steps == ()


def test_topics_that_a_model_names():
    assert {parse_topic(f"**{topic.upper()}.**") for topic in TOPICS} == set(TOPICS)
    assert parse_topic("Not algebra. The answer is geometry.") == "geometry"
    assert (
        parse_topic("algebra, geometry") is None
        and parse_topic("cooking") is None
        and parse_topic("") is None
    )
    assert set(dict(HINTS)) == set(TOPICS)
    assert all(f"- {topic}: " in PROMPTS.topic for topic in TOPICS)
    assert fill(PROMPTS.topic, {"question": "Is {x} left?"}).splitlines()[-2] == "Is {x} left?"


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("Are the two pictures the same?", "logical"),
        ("Compare the two pictures step by step.", "logical"),
        ("How many differences are there?", "arithmetic"),
        ("Is there a star?", "spatial"),
        ("Is there an orange ring?", "spatial"),
        ("What colour is the star?", None),
    ],
)
def test_topics_of_the_synthetic_world(text, topic):
    assert find_topic_by_rules(text) == topic


def test_hints_surround_the_question_and_follow_the_named_topic():
    hinted = question(topic_hint="Own.", question_hint="Look up.")
    assert add_hints(hinted, "Q", "spatial", HINTS) == "Own.\n\nQ\n\nLook up."
    assert add_hints(hinted, "Q", "algebra", HINTS) == f"{HINTS.algebra}\n\nQ\n\nLook up."
    assert add_hints(hinted, "Q", None, HINTS) == "Q\n\nLook up."
    assert add_hints(question(question_hint="H"), "Q", "spatial", HINTS).startswith(HINTS.spatial)
    assert has_hints(hinted) and not has_hints(question())


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("No. The star was removed.", True),
        ("Yes. Nothing changed.", False),
        ("B", True),
        ("The answer is A.", False),
        ("Perhaps.", None),
    ],
)
def test_options_yes_and_no(response, right):
    choice = question(type="multiple_choice", choices={"A": "Yes", "B": "No"}, answer="B")
    assert is_correct(choice, response) is right


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("I look.\nAnswer: left.", True),
        ("left", True),
        ("I look left.\nAnswer: right.", False),
        ("left\nThe answer is right.", False),
        ("Yes. It is there. left", True),
        ("not left", False),
        ("left or right", None),
    ],
)
def test_free_form_answers_end_the_response(response, right):
    assert is_correct(question(), response) is right


def test_an_answer_of_several_sentences_is_the_whole_response():
    assert is_correct(question(answer="Yes. It is left."), "Yes.\nIt is left.") is True
