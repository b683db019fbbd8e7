"""The form of SPD-Faith Bench's prompts, and how replies of its judge are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from mmprobe.benchmarks.answers.texts import fold, stands_in
from mmprobe.benchmarks.core.prompts import Fills, PlainText, Prompts
from mmprobe.benchmarks.judges.requests import (
    StrictReply,
    UnusableReply,
    read_reply,
    reader,
)
from mmprobe.benchmarks.spd_faith.match import ClaimError


class SpdFaithPrompts(Prompts):
    """The prompts of SPD-Faith Bench: its questions by type, and those of its judge."""

    folder = "spd-faith"

    same: PlainText
    different: PlainText
    count: PlainText
    list: PlainText
    steps: PlainText
    find: Annotated[str, Fills("count|count_word")]
    find_one: PlainText
    claims: Annotated[str, Fills("answer", judge=True)]
    pairs: Annotated[str, Fills("pairs", judge=True)]
    matches: Annotated[str, Fills("claims", "truths", "caption?", judge=True)]
    seen_matches: Annotated[str, Fills("claims", "truths", "caption?", judge=True)]
    yes_no: Annotated[str, Fills("question?", "reply", judge=True)]
    number: Annotated[str, Fills("question?", "reply", judge=True)]


ClaimType = Literal["color", "remove", "position", "other"]
_MAX_CLAIMS = 200  # per reply, ours; a judge that lists more repeats itself


@dataclass(frozen=True)
class JudgedClaim:
    """One difference that an answer claims: the object, a singular noun in lower case, and its words."""

    type: ClaimType
    category: str
    text: str


@dataclass(frozen=True)
class Match:
    """The index of the true difference that a claim states, or else the claim's error."""

    truth: int | None
    error: ClaimError | None


read_yes_no = reader(stated=Literal["yes", "no"] | None)
read_number = reader(stated=Annotated[int, Field(ge=0)] | None)


class _QuotedClaim(StrictReply):
    type: ClaimType
    category: Annotated[str, Field(min_length=1, max_length=60)]
    quote: Annotated[str, Field(min_length=1)]


class _QuotedClaims(StrictReply):
    claims: Annotated[list[_QuotedClaim], Field(max_length=_MAX_CLAIMS)]


class _ClaimMatch(StrictReply):
    claim: int
    truth: int | None
    error: ClaimError | None


class _ClaimMatches(StrictReply):
    labels: list[_ClaimMatch]


def read_claims(reply: str, answer: str) -> tuple[JudgedClaim, ...]:
    """Return the claims of a reply. One that does not quote the answer, but for case, spaces and Markdown, is
    unusable.

    Example:
        >>> reply = '{"claims": [{"type": "remove", "category": "dog", "quote": "the dog is gone"}]}'
        >>> read_claims(reply, "Yes: the dog is  gone.")
        (JudgedClaim(type='remove', category='dog', text='the dog is gone'),)
    """
    claims = read_reply(reply, _QuotedClaims).claims
    for number, claim in enumerate(claims, 1):
        if not fold(claim.quote) or not stands_in(claim.quote, answer):
            raise UnusableReply(f"the quote of claim {number} does not stand in the answer letter by letter")
        if not claim.category.strip():
            raise UnusableReply(f"the category of claim {number} is empty")
    return tuple(JudgedClaim(claim.type, claim.category.strip().lower(), claim.quote) for claim in claims)


def read_matches(reply: str, claims: int, truths: int) -> tuple[Match, ...]:
    """Return the matches of a reply, one per claim. Truths count from 1 in the reply, from 0 in the result.

    Example:
        >>> read_matches('{"labels": [{"claim": 1, "truth": 2, "error": null}]}', 1, 2)
        (Match(truth=1, error=None),)
    """
    labels = read_reply(reply, _ClaimMatches).labels
    if [label.claim for label in labels] != list(range(1, claims + 1)):
        raise UnusableReply(f"it must hold one label for each of the {claims} claims, in their order")
    for label in labels:
        if (label.truth is None) == (label.error is None):
            raise UnusableReply(f"claim {label.claim}: either truth or error must be null, and not both")
        if label.truth is not None and not 1 <= label.truth <= truths:
            raise UnusableReply(f"claim {label.claim}: there are only truths 1 to {truths}")
    return tuple(Match(None if label.truth is None else label.truth - 1, label.error) for label in labels)
