"""Judges' replies of MIRAGE: only what has the form asked for is taken."""

from __future__ import annotations

import json

import pytest

from mmprobe.benchmarks.judges.parsing import Unusable
from mmprobe.benchmarks.mirage.labels import DIMENSIONS, KINDS, Extraction
from mmprobe.benchmarks.mirage.prompts import (
    parse_correct,
    parse_extraction,
    parse_hallucinations,
    parse_matches,
    parse_scores,
)


def extraction(marked: str) -> Extraction:
    return parse_extraction(json.dumps({"marked": marked}))


def items(tag: str, count: int) -> str:
    return "\n".join(f"<{tag}>{tag} {number}</{tag}>" for number in range(count))


def test_steps_and_claims_keep_their_order():
    found = extraction("- <step>Let x be\n the side.</step>\n<claim>9x = 18</claim>\n<STEP>Solve.</STEP>")
    assert found.steps == ("Let x be the side.", "Solve.")
    assert found.claims == ("9x = 18",)


def test_one_to_ten_of_each():
    found = extraction(items("step", 10) + items("claim", 1))
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
def test_anything_else_is_unusable(text):
    with pytest.raises(Unusable):
        extraction(text)


def test_an_extraction_is_one_json_object():
    for broken in ("<step>a</step><claim>b</claim>", '{"marked": 1}', '{"marked": "", "more": ""}', "[]", ""):
        with pytest.raises(Unusable):
            parse_extraction(broken)


def test_matches_are_as_many_as_the_items():
    text = '```json\n{"predicted": ["MATCH", "REASONABLE", "CONFLICT"], "true": ["MATCH"]}\n```'
    found = parse_matches(text, 3, 1)
    assert found.predicted == ("MATCH", "REASONABLE", "CONFLICT") and found.true == ("MATCH",)
    for predicted, true in [(2, 1), (4, 1), (3, 0), (3, 2)]:
        with pytest.raises(Unusable, match=r"\d labels for \d items"):
            parse_matches(text, predicted, true)


@pytest.mark.parametrize(
    "text",
    [
        '{"predicted": ["MATCH"]}',
        '{"predicted": ["MATCH"], "true": ["OK"]}',
        '{"predicted": ["MATCH"], "true": ["match"]}',
        '{"predicted": "MATCH", "true": ["MATCH"]}',
        'Sure: {"predicted": ["MATCH"], "true": ["MATCH"]}',
    ],
)
def test_matches_that_are_unusable(text):
    with pytest.raises(Unusable):
        parse_matches(text, 1, 1)


def test_each_kind_of_hallucination_needs_its_verdict():
    given: dict[str, object] = dict.fromkeys(KINDS, False) | {"logical": True}
    assert parse_hallucinations(json.dumps(given)) == given
    assert list(parse_hallucinations(json.dumps(dict(reversed(given.items()))))) == list(KINDS)
    for wrong in (1, "HALLUCINATION", None):
        with pytest.raises(Unusable, match="spatial"):
            parse_hallucinations(json.dumps(given | {"spatial": wrong}))
    del given["spatial"]
    with pytest.raises(Unusable, match="spatial"):
        parse_hallucinations(json.dumps(given))


def test_scores_are_whole_numbers_from_one_to_five():
    given: dict[str, object] = dict(zip(DIMENSIONS, (1, 2, 3, 4, 5), strict=True))
    assert parse_scores(f"```json\n{json.dumps(given)}\n```") == (1, 2, 3, 4, 5)
    for wrong in (0, 6, 3.5, "4", True, None):
        with pytest.raises(Unusable, match="logical_consistency"):
            parse_scores(json.dumps(given | {"logical_consistency": wrong}))
    with pytest.raises(Unusable):
        parse_scores("all fives")


def test_an_answer_is_right_or_wrong_or_none():
    assert [parse_correct(f'{{"correct": {word}}}') for word in ("true", "false", "null")] == [
        True,
        False,
        None,
    ]
    for broken in ('{"correct": "true"}', '{"correct": 1}', "{}", "true"):
        with pytest.raises(Unusable):
            parse_correct(broken)


def test_a_reply_is_not_quoted_to_its_judge():
    secret = "sesame"
    for read, reply in [
        (lambda text: parse_matches(text, 1, 1), {"predicted": [secret], "true": ["MATCH"]}),
        (parse_extraction, {"marked": f"<step>{secret}<claim>"}),
        (parse_hallucinations, {"spatial": secret}),
        (parse_scores, {DIMENSIONS[0]: secret}),
    ]:
        with pytest.raises(Unusable) as raised:
            read(json.dumps(reply))
        assert secret not in str(raised.value)
