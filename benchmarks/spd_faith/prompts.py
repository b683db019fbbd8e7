"""The prompts of the judge of SPD-Faith Bench, and how its replies are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from mmprobe.benchmarks.answers.texts import fold
from mmprobe.benchmarks.judges.requests import (
    StrictReply,
    UnusableReply,
    read_reply,
    reader,
    with_notice,
)
from mmprobe.benchmarks.spd_faith.match import ClaimError

CLAIMS = with_notice("""\
You list the differences that an answer claims. Somebody saw two pictures, was asked how they differ, and gave the
answer. You do not see the pictures; whether the answer is right is not your concern.

<NOTICE>
{"claims": [{"type": "color", "category": "chair", "quote": "the chair turned from red to blue"}]}

- One entry for each difference that the answer claims between the two pictures, in its order. A difference told
  twice is one entry. Nothing else is an entry: neither what the answer says to be unchanged or denies, nor what one
  picture shows, nor guesses about differences that it takes back.
- "claims" is [] where it claims none.
- "type": "color" where an object's colour changes, "remove" where an object is in one of the pictures only,
  "position" where an object moves, "other" for the rest.
- "category": the object, as an English noun in the singular and lower case, without colour, size or place.
- "quote": the words of the answer that make the claim, copied letter by letter.
""")

PAIRS = with_notice("""\
You compare claims about the differences between two pictures. Somebody answered two questions about the same
pictures; each pair holds a claim from the first answer and one from the second. You do not see the pictures.

<NOTICE>
{"labels": ["consistent", "ambiguous"]}

- One label for each pair, in the order of the pairs.
- "consistent": both tell the same difference.
- "contradictory": they conflict about the same aspect of the same thing.
- "ambiguous": it cannot be told, or they are too vague.
""")

MATCHES = with_notice("""\
You check claims about the differences between two pictures against the true differences. You do not see the pictures;
the true differences are complete.

<NOTICE>
{"labels": [{"claim": 1, "truth": 2, "error": null}, {"claim": 2, "truth": null, "error": "fabrication"}]}

- One label for each claim, in the order of the claims; claims and truths are numbered from 1.
- "caption", where it is there, describes the two pictures as a whole. It is not one of the true differences, but it may
  tell details of them, such as colours, that they leave out: a claim that conflicts with it has a false detail.
- "truth": the number of the true difference that the claim tells, with the right object, the right kind of change and
  no false detail; in any words and any order. null if there is none.
- "error": null where "truth" is a number; otherwise the first of these that holds:
  "type_category_mismatch": such a change is true of another kind of object,
  "type_confusion": the object did change, but in another way,
  "attribute_error": object and kind of change are true, but a detail such as a colour is false,
  "quantity_error": the number of changed objects is false,
  "fabrication": nothing of it is true.
""")

# Equation 14 of SPD-Faith Bench (arXiv:2602.07833): the match considers the images, too
SEEN_MATCHES = MATCHES.replace(
    "You do not see the pictures;\nthe true differences are complete.",
    "You see both pictures, the\noriginal first; the true differences are complete, and the pictures show their details.",
)

_STATED = with_notice("""\
You read off what an answer to a question about two pictures states. You do not see the pictures; whether the answer is
right is not your concern.

<NOTICE>
""")
YES_NO = (
    _STATED
    + """\
{"stated": "no"}

- "yes" or "no": what the answer says to the question, in whatever words. "They are alike in every way." says yes to
  whether the pictures are the same, and no to whether they differ.
- null where it says neither, says both, is unsure, or declines.
"""
)
NUMBER = (
    _STATED
    + """\
{"stated": 3}

- The number of differences that the answer says there are, as a whole number; 0 where it says that there are none. Where
  it only lists differences, the number is how many it lists.
- null where it says none, several or a range, is unsure, or declines.
"""
)

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
    """Return the claims of a reply. One that does not quote the answer, but for case and spaces, is unusable.

    Example:
        >>> reply = '{"claims": [{"type": "remove", "category": "dog", "quote": "the dog is gone"}]}'
        >>> read_claims(reply, "Yes: the dog is  gone.")
        (JudgedClaim(type='remove', category='dog', text='the dog is gone'),)
    """
    claims = read_reply(reply, _QuotedClaims).claims
    for number, claim in enumerate(claims, 1):
        if not fold(claim.quote) or fold(claim.quote) not in fold(answer):
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
