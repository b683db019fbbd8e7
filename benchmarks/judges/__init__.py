"""Judges: what turns answers into labelled items, from which every metric is then computed.

A judge only labels; it never counts, averages or scores. What it cannot label is unscored, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

ClaimType = Literal["color", "remove", "position", "other"]
PairLabel = Literal["consistent", "contradictory", "ambiguous"]
MatchError = Literal[
    "type_category_mismatch", "type_confusion", "attribute_error", "quantity_error", "fabrication"
]
CLAIM_TYPES: tuple[ClaimType, ...] = get_args(ClaimType)
PAIR_LABELS: tuple[PairLabel, ...] = get_args(PairLabel)
MATCH_ERRORS: tuple[MatchError, ...] = get_args(MatchError)

Unscored = Literal["garbage", "refused", "timeout", "error", "disagreement"]

LONGEST_ANSWER = 20_000  # characters that a judge is shown, ours; what goes on longer repeats itself

Item = TypeVar("Item")
Name = TypeVar("Name", bound=Hashable)
Item_co = TypeVar("Item_co", covariant=True)


@dataclass(frozen=True)
class JudgedClaim:
    """One difference that an answer claims.

    Attributes:
        type: color, remove, position or, for what is none of these, other.
        category: the object, as the judge names it: a singular noun in lower case.
        text: the answer's own words.
    """

    type: ClaimType
    category: str
    text: str


@dataclass(frozen=True)
class Match:
    """Which true difference a claim tells, by its index; or else what is wrong with the claim."""

    truth: int | None
    error: MatchError | None


@dataclass(frozen=True)
class Judgement(Generic[Item_co]):
    """What a judge made of one sample.

    Attributes:
        items: the labelled items, which may be none; None if the sample is unscored.
        unscored: why, else None: `garbage` and `refused` are replies that no repair mended, `timeout` and `error`
            calls that failed, `disagreement` is that of an ensemble.
        calls: how often a model was asked; what a cache knew does not count.
        cut: whether the answer was so long that only its beginning was judged.
    """

    items: tuple[Item_co, ...] | None
    unscored: Unscored | None = None
    calls: int = 0
    cut: bool = False


@dataclass(frozen=True)
class JudgeRequest(Generic[Item_co]):
    """What a judge is asked about one sample.

    Attributes:
        system: what to label, and the form of the reply.
        data: what is labelled, for JSON; it is fenced, so that text in it gives no orders.
        read: from the reply's text to its labels; raises `Unusable` (in `judges/replies.py`) where it has not the
            form that was asked for.
    """

    system: str
    data: Any
    read: Callable[[str], tuple[Item_co, ...]]


class Judge(Protocol):
    """What every judge can do, for many samples at once; results come in the samples' order."""

    async def ask(self, questions: Sequence[JudgeRequest[Item]]) -> list[Judgement[Item]]:
        """The labels that each question asks for."""

    async def extract(self, answers: Sequence[str]) -> list[Judgement[JudgedClaim]]:
        """The differences that each answer claims, found without the truth in sight."""

    async def label_pairs(self, samples: Sequence[Sequence[tuple[str, str]]]) -> list[Judgement[PairLabel]]:
        """For each sample's pairs of claims, one from each of two answers, whether they agree."""

    async def match(self, samples: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Judgement[Match]]:
        """For each sample's claims, which of its true differences each one tells."""


async def ask_by_name(
    judge: Judge, questions: Mapping[Name, JudgeRequest[Item]]
) -> dict[Name, Judgement[Item]]:
    """What a judge makes of each question, under the question's name."""
    found = await judge.ask(list(questions.values()))
    return dict(zip(questions, found, strict=True))


def first_item(judgement: Judgement[Item] | None) -> Item | None:
    """The only label of a question that asks for one; None where there is none.

    Example:
        >>> first_item(Judgement(("right",))), first_item(Judgement(None, "refused"))
        ('right', None)
    """
    return judgement.items[0] if judgement is not None and judgement.items else None
