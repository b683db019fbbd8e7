"""Judges' replies of MIRAGE: only what has the form asked for is taken."""

from __future__ import annotations

import json

import pytest

from mmprobe.benchmarks.mirage.parsing import (
    DIMENSIONS,
    KINDS,
    Malformed,
    parse_extraction,
    parse_hallucinations,
    parse_matches,
    parse_scores,
)


def items(tag: str, count: int) -> str:
    return "\n".join(f"<{tag}>{tag} {number}</{tag}>" for number in range(count))


def test_steps_and_claims_keep_their_order():
    found = parse_extraction(
        "- <step>Let x be\n the side.</step>\n<claim>9x = 18</claim>\n<STEP>Solve.</STEP>"
    )
    assert found.steps == ("Let x be the side.", "Solve.")
    assert found.claims == ("9x = 18",)


def test_one_to_ten_of_each():
    found = parse_extraction(items("step", 10) + items("claim", 1))
    assert len(found.steps) == 10 and len(found.claims) == 1


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
def test_anything_else_is_malformed(text):
    with pytest.raises(Malformed):
        parse_extraction(text)


def test_matches_are_as_many_as_the_items():
    text = "<pred_match>MATCH,REASONABLE, CONFLICT</pred_match>\n<gt_match>match</gt_match><f1>0.5</f1>"
    found = parse_matches(text, 3, 1)
    assert found.predicted == ("MATCH", "REASONABLE", "CONFLICT") and found.true == ("MATCH",)
    for predicted, true in [(2, 1), (4, 1), (3, 0), (3, 2)]:
        with pytest.raises(Malformed, match=r"\d labels for \d items"):
            parse_matches(text, predicted, true)


@pytest.mark.parametrize(
    "text",
    [
        "<pred_match>MATCH</pred_match>",
        "<pred_match>MATCH</pred_match><gt_match>OK</gt_match>",
        "<pred_match>MATCH</pred_match><pred_match>MATCH</pred_match><gt_match>MATCH</gt_match>",
        "<pred_match>MATCH,</pred_match><gt_match>MATCH</gt_match>",
    ],
)
def test_matches_that_are_malformed(text):
    with pytest.raises(Malformed):
        parse_matches(text, 1, 1)


def test_each_kind_of_hallucination_needs_its_verdict():
    given = {kind.capitalize(): {"result": "CONFIRM", "reason": "-"} for kind in KINDS}
    given["Logical"]["result"] = "hallucination"
    reply = f"Well: <result>\n{json.dumps({'Overall': {'result': 'HALLUCINATION'}} | given)}\n</result>"
    assert parse_hallucinations(reply) == dict.fromkeys(KINDS, False) | {"logical": True}
    del given["Spatial"]
    with pytest.raises(Malformed, match="spatial"):
        parse_hallucinations(f"<result>{json.dumps(given)}</result>")
    for broken in ("", "<result>{</result>", "<result>[]</result>"):
        with pytest.raises(Malformed):
            parse_hallucinations(broken)


def test_scores_are_whole_numbers_from_one_to_five():
    given: dict[str, object] = dict(zip(DIMENSIONS, (1, 2, 3, 4, 5), strict=True))
    assert parse_scores(f"```json\n{json.dumps(given)}\n```") == (1, 2, 3, 4, 5)
    nested = {name: {"score": score, "why": "{}"} for name, score in given.items()}
    assert parse_scores(json.dumps(nested)) == (1, 2, 3, 4, 5)
    for wrong in (0, 6, 3.5, "4", True, None):
        with pytest.raises(Malformed, match="logical_consistency"):
            parse_scores(json.dumps(given | {"logical_consistency": wrong}))
    with pytest.raises(Malformed):
        parse_scores("all fives")
