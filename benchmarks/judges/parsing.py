"""Read a judge's reply strictly: what does not follow its form to the letter is not used."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmprobe.benchmarks.judges import ClaimType, JudgedClaim, Match, MatchError, PairLabel

_MOST = 200  # entries of a reply, ours; a judge that lists more is repeating itself
_FENCED = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)


class Unusable(Exception):
    """Why a reply cannot be used, in words that its judge can act on and that quote nothing of it."""


class StrictReply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Claim(StrictReply):
    type: ClaimType
    category: Annotated[str, Field(min_length=1, max_length=60)]
    quote: Annotated[str, Field(min_length=1)]


class _Claims(StrictReply):
    claims: Annotated[list[_Claim], Field(max_length=_MOST)]


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
    """The claims of a reply; each must quote the answer, whose case and blanks may differ.

    Raises:
        Unusable: the reply's form is wrong, or a quote is not in the answer.

    Example:
        >>> reply = '{"claims": [{"type": "remove", "category": "dog", "quote": "the dog is gone"}]}'
        >>> read_claims(reply, "Yes: the dog is  gone.")
        (JudgedClaim(type='remove', category='dog', text='the dog is gone'),)
    """
    claims = read_reply(reply, _Claims).claims
    whole = squash_spaces(answer)
    for number, claim in enumerate(claims, 1):
        if not squash_spaces(claim.quote) or squash_spaces(claim.quote) not in whole:
            raise Unusable(f"the quote of claim {number} does not stand in the answer letter by letter")
        if not claim.category.strip():
            raise Unusable(f"the category of claim {number} is empty")
    return tuple(JudgedClaim(claim.type, claim.category.strip().lower(), claim.quote) for claim in claims)


def read_labels(reply: str, count: int) -> tuple[PairLabel, ...]:
    """The labels of a reply, one for each of `count` pairs.

    Raises:
        Unusable: the reply's form or the number of labels is wrong.

    Example:
        >>> read_labels('{"labels": ["ambiguous"]}', 1)
        ('ambiguous',)
    """
    labels = read_reply(reply, _Labels).labels
    if len(labels) != count:
        raise Unusable(f"it holds {len(labels)} labels for {count} pairs")
    return tuple(labels)


def read_matches(reply: str, claims: int, truths: int) -> tuple[Match, ...]:
    """The labels of a reply, one for each of so many claims, with truths counted from 0.

    Raises:
        Unusable: the reply's form, the number of labels or the number of a truth is wrong.

    Example:
        >>> read_matches('{"labels": [{"claim": 1, "truth": 2, "error": null}]}', 1, 2)
        (Match(truth=1, error=None),)
    """
    labels = read_reply(reply, _Matches).labels
    if [label.claim for label in labels] != list(range(1, claims + 1)):
        raise Unusable(f"it must hold one label for each of the {claims} claims, in their order")
    for label in labels:
        if (label.truth is None) == (label.error is None):
            raise Unusable(f"claim {label.claim}: either truth or error must be null, and not both")
        if label.truth is not None and not 1 <= label.truth <= truths:
            raise Unusable(f"claim {label.claim}: there are only truths 1 to {truths}")
    return tuple(Match(None if label.truth is None else label.truth - 1, label.error) for label in labels)


def read_reply(reply: str, form: type[_Form]) -> _Form:
    fenced = _FENCED.fullmatch(reply.strip())
    try:
        return form.model_validate_json(fenced[1] if fenced else reply)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise Unusable("it is not one JSON object") from None
        place = ".".join(str(part) for part in first["loc"][:3] if first["type"] != "extra_forbidden")
        raise Unusable(f"it does not have the form asked for{place and f', at {place}'}") from None


def squash_spaces(text: str) -> str:
    return " ".join(text.split()).casefold()
