"""Replies of MIRAGE's judges: only the requested form is accepted."""

from __future__ import annotations

import json

import pytest

from mmprobe.benchmarks.judges.requests import UnusableReply, read_correct
from mmprobe.benchmarks.mirage.labels import DIMENSIONS, KINDS, Extraction
from mmprobe.benchmarks.mirage.model_labels import (
    read_extraction,
    read_hallucinations,
    read_matches,
    read_scores,
)


def extraction(marked: str) -> Extraction:
    return read_extraction(json.dumps({"marked": marked}))


def items(tag: str, count: int) -> str:
    return "\n".join(f"<{tag}>{tag} {number}</{tag}>" for number in range(count))


def test_steps_and_claims_keep_their_order():
    extracted = extraction("- <step>Let x be\n the side.</step>\n<claim>9x = 18</claim>\n<STEP>Solve.</STEP>")
    assert extracted.steps == ("Let x be the side.", "Solve.")
    assert extracted.claims == ("9x = 18",)


def test_one_to_ten_of_each():
    extracted = extraction(items("step", 10) + items("claim", 1))
    assert len(extracted.steps) == 10 and len(extracted.claims) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "steps: none",
        items("step", 2),
        items("claim", 2),
        items("step", 11) + items("claim", 1),
        items("step", 1) + items("claim", 11),
        "<step>one<claim>two</claim></step>",
        "<step>one</claim><claim>two</step>",
        "<step>one <step>two</step></step><claim>three</claim>",
        "<step>one</step></step><claim>two</claim>",
        "<step>one</step><claim>two",
        "<step> </step><claim>two</claim>",
    ],
)
def test_anything_else_is_unusable(text):
    with pytest.raises(UnusableReply):
        extraction(text)


def test_an_extraction_is_one_json_object():
    for broken in ("<step>a</step><claim>b</claim>", '{"marked": 1}', '{"marked": "", "more": ""}', "[]", ""):
        with pytest.raises(UnusableReply):
            read_extraction(broken)


def test_the_number_of_matches_must_be_right():
    text = '```json\n{"predicted": ["MATCH", "REASONABLE", "CONFLICT"], "true": ["MATCH"]}\n```'
    matches = read_matches(text, 3, 1)
    assert matches.predicted == ("MATCH", "REASONABLE", "CONFLICT") and matches.true == ("MATCH",)
    for predicted, true in [(2, 1), (4, 1), (3, 0), (3, 2)]:
        with pytest.raises(UnusableReply, match=r"\d labels for \d items"):
            read_matches(text, predicted, true)


@pytest.mark.parametrize(
    "text",
    [
        '{"predicted": ["MATCH"]}',
        '{"predicted": ["MATCH"], "true": ["OK"]}',
        '{"predicted": "MATCH", "true": ["MATCH"]}',
        'Sure: {"predicted": ["MATCH"], "true": ["OK"]}',
    ],
)
def test_matches_that_are_unusable(text):
    with pytest.raises(UnusableReply):
        read_matches(text, 1, 1)


def test_each_kind_of_hallucination_needs_its_verdict():
    verdicts: dict[str, object] = dict.fromkeys(KINDS, False) | {"logical": True}
    in_order = tuple(verdicts[kind] for kind in KINDS)
    assert read_hallucinations(json.dumps(verdicts)) == in_order
    assert read_hallucinations(json.dumps(dict(reversed(verdicts.items())))) == in_order
    for wrong in (1, "HALLUCINATION", None):
        with pytest.raises(UnusableReply, match="spatial"):
            read_hallucinations(json.dumps(verdicts | {"spatial": wrong}))
    del verdicts["spatial"]
    with pytest.raises(UnusableReply, match="spatial"):
        read_hallucinations(json.dumps(verdicts))


def test_scores_are_whole_numbers_from_one_to_five():
    scores: dict[str, object] = dict(zip(DIMENSIONS, (1, 2, 3, 4, 5), strict=True))
    assert read_scores(f"```json\n{json.dumps(scores)}\n```") == (1, 2, 3, 4, 5)
    assert (
        read_scores(json.dumps(scores | {"logical_consistency": "4"}))[
            DIMENSIONS.index("logical_consistency")
        ]
        == 4
    )
    for wrong in (0, 6, 3.5, "four", True, None):
        with pytest.raises(UnusableReply, match="logical_consistency"):
            read_scores(json.dumps(scores | {"logical_consistency": wrong}))
    with pytest.raises(UnusableReply):
        read_scores("all fives")


def test_an_answer_is_right_or_wrong_or_none():
    labels = [read_correct(f'{{"correct": {word}}}') for word in ("true", "false", "null")]
    assert labels == [(True,), (False,), (None,)]
    for broken in ('{"correct": "true"}', '{"correct": 1}', "{}", "true"):
        with pytest.raises(UnusableReply):
            read_correct(broken)


def test_a_reply_is_not_quoted_to_its_judge():
    secret = "sesame"
    for read, reply in [
        (lambda text: read_matches(text, 1, 1), {"predicted": [secret], "true": ["MATCH"]}),
        (read_extraction, {"marked": f"<step>{secret}<claim>"}),
        (read_hallucinations, {"spatial": secret}),
        (read_scores, {DIMENSIONS[0]: secret}),
    ]:
        with pytest.raises(UnusableReply) as raised:
            read(json.dumps(reply))
        assert secret not in str(raised.value)


def test_a_step_that_repeats_the_form_is_none():
    text = "<step>...</step><step>Your step here</step><step>Halve 6.</step><claim>It is 3.</claim>"
    assert extraction(text).steps == ("Halve 6.",)
