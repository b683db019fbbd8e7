"""Read the replies of a judge. A reply that does not have exactly the requested form is unusable."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmprobe.benchmarks.judges.types import ClaimType, JudgedClaim, Match, MatchError, PairLabel

_MAX_CLAIMS = 200  # per reply, ours; a judge that lists more repeats itself
_CODE_BLOCK = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)


class UnusableReply(Exception):
    """The reason why a reply is unusable. The judge sees the message; it quotes nothing of the reply."""


class StrictReply(BaseModel):
    """The base of every reply form: no further fields, and no conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Claim(StrictReply):
    type: ClaimType
    category: Annotated[str, Field(min_length=1, max_length=60)]
    quote: Annotated[str, Field(min_length=1)]


class _Claims(StrictReply):
    claims: Annotated[list[_Claim], Field(max_length=_MAX_CLAIMS)]


class _Labels(StrictReply):
    labels: list[PairLabel]


class _Match(StrictReply):
    claim: int
    truth: int | None
    error: MatchError | None


class _Matches(StrictReply):
    labels: list[_Match]


_Form = TypeVar("_Form", bound=StrictReply)


def read_claims(reply: str, answer: str) -> tuple[JudgedClaim, ...]:
    """Return the claims of a reply. Each claim must quote the answer; case and spaces may differ.

    Raises:
        UnusableReply: the form is wrong, or a quote is not in the answer.

    Example:
        >>> reply = '{"claims": [{"type": "remove", "category": "dog", "quote": "the dog is gone"}]}'
        >>> read_claims(reply, "Yes: the dog is  gone.")
        (JudgedClaim(type='remove', category='dog', text='the dog is gone'),)
    """
    claims = read_reply(reply, _Claims).claims
    squashed_answer = squash_spaces(answer)
    for number, claim in enumerate(claims, 1):
        if not squash_spaces(claim.quote) or squash_spaces(claim.quote) not in squashed_answer:
            raise UnusableReply(f"the quote of claim {number} does not stand in the answer letter by letter")
        if not claim.category.strip():
            raise UnusableReply(f"the category of claim {number} is empty")
    return tuple(JudgedClaim(claim.type, claim.category.strip().lower(), claim.quote) for claim in claims)


def read_labels(reply: str, count: int) -> tuple[PairLabel, ...]:
    """Return the labels of a reply, one for each of `count` pairs.

    Raises:
        UnusableReply: the form or the number of labels is wrong.

    Example:
        >>> read_labels('{"labels": ["ambiguous"]}', 1)
        ('ambiguous',)
    """
    labels = read_reply(reply, _Labels).labels
    if len(labels) != count:
        raise UnusableReply(f"it holds {len(labels)} labels for {count} pairs")
    return tuple(labels)


def read_matches(reply: str, claims: int, truths: int) -> tuple[Match, ...]:
    """Return the matches of a reply, one per claim. Truths count from 1 in the reply, from 0 in the result.

    Raises:
        UnusableReply: the form, the number of labels or the number of a truth is wrong.

    Example:
        >>> read_matches('{"labels": [{"claim": 1, "truth": 2, "error": null}]}', 1, 2)
        (Match(truth=1, error=None),)
    """
    labels = read_reply(reply, _Matches).labels
    if [label.claim for label in labels] != list(range(1, claims + 1)):
        raise UnusableReply(f"it must hold one label for each of the {claims} claims, in their order")
    for label in labels:
        if (label.truth is None) == (label.error is None):
            raise UnusableReply(f"claim {label.claim}: either truth or error must be null, and not both")
        if label.truth is not None and not 1 <= label.truth <= truths:
            raise UnusableReply(f"claim {label.claim}: there are only truths 1 to {truths}")
    return tuple(Match(None if label.truth is None else label.truth - 1, label.error) for label in labels)


def read_reply(reply: str, form: type[_Form]) -> _Form:
    """Read one JSON object of a form, bare or in a code block.

    Raises:
        UnusableReply: the reply is not one JSON object of this form.
    """
    code = _CODE_BLOCK.fullmatch(reply.strip())
    try:
        return form.model_validate_json(code[1] if code else reply)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise UnusableReply("it is not one JSON object") from None
        place = ".".join(str(part) for part in first["loc"][:3] if first["type"] != "extra_forbidden")
        raise UnusableReply(f"it does not have the form asked for{place and f', at {place}'}") from None


def squash_spaces(text: str) -> str:
    """Fold the case of a text, and join its words with single spaces."""
    return " ".join(text.split()).casefold()
