"""What judges of MIRAGE say, parsed strictly: steps and claims, matches, kinds of hallucination, scores."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import Field

from mmprobe.benchmarks.judges.replies import Unusable, _read, _Strict

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


Score = Annotated[int, Field(ge=1, le=5)]


class _Marked(_Strict):
    marked: str


class _Matches(_Strict):
    predicted: list[Match]
    true: list[Match]


class _Kinds(_Strict):
    spatial: bool
    logical: bool
    factuality: bool
    context: bool
    fabrication: bool


class _Scores(_Strict):
    factual_accuracy: Score
    logical_consistency: Score
    reasoning_completeness: Score
    conceptual_accuracy: Score
    strategy_appropriateness: Score


class _Correct(_Strict):
    correct: bool | None


def parse_extraction(reply: str) -> Extraction:
    """Steps and claims in the order in which they stand (paper 000, section 3.2 and figure 8).

    Args:
        reply: one JSON object whose text `marked` holds them between tags.

    Raises:
        Unusable: a tag is not closed, stands within another or is empty, or there are not 1 to 10 of each.

    Example:
        >>> parse_extraction('{"marked": "<step>Halve 6.</step> <claim>It is 3.</claim>"}').claims
        ('It is 3.',)
    """
    marked = _read(reply, _Marked).marked
    return Extraction(_tagged(marked, "step"), _tagged(marked, "claim"))


def _tagged(text: str, tag: str) -> tuple[str, ...]:
    items, opened = [], None
    for mark in re.finditer(r"<(/?)(step|claim)>", text, re.IGNORECASE):
        closes, name = mark.group(1) == "/", mark.group(2).lower()
        if closes != (opened is not None) or (opened is not None and opened[0] != name):
            raise Unusable(f"a tag at character {mark.start()} does not pair with the tag before it")
        if opened is None:
            opened = (name, mark.end())
            continue
        item = " ".join(text[opened[1] : mark.start()].split())
        if not item:
            raise Unusable(f"an empty <{name}> stands at character {opened[1]}")
        if name == tag:
            items.append(item)
        opened = None
    if opened is not None:
        raise Unusable(f"a <{opened[0]}> is not closed")
    if not 1 <= len(items) <= MOST:
        raise Unusable(f"it holds {len(items)} <{tag}> tags, 1 to {MOST} are asked for")
    return tuple(items)


def parse_matches(reply: str, predicted: int, true: int) -> Matches:
    """Labels of the items that the response makes and of the true ones (paper 000, figure 9).

    Args:
        predicted, true: how many items the judge was shown.

    Raises:
        Unusable: the form is wrong, a label is unknown, or a list has another length.

    Example:
        >>> parse_matches('{"predicted": ["MATCH", "CONFLICT"], "true": ["MATCH"]}', 2, 1).predicted
        ('MATCH', 'CONFLICT')
    """
    found = _read(reply, _Matches)
    for labels, count, name in ((found.predicted, predicted, "predicted"), (found.true, true, "true")):
        if len(labels) != count:
            raise Unusable(f"{name!r} holds {len(labels)} labels for {count} items")
    return Matches(tuple(found.predicted), tuple(found.true))


def parse_hallucinations(reply: str) -> dict[Kind, bool]:
    """Which of the five kinds a judge found (paper 000, figure 10).

    Raises:
        Unusable: a kind has no verdict, or there is anything else.

    Example:
        >>> parse_hallucinations(_Kinds(**dict.fromkeys(KINDS, False)).model_dump_json())["spatial"]
        False
    """
    found = _read(reply, _Kinds)
    return {kind: getattr(found, kind) for kind in KINDS}


def parse_scores(reply: str) -> tuple[int, ...]:
    """The five scores of 1 to 5 of a reasoning chain, in the order of `DIMENSIONS` (paper 000, figure 11).

    Raises:
        Unusable: a dimension has no whole number from 1 to 5, or there is anything else.

    Example:
        >>> parse_scores(str(dict.fromkeys(DIMENSIONS, 4)).replace("'", '"'))
        (4, 4, 4, 4, 4)
    """
    found = _read(reply, _Scores)
    return tuple(getattr(found, name) for name in DIMENSIONS)


def parse_correct(reply: str) -> bool | None:
    """Whether a judge holds a response's answer for right; None where it says that there is none.

    Raises:
        Unusable: the form is wrong.

    Example:
        >>> parse_correct('{"correct": true}')
        True
    """
    return _read(reply, _Correct).correct
