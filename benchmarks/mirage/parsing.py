"""What judges of MIRAGE say, parsed strictly: steps and claims, matches, kinds of hallucination, scores."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

Match = Literal["MATCH", "REASONABLE", "CONFLICT"]
MATCHES: tuple[Match, ...] = get_args(Match)
Kind = Literal["spatial", "logical", "factuality", "context", "fabrication"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DIMENSIONS = (
    "factual_accuracy",
    "logical_consistency",
    "reasoning_completeness",
    "conceptual_accuracy",
    "strategy_appropriateness",
)
MOST = 10  # steps, and claims, of one chain


class Malformed(ValueError):
    """A judge's reply lacks the form it was asked for: ask again, then count the sample as unscored."""


@dataclass(frozen=True)
class Extraction:
    """The key steps of one reasoning chain and its intermediate results, 1 to 10 of each."""

    steps: tuple[str, ...]
    claims: tuple[str, ...]


@dataclass(frozen=True)
class Matches:
    """Labels of each predicted item (is it covered by the truth?) and of each true one (was it stated?)."""

    predicted: tuple[Match, ...]
    true: tuple[Match, ...]


def parse_extraction(text: str) -> Extraction:
    """Steps and claims in the order in which they stand (paper 000, section 3.2 and figure 8).

    Raises:
        Malformed: a tag is not closed, stands within another or is empty, or there are not 1 to 10 of each.

    Example:
        >>> parse_extraction("<step>Halve 6.</step> <claim>It is 3.</claim>").claims
        ('It is 3.',)
    """
    return Extraction(_tagged(text, "step"), _tagged(text, "claim"))


def _tagged(text: str, tag: str) -> tuple[str, ...]:
    items, opened = [], None
    for mark in re.finditer(r"<(/?)(step|claim)>", text, re.IGNORECASE):
        closes, name = mark.group(1) == "/", mark.group(2).lower()
        if closes != (opened is not None) or (opened is not None and opened[0] != name):
            raise Malformed(
                f"{mark.group()} at character {mark.start()} does not pair with the tag before it"
            )
        if opened is None:
            opened = (name, mark.end())
            continue
        item = " ".join(text[opened[1] : mark.start()].split())
        if not item:
            raise Malformed(f"an empty <{name}> at character {opened[1]}")
        if name == tag:
            items.append(item)
        opened = None
    if opened is not None:
        raise Malformed(f"<{opened[0]}> is not closed")
    if not 1 <= len(items) <= MOST:
        raise Malformed(f"{len(items)} <{tag}> tags, 1 to {MOST} are asked for")
    return tuple(items)


def parse_matches(text: str, predicted: int, true: int) -> Matches:
    """Labels in `<pred_match>` and `<gt_match>`, one an item, between commas (paper 000, figure 9).

    Args:
        predicted, true: how many items the judge was shown.

    Raises:
        Malformed: a tag is missing or doubled, a label is unknown, or the lists have other lengths.

    Example:
        >>> reply = "<pred_match>MATCH, conflict</pred_match><gt_match>MATCH</gt_match>"
        >>> parse_matches(reply, 2, 1).predicted
        ('MATCH', 'CONFLICT')
    """
    return Matches(_labels(text, "pred_match", predicted), _labels(text, "gt_match", true))


def _labels(text: str, tag: str, count: int) -> tuple[Match, ...]:
    body = _single(text, tag)
    words = [word.strip().upper() for word in body.split(",")] if body.strip() else []
    labels = tuple(match for word in words for match in MATCHES if word == match)
    if len(labels) != len(words):
        unknown = next(word for word in words if word not in MATCHES)
        raise Malformed(f"<{tag}> holds {unknown!r}; the labels are {', '.join(MATCHES)}")
    if len(labels) != count:
        raise Malformed(f"<{tag}> holds {len(labels)} labels for {count} items")
    return labels


def _single(text: str, tag: str) -> str:
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL | re.IGNORECASE)
    if len(found) != 1:
        raise Malformed(f"{len(found)} <{tag}> tags, 1 is asked for")
    return str(found[0])


def parse_hallucinations(text: str) -> dict[str, bool]:
    """Which of the five kinds a judge found, from the JSON in `<result>` (paper 000, figure 10).

    Raises:
        Malformed: no such JSON, or a kind without the verdict CONFIRM or HALLUCINATION.

    Example:
        >>> verdicts = ", ".join(f'"{kind}": {{"result": "CONFIRM"}}' for kind in KINDS)
        >>> parse_hallucinations(f"<result>{{{verdicts}}}</result>")["spatial"]
        False
    """
    given = {str(name).strip().lower(): verdict for name, verdict in _object(_single(text, "result")).items()}
    found: dict[str, bool] = {}
    for kind in KINDS:
        verdict = given.get(kind)
        word = verdict.get("result") if isinstance(verdict, dict) else verdict
        if str(word).upper() not in ("CONFIRM", "HALLUCINATION"):
            raise Malformed(f"{kind!r} has the verdict {word!r}; CONFIRM or HALLUCINATION is asked for")
        found[kind] = str(word).upper() == "HALLUCINATION"
    return found


def parse_scores(text: str) -> tuple[int, ...]:
    """The five scores of 1 to 5 of a reasoning chain, in the order of `DIMENSIONS` (paper 000, figure 11).

    Raises:
        Malformed: no JSON object, or a dimension without a whole number from 1 to 5.

    Example:
        >>> parse_scores(str(dict.fromkeys(DIMENSIONS, 4)).replace("'", '"'))
        (4, 4, 4, 4, 4)
    """
    start, end = text.find("{"), text.rfind("}")
    given = _object(text[start : end + 1]) if 0 <= start < end else {}
    scores = []
    for name in DIMENSIONS:
        score = given.get(name)
        score = score.get("score") if isinstance(score, dict) else score
        if type(score) is not int or not 1 <= score <= 5:
            raise Malformed(f"{name!r} has the score {score!r}; a whole number from 1 to 5 is asked for")
        scores.append(score)
    return tuple(scores)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("no JSON object that can be read") from None
    if not isinstance(found, dict):
        raise Malformed("the JSON is no object")
    return found
